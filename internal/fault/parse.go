package fault

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"rnic/internal/roce"
)

// ErrSpec is wrapped by every error of Parse.
var ErrSpec = errors.New("bad fault specification")

const (
	maxReorderDepth = 1024
	maxDelay        = time.Minute
	maxListed       = 1024 // values of nth, of op and of psn, each
)

// Parse reads a fault specification: comma-separated rules, each at most once unless it says so.
//
//	drop=1%            rate of packets that are lost
//	dup=0.1%           rate of packets that arrive twice
//	reorder=2%[:4]     rate of packets that later ones overtake, and how many at most
//	corrupt=0.5%       rate of packets in which one bit is flipped
//	delay=5%:1ms-3ms   rate of packets that are late, and by how much (or delay=5%:2ms)
//	ecn=5%             rate of packets that are marked (RFC 3168), if they are ECN capable
//	nth=3              drop exactly the third packet; repeatable
//	op=RC_ACKNOWLEDGE  limit the rules to an opcode; repeatable
//	psn=0x1005         limit the rules to a packet sequence number; repeatable
//	seed=7             where the decisions start from
//
// The empty string has no faults. An error is one line, says which rule is wrong and what it
// should be, and wraps ErrSpec.
func Parse(text string) (Spec, error) {
	var s Spec
	if strings.TrimSpace(text) == "" {
		return s, nil
	}
	seen := map[string]bool{}
	for rule := range strings.SplitSeq(text, ",") {
		rule = strings.TrimSpace(rule)
		key, value, ok := strings.Cut(rule, "=")
		parse := rules[key]
		switch {
		case !ok || parse == nil:
			return Spec{}, ruleError(rule, "want one of drop=, dup=, reorder=, corrupt=, delay=, ecn=, nth=, op=, psn= and seed=")
		case seen[key] && key != "nth" && key != "op" && key != "psn":
			return Spec{}, ruleError(rule, key+"= was given before")
		}
		seen[key] = true
		if want := parse(&s, value); want != "" {
			return Spec{}, ruleError(rule, want)
		}
	}
	if (len(s.Ops) > 0 || len(s.PSNs) > 0) && !s.Active() {
		return Spec{}, fmt.Errorf("%w: op= and psn= only limit other rules: add one, such as drop=100%%", ErrSpec)
	}
	return s, nil
}

func ruleError(rule, want string) error { return fmt.Errorf("%w: %q: %s", ErrSpec, rule, want) }

// rules read the value of a rule; what they return, unless it is empty, says what they wanted.
var rules = map[string]func(s *Spec, value string) (want string){
	"drop":    func(s *Spec, value string) string { return parseRate(&s.Drop, value) },
	"dup":     func(s *Spec, value string) string { return parseRate(&s.Duplicate, value) },
	"corrupt": func(s *Spec, value string) string { return parseRate(&s.Corrupt, value) },
	"ecn":     func(s *Spec, value string) string { return parseRate(&s.Mark, value) },
	"reorder": parseReorder,
	"delay":   parseDelay,
	"nth":     parseNth,
	"op":      parseOp,
	"psn":     parsePSN,
	"seed":    parseSeed,
}

// parseRate reads a percentage.
func parseRate(rate *float64, value string) string {
	const want = "want a rate from 0% to 100%, such as 1%"
	digits, ok := strings.CutSuffix(value, "%")
	if !ok || strings.Trim(digits, "0123456789.") != "" {
		return want
	}
	// Shifting the decimal exponent, unlike dividing, gives the number nearest to what was written.
	r, err := strconv.ParseFloat(digits+"e-2", 64)
	if err != nil || r > 1 {
		return want
	}
	*rate = r
	return ""
}

func parseReorder(s *Spec, value string) string {
	rate, depth, hasDepth := strings.Cut(value, ":")
	if want := parseRate(&s.Reorder, rate); want != "" {
		return want
	}
	n := uint64(0)
	if hasDepth {
		var ok bool
		if n, ok = parseUint(depth, maxReorderDepth); !ok || n == 0 {
			return fmt.Sprintf("want a number of packets from 1 to %d after the colon, such as reorder=1%%:%d", maxReorderDepth, DefaultReorderDepth)
		}
	}
	if s.Reorder > 0 {
		s.ReorderDepth = int(n)
	}
	return ""
}

func parseDelay(s *Spec, value string) string {
	rate, times, _ := strings.Cut(value, ":")
	if want := parseRate(&s.Delay, rate); want != "" {
		return want
	}
	from, to, isRange := strings.Cut(times, "-")
	if !isRange {
		to = from
	}
	least, err1 := time.ParseDuration(from)
	most, err2 := time.ParseDuration(to)
	if err1 != nil || err2 != nil || least < 0 || least > most || most > maxDelay {
		return fmt.Sprintf("want a time or a range of times up to %v after the colon, such as delay=5%%:1ms-3ms", maxDelay)
	}
	if s.Delay > 0 {
		s.DelayMin, s.DelayMax = least, most
	}
	return ""
}

func parseNth(s *Spec, value string) string {
	n, ok := parseUint(value, 1<<63)
	if !ok || n == 0 {
		return "want the number of a packet, from 1"
	}
	return list(&s.Nth, n)
}

func parseOp(s *Spec, value string) string {
	op, ok := roce.ParseOpcode(value)
	if !ok {
		return "want the name of an opcode, such as " + roce.RCWriteFirst.String() + " or " + roce.RCAck.String()
	}
	return list(&s.Ops, op)
}

func parsePSN(s *Spec, value string) string {
	n, ok := parseUint(value, roce.PSNMask)
	if !ok {
		return fmt.Sprintf("want a packet sequence number from 0 to %#x", roce.PSNMask)
	}
	return list(&s.PSNs, roce.PSN(n))
}

func parseSeed(s *Spec, value string) string {
	n, ok := parseUint(value, 1<<64-1)
	if !ok {
		return "want a whole number of 64 bits"
	}
	s.Seed = n
	return ""
}

// list adds v unless it is there.
func list[T comparable](to *[]T, v T) string {
	if slices.Contains(*to, v) {
		return ""
	}
	if len(*to) == maxListed {
		return fmt.Sprintf("at most %d of these", maxListed)
	}
	*to = append(*to, v)
	return ""
}

// parseUint reads a decimal number, or a hexadecimal one after 0x, up to most.
func parseUint(value string, most uint64) (uint64, bool) {
	base := 10
	if hex, ok := strings.CutPrefix(value, "0x"); ok {
		base, value = 16, hex
	}
	n, err := strconv.ParseUint(value, base, 64)
	return n, err == nil && n <= most
}

// String prints s so that Parse reads it back.
func (s Spec) String() string {
	var out []string
	rate := func(key string, r float64, rest string) {
		if r > 0 {
			out = append(out, key+"="+percent(r)+rest)
		}
	}
	depth, delay := "", ":"+s.DelayMin.String()
	if s.ReorderDepth > 0 {
		depth = ":" + strconv.Itoa(s.ReorderDepth)
	}
	if s.DelayMax != s.DelayMin {
		delay += "-" + s.DelayMax.String()
	}
	rate("drop", s.Drop, "")
	rate("dup", s.Duplicate, "")
	rate("reorder", s.Reorder, depth)
	rate("corrupt", s.Corrupt, "")
	rate("delay", s.Delay, delay)
	rate("ecn", s.Mark, "")
	for _, n := range s.Nth {
		out = append(out, "nth="+strconv.FormatUint(n, 10))
	}
	for _, op := range s.Ops {
		out = append(out, "op="+op.String())
	}
	for _, psn := range s.PSNs {
		out = append(out, fmt.Sprintf("psn=%#x", uint32(psn)))
	}
	if s.Seed != 0 {
		out = append(out, "seed="+strconv.FormatUint(s.Seed, 10))
	}
	return strings.Join(out, ",")
}

// percent prints a rate by moving the point of its shortest decimal form, which loses nothing.
func percent(rate float64) string {
	whole, part, _ := strings.Cut(strconv.FormatFloat(rate, 'f', -1, 64), ".")
	for len(part) < 2 {
		part += "0"
	}
	whole = strings.TrimLeft(whole+part[:2], "0")
	if whole == "" {
		whole = "0"
	}
	if part = part[2:]; part != "" {
		whole += "." + part
	}
	return whole + "%"
}

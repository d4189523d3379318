package fault

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrSpec is wrapped by every error of Parse.
var ErrSpec = errors.New("bad fault specification")

const (
	maxReorderDepth = 1024
	maxBurst        = 1 << 20
	maxDelay        = time.Minute
	maxTime         = 24 * time.Hour // of what lasts
	maxListed       = 1024           // values of nth, of op, of psn, ..., each
)

// Parse reads a fault specification: comma-separated rules, each at most once unless it says so.
// What goes wrong:
//
//	drop=1%            rate of packets that are lost
//	burst=5            each drop takes so many packets in a row
//	dup=0.1%           rate of packets that arrive twice
//	reorder=2%[:4]     rate of packets that later ones overtake, and how many at most
//	corrupt=0.5%       rate of packets in which one bit is flipped
//	delay=5%:1ms-3ms   rate of packets that are late, and by how much (or delay=5%:2ms; delay=2ms is all)
//	jitter=500us       all are late, by up to so much, and stay in order
//	bandwidth=10Mbit   bits a second of IP packets, and the bytes that may wait (bandwidth=1Gbit:256KB)
//	ecn=5%             rate of packets that are marked (RFC 3168), if they are ECN capable
//	blackhole=2s       all packets are lost for so long
//	down=500ms         the port is down for so long
//	rnr=1%[:0.64ms]    rate of requests that are refused with an RNR NAK, and its timer (rnr=0.64ms is all)
//	nak=1%:sequence    rate of requests that are refused with a NAK: sequence, invalid-request, remote-access,
//	                   remote-operational or invalid-rd (nak=sequence is all)
//	completion-delay=5%:1ms-3ms  rate of completions that are late, and by how much
//	nth=3              drop exactly the third packet; repeatable, and a range (nth=3-5). With blackhole=, down=, rnr= and nak=:
//	                   the packet that begins it, or that is refused
//
// Which packets, and when:
//
//	op=RC_ACKNOWLEDGE  limit the rules to an opcode, or to a group of them (SEND, WRITE, READ, READ_RESPONSE, ATOMIC,
//	                   ACK, REQUEST, RESPONSE); repeatable
//	psn=0x1005         limit them to a packet sequence number, or a range (psn=0x10-0x20); repeatable
//	qp=0x12            limit them to a queue pair of this NIC, or to the n-th that is seen (qp=#1); repeatable
//	peer=192.0.2.1     limit them to a peer, or a network (peer=192.0.2.0/24); repeatable
//	aeth=rnr           limit them to acknowledgements of a kind: ack, rnr or nak; repeatable
//	skip=9             leave the first packets of these alone
//	every=10           of the others, take each tenth only
//	times=1            and be over after so many faults
//	after=2s           begin so long after the rule was given
//	for=3s             and end after that time
//	seed=7             where the decisions start from
//
// The empty string has no faults. An error is one line, says which rule is wrong and what it
// should be, and wraps ErrSpec.
func Parse(text string) (Spec, error) {
	s, err := parse(text)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return Spec{}, err
	}
	return s, nil
}

// ParseRule reads a specification with its direction: "[send:|recv:|both:]SPEC". Without, it is for what is sent.
func ParseRule(text string) (Spec, error) {
	d, rest := cutDirection(strings.TrimSpace(text))
	s, err := Parse(rest)
	s.Direction = d
	return s, err
}

// ParseRules reads several.
func ParseRules(texts []string) ([]Spec, error) {
	var list []Spec
	for _, text := range texts {
		s, err := ParseRule(text)
		if err == nil && strings.TrimSpace(text) == "" {
			err = errors.New("an empty fault specification: drop=1% is one")
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

// ParseSelection reads which packets are meant, with their direction: the rules of Parse that limit others, alone.
func ParseSelection(text string) (Spec, error) {
	d, rest := cutDirection(strings.TrimSpace(text))
	s, err := parse(rest)
	if err != nil {
		return Spec{}, err
	}
	if s.Active() || s.Burst > 0 || s.Seed != 0 || s.Skip > 0 || s.Every > 0 || s.Times > 0 || s.After > 0 || s.For > 0 {
		return Spec{}, fmt.Errorf("%w: %q: only op=, psn=, qp=, peer= and aeth= choose packets to wait for", ErrSpec, text)
	}
	s.Direction = d
	return s, nil
}

func cutDirection(text string) (Direction, string) {
	for _, d := range []Direction{Send, Recv, Both} {
		if rest, ok := strings.CutPrefix(text, d.String()+":"); ok {
			return d, rest
		}
	}
	return Send, text
}

func parse(text string) (Spec, error) {
	var s Spec
	if strings.TrimSpace(text) == "" {
		return s, nil
	}
	seen := map[string]bool{}
	for rule := range strings.SplitSeq(text, ",") {
		rule = strings.TrimSpace(rule)
		key, value, ok := strings.Cut(rule, "=")
		r, known := rules[key]
		switch {
		case !ok || !known:
			return Spec{}, ruleError(rule, "want one of "+keys)
		case seen[key] && !r.repeatable:
			return Spec{}, ruleError(rule, key+"= was given before")
		}
		seen[key] = true
		if want := r.parse(&s, value); want != "" {
			return Spec{}, ruleError(rule, want)
		}
	}
	if seen["rnr"] && seen["nak"] {
		return Spec{}, fmt.Errorf("%w: rnr= and nak= exclude each other: give two specifications", ErrSpec)
	}
	return s, nil
}

// check refuses combinations that would do nothing, or not what they say.
func (s *Spec) check() error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrSpec, what) }
	switch {
	case (len(s.Ops) > 0 || len(s.PSNs) > 0) && !s.Active():
		return bad("op= and psn= only limit other rules: add one, such as drop=100%")
	case (s.selective() || s.Burst > 0 || s.Skip > 0 || s.Every > 0 || s.Times > 0 || s.After > 0 || s.For > 0) && !s.Active():
		return bad("no rule says what goes wrong: add one, such as drop=100%")
	case s.Burst > 0 && s.Drop == 0 && len(s.Nth) == 0:
		return bad("burst= says how many packets each drop takes: add drop= or nth=")
	case s.Completion > 0 && (s.packets() || s.Down > 0 || len(s.Ops) > 0 || len(s.PSNs) > 0 || len(s.PSNRanges) > 0 || len(s.Peers) > 0 || len(s.Acks) > 0):
		return bad("completion-delay= is about completions, not packets: of the others only qp=, skip=, every=, times=, after=, for= and seed= go with it; give two specifications")
	case s.Down > 0 && (s.Blackhole > 0 || s.NAK > 0 || s.faultsAtRates()):
		return bad("down= takes the whole port down: give it a specification of its own")
	case s.Down > 0 && s.For > 0, s.Blackhole > 0 && s.For > 0:
		return bad("for= and the time of blackhole= or down= exclude each other")
	case s.Blackhole > 0 && (s.NAK > 0 || s.faultsAtRates()):
		return bad("blackhole= loses every packet: give other rules a specification of their own")
	}
	return nil
}

func (s *Spec) faultsAtRates() bool {
	return s.Drop+s.Duplicate+s.Reorder+s.Corrupt+s.Delay+s.Mark > 0 || s.Jitter > 0 || s.Bandwidth > 0
}

func ruleError(rule, want string) error { return fmt.Errorf("%w: %q: %s", ErrSpec, rule, want) }

// rule reads a value; what parse returns, unless it is empty, says what it wanted.
type rule struct {
	repeatable bool
	parse      func(s *Spec, value string) (want string)
}

// keys are those of rules, in the order in which they are told of.
const keys = "drop=, dup=, reorder=, corrupt=, delay=, ecn=, nth=, op=, psn=, seed=, burst=, jitter=, bandwidth=, blackhole=, down=, rnr=, nak=, " +
	"completion-delay=, qp=, peer=, aeth=, skip=, every=, times=, after= and for="

var rules = map[string]rule{
	"drop":             {parse: func(s *Spec, value string) string { return parseRate(&s.Drop, value) }},
	"dup":              {parse: func(s *Spec, value string) string { return parseRate(&s.Duplicate, value) }},
	"corrupt":          {parse: func(s *Spec, value string) string { return parseRate(&s.Corrupt, value) }},
	"ecn":              {parse: func(s *Spec, value string) string { return parseRate(&s.Mark, value) }},
	"reorder":          {parse: parseReorder},
	"delay":            {parse: parseDelay},
	"jitter":           {parse: func(s *Spec, value string) string { return parseTime(&s.Jitter, value, maxDelay) }},
	"bandwidth":        {parse: parseBandwidth},
	"burst":            {parse: parseBurst},
	"blackhole":        {parse: func(s *Spec, value string) string { return parseTime(&s.Blackhole, value, maxTime) }},
	"down":             {parse: func(s *Spec, value string) string { return parseTime(&s.Down, value, maxTime) }},
	"rnr":              {parse: parseRNR},
	"nak":              {parse: parseNAK},
	"completion-delay": {parse: parseCompletion},
	"nth":              {true, parseNth},
	"op":               {true, parseOp},
	"psn":              {true, parsePSN},
	"qp":               {true, parseQP},
	"peer":             {true, parsePeer},
	"aeth":             {true, parseAETH},
	"skip":             {parse: func(s *Spec, value string) string { return parseCount(&s.Skip, value) }},
	"every":            {parse: func(s *Spec, value string) string { return parseCount(&s.Every, value) }},
	"times":            {parse: func(s *Spec, value string) string { return parseCount(&s.Times, value) }},
	"after":            {parse: func(s *Spec, value string) string { return parseTime(&s.After, value, maxTime) }},
	"for":              {parse: func(s *Spec, value string) string { return parseTime(&s.For, value, maxTime) }},
	"seed":             {parse: parseSeed},
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

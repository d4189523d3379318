package fault

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rnic/internal/roce"
)

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

// parseTime reads a time that is more than nothing.
func parseTime(to *time.Duration, value string, most time.Duration) string {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 || d > most {
		return fmt.Sprintf("want a time up to %v, such as 500ms", most)
	}
	*to = d
	return ""
}

func parseCount(to *uint64, value string) string {
	n, ok := parseUint(value, 1<<63)
	if !ok || n == 0 {
		return "want a number of packets, from 1"
	}
	*to = n
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
	return parseTimes("delay", value, &s.Delay, &s.DelayMin, &s.DelayMax)
}

func parseCompletion(s *Spec, value string) string {
	return parseTimes("completion-delay", value, &s.Completion, &s.CompletionMin, &s.CompletionMax)
}

// parseTimes reads [RATE:]TIME[-TIME].
func parseTimes(key, value string, rate *float64, from, to *time.Duration) string {
	share, times, _ := strings.Cut(value, ":")
	least, most, err := parseRange(times)
	if !strings.Contains(value, ":") && !strings.HasSuffix(value, "%") {
		if least, most, err = parseRange(value); err {
			return fmt.Sprintf("want a rate from 0%% to 100%%, such as %s=5%%:1ms-3ms, or a time up to %v, such as %s=1ms", key, maxDelay, key)
		}
		share = "100%"
	}
	if want := parseRate(rate, share); want != "" {
		return want
	}
	if err {
		return fmt.Sprintf("want a time or a range of times up to %v after the colon, such as %s=5%%:1ms-3ms", maxDelay, key)
	}
	if *rate > 0 {
		*from, *to = least, most
	}
	return ""
}

func parseRange(times string) (least, most time.Duration, bad bool) {
	from, to, isRange := strings.Cut(times, "-")
	if !isRange {
		to = from
	}
	least, err1 := time.ParseDuration(from)
	most, err2 := time.ParseDuration(to)
	return least, most, err1 != nil || err2 != nil || least < 0 || least > most || most > maxDelay
}

// bandwidthUnits are longest first where one ends in another.
var bandwidthUnits = []struct {
	name string
	bits float64
}{{"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"kB", 8e3}, {"MB", 8e6}, {"GB", 8e9}, {"bit", 1}}

const (
	minBandwidth = 1000
	maxBandwidth = 1_000_000_000_000
	maxQueue     = 1 << 30
)

func parseBandwidth(s *Spec, value string) string {
	const want = "want bits or bytes a second from 1kbit to 1000Gbit, such as 10Mbit, 1Gbit or 100MB, and perhaps the bytes that may wait, as 10Mbit:256KB"
	rate, queue, hasQueue := strings.Cut(value, ":")
	rate = strings.TrimSuffix(rate, "/s")
	for _, u := range bandwidthUnits {
		digits, ok := strings.CutSuffix(rate, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(digits, 64)
		if b := f * u.bits; err != nil || math.IsNaN(b) || b < minBandwidth || b > maxBandwidth || strings.Trim(digits, "0123456789.") != "" {
			return want
		}
		s.Bandwidth = uint64(f * u.bits)
		break
	}
	if s.Bandwidth == 0 {
		return want
	}
	if !hasQueue {
		return ""
	}
	unit := uint64(1)
	for _, u := range []struct {
		name string
		size uint64
	}{{"KB", 1000}, {"kB", 1000}, {"MB", 1e6}, {"KiB", 1 << 10}, {"MiB", 1 << 20}} {
		if digits, ok := strings.CutSuffix(queue, u.name); ok {
			unit, queue = u.size, digits
		}
	}
	n, ok := parseUint(queue, maxQueue/unit)
	if !ok || n == 0 {
		return want
	}
	s.Queue = int(n * unit)
	return ""
}

func parseBurst(s *Spec, value string) string {
	n, ok := parseUint(value, maxBurst)
	if !ok || n == 0 {
		return fmt.Sprintf("want a number of packets from 1 to %d", maxBurst)
	}
	s.Burst = int(n)
	return ""
}

// defaultRNR is the code of the timer of rnr= without one: 0.64 ms.
const defaultRNR = 12

func parseRNR(s *Spec, value string) string {
	const want = "want a rate, a time from 10us to 655.36ms, or both, such as rnr=10%:0.64ms"
	share, timer, both := strings.Cut(value, ":")
	code := uint8(defaultRNR)
	if !both && !strings.HasSuffix(value, "%") {
		share, timer, both = "100%", value, true
	}
	if both {
		d, err := time.ParseDuration(timer)
		var ok bool
		if code, ok = rnrCode(d); err != nil || !ok {
			return want
		}
	}
	if parseRate(&s.NAK, share) != "" {
		return want
	}
	if s.NAK > 0 {
		s.Syndrome = roce.RNRSyndrome(code)
	}
	return ""
}

// rnrCode is the code of the shortest RNR timer of the table that is not shorter than d.
func rnrCode(d time.Duration) (code uint8, ok bool) {
	best := int64(math.MaxInt64)
	for c := range uint8(32) {
		if t := roce.RNRTimerNanos(c); t >= int64(d) && t < best {
			code, best, ok = c, t, true
		}
	}
	return code, ok && d > 0
}

var nakNames = []struct {
	name string
	s    roce.Syndrome
}{
	{"sequence", roce.NAKSequence}, {"invalid-request", roce.NAKInvalidRequest}, {"remote-access", roce.NAKRemoteAccess},
	{"remote-operational", roce.NAKRemoteOperational}, {"invalid-rd", roce.NAKInvalidRDRequest},
}

func parseNAK(s *Spec, value string) string {
	const want = "want sequence, invalid-request, remote-access, remote-operational or invalid-rd, and perhaps a rate before it, such as nak=1%:sequence"
	share, name, both := strings.Cut(value, ":")
	if !both {
		share, name = "100%", value
	}
	for _, n := range nakNames {
		if n.name == name && parseRate(&s.NAK, share) == "" {
			if s.NAK > 0 {
				s.Syndrome = n.s
			}
			return ""
		}
	}
	return want
}

func parseNth(s *Spec, value string) string {
	const want = "want the number of a packet, from 1, or a range, such as nth=3-5"
	from, to, isRange := strings.Cut(value, "-")
	if !isRange {
		to = from
	}
	first, ok1 := parseUint(from, 1<<63)
	last, ok2 := parseUint(to, 1<<63)
	switch {
	case !ok1 || !ok2 || first == 0 || last < first:
		return want
	case last-first >= maxListed:
		return fmt.Sprintf("at most %d of these: skip=, times= and drop=100%% make longer ranges", maxListed)
	}
	for n := first; ; n++ {
		if bad := list(&s.Nth, n); bad != "" || n == last {
			return bad
		}
	}
}

// opGroups are names of several opcodes each.
var opGroups = map[string]func(i *roce.OpInfo) bool{
	"SEND":          func(i *roce.OpInfo) bool { return i.Kind == roce.KindSend },
	"WRITE":         func(i *roce.OpInfo) bool { return i.Kind == roce.KindWrite },
	"READ":          func(i *roce.OpInfo) bool { return i.Kind == roce.KindReadRequest },
	"READ_RESPONSE": func(i *roce.OpInfo) bool { return i.Kind == roce.KindReadResponse },
	"ATOMIC":        func(i *roce.OpInfo) bool { return i.Kind == roce.KindCmpSwap || i.Kind == roce.KindFetchAdd },
	"ACK":           func(i *roce.OpInfo) bool { return i.Kind == roce.KindAck },
	"REQUEST":       func(i *roce.OpInfo) bool { return i.Request },
	"RESPONSE": func(i *roce.OpInfo) bool {
		return i.HasAETH || i.Kind == roce.KindReadResponse
	},
}

func parseOp(s *Spec, value string) string {
	if op, ok := roce.ParseOpcode(value); ok {
		return list(&s.Ops, op)
	}
	in := opGroups[strings.ToUpper(strings.ReplaceAll(value, "-", "_"))]
	if in == nil {
		return "want the name of an opcode, such as " + roce.RCWriteFirst.String() + " or " + roce.RCAck.String() +
			", or one of SEND, WRITE, READ, READ_RESPONSE, ATOMIC, ACK, REQUEST and RESPONSE"
	}
	for _, op := range groupOps(in) {
		list(&s.Ops, op) // fits: there are 256
	}
	return ""
}

// groupNames are the keys of opGroups, in the order in which they are told of.
var groupNames = []string{"SEND", "WRITE", "READ", "READ_RESPONSE", "ATOMIC", "ACK", "REQUEST", "RESPONSE"}

// groupOps are the opcodes of a group, ascending.
func groupOps(in func(i *roce.OpInfo) bool) (ops []roce.Opcode) {
	for op := range 256 {
		if i := roce.Opcode(op).Info(); i != nil && in(i) {
			ops = append(ops, i.Opcode)
		}
	}
	return ops
}

func parsePSN(s *Spec, value string) string {
	from, to, isRange := strings.Cut(value, "-")
	first, ok := parseUint(from, roce.PSNMask)
	last, ok2 := parseUint(to, roce.PSNMask)
	switch {
	case ok && !isRange:
		return list(&s.PSNs, roce.PSN(first))
	case !ok || !ok2:
		return fmt.Sprintf("want a packet sequence number from 0 to %#x, or a range, such as psn=0x10-0x20", roce.PSNMask)
	}
	return list(&s.PSNRanges, PSNRange{roce.PSN(first), roce.PSN(last)})
}

// maxOrdinals is how many queue pairs are told apart by the order in which they were seen.
const maxOrdinals = 64

func parseQP(s *Spec, value string) string {
	if digits, ok := strings.CutPrefix(value, "#"); ok {
		n, ok := parseUint(digits, maxOrdinals)
		if !ok || n == 0 {
			return fmt.Sprintf("want #1 to #%d: the n-th queue pair that sends or receives", maxOrdinals)
		}
		return list(&s.QPs, QueuePair{uint32(n), true})
	}
	n, ok := parseUint(value, 0xffffff)
	if !ok || n == 0 {
		return "want the number of a queue pair, from 1 to 0xffffff, or #1 for the first that sends or receives"
	}
	return list(&s.QPs, QueuePair{Number: uint32(n)})
}

func parsePeer(s *Spec, value string) string {
	p, err := netip.ParsePrefix(value)
	if a, err2 := netip.ParseAddr(value); err2 == nil {
		a = a.Unmap().WithZone("")
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || p.Addr().Is4In6() {
		return "want an IP address or a network, such as 192.0.2.1 or 192.0.2.0/24"
	}
	return list(&s.Peers, p.Masked())
}

var aethNames = []string{roce.SyndromeACK: "ack", roce.SyndromeRNRNAK: "rnr", roce.SyndromeNAK: "nak"}

func parseAETH(s *Spec, value string) string {
	i := slices.Index(aethNames, value)
	if value == "" || i < 0 {
		return "want ack, rnr or nak"
	}
	return list(&s.Acks, roce.SyndromeKind(i))
}

func parseSeed(s *Spec, value string) string {
	n, ok := parseUint(value, 1<<64-1)
	if !ok {
		return "want a whole number of 64 bits"
	}
	s.Seed = n
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

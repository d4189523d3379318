package fault

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"rnic/internal/roce"
)

// printer collects the rules of a specification.
type printer []string

func (p *printer) add(key, value string) { *p = append(*p, key+"="+value) }

func (p *printer) rate(key string, r float64, rest string) {
	if r > 0 {
		p.add(key, percent(r)+rest)
	}
}

func (p *printer) time(key string, d time.Duration) {
	if d > 0 {
		p.add(key, d.String())
	}
}

func (p *printer) count(key string, n uint64) {
	if n > 0 {
		p.add(key, strconv.FormatUint(n, 10))
	}
}

// String prints s so that ParseRule reads it back, and Parse if it is for what is sent.
func (s Spec) String() string {
	var p printer
	s.printFaults(&p)
	s.printSelection(&p)
	p.count("skip", s.Skip)
	p.count("every", s.Every)
	p.count("times", s.Times)
	p.time("after", s.After)
	p.time("for", s.For)
	p.count("seed", s.Seed)
	out := strings.Join(p, ",")
	if s.Direction != Send {
		out = s.Direction.String() + ":" + out
	}
	return out
}

func (s *Spec) printFaults(p *printer) {
	depth := ""
	if s.ReorderDepth > 0 {
		depth = ":" + strconv.Itoa(s.ReorderDepth)
	}
	p.rate("drop", s.Drop, "")
	p.count("burst", uint64(max(s.Burst, 0)))
	p.rate("dup", s.Duplicate, "")
	p.rate("reorder", s.Reorder, depth)
	p.rate("corrupt", s.Corrupt, "")
	p.rate("delay", s.Delay, ":"+timeRange(s.DelayMin, s.DelayMax))
	p.time("jitter", s.Jitter)
	if s.Bandwidth > 0 {
		rest := "bit"
		if s.Queue > 0 {
			rest += ":" + strconv.Itoa(s.Queue)
		}
		p.add("bandwidth", strconv.FormatUint(s.Bandwidth, 10)+rest)
	}
	p.rate("ecn", s.Mark, "")
	p.time("blackhole", s.Blackhole)
	p.time("down", s.Down)
	if s.Syndrome.Kind() == roce.SyndromeRNRNAK {
		p.rate("rnr", s.NAK, ":"+time.Duration(roce.RNRTimerNanos(s.Syndrome.Value())).String())
	}
	for _, n := range nakNames {
		if n.s == s.Syndrome {
			p.rate("nak", s.NAK, ":"+n.name)
		}
	}
	p.rate("completion-delay", s.Completion, ":"+timeRange(s.CompletionMin, s.CompletionMax))
}

func (s *Spec) printSelection(p *printer) {
	for _, n := range s.Nth {
		p.count("nth", n)
	}
	for ops := s.Ops; len(ops) > 0; {
		name, n := groupAt(ops)
		p.add("op", name)
		ops = ops[n:]
	}
	for _, psn := range s.PSNs {
		p.add("psn", fmt.Sprintf("%#x", uint32(psn)))
	}
	for _, r := range s.PSNRanges {
		p.add("psn", fmt.Sprintf("%#x-%#x", uint32(r.First), uint32(r.Last)))
	}
	for _, q := range s.QPs {
		if q.Ordinal {
			p.add("qp", fmt.Sprintf("#%d", q.Number))
		} else {
			p.add("qp", fmt.Sprintf("%#x", q.Number))
		}
	}
	for _, a := range s.Peers {
		if a.IsSingleIP() {
			p.add("peer", a.Addr().String())
		} else {
			p.add("peer", a.String())
		}
	}
	for _, k := range s.Acks {
		p.add("aeth", aethNames[k])
	}
}

// groupAt names what a list of opcodes begins with: the longest group that is there as a whole, or an opcode.
func groupAt(ops []roce.Opcode) (name string, n int) {
	name, n = ops[0].String(), 1
	for _, g := range groupNames {
		if all := groupOps(opGroups[g]); len(all) > n && len(ops) >= len(all) && slices.Equal(ops[:len(all)], all) {
			name, n = g, len(all)
		}
	}
	return name, n
}

func timeRange(from, to time.Duration) string {
	if from == to {
		return from.String()
	}
	return from.String() + "-" + to.String()
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

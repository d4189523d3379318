package explain

import (
	"fmt"
	"slices"
	"strings"

	"rnic/internal/roce"
)

// A packet that comes behind later ones was overtaken, or lost and sent again. What it was shows in its IPv4 identification where the sender
// counts, else in what happened: nobody sends again without a NAK, and so soon; and if the packet comes once more after a NAK, it was
// that NAK's, and the first was late.

// lateNanos is within what time a packet without a telling identification may be late: behind that, it was sent again.
const lateNanos = 1_000_000

// latePackets is by how many in a row that may be: where more are missing, the capture has left them out.
const latePackets = 64

// late is a packet that was overtaken.
type late struct {
	psn        roce.PSN
	at, behind ref
}

// overtakenBy judges a request that leaves the gap g: whether it is the original, which was overtaken.
func (f *flow) overtakenBy(p *Packet, g *gap) bool {
	if strings.HasPrefix(p.Comment, "retransmitted") {
		return false
	}
	if id, ok := p.ident(); ok && f.idents.counting() {
		return int16(id-g.id) < 0
	}
	return g.nak.n == 0 && p.Nanos-g.at.nanos < lateNanos && roce.Diff(g.to, g.from) <= latePackets
}

// wasLate notes a packet that was overtaken.
func (r *requester) wasLate(psn roce.PSN, at, behind ref) {
	r.reordered.addPSN(at, psn)
	if len(r.lates) == keptLosses { // the first few are for the report, the latest for what comes
		r.lates = slices.Delete(r.lates, keptRefs, keptRefs+1)
	}
	r.lates = append(r.lates, late{psn, at, behind})
	for i := range r.losses {
		if l := &r.losses[i]; l.psn == psn && l.late.n == 0 && l.again.n == 0 {
			l.late = at
		}
	}
}

// lateOne is when a packet came late, which a NAK asks for now. It was not asked for before.
func (r *requester) lateOne(psn roce.PSN) ref {
	for i := len(r.lates) - 1; i >= 0; i-- {
		if r.lates[i].psn == psn {
			return r.lates[i].at
		}
	}
	return ref{}
}

// overtook tells whether a packet was seen before one that it had overtaken: the responder did not take it, and asks for it.
func (r *requester) overtook(psn roce.PSN, seen ref) ref {
	for i := len(r.lates) - 1; i >= 0; i-- {
		if l := &r.lates[i]; roce.Diff(psn, l.psn) > 0 && seen.n != 0 && seen.n < l.at.n {
			return l.at
		}
	}
	return ref{}
}

// asks notes that a NAK asks for a packet of a gap.
func (r *requester) asks(psn roce.PSN, at ref) {
	if g := r.gapOf(psn); g != nil && g.nak.n == 0 {
		g.nak = at
	}
}

// gapOf is the gap that a PSN is in; nil: none.
func (r *requester) gapOf(psn roce.PSN) *gap {
	for i := range r.gaps {
		if g := &r.gaps[i]; roce.Diff(psn, g.from) >= 0 && roce.Diff(g.to, psn) > 0 {
			return g
		}
	}
	return nil
}

// outOfOrder says which packets were overtaken, and what came of it.
func (a *Analyzer) outOfOrder(f *flow, add adder) {
	asked, inferred := f.pastLate, 0
	for i := range f.losses {
		l := &f.losses[i]
		if l.late.n == 0 {
			continue
		}
		if asked++; !l.overtook && f.lateOne(l.psn).n == 0 {
			inferred++
		}
	}
	n := f.reordered.count + inferred
	if n == 0 {
		return
	}
	at := refs{count: n}
	var parts []string
	for i, l := range f.lates {
		at.list = append(at.list, l.behind.n, l.at.n)
		if i < 4 {
			parts = append(parts, fmt.Sprintf("PSN %d came in packet %d, behind packet %d, which was sent later", uint32(l.psn), l.at.n, l.behind.n))
		}
	}
	for _, l := range f.losses {
		if l.late.n == 0 {
			continue
		}
		at.list = append(at.list, l.nak.n)
		if !l.overtook && f.lateOne(l.psn).n == 0 && len(parts) < 4 {
			parts = append(parts, fmt.Sprintf("PSN %d was asked for in packet %d and acknowledged in packet %d, before it was sent again", uint32(l.psn), l.nak.n, l.late.n))
		}
	}
	text := fmt.Sprintf("%s overtaken by later ones on the way, not lost: %s.", plural(n, "packet"), strings.Join(parts, "; "))
	severity := Info
	switch {
	case f.key.transport == roce.TransportUC:
		severity = Warning
		text += " An unreliable connection drops messages whose packets come in another order."
	case asked > 0:
		severity = Warning
		text += fmt.Sprintf(" The responder takes packets in their order only: it sent %s (PSN sequence error), and all from there on was sent again.", plural(asked, "NAK"))
	}
	add(CodeReordered, severity, &at, text, "Packets of one connection take several ways: look for links or switches that spread single packets (per-packet load balancing, adaptive routing), "+
		"for several queues or processors that forward them, and for delays that differ from packet to packet.")
}

// lostOnes are the losses of which it is not known that the packet was only late.
func (r *requester) lostOnes() []loss {
	return slices.DeleteFunc(slices.Clone(r.losses), func(l loss) bool { return l.late.n != 0 })
}

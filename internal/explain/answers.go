package explain

import (
	"math/bits"
	"slices"

	"rnic/internal/roce"
)

// answer takes a packet of the peer that answers this flow's requests.
func (f *flow) answer(p *Packet) {
	psn := p.BTH.PSN()
	upTo := psn.Add(1)
	if h, ok := p.aeth(); ok {
		switch s := h.Syndrome() & 0x7f; s.Kind() {
		case roce.SyndromeRNRNAK:
			f.notReady(p, psn, s)
			upTo = psn
		case roce.SyndromeNAK:
			f.refused(p, psn, s)
			upTo = psn
		case roce.SyndromeReserved:
			return
		}
	}
	f.acknowledged(p.ref(), upTo)
}

func (f *flow) acknowledged(at ref, upTo roce.PSN) {
	r := &f.requester
	if r.ackSeen && roce.Diff(upTo, r.acked) <= 0 {
		r.answeredTwice(upTo.Add(-1))
		return
	}
	if !r.ackSeen && r.started && roce.Diff(upTo, r.next) > 1<<20 {
		return
	}
	r.ackSeen, r.acked, r.ackedAt = true, upTo, at
	if r.quiet.tries > 0 && roce.Diff(upTo, r.quiet.psn) > 0 {
		// What follows it was not lost, without being sent again: so it was not either.
		r.quiet.late = r.quiet.late || r.quiet.tries == 1 && r.roundPSN == r.quiet.psn && roce.Diff(upTo, r.quiet.psn) > 1
		r.endSilence(at)
	}
	if r.rnrOpen && roce.Diff(upTo, r.rnrPSN) > 0 {
		r.rnrOpen = false
	}
	for i := range r.losses {
		if l := &r.losses[i]; l.done.n == 0 && roce.Diff(upTo, l.psn) > 0 {
			if l.done = at; l.again.n == 0 && l.late.n == 0 && l.passed { // it has come without being sent again
				l.late = at
			}
		}
	}
	for i := range r.sent {
		if s := &r.sent[i]; roce.Diff(upTo, s.psn) > 0 {
			f.biggest = max(f.biggest, s.size)
		}
	}
}

// answeredTwice: an acknowledgement came again. If what it acknowledges had been sent again, both have arrived.
func (r *requester) answeredTwice(psn roce.PSN) {
	for i := range r.losses {
		if n := len(r.silences); n > 0 && r.losses[i].psn == r.silences[n-1].psn {
			return // it was asked for, too
		}
	}
	if n := len(r.silences); n > 0 && r.silences[n-1].ended.n != 0 && roce.Diff(psn.Add(1), r.silences[n-1].psn) > 0 {
		r.silences[n-1].late = true
	}
}

func (f *flow) notReady(p *Packet, psn roce.PSN, s roce.Syndrome) {
	r := &f.requester
	if r.stale(psn) {
		return
	}
	r.rnr.addPSN(p.ref(), psn)
	r.rnrWait += roce.RNRTimerNanos(s.Value())
	if r.rnrOpen && r.rnrPSN == psn {
		r.rnrSame++
	} else {
		r.rnrSame = 1
	}
	r.rnrMost = max(r.rnrMost, r.rnrSame)
	r.rnrPSN, r.rnrOpen = psn, true
	r.nakPSN, r.nakFresh, r.nakAt = psn, true, p.ref()
	r.endSilence(p.ref())
}

func (f *flow) refused(p *Packet, psn roce.PSN, s roce.Syndrome) {
	r := &f.requester
	if r.stale(psn) {
		return
	}
	r.nakPSN, r.nakFresh, r.nakAt = psn, true, p.ref()
	r.endSilence(p.ref())
	if s != roce.NAKSequence {
		x := refusal{syndrome: s, psn: psn, at: p.ref()}
		x.packet, x.found = r.find(psn)
		if len(r.fatal) < keptRefusals {
			r.fatal = append(r.fatal, x)
		}
		return
	}
	r.seqNAKs.addPSN(p.ref(), psn)
	f.lacks(p, psn)
	if p.Op == roce.SelectiveAck {
		f.lackMore(p, psn)
	}
}

// stale tells of a NAK that an acknowledgement has overtaken, or a copy of one: requesters ignore it.
func (r *requester) stale(psn roce.PSN) bool { return r.ackSeen && roce.Diff(psn, r.acked) < 0 }

// lackMore takes the holes that a selective acknowledgement tells of behind the first.
func (f *flow) lackMore(p *Packet, psn roce.PSN) {
	have := p.Info.SACK(p.Headers).Map()
	top := 64 + bits.Len64(have[1])
	if have[1] == 0 {
		top = bits.Len64(have[0])
	}
	for i := range top {
		if have[i/64]>>(i%64)&1 == 0 {
			f.lacks(p, psn.Add(1+i))
		}
	}
}

// lacks notes that the responder lacks a packet.
func (f *flow) lacks(p *Packet, psn roce.PSN) {
	r := &f.requester
	r.settle(f, r.next)
	r.asks(psn, p.ref())
	for i := range r.losses {
		if l := &r.losses[i]; l.psn == psn && l.done.n == 0 {
			l.naks++
			return
		}
	}
	if len(r.losses) == keptLosses { // the first few are for the report, the latest for what comes
		if r.losses[keptRefs].late.n == 0 {
			r.pastLost++
		} else {
			r.pastLate++
		}
		r.losses = slices.Delete(r.losses, keptRefs, keptRefs+1)
	}
	l := loss{psn: psn, nak: p.ref(), naks: 1, early: !r.started || roce.Diff(psn, r.from) < 0}
	if s, ok := r.find(psn); ok {
		l.sent = s.at
	} else if s := f.seen(psn); s.n != 0 {
		l.sent = s
	}
	l.passed = l.sent.n != 0 || !l.early && r.gapOf(psn) == nil
	if r.roundAt.n > l.sent.n && r.rounds.count > 0 && roce.Diff(psn, r.roundFrom) >= 0 && (roce.Diff(r.roundPSN, psn) > 0 || l.sent.n != 0 && r.newestAt.n > r.rounds.last.n) { // all was sent again, but this did not come
		l.sent, l.passed, l.round = ref{}, false, true
	}
	if l.late = r.lateOne(psn); l.late.n == 0 {
		l.late = r.overtook(psn, l.sent)
		l.overtook = l.late.n != 0
	}
	r.losses = append(r.losses, l)
}

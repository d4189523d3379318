package explain

import (
	"slices"

	"rnic/internal/roce"
)

// round is the last time that sending went back.
type round struct {
	rounds    refs     // how often it did
	skipped   gap      // within the last round
	roundFrom roce.PSN // of the last round: its first packet, and its highest
	roundAt   ref
	roundPSN  roce.PSN
	roundDone bool // new ones follow it
}

// resend takes a packet that was sent before.
func (f *flow) resend(s sent) {
	f.resent.addPSN(s.at, s.psn)
	f.newRound(f, s)
}

// newRound notes that sending goes back, if it does.
func (r *requester) newRound(f *flow, s sent) {
	psn, at := s.psn, s.at
	if r.nakFresh && psn == r.nakPSN && r.skips(psn, at) { // of this round, and late, or the first of the next
		r.held = held{sent: s, on: true, round: true, behind: r.skipped.at}
		return
	}
	if r.sameRound(s) {
		return
	}
	r.beginRound(f, s)
}

// crossed tells whether the acknowledgement of what is sent again was on its way, and late: else it would have come long before.
func (r *requester) crossed(f *flow, s sent) bool {
	before, ok := r.find(s.psn)
	return ok && s.at.nanos-r.ackedAt.nanos < r.ackedAt.nanos-before.at.nanos
}

// skips tells whether the round has left a packet out, just now.
func (r *requester) skips(psn roce.PSN, at ref) bool {
	return r.skipped.at.n != 0 && roce.Diff(psn, r.skipped.from) >= 0 && roce.Diff(r.skipped.to, psn) > 0 && at.nanos-r.skipped.at.nanos < lateNanos
}

func (r *requester) beginRound(f *flow, s sent) {
	psn, at := s.psn, s.at
	asked := r.askedFor(f, psn, at)
	r.skipped = gap{}
	r.rounds.addPSN(at, psn)
	r.roundFrom, r.roundAt = psn, at
	r.roundPSN, r.roundDone = psn.Add(s.span-1), false
	switch {
	case asked:
		r.nakFresh = r.nakFresh && r.nakPSN != psn
	case r.nakFresh && roce.Diff(psn, r.nakPSN) >= 0: // what it asked for may have come meanwhile
		r.nakFresh = false
	case f.peer != nil && f.peer.troubleSeen > r.troubleSeen: // responses are missing, or came in another order
		r.troubleSeen = f.peer.troubleSeen
	case r.ackSeen && roce.Diff(psn, r.acked) < 0 && s.op.Info() != nil && responds(s.op.Info().Kind):
		r.readAgain.addPSN(at, psn)
	case r.ackSeen && roce.Diff(psn, r.acked) < 0:
		if r.crossed(f, s) {
			r.ackLate.addPSN(at, psn)
		} else {
			r.ackLost.addPSN(at, psn)
		}
	default:
		q := &r.quiet
		if q.tries == 0 || q.psn != psn {
			r.endSilence(ref{})
			*q = silence{psn: psn, first: at, size: s.size}
			if s, ok := r.find(psn); ok {
				q.first, q.size = s.at, s.size
			}
		}
		q.tries++
		q.last, q.late = at, s.duplicate && q.tries == 1
	}
}

// sameRound tells whether a packet is one of those that are sent again together. New ones may be between them.
func (r *requester) sameRound(s sent) bool {
	psn, at := s.psn, s.at
	ahead := roce.Diff(psn, r.roundPSN)
	under := r.rounds.last.n != 0 && (r.rounds.last.n == r.lastAt.n || !r.roundDone && at.nanos-r.rounds.last.nanos < lateNanos)
	switch {
	case r.rounds.last.n == 0 || r.nakFresh && psn == r.nakPSN:
		return false
	case ahead > 0 && (under || r.quiet.tries > 0 && psn != r.quiet.psn && r.newestAt.n < r.rounds.last.n):
	case ahead < 0 && under && r.skips(psn, at):
		r.wasLate(psn, at, r.skipped.at) // within the round
		r.rounds.last = at
		return true
	default:
		return false
	}
	if ahead > 1 {
		r.skipped = gap{from: r.roundPSN.Add(1), to: psn, at: at}
	}
	r.rounds.last, r.roundPSN = at, psn.Add(s.span-1)
	return true
}

// askedFor tells whether a NAK asked for the packet that sending goes back to.
func (r *requester) askedFor(f *flow, psn roce.PSN, at ref) (asked bool) {
	for i := range r.losses {
		switch l := &r.losses[i]; {
		case l.psn != psn:
		case l.again.n == 0:
			l.again, asked = at, true
			l.first = !l.passed && l.late.n == 0 && !l.early && !f.idents.counting() && r.resent.last.n < l.nak.n && at.nanos-l.nak.nanos < lateNanos
		case l.first: // it comes a second time: the first was the one that was sent first, and late
			r.wasLateAfterAll(l, at)
			asked = true
		}
	}
	return asked
}

// wasLateAfterAll: what was taken for a packet that was sent again was the first one, which was overtaken.
func (r *requester) wasLateAfterAll(l *loss, again ref) {
	came := l.again
	l.again, l.first = again, false
	g := r.gapOf(l.psn)
	l.late = came
	if g == nil {
		r.wasLate(l.psn, came, ref{})
		return
	}
	behind := g.at
	for _, psn := range slices.Clone(g.filled) { // they came before it was sent again
		at := came
		if s, ok := r.find(psn); ok && psn != l.psn {
			at = s.at
		}
		r.takeOut(psn)
		r.wasLate(psn, at, behind)
	}
}

// endSilence: something was answered.
func (r *requester) endSilence(at ref) {
	if r.quiet.tries > 0 && len(r.silences) < keptSilences {
		r.quiet.ended = at
		r.silences = append(r.silences, r.quiet)
	}
	r.quiet = silence{}
}

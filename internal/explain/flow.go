package explain

import (
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"rnic/internal/roce"
)

// flow is what goes to one queue pair from one address: one direction of a connection.
type flow struct {
	key     flowKey
	vantage Vantage // where it is seen; what is seen elsewhere are copies
	strange int     // packets seen elsewhere, in a row, of which no copy was seen here
	moved   bool    // to another vantage, just now
	peer    *flow   // the other direction, once it is known
	cm      *dialogue
	again   bool  // the queue pair number, or the PSNs, were another connection's before
	ended   bool  // another connection has taken its place
	absent  *flow // the requests that its packets answer, if they are not in the capture

	only          print   // of the first packet
	prints        []print // of the latest packets, from the second one on
	idents        idents
	copiedHere    refs
	copiedAnswers int // of which it is not sure

	packets, copies, payload int
	first, last              ref
	srcPort                  uint16
	portChanged              ref // the first packet from another port
	newPort                  uint16
	pkey                     uint16
	malformed                refs
	marked, notified         refs // ECN: congestion experienced; CNPs to this queue pair
	good                     int  // ICRCs
	bad                      refs
	delta                    uint32 // of the bad ones
	sameDelta                bool
	badIP                    []byte // the headers of the first
	mtu                      int    // payload of a first or middle packet, of whatever kind
	mtuAt                    ref
	biggest                  int // IP packet that was acknowledged
	comments                 map[string]*refs

	requester
	readNext    roce.PSN // responses: the next, within one READ
	inRead      bool
	readSeen    bool // readNext is set
	readRounds  int  // what the requester had sent again then
	readGaps    []readGap
	lostRead    refs // responses that are missing here
	lateReads   refs // and that were overtaken
	readTrouble int  // gaps in responses
	answers     int  // packets that answer requests
}

type flowKey struct {
	src, dst  netip.Addr
	qpn       uint32
	transport roce.Transport
}

// ref points to a packet of the file.
type ref struct {
	n     int
	nanos int64
}

func (p *Packet) ref() ref { return ref{p.Number, p.Nanos} }

// refs are some packets: all are counted, the first few kept.
type refs struct {
	count int
	list  []int
	psns  []roce.PSN
	last  ref
}

// forget takes a packet out again.
func (r *refs) forget(n int) {
	r.count--
	if i := slices.Index(r.list, n); i >= 0 {
		r.list = slices.Delete(r.list, i, i+1)
		if i < len(r.psns) {
			r.psns = slices.Delete(r.psns, i, i+1)
		}
	}
}

const keptRefs = 8

func (r *refs) add(at ref) {
	r.count++
	r.last = at
	if len(r.list) < keptRefs {
		r.list = append(r.list, at.n)
	}
}

func (r *refs) addPSN(at ref, psn roce.PSN) {
	if len(r.psns) < keptRefs {
		r.psns = append(r.psns, psn)
	}
	r.add(at)
}

// requester is what a flow's requests, and the answers to them, tell.
type requester struct {
	started  bool
	requests int
	lastPSN  roce.PSN // of the packet before
	lastAt   ref
	from     roce.PSN // of the first packet
	next     roce.PSN // behind the highest
	slack    int      // how far the next new one may be ahead: a READ takes the PSNs of its response
	sent     []sent   // ring of the latest
	sentAt   int

	acked   roce.PSN // behind what was acknowledged
	ackSeen bool
	ackedAt ref

	gaps    []gap // PSNs that were not seen, though later ones were
	missing int

	reordered  refs // packets that were overtaken
	lates      []late
	held       held     // one that may be late, or the first of those that are sent again
	readPSN    roce.PSN // slack is of it
	readLength uint32
	skipped    gap // within the last round
	roundPSN   roce.PSN
	roundDone  bool  // new ones follow it
	advanced   int64 // PSNs from the first one

	newestAt   ref  // the last new packet
	unfinished bool // it ends no message
	asked      ref  // the last packet that asks for an answer
	askedPSN   roce.PSN
	askedMost  bool // asked is set

	resent             refs // packets that were sent again
	rounds             refs // and how often sending went back
	seqNAKs            refs
	losses             []loss
	pastLost, pastLate int // of those that are not kept
	silences           []silence
	quiet              silence // the one that has not ended
	ackLate            refs    // sent again just when the acknowledgement was on its way
	ackLost            refs    // packets that were sent again though an acknowledgement was seen
	readAgain          refs    // READs that were sent again though a response was seen
	readTrouble        int     // of the responses, as far as it explains what was sent again
	rnr                refs
	rnrPSN             roce.PSN
	rnrSame            int // RNR NAKs for rnrPSN in a row
	rnrMost            int
	rnrWait            int64
	rnrOpen            bool
	fatal              []refusal
	nakPSN             roce.PSN
	nakFresh           bool // nothing was sent again since
	nakAt              ref  // the latest, of any kind
}

// sent is a packet that was sent.
type sent struct {
	psn       roce.PSN
	at        ref
	op        roce.Opcode
	payload   int
	size      int
	rkey      uint32
	va        uint64
	length    uint32
	hasTarget bool
	span      int  // PSNs that it takes
	duplicate bool // so its receiver says
}

type gap struct {
	from, to roce.PSN // to is behind it
	at       ref      // the packet behind the gap
	id       uint16   // its IPv4 identification
	nak      ref      // n == 0: the responder has not asked for what is missing
	filled   []roce.PSN
}

// held is a request that came late, as it seems: the next one says whether it was the first of those that are sent again.
type held struct {
	sent
	on     bool
	round  bool // of a round
	behind ref
}

// loss is a packet that the peer says it lacks.
type loss struct {
	psn         roce.PSN
	nak         ref
	naks        int
	early       bool // the capture began later
	sent, again ref  // n == 0: not in the capture
	passed      bool // it was seen here
	first       bool // sent is not there, and again is the first one seen
	done        ref
	late        ref  // it was not lost: it has come here, late
	overtook    bool // or another has, which it had overtaken
}

// silence is a time in which a requester sends again and nothing answers.
type silence struct {
	psn         roce.PSN
	tries       int // sent once more so often
	first, last ref
	size        int
	ended       ref  // n == 0: it has not
	late        bool // both have arrived
}

type refusal struct {
	syndrome roce.Syndrome
	psn      roce.PSN
	at       ref
	packet   sent
	found    bool
}

const (
	keptSent     = 64
	keptGaps     = 32
	keptLosses   = 32
	keptSilences = 16
	keptRefusals = 8
)

func (r *requester) remember(s sent) {
	if len(r.sent) < keptSent {
		r.sent = append(r.sent, s)
		return
	}
	r.sent[r.sentAt] = s
	r.sentAt = (r.sentAt + 1) % keptSent
}

// find is the latest packet with this PSN that was sent, as far as it is remembered.
func (r *requester) find(psn roce.PSN) (s sent, ok bool) {
	for i := range r.sent {
		x := &r.sent[i]
		if x.psn == psn && (!ok || x.at.n > s.at.n) {
			s, ok = *x, true
		}
	}
	return s, ok
}

// message is the packet that began the message of psn, or READ that it is a response of.
func (r *requester) message(psn roce.PSN) (s sent, ok bool) {
	for i := range r.sent {
		x := &r.sent[i]
		if d := roce.Diff(psn, x.psn); x.hasTarget && d >= 0 && d < 1<<16 && (!ok || roce.Diff(x.psn, s.psn) > 0 || x.psn == s.psn && x.at.n > s.at.n) {
			s, ok = *x, true
		}
	}
	return s, ok
}

// request takes a request packet.
func (f *flow) request(p *Packet) {
	r := &f.requester
	psn := p.BTH.PSN()
	r.requests++
	s := sent{duplicate: strings.HasPrefix(p.Comment, "duplicate"), psn: psn, at: p.ref(), op: p.Op, payload: p.Payload, size: p.Size}
	span := 1
	if p.Complete && p.Info.HasRETH {
		h := p.Info.RETH(p.Headers)
		s.rkey, s.va, s.length, s.hasTarget = h.RKey(), h.VA(), h.Length(), true
		if p.Info.Kind == roce.KindReadRequest {
			span = f.span(h.Length())
			defer r.slackFor(psn, h.Length(), span)
		}
	}
	if p.Complete && p.Info.HasAtomicETH {
		h := p.Info.AtomicETH(p.Headers)
		s.rkey, s.va, s.length, s.hasTarget = h.RKey(), h.VA(), 8, true
	}
	s.span = span
	asks := p.BTH.AckReq() || p.Info.Kind == roce.KindReadRequest || p.Info.HasAtomicETH
	if !r.started {
		r.started, r.from, r.next = true, psn, psn.Add(span)
		r.newest(p, asks)
		r.took(s)
		return
	}
	r.settle(f, psn)
	if r.slack > 0 { // the length of responses may be known now
		if n := f.span(r.readLength); n > 1 {
			r.next, r.slack = r.readPSN.Add(n), 0
		}
	}
	d := int(roce.Diff(psn, r.next))
	if d < 0 {
		f.earlier(p, s)
		return
	}
	if d > r.slack && !f.moved {
		r.missing += d
		id, _ := p.ident()
		r.missed(gap{from: r.next, to: psn, at: p.ref(), id: id})
	}
	f.moved = false
	r.advanced += int64(d + span)
	r.next = psn.Add(span)
	r.slack = 0
	r.newest(p, asks)
	r.took(s)
}

// missed keeps a gap.
func (r *requester) missed(g gap) {
	if len(r.gaps) == keptGaps { // the first few are for the report, the latest for what comes
		r.gaps = slices.Delete(r.gaps, keptRefs, keptRefs+1)
	}
	r.gaps = append(r.gaps, g)
}

// took notes a packet that was seen last.
func (r *requester) took(s sent) {
	r.remember(s)
	r.lastPSN, r.lastAt = s.psn, s.at
}

// newest notes what the newest packet leaves open.
func (r *requester) newest(p *Packet, asks bool) {
	r.roundDone = r.roundDone || p.BTH.PSN() == r.roundPSN.Add(1)
	r.unfinished, r.newestAt = p.Info.First || p.Info.Middle, p.ref()
	if asks {
		r.asked, r.askedPSN, r.askedMost = p.ref(), p.BTH.PSN(), true
	}
}

// earlier takes a request whose PSN is before one that was seen: it was sent again, or overtaken.
func (f *flow) earlier(p *Packet, s sent) {
	r := &f.requester
	g := r.gapOf(s.psn)
	switch {
	case g == nil || slices.Contains(g.filled, s.psn):
		f.resend(s)
	case f.overtakenBy(p, g):
		h := held{sent: s, on: true, behind: g.at}
		if id, ok := p.ident(); ok && f.idents.counting() && int16(id-g.id) < 0 {
			h.on = false // that is certain
		}
		r.takeOut(s.psn)
		if r.held = h; !h.on {
			r.wasLate(h.psn, h.at, h.behind)
		}
		r.remember(s)
		return // the round goes on, if there is one
	default:
		if len(g.filled) < keptGaps {
			g.filled = append(g.filled, s.psn)
		}
		r.newRound(f, s)
	}
	r.took(s)
}

// takeOut takes a packet out of the gap that it has left, as never missing.
func (r *requester) takeOut(psn roce.PSN) {
	if r.late(psn) {
		r.missing--
	}
}

// settle says of the packet that may be late what the next one makes of it.
func (r *requester) settle(f *flow, next roce.PSN) {
	h := r.held
	if !h.on {
		return
	}
	r.held.on = false
	if h.round {
		if next == h.psn.Add(h.span) {
			r.beginRound(f, h.sent)
		} else {
			r.wasLate(h.psn, h.at, h.behind)
		}
		return
	}
	if next == h.psn.Add(1) && roce.Diff(next, r.next) < 0 && r.gapOf(next) == nil { // all from there on comes again
		r.missing++
		r.missed(gap{from: h.psn, to: h.psn.Add(1), at: h.behind, filled: []roce.PSN{h.psn}})
		r.newRound(f, h.sent)
		r.lastPSN, r.lastAt = h.psn, h.at
		return
	}
	r.wasLate(h.psn, h.at, h.behind)
}

// span is how many PSNs a READ of n bytes takes, with the MTU that is known, else one: then slack allows for more.
func (f *flow) span(n uint32) int {
	mtu := f.mtu
	if mtu == 0 && f.peer != nil {
		mtu = f.peer.mtu
	}
	if mtu == 0 || n == 0 {
		return 1
	}
	return int(min((uint64(n)+uint64(mtu)-1)/uint64(mtu), 1<<22))
}

// slackFor allows the next PSN to be behind a READ's response of the smallest MTU, if the MTU is not known.
func (r *requester) slackFor(psn roce.PSN, n uint32, span int) {
	if roce.Diff(psn.Add(span), r.next) != 0 || span > 1 {
		return
	}
	r.readPSN, r.readLength = psn, n
	r.slack = int(min(uint64(n)/256+1, 1<<22))
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
	r.roundPSN, r.roundDone = psn.Add(s.span-1), false
	switch {
	case asked:
		r.nakFresh = r.nakFresh && r.nakPSN != psn
	case r.nakFresh && roce.Diff(psn, r.nakPSN) >= 0: // what it asked for may have come meanwhile
		r.nakFresh = false
	case f.peer != nil && f.peer.readTrouble > r.readTrouble: // responses are missing, or came in another order
		r.readTrouble = f.peer.readTrouble
	case r.ackSeen && roce.Diff(psn, r.acked) < 0 && s.op.Info() != nil && s.op.Info().Kind == roce.KindReadRequest:
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
	if l.late = r.lateOne(psn); l.late.n == 0 {
		l.late = r.overtook(psn, l.sent)
		l.overtook = l.late.n != 0
	}
	r.losses = append(r.losses, l)
}

// readGap are responses of a READ that were not seen, though later ones were.
type readGap struct {
	from, to roce.PSN
	at       ref
	rounds   int // what the requester had sent again when they were missing
}

// response watches the responses of a READ, in the flow that carries them.
func (f *flow) response(p *Packet) {
	psn := p.BTH.PSN()
	if p.Info.Kind != roce.KindReadResponse {
		return
	}
	rounds := 0
	if f.peer != nil {
		rounds = f.peer.resent.count
	}
	d := roce.Diff(psn, f.readNext)
	switch {
	case d >= 0 || !f.readSeen:
	case f.lateResponse(p, psn, rounds):
		return
	case p.Info.Middle || p.Info.Last || f.peer != nil && rounds == f.readRounds: // what is asked for again begins with a first one
		f.readGaps = nil // it has come, or comes
		return
	}
	if f.readSeen && d > 0 && (f.inRead || p.Info.Middle || p.Info.Last) {
		f.readTrouble++
		f.lostRead.addPSN(p.ref(), f.readNext)
		if len(f.readGaps) == keptGaps {
			f.readGaps = slices.Delete(f.readGaps, 0, 1)
		}
		f.readGaps = append(f.readGaps, readGap{f.readNext, psn, p.ref(), rounds})
	}
	f.readSeen, f.readRounds = true, rounds
	f.readNext, f.inRead = psn.Add(1), !p.Info.Ends()
}

// lateResponse takes a response that was missing, if nobody has asked for it again.
func (f *flow) lateResponse(p *Packet, psn roce.PSN, rounds int) bool {
	for i := range f.readGaps {
		g := &f.readGaps[i]
		if roce.Diff(psn, g.from) < 0 || roce.Diff(g.to, psn) <= 0 || g.rounds != rounds {
			continue
		}
		f.lateReads.addPSN(p.ref(), psn)
		if psn == g.from {
			g.from = psn.Add(1)
		}
		if psn == g.to.Add(-1) && g.from != g.to {
			g.to = psn
		}
		if g.from == g.to { // all have come
			f.lostRead.forget(g.at.n)
			f.readGaps = slices.Delete(f.readGaps, i, i+1)
		}
		return true
	}
	return false
}

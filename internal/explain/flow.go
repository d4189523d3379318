package explain

import (
	"math/bits"
	"net/netip"

	"rnic/internal/roce"
)

// flow is what goes to one queue pair from one address: one direction of a connection.
type flow struct {
	key     flowKey
	vantage Vantage // where it was seen first; what is seen elsewhere are copies
	peer    *flow   // the other direction, once it is known
	cm      *dialogue

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
	readNext roce.PSN // responses: the next, within one READ
	inRead   bool
	lostRead refs // responses that are missing here
	answers  int  // packets that answer requests
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
	ackAt   ref

	gaps    []gap // PSNs that were not seen, though later ones were
	missing int

	resent   refs // packets that were sent again
	rounds   refs // and how often sending went back
	seqNAKs  refs
	losses   []loss
	lost     int // all of them
	silences []silence
	quiet    silence // the one that has not ended
	ackLost  refs    // packets that were sent again though an acknowledgement was seen
	rnr      refs
	rnrPSN   roce.PSN
	rnrSame  int // RNR NAKs for rnrPSN in a row
	rnrMost  int
	rnrWait  int64
	rnrOpen  bool
	fatal    []refusal
	lastNAK  roce.Syndrome
	nakPSN   roce.PSN
	nakFresh bool // nothing was sent again since
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
}

type gap struct {
	from, to roce.PSN // to is behind it
	at       ref      // the packet behind the gap
}

// loss is a packet that the peer says it lacks.
type loss struct {
	psn         roce.PSN
	nak         ref
	naks        int
	early       bool // the capture began later
	sent, again ref  // n == 0: not in the capture
	done        ref
}

// silence is a time in which a requester sends again and nothing answers.
type silence struct {
	psn         roce.PSN
	tries       int // sent once more so often
	first, last ref
	size        int
	ended       ref // n == 0: it has not
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
	s := sent{psn: psn, at: p.ref(), op: p.Op, payload: p.Payload, size: p.Size}
	span := 1
	if p.Complete && p.Info.HasRETH {
		h := p.Info.RETH(p.Headers)
		s.rkey, s.va, s.length, s.hasTarget = h.RKey(), h.VA(), h.Length(), true
		if p.Info.Kind == roce.KindReadRequest {
			span = f.span(h.Length())
			r.slackFor(h.Length())
		}
	}
	if p.Complete && p.Info.HasAtomicETH {
		h := p.Info.AtomicETH(p.Headers)
		s.rkey, s.va, s.length, s.hasTarget = h.RKey(), h.VA(), 8, true
	}
	defer func() {
		r.remember(s)
		r.lastPSN, r.lastAt = psn, p.ref()
	}()
	if !r.started {
		r.started, r.from, r.next = true, psn, psn.Add(span)
		return
	}
	d := int(roce.Diff(psn, r.next))
	switch {
	case d < 0 && !r.fills(psn):
		f.resend(p, psn)
		return
	case d < 0:
		r.newRound(f, p, psn)
		return
	case d > r.slackLeft():
		r.missing += d
		if len(r.gaps) < keptGaps {
			r.gaps = append(r.gaps, gap{r.next, psn, p.ref()})
		}
	}
	r.next = psn.Add(span)
	if p.Info.Kind != roce.KindReadRequest {
		r.slack = 0
	}
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

// slackFor allows the next PSN to be behind a READ's response of the smallest MTU.
func (r *requester) slackFor(n uint32) { r.slack = int(min(uint64(n)/256+1, 1<<22)) }

func (r *requester) slackLeft() int { return r.slack }

// fills tells whether the packet was missing, and so is seen the first time.
func (r *requester) fills(psn roce.PSN) bool {
	for i := range r.gaps {
		g := &r.gaps[i]
		if roce.Diff(psn, g.from) >= 0 && roce.Diff(g.to, psn) > 0 {
			return true
		}
	}
	return false
}

// resend takes a packet that was sent before.
func (f *flow) resend(p *Packet, psn roce.PSN) {
	f.resent.addPSN(p.ref(), psn)
	f.newRound(f, p, psn)
}

// newRound notes that sending goes back, if it does.
func (r *requester) newRound(f *flow, p *Packet, psn roce.PSN) {
	asked := false
	for i := range r.losses {
		if l := &r.losses[i]; l.psn == psn && l.again.n == 0 {
			l.again, asked = p.ref(), true
		}
	}
	if roce.Diff(psn, r.lastPSN) > 0 && r.lastAt.n != 0 && r.quiet.tries > 0 && psn != r.quiet.psn {
		return // the rest of the same round
	}
	if roce.Diff(psn, r.lastPSN) > 0 && r.quiet.tries == 0 && r.rounds.last.n != 0 && r.rounds.last.n == r.lastAt.n {
		r.rounds.last = p.ref()
		return
	}
	r.rounds.addPSN(p.ref(), psn)
	r.rounds.last = p.ref()
	switch {
	case asked:
		r.nakFresh = r.nakFresh && r.nakPSN != psn
	case r.nakFresh && r.nakPSN == psn:
		r.nakFresh = false
	case r.ackSeen && roce.Diff(psn, r.acked) < 0:
		r.ackLost.addPSN(p.ref(), psn)
	default:
		q := &r.quiet
		if q.tries == 0 || q.psn != psn {
			r.endSilence(ref{})
			*q = silence{psn: psn, first: p.ref(), size: p.Size}
			if s, ok := r.find(psn); ok {
				q.first, q.size = s.at, s.size
			}
		}
		q.tries++
		q.last = p.ref()
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
		return
	}
	if !r.ackSeen && r.started && roce.Diff(upTo, r.next) > 1<<20 {
		return
	}
	r.ackSeen, r.acked, r.ackAt = true, upTo, at
	if r.quiet.tries > 0 && roce.Diff(upTo, r.quiet.psn) > 0 {
		r.endSilence(at)
	}
	if r.rnrOpen && roce.Diff(upTo, r.rnrPSN) > 0 {
		r.rnrOpen = false
	}
	for i := range r.losses {
		if l := &r.losses[i]; l.done.n == 0 && roce.Diff(upTo, l.psn) > 0 {
			l.done = at
		}
	}
	for i := range r.sent {
		if s := &r.sent[i]; roce.Diff(upTo, s.psn) > 0 {
			f.biggest = max(f.biggest, s.size)
		}
	}
}

func (f *flow) notReady(p *Packet, psn roce.PSN, s roce.Syndrome) {
	r := &f.requester
	r.rnr.addPSN(p.ref(), psn)
	r.rnrWait += roce.RNRTimerNanos(s.Value())
	if r.rnrOpen && r.rnrPSN == psn {
		r.rnrSame++
	} else {
		r.rnrSame = 1
	}
	r.rnrMost = max(r.rnrMost, r.rnrSame)
	r.rnrPSN, r.rnrOpen = psn, true
	r.nakPSN, r.nakFresh = psn, true
	r.endSilence(p.ref())
}

func (f *flow) refused(p *Packet, psn roce.PSN, s roce.Syndrome) {
	r := &f.requester
	r.lastNAK, r.nakPSN, r.nakFresh = s, psn, true
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
	for i := range r.losses {
		if l := &r.losses[i]; l.psn == psn && l.done.n == 0 {
			l.naks++
			return
		}
	}
	r.lost++
	if len(r.losses) < keptLosses {
		l := loss{psn: psn, nak: p.ref(), naks: 1, early: !r.started || roce.Diff(psn, r.from) < 0}
		if s, ok := r.find(psn); ok {
			l.sent = s.at
		}
		r.losses = append(r.losses, l)
	}
}

// response watches the responses of a READ, in the flow that carries them.
func (f *flow) response(p *Packet) {
	psn := p.BTH.PSN()
	if p.Info.Kind != roce.KindReadResponse {
		return
	}
	if (p.Info.Middle || p.Info.Last) && f.inRead && roce.Diff(psn, f.readNext) > 0 {
		f.lostRead.addPSN(p.ref(), f.readNext)
	}
	f.readNext, f.inRead = psn.Add(1), !p.Info.Ends()
}

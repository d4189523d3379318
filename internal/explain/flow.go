package explain

import (
	"net/netip"
	"slices"
	"strings"

	"rnic/internal/roce"
)

// flow is what goes to one queue pair from one address: one direction of a connection.
type flow struct {
	key    flowKey
	peer   *flow // the other direction, once it is known
	cm     *dialogue
	again  bool  // the queue pair number, or the PSNs, were another connection's before
	ended  bool  // another connection has taken its place
	absent *flow // the requests that its packets answer, if they are not in the capture

	sightings

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
	reads
	answers int // packets that answer requests
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
	advanced   int64 // PSNs from the first one

	newestAt   ref  // the last new packet
	unfinished bool // it ends no message
	asked      ref  // the last packet that asks for an answer
	askedPSN   roce.PSN

	resent refs // packets that were sent again
	round
	seqNAKs            refs
	losses             []loss
	pastLost, pastLate int // of those that are not kept
	silences           []silence
	quiet              silence // the one that has not ended
	ackLate            refs    // sent again just when the acknowledgement was on its way
	ackLost            refs    // packets that were sent again though an acknowledgement was seen
	readAgain          refs    // READs that were sent again though a response was seen
	troubleSeen        int     // readTrouble of the responses, as far as it explains what was sent again
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
	round       bool // among what was sent again, it was not
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
		r.asked, r.askedPSN = p.ref(), p.BTH.PSN()
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

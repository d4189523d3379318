package nic

import (
	"math/bits"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Selective repeat, between two NICs of this kind that have agreed on it (SetSelective). The specification's responder drops
// what comes behind a gap (9.7.5.1), and everything is sent again. Here both ends keep packets that come out of
// order, a bounded number for a bounded distance, and treat them as soon as what is missing has come: execution, completions and
// acknowledgements stay in order, and nothing above notices.
//
//   - The responder tells what it has with a packet of its own, a NAK of the missing PSN with a map of those behind it
//     (roce.SelectiveAck). The requester sends again what the map lacks, below the highest that it has.
//   - A response that does not come (to a READ or an atomic) is noticed when later ones do. The requester asks for the missing
//     part again: a duplicate READ request for a part of the first is of the specification (9.7.5.1).
//
// What was sent again and is lost again is sent once more when a round trip later the map still lacks it; the local
// ACK timer, which counts retries, stays the last resort.

// span is how many PSNs behind a gap are kept, and may be in flight.
const span = roce.SelectiveSpan

// maxKept bounds the packets that the queue pairs of a unit keep: 4 MiB. Beyond it they are dropped, as by the specification.
const maxKept = 1024

// A keptPacket is a copy of a packet from the BTH to the pad.
type keptPacket struct {
	psn  roce.PSN
	data []byte
}

// kept are packets by PSN.
type kept struct {
	slots [span]*keptPacket
	count int
}

func (k *kept) has(psn roce.PSN) bool {
	if k == nil {
		return false
	}
	s := k.slots[psn%span]
	return s != nil && s.psn == psn
}

// selective is a queue pair's part.
type selective struct {
	on bool

	requests  *kept // of the responder
	due       bool  // the peer is to be told
	responses *kept // of the requester

	base     roce.PSN // what the peer has of the requests: everything before base,
	have     [2]uint64
	high     roce.PSN // and of those up to high what have says: bit i is base+1+i
	acked    roce.PSN // the peer has executed everything before, though responses are missing
	heard    roce.PSN // behind the latest response that has come, or was due before an acknowledgement
	resentTo roce.PSN // what was missing before it has been sent again
	resentAt int64
	repairs  []repair // to be sent again

	landed [2]uint64 // PSNs, modulo span, that count as in flight no longer though they are not acknowledged
}

// A repair is a packet to be sent again, or a READ request for n packets of response.
type repair struct {
	psn roce.PSN
	n   uint32
}

// SetSelective has the queue pair repeat selectively, which its peer must do too: it must be an RC queue pair of a NIC of this kind
// that was told so. EINVAL: another type, or the queue pair has left INIT. RESET ends it.
func (q *QP) SetSelective(on bool) error {
	const op = "set selective repeat"
	switch {
	case q.dead:
		return refuse(ENOENT, op, q.String(), "it is destroyed")
	case q.typ != RC:
		return refuse(EINVAL, op, q.String(), "only reliable connections repeat selectively")
	case q.state != Reset && q.state != Init:
		return refuse(EINVAL, op, q.String(), "it is in "+q.state.String()+": before RTR only")
	}
	q.sel.on = on
	return nil
}

// Selective tells whether the queue pair repeats selectively.
func (q *QP) Selective() bool { return q.sel.on }

// keep copies a packet that is ahead of base. False: it is too far ahead, or there is no room.
func (t *transport) keep(at **kept, base, psn roce.PSN, data []byte) bool {
	if d := roce.Diff(psn, base); d <= 0 || d >= span {
		return false
	}
	if *at == nil {
		*at = new(kept)
	}
	k := *at
	slot := k.slots[psn%span]
	if slot != nil && slot.psn == psn {
		return true
	}
	if slot == nil {
		if slot = t.newKept(); slot == nil {
			return false
		}
		k.count++
		k.slots[psn%span] = slot
	}
	slot.psn, slot.data = psn, append(slot.data[:0], data...)
	return true
}

func (t *transport) newKept() *keptPacket {
	if t.keptInUse >= maxKept {
		return nil
	}
	t.keptInUse++
	if last := len(t.freeKept) - 1; last >= 0 {
		s := t.freeKept[last]
		t.freeKept = t.freeKept[:last]
		return s
	}
	return &keptPacket{data: make([]byte, 0, roce.MaxPacketSize)}
}

// take takes a packet out of k; its bytes stay until MemoryDone. nil: it is not there.
func (t *transport) take(k *kept, psn roce.PSN) *keptPacket {
	if !k.has(psn) {
		return nil
	}
	s := k.slots[psn%span]
	k.slots[psn%span] = nil
	k.count--
	if t.planted == PlantedKeptReused {
		t.keptInUse--
		t.freeKept = append(t.freeKept, s)
		return s
	}
	t.usedKept = append(t.usedKept, s)
	return s
}

// drop lets go of all packets of k.
func (t *transport) drop(k *kept) {
	if k == nil || k.count == 0 {
		return
	}
	for i, s := range k.slots {
		if s != nil {
			t.usedKept = append(t.usedKept, s)
			k.slots[i] = nil
		}
	}
	k.count = 0
}

// recycle gives back the packets that were taken: nothing refers to their bytes any more.
func (t *transport) recycle() {
	t.keptInUse -= len(t.usedKept)
	t.freeKept = append(t.freeKept, t.usedKept...)
	clear(t.usedKept)
	t.usedKept = t.usedKept[:0]
}

// dropKept ends what is kept and known: the queue pair is flushed or reset.
func (q *QP) dropKept() {
	t, s := &q.nic.transport, &q.sel
	if !s.on {
		return
	}
	t.drop(s.requests)
	t.drop(s.responses)
	*s = selective{on: true, requests: s.requests, responses: s.responses, repairs: s.repairs[:0]}
}

// ---- The responder.

// keepRequest keeps a request that came behind a gap, and has the peer told. A packet that invalidates is for a unit that is
// alone, and not kept by one of many.
func (q *QP) keepRequest(p *roce.Packet, psn roce.PSN) {
	r, s := &q.resp, &q.sel
	if r.nakSent {
		q.nic.stats.OutOfSequence++
		return // it waits for the packet that it has refused: not ready, or there was no room for those behind
	}
	if s.requests.has(psn) {
		q.nic.stats.Duplicates++
	}
	fits := len(q.nic.units) == 1 || !p.Info.HasIETH
	if !fits || !q.nic.transport.keep(&s.requests, r.expected, psn, p.Data) {
		q.nic.stats.OutOfSequence++
		if s.requests == nil || s.requests.count == 0 {
			r.nakSent = true
			q.refuse(roce.NAKSequence, r.expected)
			return
		}
	}
	s.due = true
	q.activate()
}

// resume treats the requests kept behind one that has been accepted.
func (q *QP) resume(now int64) {
	r, s, t := &q.resp, &q.sel, &q.nic.transport
	var p roce.Packet
	for s.requests != nil && s.requests.count > 0 && !r.refusing {
		at := r.expected
		if q.nic.planted == PlantedKeptAhead && !s.requests.has(at) && s.requests.has(at.Add(1)) {
			r.expected = at.Add(1)
			at = r.expected
		}
		k := t.take(s.requests, at)
		if k == nil || roce.Decode(k.data, &p) != nil {
			return
		}
		note := t.note
		q.receiveInOrder(now, &p, at)
		t.note = note         // it is of the packet that has come, not of this one
		if r.expected == at { // refused: it comes again, and so does what is behind it
			t.drop(s.requests)
			return
		}
	}
}

// sendSelectiveAck tells what is missing and what is there behind it. False: the batch is full.
func (q *QP) sendSelectiveAck(tx *Tx) bool {
	info := roce.SelectiveAck.Info()
	pkt := tx.packet(q, &q.path, q.local, info.HeaderLen, 0)
	if pkt == nil {
		return false
	}
	base := q.resp.committed.Add(1)
	q.putBTH(pkt, roce.SelectiveAck, base, 0)
	info.AETH(pkt).Encode(&roce.AETHFields{Syndrome: roce.NAKSequence, MSN: q.resp.msn})
	var have [2]uint64
	for i := range span - 1 {
		if q.sel.requests.has(base.Add(1 + i)) {
			have[i/64] |= 1 << (i % 64)
		}
	}
	info.SACK(pkt).Encode(have)
	q.nic.stats.SeqNAKsSent++
	return true
}

// ---- The requester.

// receiveSelectiveAck learns what the peer has, and sends what it lacks.
func (q *QP) receiveSelectiveAck(now int64, psn roce.PSN, h roce.SACK) {
	r, s := &q.req, &q.sel
	if psn.Before(r.una) {
		q.nic.stats.StaleAcks++
		return
	}
	q.nic.stats.NAKsRecvd++
	q.nic.stats.SeqNAKsReceived++
	q.acknowledgeUpTo(psn)
	have := h.Map()
	if q.nic.planted == PlantedSackAcks {
		q.acknowledge(psn.Add(bits.Len64(have[0]) + 1))
		return
	}
	if have == [2]uint64{} || psn.Before(s.base) {
		return // out of date
	}
	s.base, s.have = psn, have
	q.creditAhead(psn, have)
	top := 64 + bits.Len64(have[1])
	if have[1] == 0 {
		top = bits.Len64(have[0])
	}
	s.high = psn.Add(1 + top)
	if s.high.After(r.nxt) { // what is to be sent anew, after going back
		s.high = r.nxt
	}
	r.resend.since = now
	q.repair(now)
	q.activate() // there is room in its window
}

// creditAhead lets the windows go on over what the peer has behind the gap: it is out of its socket.
func (q *QP) creditAhead(base roce.PSN, have [2]uint64) {
	for word, set := range have {
		for ; set != 0; set &= set - 1 {
			if psn := base.Add(1 + 64*word + bits.TrailingZeros64(set)); psn.Before(q.req.nxt) {
				q.credit(psn)
			}
		}
	}
}

// credit counts a packet, or a packet of response, as in flight no longer. What is to be sent anew, after going back, is not in flight.
func (q *QP) credit(psn roce.PSN) {
	s := &q.sel
	if d := roce.Diff(psn, q.req.una); d < 0 || d >= span || !psn.Before(q.req.nxt) || s.landed[psn%span/64]>>(psn%64)&1 != 0 {
		return
	}
	w := q.req.find(psn)
	if w == nil || w.answered() && !s.responses.has(psn) {
		return // a READ request: its response is still on its way
	}
	s.landed[psn%span/64] |= 1 << (psn % 64)
	i := uint32(roce.Diff(psn, w.first))
	q.landed(q.cost(w, i, i+1))
}

// credited is what has been counted so of the PSNs from una to to, which are acknowledged now.
func (q *QP) credited(w *sendRequest, to roce.PSN) (bytes uint32) {
	s := &q.sel
	if s.landed == [2]uint64{} {
		return 0
	}
	for psn := q.req.una; psn.Before(to); psn = psn.Add(1) {
		if bit := uint64(1) << (psn % 64); s.landed[psn%span/64]&bit != 0 {
			s.landed[psn%span/64] &^= bit
			i := uint32(roce.Diff(psn, w.first))
			bytes += q.cost(w, i, i+1)
		}
	}
	return bytes
}

// acknowledgeUpTo is acknowledge, and remembers how far the peer is if responses are missing.
func (q *QP) acknowledgeUpTo(psn roce.PSN) {
	s := &q.sel
	if q.acknowledge(psn) {
		return
	}
	s.acked, s.heard = later(s.acked, psn, q.req.una), later(s.heard, psn, q.req.una)
}

// later is the later of two PSNs, of which a may be out of date: of before una.
func later(a, b, una roce.PSN) roce.PSN {
	if a.Before(una) || b.After(a) {
		return b
	}
	return a
}

// keepResponse keeps a response that came before an earlier one, and says whether it did.
func (q *QP) keepResponse(now int64, p *roce.Packet, psn roce.PSN) bool {
	r, s := &q.req, &q.sel
	if !psn.After(r.una) || q.acknowledge(psn) {
		return false
	}
	if q.nic.planted == PlantedEarlyAnswer {
		q.receiveResponseInOrder(now, p, r.una)
		return true
	}
	s.acked = later(s.acked, psn, r.una)
	if s.responses.has(psn) {
		q.nic.stats.StaleAcks++
	}
	if q.nic.transport.keep(&s.responses, r.una, psn, p.Data) {
		q.credit(psn)
		q.activate()
	} else {
		q.nic.stats.OutOfSequence++
	}
	s.heard = later(s.heard, psn.Add(1), r.una)
	q.repair(now)
	return true
}

// resumeResponses treats the responses kept behind one that has come.
func (q *QP) resumeResponses(now int64) {
	r, s, t := &q.req, &q.sel, &q.nic.transport
	note := t.note // of the packet that has come
	defer func() { t.note = note }()
	var p roce.Packet
	for !r.failing && q.state != Err {
		before := r.una
		if k := t.take(s.responses, before); k != nil && roce.Decode(k.data, &p) == nil {
			q.receiveResponseInOrder(now, &p, before)
		} else if s.acked.After(before) {
			q.acknowledge(s.acked)
		}
		if r.una == before {
			break
		}
	}
	if s.heard.After(r.una) {
		q.repair(now) // there is another gap
	}
}

func (q *QP) receiveResponseInOrder(now int64, p *roce.Packet, psn roce.PSN) {
	if p.Info.Kind == roce.KindAtomicAck {
		q.receiveAtomicAck(now, p, psn)
		return
	}
	q.receiveReadResponse(now, p, psn)
}

// repair finds what is to be sent again: what the peer lacks of the requests, and what has not come of the responses, except for what
// was sent again within the last round trip.
func (q *QP) repair(now int64) {
	r, s := &q.req, &q.sel
	if r.rnrUntil != 0 || r.failing || r.nxt == r.una || len(s.repairs) > 0 {
		return
	}
	from := r.una
	if s.resentAt != 0 && s.resentTo.After(from) && now-s.resentAt < q.repairTime() {
		from = s.resentTo
	}
	for pos := r.acked; pos != r.tail && len(s.repairs) < span; pos++ {
		w := r.at(pos)
		if !w.first.Before(r.nxt) || w.status != ring.StatusSuccess {
			break
		}
		if w.answered() {
			q.repairAnswered(w, from)
			continue
		}
		for psn := later(w.first, from, r.una); psn.Before(w.end()) && psn.Before(s.high) && psn.Before(r.nxt); psn = psn.Add(1) {
			if s.lacks(psn) {
				s.repairs = append(s.repairs, repair{psn, 1})
			}
		}
	}
	if len(s.repairs) == 0 {
		return
	}
	s.resentTo, s.resentAt = later(s.high, s.heard, r.una), now
	q.rearm()
	q.lossSeen(now)
	q.activate()
}

// repairTime is how long a packet that was sent again is given.
func (q *QP) repairTime() int64 {
	t := &q.req.rtt
	if t.smoothed == 0 {
		return q.nic.policy.leastResend()
	}
	return t.smoothed + 4*t.deviation
}

// repairDeadline is when what was sent again is given up for lost once more; 0: nothing is.
func (q *QP) repairDeadline() int64 {
	s := &q.sel
	if s.resentAt == 0 || !s.resentTo.After(q.req.una) || len(s.repairs) > 0 {
		return 0
	}
	return s.resentAt + max(q.repairTime(), leastRepair)
}

// leastRepair leaves an answer the time in which it may wait for company (Policy.AckDelayNanos), twice.
const leastRepair = 200_000

// repairDue sends again what the peer has not reported since it was sent again.
func (q *QP) repairDue(now int64) {
	if d := q.repairDeadline(); d == 0 || d > now {
		return
	}
	q.sel.resentAt = 0
	q.repair(now)
}

// lacks tells whether the peer is known not to have the request packet with this PSN.
func (s *selective) lacks(psn roce.PSN) bool {
	if psn.Before(s.base) || !psn.Before(s.high) {
		return false
	}
	i := roce.Diff(psn, s.base) - 1
	return i < 0 || s.have[i/64]>>(i%64)&1 == 0
}

// repairAnswered is repair for a READ, whose pieces are requests of their own, an atomic, or an ATOMIC WRITE or FLUSH.
func (q *QP) repairAnswered(w *sendRequest, from roce.PSN) {
	r, s := &q.req, &q.sel
	piece := int(max(1, w.piece))
	for at := w.first; at.Before(w.end()) && at.Before(r.nxt); at = at.Add(piece) {
		end := at.Add(piece)
		if end.After(w.end()) {
			end = w.end()
		}
		start := later(at, r.una, at)
		switch {
		case !end.After(start) || !end.After(from):
		case s.lacks(at):
			if !at.Before(from) {
				s.repairs = append(s.repairs, repair{at, uint32(roce.Diff(end, at))})
			}
		default:
			q.repairResponses(later(start, from, start), end)
		}
	}
}

// repairResponses asks again for what has not come of the responses from psn on, before end and before the latest that came.
func (q *QP) repairResponses(psn, end roce.PSN) {
	s := &q.sel
	if end.After(s.heard) {
		end = s.heard
	}
	for psn.Before(end) && len(s.repairs) < span {
		if s.responses.has(psn) {
			psn = psn.Add(1)
			continue
		}
		n := uint32(0)
		for at := psn; at.Before(end) && !s.responses.has(at); at = at.Add(1) {
			n++
		}
		s.repairs = append(s.repairs, repair{psn, n})
		psn = psn.Add(int(n))
	}
}

// sendRepairs sends again what repair has found. b is the last packet that can ask for an acknowledgement.
func (q *QP) sendRepairs(now int64, tx *Tx, b roce.BTH) (last roce.BTH, full bool) {
	r, s := &q.req, &q.sel
	last = b
	for i, p := range s.repairs {
		w := r.find(p.psn)
		if p.psn.Before(r.una) || !p.psn.Before(r.nxt) || w == nil || w.status != ring.StatusSuccess {
			continue // it has come since, or is sent anew in its turn
		}
		if !q.mayLeave(now) { // it wakes when the rate lets the next leave
			s.repairs = append(s.repairs[:0], s.repairs[i:]...)
			return last, false
		}
		pkt := q.buildRequest(tx, w, p.psn, p.n)
		if pkt == nil {
			s.repairs = append(s.repairs[:0], s.repairs[i:]...)
			return last, w.status == ring.StatusSuccess
		}
		q.left(now, len(pkt))
		q.countRetransmitted()
		tx.noteSent(NoteSelective)
		r.rtt.stop()
		last = roce.BTH(pkt)
	}
	s.repairs = s.repairs[:0]
	return last, false
}

// find returns the request in flight that a PSN belongs to.
func (r *requester) find(psn roce.PSN) *sendRequest {
	for pos := r.acked; pos != r.tail; pos++ {
		if w := r.at(pos); psn.Before(w.end()) {
			if psn.Before(w.first) {
				return nil
			}
			return w
		}
	}
	return nil
}

// forgetPeer forgets what the peer has: everything is sent anew.
func (s *selective) forgetPeer(una roce.PSN) {
	s.base, s.have, s.high, s.heard = una, [2]uint64{}, una, una
	s.resentTo, s.resentAt, s.repairs = una, 0, s.repairs[:0]
	s.landed = [2]uint64{}
}

// catchUp keeps what is known from falling so far behind una that PSNs seem to lie ahead of it again.
func (s *selective) catchUp(una roce.PSN) {
	if !s.high.After(una) {
		s.base, s.have, s.high = una, [2]uint64{}, una
	}
	for _, p := range []*roce.PSN{&s.acked, &s.heard, &s.resentTo} {
		if p.Before(una) {
			*p = una
		}
	}
}

// moveKept counts what q keeps with another unit.
func (q *QP) moveKept(from, to *transport) {
	for _, k := range []*kept{q.sel.requests, q.sel.responses} {
		if k != nil {
			from.keptInUse -= k.count
			to.keptInUse += k.count
		}
	}
}

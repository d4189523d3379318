package nic

import (
	"encoding/binary"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

func (t *roundTrip) start(now int64, psn roce.PSN) {
	if !t.timing {
		t.timing, t.psn, t.sentAt = true, uint32(psn), now
	}
}

func (t *roundTrip) stop() { t.timing = false }

// acked takes the time if the packet being timed is among those acknowledged, and says so.
func (t *roundTrip) acked(now int64, una roce.PSN) bool {
	if !t.timing || !una.After(roce.PSN(t.psn)) {
		return false
	}
	t.timing = false
	t.sample(max(0, now-t.sentAt))
	return true
}

// receiveResponse treats an acknowledgement, a READ response or an atomic response (9.7.6).
func (q *QP) receiveResponse(now int64, p *roce.Packet) {
	r := &q.req
	s := &q.nic.stats
	if !r.started || r.failing {
		q.note(NoteUnexpected)
		s.BehindErrors++
		return
	}
	psn := p.BTH.PSN()
	if roce.Diff(psn, r.max) >= 0 {
		q.note(NoteGhost)
		s.GhostAcks++
		return // a ghost: it acknowledges what was never sent (9.7.6.1)
	}
	before := r.una
	switch p.Info.Kind {
	case roce.KindSelectiveAck:
		q.receiveSelectiveAck(now, psn, p.Info.SACK(p.Data))
	case roce.KindAck:
		q.receiveAck(now, psn, p.AETH())
	case roce.KindReadResponse:
		if h := p.AETH(); h != nil {
			q.learnCredits(h, psn)
		}
		if !q.sel.on || !q.keepResponse(now, p, psn) {
			q.receiveReadResponse(now, p, psn)
		}
	case roce.KindAtomicAck:
		q.learnCredits(p.AETH(), psn)
		if !q.sel.on || !q.keepResponse(now, p, psn) {
			q.receiveAtomicAck(now, p, psn)
		}
	}
	if q.sel.on && r.una != before {
		q.resumeResponses(now)
		q.sel.catchUp(r.una)
	}
	if r.una != before {
		q.progressed(now)
	}
}

// progressed restarts the timers, and lets go on what waited for this. What an RNR NAK refused has been
// accepted since, if that is acknowledged.
func (q *QP) progressed(now int64) {
	r := &q.req
	if r.una.After(r.rnrPSN) {
		r.rnrUntil = 0
	}
	r.progressAt = now
	measured := r.rtt.acked(now, r.una)
	r.resend.progress(now, r.una, measured, r.rtt.smoothed != 0)
	q.activate()
	q.rearm()
}

// learnCredits reads how many receives the responder has (9.7.7.2).
func (q *QP) learnCredits(h roce.AETH, psn roce.PSN) {
	r := &q.req
	if h.Syndrome().Kind() != roce.SyndromeACK || roce.Diff(psn, r.una) < -1 {
		return // old news
	}
	n, limited := roce.Credits(h.Syndrome().Value())
	limit := (h.MSN() + uint32(n)) & roce.PSNMask
	if r.limited && (!limited || roce.PSN(limit).After(roce.PSN(r.limit))) {
		q.activate()
	}
	r.limited, r.limit = limited, limit
}

func (q *QP) receiveAck(now int64, psn roce.PSN, h roce.AETH) {
	r := &q.req
	s := h.Syndrome()
	switch s.Kind() {
	case roce.SyndromeACK:
		q.learnCredits(h, psn)
		switch {
		case psn.Before(r.una):
			q.note(NoteOld)
			q.nic.stats.StaleAcks++
		case q.sel.on:
			q.acknowledgeUpTo(psn.Add(1))
			q.repair(now)
		case !q.acknowledge(psn.Add(1)):
			q.goBackImplied(now)
		}
		return
	case roce.SyndromeReserved:
		q.note(NoteSyndrome)
		q.nic.stats.BadPackets++
		return
	}
	if psn.Before(r.una) {
		q.note(NoteOld)
		q.nic.stats.StaleAcks++
		return // about something that has been acknowledged
	}
	n := &q.nic.stats
	n.NAKsRecvd++
	if c := q.count; c != nil {
		c.nakReceived(s)
	}
	if !q.acknowledge(psn) {
		q.goBackImplied(now)
		if s.Kind() == roce.SyndromeRNRNAK && !r.failing {
			// The packet that it refuses is behind the lost response, and would come again too soon.
			if r.nxt != r.una {
				q.goBack(now, NoteImplied)
			}
			q.waitNotReady(now, psn, s.Value())
		}
		return
	}
	switch {
	case s.Kind() == roce.SyndromeRNRNAK:
		n.RNRNAKsReceived++
		q.rnrs++
		q.receiveRNR(now, s.Value())
	case s == roce.NAKSequence:
		n.SeqNAKsReceived++
		q.receiveSequenceNAK(now)
	default:
		q.failLater(statusOfNAK(s))
	}
}

// statusOfNAK is the completion status that a NAK code leads to (table "completion error types",
// 10.10.3, 11.6.2).
func statusOfNAK(s roce.Syndrome) ring.Status {
	switch s | 0x60 {
	case roce.NAKInvalidRequest:
		return ring.StatusRemInvReqErr
	case roce.NAKRemoteAccess:
		return ring.StatusRemAccessErr
	case roce.NAKRemoteOperational:
		return ring.StatusRemOpErr
	case roce.NAKInvalidRDRequest:
		return ring.StatusRemInvRDReqErr
	}
	return ring.StatusBadRespErr
}

// failLater has the oldest request fail behind all that was acknowledged before.
func (q *QP) failLater(status ring.Status) {
	q.req.failing = true
	q.effect(effectRequestFailed).recvErr = status
}

// acknowledge moves una to psn. It stops, with false, at a READ or atomic without its response:
// these are not acknowledged by anything else, so the response was lost (9.7.5.1).
func (q *QP) acknowledge(psn roce.PSN) bool {
	r := &q.req
	done := uint32(0)
	ok := true
	for r.una.Before(psn) && r.acked != r.tail {
		w := r.at(r.acked)
		if w.status != ring.StatusSuccess {
			break
		}
		if w.answered() {
			ok = false
			break
		}
		to := psn
		if end := w.end(); !end.After(psn) {
			to = end
			done++
		}
		q.advance(w, to)
		done += r.passLocal()
	}
	q.completeLater(done)
	return ok
}

// advance moves una within w, or to its end. It is progress: retries count from here anew.
func (q *QP) advance(w *sendRequest, to roce.PSN) {
	r := &q.req
	r.retries, r.rnrRetries, r.implied = q.attr.RetryCnt, q.attr.RNRRetry, false
	if r.nxt.After(r.una) {
		sent := to
		if r.nxt.Before(to) {
			sent = r.nxt
		}
		bytes := q.cost(w, uint32(roce.Diff(r.una, w.first)), uint32(roce.Diff(sent, w.first)))
		policy := q.nic.transport.windows
		policy.acked(&r.window, bytes)
		policy.acked(&r.peer.window, bytes)
		if q.sel.on {
			bytes -= q.credited(w, sent)
		}
		q.landed(bytes)
	}
	r.una = to
	if to == w.end() {
		r.acked++
	}
	if r.nxt.Before(to) { // acknowledged before it was sent again
		r.nxt = to
	}
	if int32(r.cur-r.acked) < 0 {
		r.cur = r.acked
	}
	for r.readHead != r.readTail && !r.readEnds[r.readHead&uint32(len(r.readEnds)-1)].After(to) {
		r.readHead++
	}
}

// completeLater has the next n requests completed when the transfers so far are done.
func (q *QP) completeLater(n uint32) {
	if q.nic.planted == PlantedCompletionBeforeData && n > 0 {
		q.completeRequests(q.nic.now, n)
		n = 0
	}
	e := q.lastEffect(effectRequests)
	if e == nil {
		if n == 0 {
			return
		}
		e = q.effect(effectRequests)
	}
	e.packets += n
	q.nic.transport.extend(e)
}

func (q *QP) receiveReadResponse(now int64, p *roce.Packet, psn roce.PSN) {
	w := q.awaiting(now, psn)
	if w == nil {
		return
	}
	off := uint32(roce.Diff(psn, w.first)) * q.mtu
	length := w.length
	if w.places() {
		length = off // the answer has no data
	}
	if w.op != ring.OpRead && !w.places() || uint32(len(p.Payload)) != min(q.mtu, length-off) {
		q.failLater(ring.StatusBadRespErr)
		return
	}
	q.landResponse(w, psn, off, p.Payload)
}

func (q *QP) receiveAtomicAck(now int64, p *roce.Packet, psn roce.PSN) {
	w := q.awaiting(now, psn)
	if w == nil {
		return
	}
	if w.op == ring.OpRead || w.places() {
		q.failLater(ring.StatusBadRespErr)
		return
	}
	word := q.nic.transport.small(8)
	putHost64(word, p.AtomicAckETH().Orig())
	q.landResponse(w, psn, 0, word)
}

// awaiting returns the request that waits for a response with this PSN; nil if none does. The
// response acknowledges everything before it.
func (q *QP) awaiting(now int64, psn roce.PSN) *sendRequest {
	r := &q.req
	if psn.Before(r.una) {
		q.nic.stats.StaleAcks++ // a duplicate
		q.note(NoteOld)
		return nil
	}
	if !q.acknowledge(psn) {
		q.note(NoteResponseGap)
		q.nic.stats.OutOfSequence++
		q.goBackImplied(now)
		return nil
	}
	if r.acked == r.tail || r.una != psn {
		q.note(NoteUnexpected)
		q.nic.stats.StaleAcks++
		return nil
	}
	w := r.at(r.acked)
	if w.status != ring.StatusSuccess {
		q.nic.stats.BehindErrors++
		return nil
	}
	if !w.answered() {
		q.failLater(ring.StatusBadRespErr)
		return nil
	}
	return w
}

// landResponse stores a response's data and moves on.
func (q *QP) landResponse(w *sendRequest, psn roce.PSN, off uint32, data []byte) {
	t := &q.nic.transport
	mark := len(t.list.Segs)
	if q.lastEffect(effectRequests) == nil {
		q.effect(effectRequests)
	}
	if !q.walk(&t.list, w.sge, &w.cursor, off, data, AccessLocalWrite, uint32(psn)) {
		t.list.Segs = t.list.Segs[:mark]
		q.failLater(ring.StatusLocProtErr)
		return
	}
	q.advance(w, psn.Add(1))
	done := uint32(0)
	if q.req.una == w.end() {
		done = 1 + q.req.passLocal()
	}
	q.completeLater(done)
}

// goBack makes everything that is not acknowledged to be sent again: what a responder of the specification needs, which
// drops packets that arrive out of order (9.7.5.1).
func (q *QP) goBack(now int64, why Note) {
	r := &q.req
	r.why = why
	q.landed(r.window.inFlight)
	r.nxt, r.cur = r.una, r.acked
	q.sel.forgetPeer(r.una)
	r.readHead, r.readTail = 0, 0
	r.rtt.stop()
	r.resend.probe = false
	r.resend.state = resendIdle
	r.backAt, r.backTo = now, r.una
	q.activate()
}

// again is goBack after a loss that the peer has shown, and takes a retry (9.7.6.1.3).
func (q *QP) again(now int64, why Note) {
	if !q.takeRetry() {
		if !q.survives(now) {
			q.failLater(ring.StatusRetryExcErr)
		}
		return
	}
	q.lossSeen(now)
	q.goBack(now, why)
}

func (q *QP) takeRetry() bool {
	if q.req.retries == 0 {
		return false
	}
	q.req.retries--
	return true
}

// goBackImplied goes back to a READ or atomic whose response did not come (9.7.5.1). Responses
// that are still on their way show the same loss again and again: once is enough.
func (q *QP) goBackImplied(now int64) {
	r := &q.req
	if r.implied || r.rnrUntil != 0 {
		return
	}
	q.again(now, NoteImplied)
	r.implied = true
}

// receiveSequenceNAK goes back to una, which the NAK has moved to the packet that is missing.
func (q *QP) receiveSequenceNAK(now int64) {
	r := &q.req
	if r.nxt == r.una || r.rnrUntil != 0 {
		return // known, and not sent again yet
	}
	if r.backTo == r.una && r.backAt != 0 && now-r.backAt < r.rtt.smoothed {
		return // the same NAK twice
	}
	q.again(now, NoteSequence)
}

// receiveRNR waits for as long as the responder asks, and sends the request again (9.7.5.2.8).
func (q *QP) receiveRNR(now int64, code uint8) {
	r := &q.req
	if r.rnrUntil >= now && r.rnrPSN == r.una {
		return // a second one for the same
	}
	if q.attr.RNRRetry != 7 { // 7: for ever
		if r.rnrRetries == 0 {
			q.failLater(ring.StatusRNRRetryExcErr)
			return
		}
		r.rnrRetries--
	}
	// The peer answers: what counts unanswered attempts counts anew. A receiver that is slow to post
	// would else, with an occasional loss, end the connection.
	r.retries = q.attr.RetryCnt
	q.goBack(now, NoteNotReady)
	q.waitNotReady(now, r.una, code)
}

// waitNotReady sends nothing for as long as an RNR NAK for psn asks, unless psn is acknowledged
// before: by what had been sent again already.
func (q *QP) waitNotReady(now int64, psn roce.PSN, code uint8) {
	r := &q.req
	if r.rnrUntil >= now && r.rnrPSN == psn {
		return
	}
	if q.nic.planted != PlantedSkippedRNRTimer {
		r.rnrUntil, r.rnrPSN = now+roce.RNRTimerNanos(code), psn
	}
	q.rearm()
}

// deadline is the earliest time at which expire has something to do; 0: none.
func (q *QP) deadline() int64 {
	r := &q.req
	if q.state == Err {
		return earlier(r.flushAt, q.rateDeadline()) // a NAK may stand behind responses that the rate holds back
	}
	d := earlier(q.resp.ackAt, q.rateDeadline())
	if r.rnrUntil != 0 {
		return earlier(d, r.rnrUntil)
	}
	if q.typ == UC {
		return q.pace.until
	}
	if !q.reliable() || r.nxt == r.una || r.failing {
		return d
	}
	if q.sel.on {
		d = earlier(d, q.repairDeadline())
	}
	t := q.ackTimeoutNanos()
	if t != 0 {
		d = earlier(d, r.progressAt+t)
	}
	if !q.nic.policy.NoEarlyResend && !r.resend.probe {
		d = earlier(d, r.resend.deadline(q.nic, &r.rtt, t))
	}
	return d
}

// earlier is the earlier of two times, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// expire acts on the deadlines that have passed.
func (q *QP) expire(now int64) {
	r := &q.req
	if a := q.resp.ackAt; a != 0 && a <= now {
		q.ackNow()
	}
	q.rateDue(now)
	switch {
	case q.state == Err:
		if r.flushAt != 0 && r.flushAt <= now {
			q.pollReceives(now)
		}
		return
	case q.pace.until != 0:
		if q.pace.until <= now {
			q.paceDue()
		}
		return
	case r.rnrUntil != 0:
		if r.rnrUntil <= now {
			r.rnrUntil = 0
			q.activate()
		}
		return
	}
	if !q.reliable() || r.nxt == r.una || r.failing {
		return
	}
	if q.sel.on {
		q.repairDue(now)
	}
	t := q.ackTimeoutNanos()
	early := !q.nic.policy.NoEarlyResend && !r.resend.probe && r.resend.deadline(q.nic, &r.rtt, t) <= now
	if t != 0 && r.progressAt+t <= now {
		if !early || r.resend.state != resendIdle {
			q.ackTimeout(now)
			return
		}
		// Both are overdue: this NIC was not driven for long, and what it waits for may have been
		// received by nobody. The probe goes first, and is given its time.
		r.progressAt = now - t + max(2*q.nic.policy.leastResend(), t/4)
	}
	if !early {
		return
	}
	q.nic.stats.EarlyResends++
	if r.resend.state == resendSuspect {
		q.lossSeen(now)
		q.goBack(now, NoteEarly)
		return
	}
	r.resend.probe, r.resend.state, r.resend.since, r.resend.upTo = true, resendProbed, now, r.nxt
	if r.resend.backoff < maxBackoff {
		r.resend.backoff++
	}
	q.activate()
}

// leastAckTimeout is the shortest local ACK timeout that is kept. Shorter ones leave a responder that is a
// program no time to be scheduled (nor Policy.AckDelayNanos to pass); 9.7.6.1.3 lets timers run late, and
// Linux's Soft-RoCE rounds up to a tick of 1 to 10 ms.
const leastAckTimeout = 4096 << 10

// ackTimeoutNanos is the local ACK timeout; 0: none.
func (q *QP) ackTimeoutNanos() int64 {
	t := roce.TimeoutNanos(q.attr.Timeout)
	if t == 0 {
		return 0
	}
	return max(t, leastAckTimeout)
}

// ackTimeout is the expiry of the local ACK timer (9.9.2.1.1).
func (q *QP) ackTimeout(now int64) {
	q.nic.stats.Timeouts++
	if c := q.count; c != nil {
		c.Timeouts++
	}
	if !q.takeRetry() {
		q.retriesUsedUp(now)
		return
	}
	q.lossSeen(now)
	q.goBack(now, NoteTimeout)
}

// putHost64 stores v as the program's 64-bit words are stored: its own byte order.
func putHost64(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

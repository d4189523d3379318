package nic

import (
	"math/bits"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// requester is a queue pair's sending half: 9.7.3, 9.7.6 and 9.7.8.
//
// A request is fetched when its turn to be sent comes, into a private copy that stays until it
// completes: what the program does to the slot afterwards does not matter. reqs is a ring of the
// copies; its positions count up:
//
//	head <= acked <= cur <= tail
//
// head is the oldest that has not completed, acked the oldest that is not acknowledged completely,
// cur the one that nxt belongs to, tail the next to be fetched.
type requester struct {
	epoch   uint32 // counts the lives of the queue pair's effects
	started bool
	stopped bool // a request that is not to be sent has been fetched, or found by its memory
	failing bool // the oldest request is going to fail: effects say so

	reqs                   []sendRequest
	head, acked, cur, tail uint32
	fetchPos               uint32 // send queue position of the next request to fetch

	una roce.PSN // oldest not acknowledged
	nxt roce.PSN // next to be sent
	max roce.PSN // behind the latest ever sent
	end roce.PSN // behind the last request fetched

	ssn      uint32 // of the last request fetched (9.7.7.2)
	limit    uint32 // requests up to this SSN may use a receive
	limited  bool
	readEnds []roce.PSN // READs and atomics in flight: the PSNs behind them, a ring
	readHead uint32
	readTail uint32

	retries    uint8 // left without progress
	rnrRetries uint8
	rnrUntil   int64    // nothing is sent before: RNR NAK; 0: no wait
	rnrPSN     roce.PSN // what it was for
	backAt     int64    // when sending last went back
	backTo     roce.PSN // and where to
	implied    bool     // it was for a response that did not come; until there is progress

	progressAt int64 // start of the local ACK timer
	resend     earlyResend
	rtt        roundTrip

	peer   *peer
	window window
	wants  uint32 // what it waits for room for in the peer's window

	flushAt    int64 // when the receive queue is looked at in the error state
	flushDelay int64
}

// A sendRequest is a private copy of a send work request in flight.
type sendRequest struct {
	wrid    uint64
	op      ring.SendOpcode
	flags   ring.SendFlags
	imm     uint32
	rkey    uint32
	raddr   uint64
	compare uint64
	swap    uint64
	length  uint32
	packets uint32
	srq     uint32 // XRC: the peer's shared receive queue
	piece   uint32 // READ: packets that one request asks for, 0 until the first is sent
	first   roce.PSN
	ssn     uint32
	status  ring.Status // not success: it is not to be sent, and fails with this
	sge     []ring.SGE
	inline  []byte
	cursor  cursor

	bind  ring.Bind // bind of a memory window
	done  bool      // a local operation: it has been carried out
	flush ring.Flush

	ahNum uint32 // UD
	qpn   uint32
	qkey  uint32
}

func (r *requester) at(pos uint32) *sendRequest { return &r.reqs[pos&uint32(len(r.reqs)-1)] }

func (w *sendRequest) end() roce.PSN { return w.first.Add(int(w.packets)) }

// answered tells whether the request completes by a response rather than by an ACK.
func (w *sendRequest) answered() bool {
	return w.op == ring.OpRead || w.op == ring.OpCompareSwap || w.op == ring.OpFetchAdd || w.places()
}

// places tells whether the request is answered by a READ response without data (annex A19).
func (w *sendRequest) places() bool { return w.op == ring.OpAtomicWrite || w.op == ring.OpFlush }

// local tells whether the request is for this NIC alone: nothing is sent for it.
func (w *sendRequest) local() bool { return w.op == ring.OpBindMW || w.op == ring.OpLocalInv }

// usesReceive tells whether the request consumes a receive at the responder.
func (w *sendRequest) usesReceive() bool {
	return w.op == ring.OpSend || w.op == ring.OpSendImm || w.op == ring.OpWriteImm || w.op == ring.OpSendInv
}

func (q *QP) startRequester() {
	r := &q.req
	r.started = true
	r.una = roce.PSN(q.attr.SQPSN) & roce.PSNMask
	r.nxt, r.max, r.end = r.una, r.una, r.una
	q.sel.forgetPeer(r.una)
	q.sel.acked = r.una
	r.fetchPos = q.sq.Position()
	// 9.7.7.2: no credit is known at first; one request may be sent to learn it.
	r.limited = true
	r.retries, r.rnrRetries = q.attr.RetryCnt, q.attr.RNRRetry
}

// sizeReads makes room for the READs and atomics that may be in flight. Precondition: none is.
func (q *QP) sizeReads() {
	r := &q.req
	if n := int(q.attr.MaxRDAtomic); n > len(r.readEnds) {
		r.readEnds = make([]roce.PSN, 1<<bits.Len(uint(n)))
		r.readHead, r.readTail = 0, 0
	}
}

// push makes room for one more request and returns it, with the memory of an old one to reuse.
func (r *requester) push(pool *requestPool) *sendRequest {
	if int(r.tail-r.head) == len(r.reqs) {
		old := r.reqs
		r.reqs = pool.take(max(1, 2*len(old)))
		for pos := r.head; pos != r.tail; pos++ { // what it had lies there for the old array's next user
			a, b := r.at(pos), &old[pos&uint32(len(old)-1)]
			*a, *b = *b, *a
		}
		pool.put(old)
	}
	return r.at(r.tail)
}

// fetch copies the next posted request. False: there is none, or it cannot be sent.
func (q *QP) fetch(now int64) bool {
	r := &q.req
	if q.state != RTS || r.stopped || r.tail-r.head >= q.sq.Capacity() || q.sq.PendingFrom(r.fetchPos) == 0 {
		return false
	}
	s := &q.nic.transport.sendWQE
	bad, err := q.sq.LoadSend(r.fetchPos, s, q.typ == UD)
	if err != nil {
		// The program has truncated its queue: nothing can be told about its requests any more.
		q.nic.event(Event{Type: EventQPFatal, QP: q})
		q.enterError(now)
		return false
	}
	w := r.push(&q.nic.transport.requests)
	w.copyFrom(s)
	r.fetchPos = q.sq.Next(r.fetchPos)
	if c := q.count; c != nil {
		c.requestFetched(q, w)
	}
	w.status = ring.StatusLocQPOpErr
	if !bad {
		w.status = q.checkRequest(w)
	}
	if q.typ == UD {
		q.vector.wanted = s.Vector()
	}
	if !w.local() {
		r.ssn = (r.ssn + 1) & roce.PSNMask // the responder counts the messages that it gets (9.7.7.2)
	}
	w.first, w.packets, w.ssn = r.end, 0, r.ssn
	switch {
	case w.status != ring.StatusSuccess || w.local():
	case q.typ == UD:
		w.packets = 1 // a datagram is one packet (9.8.3)
	default:
		w.packets = q.packetsOf(w.length)
	}
	r.end = w.end()
	r.tail++
	if w.status != ring.StatusSuccess {
		r.stopped = true
		q.failIfOldest(now)
		return false
	}
	return true
}

func (w *sendRequest) copyFrom(s *ring.SendWQE) {
	*w = sendRequest{wrid: s.WRID, op: s.Opcode, flags: s.Flags, imm: s.Imm, rkey: s.RKey, raddr: s.RemoteAddr,
		srq: s.RemoteSRQ, compare: s.CompareAdd, swap: s.Swap, bind: s.Bind, flush: s.Flush, ahNum: s.AHNum, qpn: s.RemoteQPN, qkey: s.RemoteQKey,
		sge: append(w.sge[:0], s.SGE[:s.NumSGE]...), inline: append(w.inline[:0], s.Inline[:s.InlineLen]...)}
	if s.Flags&ring.SendInline != 0 {
		w.length = uint32(s.InlineLen)
	}
}

// checkRequest checks a private copy, and computes its length: 10.8.3, 9.9.2.
func (q *QP) checkRequest(w *sendRequest) ring.Status {
	if !q.allowsOpcode(w.op) {
		return ring.StatusLocQPOpErr
	}
	if w.flags&ring.SendInline != 0 {
		if w.answered() && w.op != ring.OpAtomicWrite {
			return ring.StatusLocQPOpErr
		}
		if w.length > q.cap.MaxInline {
			return ring.StatusLocLenErr
		}
	} else if s := q.checkSGE(w); s != ring.StatusSuccess {
		return s
	}
	switch {
	case q.typ == UD:
		if w.length > q.datagramMTU() {
			return ring.StatusLocLenErr
		}
	case w.op == ring.OpCompareSwap || w.op == ring.OpFetchAdd || w.op == ring.OpAtomicWrite:
		if w.length != 8 {
			return ring.StatusLocLenErr
		}
	}
	if w.answered() && q.attr.MaxRDAtomic == 0 {
		return ring.StatusLocQPOpErr
	}
	return ring.StatusSuccess
}

func (q *QP) allowsOpcode(op ring.SendOpcode) bool {
	switch op {
	case ring.OpSend, ring.OpSendImm:
		return true
	case ring.OpWrite, ring.OpWriteImm, ring.OpBindMW, ring.OpLocalInv:
		return q.typ != UD
	case ring.OpRead, ring.OpCompareSwap, ring.OpFetchAdd, ring.OpSendInv:
		return q.reliable()
	case ring.OpAtomicWrite, ring.OpFlush:
		return q.typ == RC
	}
	return false
}

func (q *QP) checkSGE(w *sendRequest) ring.Status {
	var need Access
	if w.answered() && !w.places() {
		need = AccessLocalWrite
	}
	total := uint64(0)
	for i := range w.sge {
		total += uint64(w.sge[i].Length) // at most 32 times 2^32
	}
	if total > uint64(q.nic.limits.MaxMsgSize) {
		return ring.StatusLocLenErr
	}
	w.length = uint32(total)
	for i := range w.sge {
		s := &w.sge[i]
		if s.Length == 0 {
			continue
		}
		m := q.nic.lookupLocal(s.LKey)
		if m == nil && q.count != nil {
			q.count.UnknownLKeys, q.count.UnknownLKey = q.count.UnknownLKeys+1, s.LKey
		}
		if m == nil || !m.check(q.pd, s.Addr, uint64(s.Length), need) {
			return ring.StatusLocProtErr
		}
	}
	return ring.StatusSuccess
}

// completeRequests completes the oldest n requests.
func (q *QP) completeRequests(now int64, n uint32) {
	r := &q.req
	if q.nic.planted == PlantedReorderedCompletion && n >= 2 {
		a, b := r.at(r.head), r.at(r.head+1)
		a.wrid, b.wrid = b.wrid, a.wrid
	}
	for ; n > 0 && r.head != r.tail; n-- {
		q.completeOldest(ring.StatusSuccess)
	}
	if r.stopped {
		q.failIfOldest(now)
	}
	q.putRequests()
	if q.state == SQD && r.head == r.tail {
		q.sqDrained()
	}
}

// completeOldest takes the oldest request out: the slot is the program's again before it sees the
// completion.
func (q *QP) completeOldest(status ring.Status) {
	r := &q.req
	w := r.at(r.head)
	_ = q.sq.Consume()
	r.head++
	if c := q.count; c != nil {
		c.requestDone(w, status)
	}
	if status == ring.StatusSuccess && completionOpcode(w.op) == ring.WCSend {
		q.nic.stats.SendsCompleted++
	}
	if status == ring.StatusSuccess && !q.sigAll && w.flags&ring.SendSignaled == 0 {
		return
	}
	e := ring.CQE{WRID: w.wrid, Status: status, Opcode: completionOpcode(w.op), QPN: q.num}
	if status == ring.StatusSuccess {
		e.ByteLen = w.length
	}
	q.nic.pushCQE(q.sendCQ, &e, false)
	if q.nic.planted == PlantedDuplicateCompletion && r.head&7 == 7 {
		q.nic.pushCQE(q.sendCQ, &e, false)
	}
}

func completionOpcode(op ring.SendOpcode) ring.WCOpcode {
	switch op {
	case ring.OpWrite, ring.OpWriteImm:
		return ring.WCWrite
	case ring.OpRead:
		return ring.WCRead
	case ring.OpCompareSwap:
		return ring.WCCompareSwap
	case ring.OpFetchAdd:
		return ring.WCFetchAdd
	case ring.OpBindMW:
		return ring.WCBindMW
	case ring.OpLocalInv:
		return ring.WCLocalInv
	case ring.OpFlush:
		return ring.WCFlush
	case ring.OpAtomicWrite:
		return ring.WCAtomicWrite
	}
	return ring.WCSend
}

// failIfOldest fails the request that stopped the queue once everything before it has completed.
func (q *QP) failIfOldest(now int64) {
	r := &q.req
	if r.head == r.acked && r.head != r.tail {
		if s := r.at(r.head).status; s != ring.StatusSuccess {
			q.failOldest(now, s)
		}
	}
}

// failOldest completes the oldest request with an error; everything behind it is flushed.
func (q *QP) failOldest(now int64, status ring.Status) {
	r := &q.req
	if r.head != r.tail {
		q.completeOldest(status)
		if int32(r.acked-r.head) < 0 {
			r.acked = r.head
		}
	}
	if !q.reliable() && (q.state == RTS || q.state == SQD) {
		q.state, q.attr.SQDraining = SQE, false // 10.3.1.6: the receive queue goes on
		q.flushSends()
		return
	}
	q.enterError(now)
}

// landingFailed completes what came before the response with this PSN and fails its request: the
// program's own memory did not take the data.
func (q *QP) landingFailed(now int64, psn roce.PSN) {
	r := &q.req
	for r.head != r.tail && !r.at(r.head).end().After(psn) {
		q.completeOldest(ring.StatusSuccess)
	}
	q.failOldest(now, ring.StatusLocProtErr)
}

// Doorbell tells that the program has posted send requests.
func (n *NIC) Doorbell(now int64, q *QP) {
	n.now = max(n.now, now)
	switch {
	case q.dead:
	case q.state == RTS:
		q.activate()
	case q.state == Err || q.state == SQE:
		q.flushSends()
	}
}

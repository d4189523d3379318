package nic

import "rnic/internal/ring"

// flush completes everything posted with flush errors, in order, on both queues (10.3.1.7), and
// gives up what is in flight. A NAK that says why still goes out, behind the responses before it.
func (q *QP) flush(now int64) {
	r := &q.req
	r.epoch++
	q.leavePeer()
	q.dropKept()
	q.nic.transport.putRecv(q.resp.recv)
	q.resp.recv = nil
	if q.resp.nakDue && fatal(q.resp.nak) {
		q.activate()
	} else {
		q.resp.dropResponses()
		q.resp.nakDue = false
	}
	q.resp.refusing = true
	r.rnrUntil = 0
	if !r.started {
		r.fetchPos = q.sq.Position()
	}
	q.flushSends()
	if q.srq != nil {
		q.flushTaken()
		return
	}
	if q.typ == XRCINI || q.typ == XRCTGT {
		return // nobody posts receives there
	}
	q.flushReceives()
	r.flushDelay = leastFlushDelay
	r.flushAt = now + r.flushDelay
	q.rearm()
}

// A receive that is posted in the error state rings no doorbell: the queue is looked at now and then.
const (
	leastFlushDelay = 1e6 // nanoseconds
	mostFlushDelay  = 100e6
)

func (q *QP) pollReceives(now int64) {
	r := &q.req
	if r.flushDelay *= 2; q.flushReceives() {
		r.flushDelay = leastFlushDelay
	}
	r.flushDelay = min(r.flushDelay, mostFlushDelay)
	r.flushAt = now + r.flushDelay
}

// flushSends flushes the requests in flight, then those not fetched yet.
func (q *QP) flushSends() {
	r := &q.req
	if q.nic.planted == PlantedLostFlush && r.head != r.tail {
		_ = q.sq.Consume()
		r.head++
	}
	for ; r.head != r.tail; r.head++ {
		q.flushOne(q.sq, q.sendCQ, r.at(r.head).wrid, completionOpcode(r.at(r.head).op))
	}
	r.acked, r.cur = r.head, r.head
	r.nxt = r.una
	q.putRequests()
	s := &q.nic.transport.sendWQE
	for n := q.sq.PendingFrom(r.fetchPos); n > 0; n-- {
		if _, err := q.sq.LoadSend(r.fetchPos, s, q.typ == UD); err != nil {
			return
		}
		r.fetchPos = q.sq.Next(r.fetchPos)
		q.flushOne(q.sq, q.sendCQ, s.WRID, completionOpcode(s.Opcode))
	}
}

// flushReceives flushes what is in the receive queue, and tells whether there was anything.
func (q *QP) flushReceives() bool {
	w := &q.nic.transport.recvWQE
	n := q.rq.Pending()
	for i := n; i > 0; i-- {
		if _, err := q.rq.LoadRecv(q.rq.Position(), w); err != nil {
			return false
		}
		q.flushOne(q.rq, q.recvCQ, w.WRID, ring.WCRecv)
	}
	return n > 0
}

func (q *QP) flushOne(from *ring.Queue, to *CQ, wrid uint64, op ring.WCOpcode) {
	if from.Consume() != nil {
		return
	}
	q.nic.pushCQE(to, &ring.CQE{WRID: wrid, Status: ring.StatusWRFlushErr, Opcode: op, QPN: q.num}, false)
}

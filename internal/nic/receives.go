package nic

import "rnic/internal/ring"

// The receives of a queue pair come from its own receive queue, whose consumer index moves when they
// complete, or from a shared one, which they leave when a message takes them. Those stand in taken
// until they complete.

// receivePosted tells whether there is a receive for the next message.
func (q *QP) receivePosted() bool {
	if q.srq != nil {
		return q.srq.ring.Pending() > 0
	}
	return q.rq.PendingFrom(q.resp.recvPos) > 0
}

// peekReceive copies the receive for the next message. Precondition: there is one.
func (q *QP) peekReceive(w *ring.RecvWQE) (bad bool, err error) {
	if q.srq != nil {
		return q.srq.ring.LoadRecv(q.srq.ring.Position(), w)
	}
	return q.rq.LoadRecv(q.resp.recvPos, w)
}

// takeLoaded makes the receive that was loaded the queue pair's.
func (q *QP) takeLoaded(wrid uint64) {
	if c := q.count; c != nil {
		c.ReceivesTaken++
	}
	if q.srq == nil {
		q.resp.recvPos = q.rq.Next(q.resp.recvPos)
		return
	}
	if q.srq.take(q.nic) == nil {
		q.taken = append(q.taken, takenReceive{wrid, q.recvCQ})
	}
}

// consumeReceive lets go of the oldest receive that was taken, which completes. Its slot is free before
// its completion shows.
func (q *QP) consumeReceive() error {
	if q.srq == nil {
		return q.rq.Consume()
	}
	if len(q.taken) == 0 {
		return ring.ErrFault // it could not be taken: the program has truncated its queue
	}
	q.taken = q.taken[:copy(q.taken, q.taken[1:])]
	return nil
}

// receivePD is the protection domain that the receives' keys must be of: the shared queue's, if there is
// one (10.2.9).
func (q *QP) receivePD() *PD {
	if q.srq != nil {
		return q.srq.pd
	}
	return q.pd
}

// flushTaken flushes the receives that the queue pair has taken from a shared queue, and says that no
// other will complete here (11.6.3).
func (q *QP) flushTaken() {
	for _, t := range q.taken {
		q.nic.pushCQE(t.cq, &ring.CQE{WRID: t.wrid, Status: ring.StatusWRFlushErr, Opcode: ring.WCRecv, QPN: q.num}, false)
	}
	q.taken = q.taken[:0]
	if q.nic.planted != PlantedLostLastWQE {
		q.nic.event(Event{Type: EventQPLastWQE, QP: q})
	}
}

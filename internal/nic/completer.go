package nic

import (
	"errors"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// MemoryDone performs the effects of the packets received, now that their transfers are done, and
// empties the list.
func (n *NIC) MemoryDone(now int64) {
	n.now = max(n.now, now)
	t := &n.transport
	for i := range t.effects {
		e := &t.effects[i]
		q := e.q
		if q.dead || q.req.epoch != e.epoch {
			continue
		}
		if q.typ == XRCTGT {
			q.recvCQ = e.cq // packets of other shared receive queues may have followed
		}
		if len(t.list.Failed) > 0 {
			if f := t.failureOf(e); f != nil {
				q.memoryFailed(now, e, f)
				continue
			}
		}
		q.perform(now, e)
	}
	clear(t.effects)
	t.effects = t.effects[:0]
	t.scratch = t.scratch[:0]
	t.list.Reset()
	if len(t.usedKept) > 0 {
		t.recycle()
	}
}

// failureOf finds the transfer of e, or of one before it, that failed. After a failure nothing of
// the lane is transferred, and the queue pair's later effects are void.
func (t *transport) failureOf(e *effect) *hostmem.Failure {
	for i := range t.list.Failed {
		f := &t.list.Failed[i]
		if f.Lane != e.q.num {
			continue
		}
		if f.Atomic && f.Index < int(e.atomics) || !f.Atomic && f.Index < int(e.segs) {
			return f
		}
	}
	return nil
}

func (q *QP) perform(now int64, e *effect) {
	switch e.kind {
	case effectCommit:
		if q.nic.planted != PlantedEarlyACK {
			q.commitNow(e)
		}
	case effectReceive:
		if q.nic.planted != PlantedEarlyACK {
			q.commitNow(e)
		}
		q.receiveDone(e)
	case effectRead:
		q.commitRead(e)
	case effectAtomic:
		q.commitAtomic(e, q.nic.transport.list.Atomics[e.atomics-1].Old)
	case effectPlaced:
		q.commitAtomic(e, 0)
	case effectReadAgain:
		if s := q.resp.findSaved(e.psn, e.psn.Add(int(e.packets)), false); s != nil {
			q.respondAgain(q.readResponse(e, s.msn))
		}
	case effectAtomicAgain:
		if s := q.resp.findSaved(e.psn, e.psn.Add(1), true); s != nil && s.executed {
			q.respondAgain(shortResponse(s.psn, !s.places, s.value, s.msn))
		}
	case effectAckAgain:
		q.resp.ackDue = true
		q.ackNow()
	case effectNAK:
		q.performNAK(now, e)
	case effectRefuseAgain:
		if r := &q.resp; !r.nakDue {
			q.nic.stats.AccessNAKsSent++
			r.nakDue, r.nak, r.nakPSN = true, roce.NAKRemoteAccess, e.psn
			q.activate()
		}
	case effectDatagram:
		if c := q.count; c != nil {
			c.received(true, e.cqe.ByteLen-roce.GRHSize)
		}
		q.receiveDone(e)
	case effectDatagramFailed:
		q.completeReceiveWith(e.cqe.WRID, e.recvErr)
		q.enterError(now)
	case effectRequests:
		q.completeRequests(now, e.packets)
	case effectRequestFailed:
		q.failOldest(now, e.recvErr)
	}
}

// commitNow moves the committed state: e's packet has been executed.
func (q *QP) commitNow(e *effect) {
	if c := q.count; c != nil {
		c.received(e.last, e.bytes)
	}
	if q.typ == UC {
		return // nothing is acknowledged
	}
	r := &q.resp
	r.advance(e.psn)
	if e.last {
		r.msn = (r.msn + 1) & roce.PSNMask
	}
	if e.ackReq {
		q.oweAck(q.nic.now, e.bytes)
	}
}

// advance commits everything up to psn; a NAK for a gap or for a missing receive is out of date then.
func (r *responder) advance(psn roce.PSN) {
	r.committed = psn
	if r.nakDue && !fatal(r.nak) {
		r.nakDue = false
	}
}

// fatal tells whether a connection does not go on after a NAK of this syndrome.
func fatal(s roce.Syndrome) bool {
	return s.Kind() == roce.SyndromeNAK && s != roce.NAKSequence
}

// receiveDone consumes the oldest receive and completes it.
func (q *QP) receiveDone(e *effect) {
	_ = q.consumeReceive()
	if e.cqe.Status == ring.StatusSuccess {
		q.nic.stats.ReceivesCompleted++
	}
	q.nic.pushCQE(q.recvCQ, &e.cqe, e.solicited)
}

func (q *QP) readResponse(e *effect, msn uint32) response {
	end := e.psn.Add(int(e.packets))
	return response{psn: e.psn, end: end, first: e.psn, final: end, mr: e.mr, va: e.va, left: e.cqe.ByteLen, msn: msn}
}

func (q *QP) commitRead(e *effect) {
	r := &q.resp
	r.msn = (r.msn + 1) & roce.PSNMask
	r.advance(e.psn.Add(int(e.packets) - 1))
	if s := r.findSaved(e.psn, e.psn.Add(int(e.packets)), false); s != nil {
		s.msn = r.msn
	}
	if c := q.count; c != nil {
		c.ReadsServed++
		c.ReadServedBytes += uint64(e.cqe.ByteLen)
	}
	q.respond(q.readResponse(e, r.msn))
}

func (q *QP) commitAtomic(e *effect, old uint64) {
	r := &q.resp
	r.msn = (r.msn + 1) & roce.PSNMask
	r.advance(e.psn)
	if s := r.findSaved(e.psn, e.psn.Add(1), true); s != nil {
		s.executed, s.value, s.msn = true, old, r.msn
	}
	if c := q.count; c != nil {
		c.AtomicsServed++
	}
	q.respond(shortResponse(e.psn, e.kind == effectAtomic, old, r.msn))
}

// shortResponse is the answer to an atomic, or to an ATOMIC WRITE or FLUSH.
func shortResponse(psn roce.PSN, atomic bool, value uint64, msn uint32) response {
	end := psn.Add(1)
	return response{psn: psn, end: end, first: psn, final: end, atomic: atomic, value: value, msn: msn}
}

func (q *QP) performNAK(now int64, e *effect) {
	s := &q.nic.stats
	switch {
	case e.syndrome == roce.NAKSequence:
		s.SeqNAKsSent++
	case e.syndrome.Kind() == roce.SyndromeRNRNAK:
		s.RNRNAKsSent++
	case e.syndrome == roce.NAKRemoteAccess:
		s.AccessNAKsSent++
	default:
		s.OtherNAKsSent++
	}
	if c := q.count; c != nil {
		c.nakSent(e.syndrome)
	}
	r := &q.resp
	r.nakDue, r.nak, r.nakPSN = true, e.syndrome, e.psn
	q.activate()
	if !fatal(e.syndrome) {
		return
	}
	r.refusing = true
	if e.recvErr != ring.StatusSuccess {
		q.completeReceiveWith(e.cqe.WRID, e.recvErr)
	}
	switch e.syndrome {
	case roce.NAKRemoteAccess:
		q.nic.event(Event{Type: EventQPAccessErr, QP: q}) // 11.6.3
	case roce.NAKInvalidRequest:
		if e.recvErr == ring.StatusSuccess {
			q.nic.event(Event{Type: EventQPReqErr, QP: q})
		}
	}
	q.enterError(now)
}

// completeReceiveWith completes the oldest receive with an error.
func (q *QP) completeReceiveWith(wrid uint64, status ring.Status) {
	if q.consumeReceive() != nil {
		return
	}
	q.nic.pushCQE(q.recvCQ, &ring.CQE{WRID: wrid, Status: status, Opcode: ring.WCRecv, QPN: q.num}, false)
}

// fallSilent ends a queue pair whose program is gone, while it is not cleaned up yet: towards the peer it is gone already. A NAK
// would say that the request was wrong; the peer learns from its timer that nobody is there.
func (q *QP) fallSilent(now int64) {
	if q.state == Err {
		return
	}
	q.resp.nakDue, q.resp.ackDue = false, false
	q.nic.event(Event{Type: EventQPFatal, QP: q}) // another process may have the device open too
	q.enterError(now)
}

// memoryFailed treats a transfer that e or a packet merged into e asked for, and that the program's
// memory did not allow.
func (q *QP) memoryFailed(now int64, e *effect, f *hostmem.Failure) {
	if q.typ == UC {
		q.landingLost(now, e)
		return
	}
	psn := e.psn
	if !f.Atomic {
		psn = roce.PSN(q.nic.transport.list.Segs[f.Index].Tag)
	}
	switch {
	case e.kind == effectDatagram:
		q.completeReceiveWith(e.cqe.WRID, ring.StatusLocProtErr)
		q.enterError(now)
	case e.kind == effectRequests:
		q.landingFailed(now, psn)
	case e.kind == effectCommit || e.kind == effectReceive || e.kind == effectAtomic || e.kind == effectPlaced:
		if q.nic.planted == PlantedEarlyACK && e.kind != effectAtomic && e.kind != effectPlaced {
			return // it has been acknowledged already
		}
		if errors.Is(f.Err, hostmem.ErrGone) {
			q.resp.committed = psn.Add(-1)
			q.fallSilent(now)
			return
		}
		nak := effect{syndrome: roce.NAKRemoteAccess, psn: psn}
		if e.send {
			nak.syndrome, nak.recvErr, nak.cqe.WRID = roce.NAKRemoteOperational, ring.StatusLocProtErr, e.cqe.WRID
		}
		q.resp.committed = psn.Add(-1)
		q.performNAK(now, &nak)
	default:
		// An effect without transfers behind a failure: the failure belongs to an effect of this
		// queue pair that stands before it, which has put the queue pair into error.
		q.enterError(now)
	}
}

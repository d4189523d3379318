package nic

import (
	"cmp"
	"slices"
)

// Revive puts the unit back to work after a fault of the device's own has stopped it in the middle of something: what it knew
// besides its queue pairs is made anew, and every queue pair of it that was in use goes to the error state. Their programs
// see what a local catastrophic error is to a queue pair: EventQPFatal, and what was posted flushed (vol. 1, 10.3.1.7, 11.6.3). It returns
// how many those were. Precondition: SetAlone(true).
func (n *NIC) Revive(now int64) (ended int) {
	n.now = max(n.now, now)
	old := &n.transport
	for key := range old.peers {
		n.leaveShare(key)
	}
	n.transport = transport{}
	n.transport.init(n)
	var own, others []*QP
	for _, q := range n.qps {
		if q.nic == n {
			own = append(own, q)
		} else {
			others = append(others, q)
		}
	}
	byNumber := func(a, b *QP) int { return cmp.Compare(a.num, b.num) }
	slices.SortFunc(own, byNumber)
	slices.SortFunc(others, byNumber)
	for _, q := range own { // all first: a flush must not come upon lists that are not there any more
		q.sched, q.timer, q.pace, q.sel, q.rate = schedEntry{}, timerEntry{}, paceState{}, selective{}, nil
		q.req.peer = nil
		q.resp = responder{refusing: true}
	}
	for _, q := range own {
		if q.state == Reset {
			q.transportReset()
			continue
		}
		ended++
		if q.state != Err {
			n.event(Event{Type: EventQPFatal, QP: q})
		}
		q.endAfterFault(now)
	}
	for _, q := range own {
		n.notifyAgain(q.sendCQ)
		n.notifyAgain(q.recvCQ)
	}
	for _, q := range others { // their doorbells may have been in the unit's hands
		q.nic.Doorbell(now, q)
	}
	return ended
}

// notifyAgain raises the event that the queue is armed for if completions lie there: that of one of them may have been swallowed
// by the fault. One too many does no harm: programs must reckon with completions that they have polled before the event.
func (n *NIC) notifyAgain(c *CQ) {
	if c == nil {
		return
	}
	lock(c.mu)
	defer unlock(c.mu)
	if !c.overrun.Load() && c.armed != disarmed && c.ring.Free() < c.ring.Capacity() {
		c.fire(n)
	}
}

// endAfterFault flushes the queue pair: from what its queues say, if what is known of it makes no sense.
func (q *QP) endAfterFault(now int64) {
	q.state, q.attr.SQDraining = Err, false
	if !q.flushed(now) {
		q.req, q.resp = requester{epoch: q.req.epoch + 1}, responder{refusing: true}
		q.detachTransport()
		q.flushed(now)
	}
	q.showReadiness()
}

// flushed tells whether the queue pair could be flushed.
func (q *QP) flushed(now int64) (ok bool) {
	defer func() { ok = recover() == nil }()
	q.transportToError(now)
	return true
}

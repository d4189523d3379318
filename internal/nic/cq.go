package nic

import "rnic/internal/ring"

// CreateCQ makes a completion queue over r, which is formatted, and whose producer is the NIC.
// EINVAL: too many or too small entries. ENOMEM: the limit of completion queues.
func (n *NIC) CreateCQ(r *ring.Queue) (*CQ, error) {
	const op = "create completion queue"
	switch {
	case r == nil || r.ElemSize() < ring.CQESize:
		return nil, refuse(EINVAL, op, "", "the queue cannot hold completions")
	case r.Capacity() > capacityFor(n.limits.MaxCQE):
		return nil, refuse(EINVAL, op, "", "more entries than the device supports")
	case n.cqs >= n.limits.MaxCQ:
		return nil, refuse(ENOMEM, op, "", "the limit of completion queues is reached: destroy some")
	}
	n.cqs++
	return &CQ{nic: n.shared, mu: n.newLock(), ring: r}, nil
}

// capacityFor is the capacity of the queue that is made when so many entries are asked for.
func capacityFor(entries uint32) uint32 {
	g, err := ring.GeometryFor(entries, ring.CQESize)
	if err != nil {
		return 0
	}
	return g.Capacity()
}

// Destroy frees the completion queue; its events that were not taken yet are gone. EBUSY while a
// queue pair uses it (vol. 1, 11.2, Destroy Completion Queue).
func (c *CQ) Destroy() error {
	const op = "destroy completion queue"
	if c.dead {
		return refuse(ENOENT, op, "", "it is destroyed already")
	}
	if c.refs > 0 {
		return refuse(EBUSY, op, "", "queue pairs use it: destroy them first")
	}
	c.dead = true
	c.pace.due = 0
	c.nic.cqs--
	return nil
}

// Arm asks for one completion event: for the next completion that is added from now on, or, with
// solicitedOnly, for the next one that is solicited or in error. Asking for less than what is
// pending changes nothing (vol. 1, 11.4.2.2).
//
// With many units it may be called while others drive them.
func (c *CQ) Arm(solicitedOnly bool) {
	lock(c.mu)
	defer unlock(c.mu)
	if !solicitedOnly {
		c.armed = armedAny
	} else if c.armed == disarmed {
		c.armed = armedSolicited
	}
}

// usable tells whether queue pairs of n may use c.
func (c *CQ) usable(n *NIC) bool { return c != nil && c.nic == n.shared && !c.dead }

// pushCQE adds a completion, publishes it, and raises the completion event that was asked for.
// solicited: the completion of a receive whose last packet had the solicited event bit.
//
// A queue without room is dead from then on: one EventCQErr, no completion any more, and its queue
// pairs go to the error state (11.6.3). That happens in Events, not here in the middle of one of
// them.
func (n *NIC) pushCQE(c *CQ, e *ring.CQE, solicited bool) {
	lock(c.mu)
	n.addCQE(c, e, solicited)
	unlock(c.mu)
}

func (n *NIC) addCQE(c *CQ, e *ring.CQE, solicited bool) {
	if c.overrun.Load() {
		return
	}
	e.Time = uint64(n.now)
	if c.ring.Free() == 0 || c.ring.StoreCQE(c.ring.Position(), e) != nil || c.ring.Publish() != nil {
		n.overflow(c)
		return
	}
	n.stats.Completions++
	if e.Status != ring.StatusSuccess {
		n.stats.ErrorCompletions++
		switch e.Status {
		case ring.StatusRetryExcErr:
			n.stats.RetriesExceeded++
		case ring.StatusRNRRetryExcErr:
			n.stats.RNRRetriesExceeded++
		}
		solicited = true // 11.4.2.2: an unsuccessful completion counts as solicited
	} else if n.planted == PlantedLostSolicited {
		solicited = false
	}
	if c.armed == armedAny || c.armed == armedSolicited && solicited {
		c.notify(n, e.Status != ring.StatusSuccess)
	}
}

const overrunReason = "a completion queue has overflowed: make another one"

func (n *NIC) overflow(c *CQ) {
	c.overrun.Store(true)
	n.stats.CQOverflows++
	n.event(Event{Type: EventCQErr, CQ: c})
	n.overruns = append(n.overruns, c)
}

// failOverruns puts the queue pairs of overflowed completion queues into the error state. It may
// overflow further queues, which are treated in the same call, or by the unit of the queue pair. They may be of any unit:
// n is alone.
func (n *NIC) failOverruns(now int64) {
	for i := 0; i < len(n.overruns); i++ {
		for _, q := range n.overruns[i].users {
			if n.planted == PlantedOverrunNear && q.nic != n {
				continue
			}
			if q.state != Reset && q.state != Err {
				q.nic.event(Event{Type: EventQPFatal, QP: q})
				q.enterError(now)
			}
		}
	}
	clear(n.overruns)
	n.overruns = n.overruns[:0]
}

// attach and detach keep the list of the queue pairs that complete to c, in no order. side is 0 for
// the send side and 1 for the receive side.
func (c *CQ) attach(q *QP, side int) {
	c.refs++
	q.cqSlot[side] = len(c.users)
	c.users = append(c.users, q)
}

func (c *CQ) detach(q *QP, side int) {
	c.refs--
	last := len(c.users) - 1
	moved, slot := c.users[last], q.cqSlot[side]
	c.users[slot] = moved
	if moved.sendCQ == c && moved.cqSlot[0] == last {
		moved.cqSlot[0] = slot
	} else {
		moved.cqSlot[1] = slot
	}
	c.users[last] = nil
	c.users = c.users[:last]
}

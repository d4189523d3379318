package nic

import (
	"fmt"

	"rnic/internal/ring"
)

// moderation says how long a completion event may wait for company: until so many completions have come
// that it is for, or so long after the first of them. It is off unless both are given.
type moderation struct {
	count, period uint16 // completions; microseconds
	waiting       uint16 // completions since the queue was armed that the event is for
	due           int64  // when the event comes at the latest; 0: none waits
	listed        uint64 // the units, as a set, in whose held list it is
}

// Moderate sets the moderation of the queue's completion events: ibv_modify_cq with
// IBV_CQ_ATTR_MODERATE. An event waits for count completions, period microseconds at most; with a count
// below 2, or no period, none waits. An unsuccessful completion is told of at once.
func (c *CQ) Moderate(count, period uint16) error {
	if c.dead {
		return refuse(ENOENT, "moderate completion queue", "", "it is destroyed")
	}
	c.pace.count, c.pace.period = count, period
	if c.pace.due != 0 && (!c.pace.on() || c.pace.waiting >= count) {
		c.fire(c.nic.units[0])
	}
	return nil
}

// Moderation is what Moderate has set.
func (c *CQ) Moderation() (count, period uint16) { return c.pace.count, c.pace.period }

func (m *moderation) on() bool { return m.count > 1 && m.period > 0 }

// notify raises the event that the queue is armed for, or lets it wait: for a completion of unit n.
func (c *CQ) notify(n *NIC, urgent bool) {
	m := &c.pace
	if urgent || !m.on() {
		c.fire(n)
		return
	}
	if m.waiting++; m.waiting >= m.count {
		c.fire(n)
		return
	}
	if m.due == 0 {
		m.due = n.now + int64(m.period)*1000
		// In the list of this unit, even if it is in another's from an earlier wait: that one may be asleep, and does
		// not know of the new time.
		if self := uint64(1) << n.index; m.listed&self == 0 {
			m.listed |= self
			n.held = append(n.held, c)
		}
	}
}

func (c *CQ) fire(n *NIC) {
	c.armed, c.pace.waiting, c.pace.due = disarmed, 0, 0
	n.event(Event{Type: EventCompletion, CQ: c})
}

// nextNotification is the time of the next event that waits; 0: there is none.
func (n *NIC) nextNotification() (at int64) {
	for _, c := range n.held {
		lock(c.mu)
		at = earlier(at, c.pace.due)
		unlock(c.mu)
	}
	return at
}

// notifyDue raises the events that have waited long enough.
func (n *NIC) notifyDue(now int64) { n.held = n.stillWaiting(n.held, now, (*NIC).notifyDueOf) }

// notifyDueOf is notifyDue of one queue, and tells whether its event still waits: else it was raised, or the queue is gone.
func (n *NIC) notifyDueOf(c *CQ, now int64) bool {
	lock(c.mu)
	defer unlock(c.mu)
	if due := c.pace.due; due != 0 && due <= now {
		if n.planted == PlantedLateNotice {
			c.pace.due = 0
		} else {
			c.fire(n)
		}
	}
	if c.pace.due != 0 {
		return true
	}
	c.pace.listed &^= 1 << n.index
	return false
}

// Resize goes over to the queue r, with the completions that the program has not polled (vol. 1,
// 11.2, Resize Completion Queue). EINVAL, and nothing is changed: r is of the wrong shape, or does not hold them, or the
// queue has overflowed.
func (c *CQ) Resize(r *ring.Queue) error {
	const op = "resize completion queue"
	switch {
	case c.dead:
		return refuse(ENOENT, op, "", "it is destroyed")
	case c.overrun.Load():
		return refuse(EINVAL, op, "", overrunReason)
	case r == nil || r.ElemSize() < ring.CQESize || r.Capacity() > capacityFor(c.nic.limits.MaxCQE):
		return refuse(EINVAL, op, "", "the new queue is not of the right shape")
	case r.ElemSize() != c.ring.ElemSize():
		return refuse(EINVAL, op, "", "the entries of the new queue have another size")
	}
	c.showAll(c.nic.units[0])
	if err := c.ring.MoveCompletions(r); err != nil {
		return refuse(EINVAL, op, "", fmt.Sprintf("more completions are pending than the %d that the new queue holds: poll first", r.Capacity()))
	}
	c.ring = r
	return nil
}

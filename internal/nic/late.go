package nic

import (
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// lateCompletions are completions of a queue that faults hold back: they become visible when they are due, in
// order. The queue counts their room as taken.
type lateCompletions struct {
	entries []lateCompletion
	listed  uint64 // the units, as a set, in whose late list the queue is
}

type lateCompletion struct {
	cqe       ring.CQE
	solicited bool
	due       int64
}

// holdBack keeps a completion back for so long, and behind those that are kept back already. The queue's lock is held.
func (n *NIC) holdBack(c *CQ, e *ring.CQE, solicited bool, nanos int64) {
	if c.late == nil {
		c.late = new(lateCompletions)
	}
	l := c.late
	if int(c.ring.Free()) <= len(l.entries) {
		n.overflow(c)
		return
	}
	due := n.now + max(0, nanos)
	if k := len(l.entries); k > 0 {
		due = max(due, l.entries[k-1].due)
	}
	l.entries = append(l.entries, lateCompletion{*e, solicited, due})
	if self := uint64(1) << n.index; l.listed&self == 0 {
		l.listed |= self
		n.late = append(n.late, c)
	}
}

// nextLate is when the next of them is due; 0: there is none.
func (n *NIC) nextLate() (at int64) {
	for _, c := range n.late {
		at = earlier(at, c.nextLate())
	}
	return at
}

func (c *CQ) nextLate() (at int64) {
	lock(c.mu)
	defer unlock(c.mu)
	if len(c.late.entries) > 0 {
		at = c.late.entries[0].due
	}
	return at
}

// lateDue makes visible what is due.
func (n *NIC) lateDue(now int64) { n.late = n.stillWaiting(n.late, now, (*NIC).lateDueOf) }

// stillWaiting has due look at each of some completion queues, and keeps those of which it says that more is to come.
func (n *NIC) stillWaiting(list []*CQ, now int64, due func(*NIC, *CQ, int64) bool) []*CQ {
	keep := list[:0]
	for _, c := range list {
		if due(n, c, now) {
			keep = append(keep, c)
		}
	}
	clear(list[len(keep):])
	return keep
}

// lateDueOf is lateDue of one queue, and tells whether there are more.
func (n *NIC) lateDueOf(c *CQ, now int64) bool {
	lock(c.mu)
	defer unlock(c.mu)
	n.showLate(c, now)
	if len(c.late.entries) > 0 {
		return true
	}
	c.late.listed &^= 1 << n.index
	return false
}

// showLate makes those visible that are due at a time. The queue's lock is held.
func (n *NIC) showLate(c *CQ, now int64) {
	if c.late == nil {
		return
	}
	l := c.late.entries
	k := 0
	for ; k < len(l) && (l[k].due <= now || c.dead); k++ {
		if !c.dead {
			n.publishCQE(c, &l[k].cqe, l[k].solicited)
		}
	}
	c.late.entries = l[:copy(l, l[k:])]
}

// showAll makes all of them visible now: the queue, or what completes to it, is about to change.
func (c *CQ) showAll(n *NIC) {
	lock(c.mu)
	defer unlock(c.mu)
	n.showLate(c, 1<<63-1)
}

// SetCompletionDelay has f say, for each completion of a queue pair, by how many nanoseconds it becomes visible later: faults.
// Later completions of the same queue wait behind it. nil: none does.
//
// Precondition: it is called before the NIC is driven.
func (n *NIC) SetCompletionDelay(f func(now int64, qp uint32) (nanos int64)) {
	n.shared.completionDelay = f
}

// Front tells how far a reliable connection is that is of this unit: the oldest PSN that it waits for an acknowledgement
// of, the next that it expects of its peer and the message sequence number behind what it has executed, and the peer's queue pair. False: there
// is no such queue pair.
func (n *NIC) Front(num uint32) (unacknowledged, expected roce.PSN, msn, peer uint32, ok bool) {
	q := n.lookupQP(num)
	if q == nil || q.nic != n || q.typ != RC || q.state != RTS && q.state != RTR && q.state != SQD {
		return 0, 0, 0, 0, false
	}
	unacknowledged = q.req.una
	if !q.req.started {
		unacknowledged = roce.PSN(q.attr.SQPSN) & roce.PSNMask
	}
	return unacknowledged, q.resp.committed.Add(1), q.resp.msn, q.attr.DestQPN, true
}

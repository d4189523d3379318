package nic

// A schedEntry holds the places of a queue pair in the lists that it can be on.
type schedEntry struct{ links [4]schedLink }

type schedLink struct {
	next, prev *QP
	on         bool
}

// The lists that a queue pair can be on.
const (
	onActive = iota // it may have something to send
	onPeer          // it waits for room in the window of its peer address
	onAcks          // it owes an acknowledgement that waits for a quiet moment
	onLonely        // its next request waits for its unit to be alone
)

// schedList is a first-in first-out list threaded through the queue pairs.
type schedList struct {
	kind       uint8
	head, tail *QP
}

func (l *schedList) pushBack(q *QP) {
	e := &q.sched.links[l.kind]
	if e.on {
		return
	}
	*e = schedLink{prev: l.tail, on: true}
	if l.tail != nil {
		l.tail.sched.links[l.kind].next = q
	} else {
		l.head = q
	}
	l.tail = q
}

func (l *schedList) pushFront(q *QP) {
	e := &q.sched.links[l.kind]
	if e.on {
		return
	}
	*e = schedLink{next: l.head, on: true}
	if l.head != nil {
		l.head.sched.links[l.kind].prev = q
	} else {
		l.tail = q
	}
	l.head = q
}

func (l *schedList) remove(q *QP) {
	e := &q.sched.links[l.kind]
	if !e.on {
		return
	}
	if e.prev != nil {
		e.prev.sched.links[l.kind].next = e.next
	} else {
		l.head = e.next
	}
	if e.next != nil {
		e.next.sched.links[l.kind].prev = e.prev
	} else {
		l.tail = e.prev
	}
	*e = schedLink{}
}

// activate puts q among those that Transmit visits.
func (q *QP) activate() { q.nic.transport.active.pushBack(q) }

// Idle tells whether no queue pair has anything to transmit now.
func (n *NIC) Idle() bool { return n.transport.active.head == nil }

// A visit to a queue pair ends after this much, so that others get their turn, while packets of one
// queue pair still lie together: the link sends neighbours of equal length in one call.
const (
	quantumPackets = 16
	quantumBytes   = 64 << 10
)

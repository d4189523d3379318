package nic

// timerEntry is a queue pair's place among the timers. There is one entry for all timers of a queue
// pair; its time is at most the earliest deadline. Moving a deadline back touches nothing: the
// entry is corrected when it comes up.
type timerEntry struct {
	at    int64
	index int // in the heap, plus 1; 0: not there
}

// timerHeap is a binary heap of queue pairs by timer.at.
type timerHeap struct{ q []*QP }

func (h *timerHeap) less(i, j int) bool { return h.q[i].timer.at < h.q[j].timer.at }

func (h *timerHeap) swap(i, j int) {
	h.q[i], h.q[j] = h.q[j], h.q[i]
	h.q[i].timer.index, h.q[j].timer.index = i+1, j+1
}

func (h *timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *timerHeap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.q) {
			return
		}
		if child+1 < len(h.q) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(i, child)
		i = child
	}
}

// sooner makes sure that q's entry comes up at time at, or earlier.
func (h *timerHeap) sooner(q *QP, at int64) {
	switch {
	case q.timer.index == 0:
		q.timer.at = at
		h.q = append(h.q, q)
		q.timer.index = len(h.q)
		h.up(len(h.q) - 1)
	case at < q.timer.at:
		q.timer.at = at
		h.up(q.timer.index - 1)
	}
}

func (h *timerHeap) remove(q *QP) {
	i := q.timer.index - 1
	if i < 0 {
		return
	}
	last := len(h.q) - 1
	if i != last {
		h.swap(i, last)
	}
	h.q[last] = nil
	h.q = h.q[:last]
	q.timer.index = 0
	if i != last {
		h.down(i)
		h.up(i)
	}
}

// rearm enters q's earliest deadline. It must be called after whatever may have made it earlier.
func (q *QP) rearm() {
	if d := q.deadline(); d != 0 {
		q.nic.transport.timers.sooner(q, d)
	}
}

// top returns the queue pair whose deadline is the earliest, corrected; nil if there is none.
func (h *timerHeap) top() *QP {
	for len(h.q) > 0 {
		q := h.q[0]
		d := q.deadline()
		switch {
		case d == 0:
			h.remove(q)
		case d > q.timer.at:
			q.timer.at = d
			h.down(0)
		default:
			return q
		}
	}
	return nil
}

// NextTimer is the time at which Expire has something to do; 0: none.
func (n *NIC) NextTimer() int64 {
	at := earlier(n.nextNotification(), n.nextLate())
	if q := n.transport.timers.top(); q != nil {
		return earlier(at, q.timer.at)
	}
	return at
}

// Expire lets the timers act whose time has come.
func (n *NIC) Expire(now int64) {
	n.now = max(n.now, now)
	n.lateDue(now)
	n.notifyDue(now)
	h := &n.transport.timers
	for q := h.top(); q != nil && q.timer.at <= now; q = h.top() {
		h.remove(q)
		q.expire(now)
		if d := q.deadline(); d != 0 {
			h.sooner(q, max(d, now+1)) // never twice in one call
		}
	}
}

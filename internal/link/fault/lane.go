package fault

import (
	"rnic/internal/fault"
	"rnic/internal/link"
	"rnic/internal/roce"
)

const (
	// holdNanos bounds how long a reordered packet waits for others to
	// overtake it: behind the last packet of a message none may come.
	holdNanos = 1_000_000

	// maxWaiting packets wait in one lane at most; what comes then is lost,
	// as in a router.
	maxWaiting = 16384
)

// lane is one direction: what is decided there and what waits.
type lane struct {
	held    []waiting // reordered, oldest first
	delayed []waiting // heap: earliest due first
	ready   []waiting // due or decided, in order, when there was no room
	order   uint64
	lost    uint64 // for want of room to wait in

	free [][]byte
}

// waiting is a packet in a buffer of its own.
type waiting struct {
	pkt   link.Packet
	left  int    // held: packets that are still to overtake it
	due   int64  // held: pass in any case; delayed: pass
	delay int64  // held: to be delayed after that
	order uint64 // of arrival, where due is equal
}

// empty tells whether nothing waits.
func (q *lane) empty() bool { return len(q.held)+len(q.delayed)+len(q.ready) == 0 }

// copyOf returns p with its data in a buffer from the pool.
func (q *lane) copyOf(p *link.Packet) link.Packet {
	var buf []byte
	if n := len(q.free); n > 0 {
		buf, q.free = q.free[n-1], q.free[:n-1]
	} else {
		buf = make([]byte, 0, roce.MaxPacketSize)
	}
	c := *p
	buf = append(buf[:0], p.Data...)
	c.Data = buf
	return c
}

// recycle takes back the buffer of a packet made by copyOf.
func (q *lane) recycle(p *link.Packet) {
	q.free = append(q.free, p.Data[:0])
	p.Data = nil
}

func (q *lane) full() bool { return len(q.held)+len(q.delayed)+len(q.ready) >= maxWaiting }

// hold keeps a copy of p until d.Hold packets have overtaken it.
func (q *lane) hold(p *link.Packet, d *fault.Decision, now int64) {
	if q.full() {
		q.lost++
		return
	}
	q.order++
	q.held = append(q.held, waiting{pkt: q.copyOf(p), left: d.Hold, due: now + holdNanos, delay: d.DelayNanos, order: q.order})
}

// delay keeps a copy of p until due.
func (q *lane) delay(p *link.Packet, due int64) {
	if q.full() {
		q.lost++
		return
	}
	q.order++
	q.push(waiting{pkt: q.copyOf(p), due: due, order: q.order})
}

// queue keeps a copy of p until there is room for it.
func (q *lane) queue(p *link.Packet) {
	if q.full() {
		q.lost++
		return
	}
	q.ready = append(q.ready, waiting{pkt: q.copyOf(p)})
}

// overtaken tells the held packets that one has passed, and makes those ready
// that have waited for that.
func (q *lane) overtaken(now int64) {
	if len(q.held) == 0 {
		return
	}
	for i := range q.held {
		q.held[i].left--
	}
	q.release(now)
}

// wake makes ready whatever the time has come for.
func (q *lane) wake(now int64) {
	if len(q.held) > 0 {
		q.release(now)
	}
	for len(q.delayed) > 0 && q.delayed[0].due <= now {
		q.ready = append(q.ready, q.pop())
	}
}

// release moves on the held packets that have been overtaken often or waited
// long enough, in order.
func (q *lane) release(now int64) {
	keep := q.held[:0]
	for _, w := range q.held {
		switch {
		case w.left > 0 && now < w.due:
			keep = append(keep, w)
		case w.delay > 0:
			w.due = now + w.delay
			q.push(w)
		default:
			q.ready = append(q.ready, w)
		}
	}
	q.held = keep
}

// next is when wake has something to do; 0 for never.
func (q *lane) next() int64 {
	var t int64
	for i := range q.held {
		t = earlier(t, q.held[i].due)
	}
	if len(q.delayed) > 0 {
		t = earlier(t, q.delayed[0].due)
	}
	return t
}

// earlier returns the smaller time, of which 0 is none.
func earlier(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

func (w *waiting) before(o *waiting) bool {
	return w.due < o.due || w.due == o.due && w.order < o.order
}

// push and pop are those of a binary heap. container/heap would box.
func (q *lane) push(w waiting) {
	h := append(q.delayed, w)
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	q.delayed = h
}

func (q *lane) pop() waiting {
	h := q.delayed
	first, n := h[0], len(h)-1
	h[0] = h[n]
	h[n] = waiting{}
	h = h[:n]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < n; child++ {
			if h[child].before(&h[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	q.delayed = h
	return first
}

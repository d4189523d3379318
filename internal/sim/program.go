package sim

import "rnic/internal/nic"

// plan decides what the program at q means to do with a new connection.
func (w *world) plan(q *qpair) {
	w.addWindows(q)
	q.left, q.bombAt = w.between(0, 40), -1
	if q.left > 0 && w.chance(30) {
		q.bombAt, q.bombKind = w.rng.IntN(q.left), bombKind(w.rng.IntN(int(bombKinds)))
		if len(q.windows)+len(q.peer.windows) > 0 && w.chance(25) {
			q.bombKind = bombWindowBeyond + bombKind(w.rng.IntN(4))
		}
	}
	if q.peer.pool != nil && (q.bombKind >= bombShortRecv || q.bombKind == bombInvalidate) {
		q.bombAt = -1 // whose message would meet it is not known
	}
	w.maybe(8, q, func() {
		w.note(q.h, "the program gives up %v", q)
		q.progErr = true
		w.modify(q, &nic.Attr{State: nic.Err}, nic.AttrState)
		w.breakDown(q.conn)
	})
	w.maybe(5, q, func() {
		w.note(q.h, "the program resets %v", q)
		q.reset = true
		w.modify(q, &nic.Attr{State: nic.Reset}, nic.AttrState)
		w.breakDown(q.conn)
	})
	w.maybe(3, q, func() {
		w.note(q.h, "the program destroys %v", q)
		q.reset, q.gone, q.conn.again = true, true, 0
		w.must(q.qp.Destroy(), "destroying "+q.String())
		q.h.look("destroy")
		w.breakDown(q.conn)
	})
	w.maybe(20, q, func() {
		if q.qp.State() == nic.RTS {
			w.modify(q, &nic.Attr{State: nic.SQD, EnSQDAsyncNotify: 1}, nic.AttrState|nic.AttrEnSQDAsyncNotify)
		}
	})
}

// maybe does something to q, in so many of a hundred connections, while it is in use.
func (w *world) maybe(percent int, q *qpair, do func()) {
	if !w.chance(percent) {
		return
	}
	number := q.number
	w.after(w.nanos(1000, 600_000), func() {
		if q.number == number && !q.down && !q.reset && q.ready {
			do()
		}
	})
}

// drained is the event that everything which had begun when q entered SQD has completed (10.3.1.5).
func (w *world) drained(q *qpair) {
	if q.errState || q.deaf { // both came with one batch of packets, or it is about to be in ERR, and its completions are lost
		return
	}
	if q.qp.State() != nic.SQD {
		w.fail("%v is in %v and reports that its send queue is drained", q, q.qp.State())
	}
	for _, x := range q.sends[q.nextSend:] {
		if x.seen && (x.signalled || !w.finished(x)) {
			w.fail("%v reports that its send queue is drained, but %s has begun and is not complete", q, x)
		}
	}
	number := q.number
	w.after(w.nanos(0, 100_000), func() {
		if q.number == number && q.qp.State() == nic.SQD && !q.reset {
			w.modify(q, &nic.Attr{State: nic.RTS}, nic.AttrState)
		}
	})
}

// flushNanos is how long a queue pair in ERR may take to flush what was posted to it. Receives ring
// no doorbell: the NIC looks for them now and then.
const flushNanos = int64(20_000_000)

// breakDown begins the recovery of a connection that is broken at one end.
func (w *world) breakDown(c *conn) {
	if c.breaking {
		return
	}
	c.breaking = true
	w.after(w.nanos(0, 2_000_000), func() { w.tearDown(c) })
}

// tearDown moves both ends to ERR and waits until nothing of the connection is under way any more:
// a packet of it could meet the next one (the TimeWait of 12.9.8).
func (w *world) tearDown(c *conn) {
	w.endCM(c)
	quiet := flushNanos
	for _, q := range []*qpair{c.a, c.b} {
		q.down = true
		quiet += q.h.wires[q.peer.h.index].delayBound()
		if q.reset || q.qp.State() == nic.Reset {
			continue
		}
		if !q.errState {
			q.progErr = true
		}
		w.modify(q, &nic.Attr{State: nic.Err}, nic.AttrState)
	}
	w.after(quiet, func() {
		for _, q := range []*qpair{c.a, c.b} {
			w.settle(q)
			q.ready = false
			w.dropWindows(q)
			if q.gone {
				continue
			}
			w.modify(q, &nic.Attr{State: nic.Reset}, nic.AttrState)
		}
		c.breaking = false
		if c.again > 0 && !c.a.deaf && !c.b.deaf {
			c.again--
			w.after(w.nanos(0, 50_000), func() { w.connect(c) })
		}
	})
}

// step posts a few work requests, and comes back for more.
func (w *world) step(q *qpair, number int) {
	if q.number != number || q.down || q.reset {
		return
	}
	full := false
	for n := w.between(1, 8); n > 0 && q.left > 0; n-- {
		if full = q.sq.Free() == 0; full {
			break
		}
		x := w.nextSend(q)
		if x == nil { // no memory left for more
			q.left = 0
			break
		}
		q.left--
		w.post(q, x)
		if w.chance(30) {
			q.h.ring(q)
		}
	}
	q.h.ring(q)
	if q.left == 0 {
		return
	}
	gap := w.nanos(0, 20_000)
	switch {
	case full:
		gap = w.nanos(20_000, 2_000_000)
	case w.chance(25):
		gap = w.nanos(0, 300_000)
	case w.chance(5):
		gap = w.nanos(0, 10_000_000)
	}
	w.after(gap, func() { w.step(q, number) })
}

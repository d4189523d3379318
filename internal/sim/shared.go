package sim

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// Shared receive queues (vol. 1, 10.2.9). Which receive a message takes is decided by the order in which
// the messages of all queue pairs start, which only the NIC knows. The model learns it from the completions:
// a receive belongs to the queue pair that its completion names, where it is for the next message. It checks
// that none is used twice, out of order or lost, and the two events.

// A pool is a shared receive queue, and what the model knows of it.
type pool struct {
	h     *host
	srq   *nic.SRQ
	rq    *ring.Queue
	sge   uint32
	size  int // bytes of a receive
	recvs []*work

	used   int // receives in the queue when it was last looked at
	limit  int // armed; 0: not
	raised int // limit events of the present call
	short  int // receives that did not fit when they were to be posted
	resets int // times that a queue pair may have taken a receive with it
}

// addShared makes a shared receive queue, and connections that take their receives from it.
func (w *world) addShared(h *host) {
	if h.roomyCQ() == nil {
		return
	}
	p := &pool{h: h, sge: uint32(pick(w, 1, 2, 4)), size: w.between(64, 3000)}
	nics, programs := w.newSharedQueue(p, w.between(1, 40))
	var err error
	p.srq, err = h.nic.CreateSRQ(h.pd, nics, nic.SRQAttr{MaxWR: nics.Capacity(), MaxSGE: p.sge})
	w.must(err, "creating a shared receive queue")
	p.rq = programs
	h.pools = append(h.pools, p)
	for range w.between(2, 4) {
		w.addConnOf(w.addQP(w.hosts[w.rng.IntN(len(w.hosts))], nic.RC, nil), w.addQP(h, nic.RC, p))
	}
	if w.chance(40) {
		for range w.between(1, 2) {
			w.addDatagrams(h, p)
		}
	}
	if w.chance(40) {
		w.addSharedUnreliable(w.hosts[w.rng.IntN(len(w.hosts))], h, p)
	}
	w.after(0, func() {
		for range w.between(1, 12) {
			w.replenish(p, nil)
		}
	})
	for range w.rng.IntN(6) {
		w.after(w.nanos(0, 2_000_000), func() { w.armLimit(p) })
		w.after(w.nanos(0, 2_000_000), func() { w.resizeShared(p) })
	}
}

// roomyCQ is a completion queue of the host that cannot overflow; nil if there is none.
func (h *host) roomyCQ() *cqueue {
	for _, c := range h.cqs {
		if !c.small {
			return c
		}
	}
	return nil
}

func (w *world) newSharedQueue(p *pool, entries int) (nics, programs *ring.Queue) {
	_, g, err := p.h.nic.SRQShape(nic.SRQAttr{MaxWR: uint32(entries), MaxSGE: p.sge})
	w.must(err, "shaping a shared receive queue")
	return newQueue(w, g)
}

// replenish posts a receive, in the memory of one that is of no use any more, if there is one.
func (w *world) replenish(p *pool, old *work) {
	if p.rq.Free() == 0 {
		p.short++ // goes on with a completion: there is one to come
		return
	}
	r := w.newWork(nil, true)
	r.pool, r.n, r.index = p, p.size, len(p.recvs)
	if old != nil && old.success && w.chance(50) {
		r.local = old.local
	} else if list, ok := w.takeList(p.h.writable(), p.size, int(p.sge)); ok {
		r.local = list
	} else if old != nil {
		p.h.mem.accept(old.local) // a part of a message may be in it
		r.local, old.local = old.local, nil
	} else {
		return
	}
	r.describe()
	var e ring.RecvWQE
	e.WRID, e.NumSGE = r.id, len(r.sge)
	w.copyEntries(e.SGE[:], r.sge)
	p.rq.StoreRecv(p.rq.Position(), &e)
	w.must(p.rq.Publish(), "posting a receive")
	p.recvs = append(p.recvs, r)
	p.used++
	w.count.SharedRecvs++
	w.note(p.h, "posts shared receive %x of %d bytes", r.id, r.n)
}

// waiting is the number of receives in the queue: those that no message has taken.
func (p *pool) waiting() int { return int(p.rq.Capacity() - p.rq.Free()) }

// adopt gives a receive to the queue pair that its completion names.
func (w *world) adopt(r *work, e *ring.CQE) {
	p := r.pool
	q := p.h.byQPN[e.QPN]
	switch {
	case r.done:
		w.fail("shared receive %x completes twice", r.id)
	case q == nil || q.pool != p:
		w.fail("shared receive %x completes at QP %06x, which does not take from its queue", r.id, e.QPN)
	case r.index >= len(p.recvs)-p.waiting():
		w.fail("shared receive %x completes at %v, and is still in its queue", r.id, q)
	case r.index < q.sharedNext:
		w.fail("shared receive %x completes at %v after one that was posted later", r.id, q)
	case q.sharedOver:
		w.fail("shared receive %x completes at %v after the event that none will (11.6.3.4)", r.id, q)
	}
	q.sharedNext = r.index + 1
	r.q, r.epoch, r.index = q, q.number, len(q.recvs)
	q.recvs = append(q.recvs, r)
}

// completed is called when a shared receive has completed: another one is posted soon.
func (w *world) completed(r *work) {
	p := r.pool
	w.after(w.nanos(0, pick(w, int64(1000), 50_000, 1_000_000)), func() {
		n := p.short
		p.short = 0
		for w.replenish(p, r); n > 0; n-- {
			w.replenish(p, nil)
		}
	})
}

// looked judges the limit event: it comes with the call in which a message takes a receive and leaves fewer
// than the limit, once (11.6.3.5).
func (w *world) looked(p *pool, after string) {
	now, want := p.waiting(), 0
	if now < p.used && now < p.limit {
		want, p.limit = 1, 0
		w.count.Limits++
	}
	if p.raised != want {
		w.fail("host %d, after %s: %d limit events of a shared receive queue with %d receives, %d before, instead of %d",
			p.h.index, after, p.raised, now, p.used, want)
	}
	p.used, p.raised = now, 0
	if a := p.srq.Query(); int(a.Limit) != p.limit || a.MaxWR != p.rq.Capacity() {
		w.fail("host %d: a shared receive queue of %+v, where %d receives and a limit of %d should be", p.h.index, a, p.rq.Capacity(), p.limit)
	}
}

func (w *world) armLimit(p *pool) {
	limit := uint32(w.between(0, int(p.rq.Capacity())))
	w.must(p.srq.Modify(&limit, nil), "arming a shared receive queue")
	p.limit = int(limit)
}

// resizeShared goes over to another queue, if it holds what is posted.
func (w *world) resizeShared(p *pool) {
	nics, programs := w.newSharedQueue(p, w.between(1, 80))
	fits := int(nics.Capacity()) >= max(p.waiting(), p.limit)
	err := p.srq.Modify(nil, nics)
	if (err == nil) != fits {
		w.fail("host %d: resizing a shared receive queue with %d receives and a limit of %d to %d: %v",
			p.h.index, p.waiting(), p.limit, nics.Capacity(), err)
	}
	if fits {
		programs.SetPosition(programs.Produced())
		p.rq = programs
		w.count.Resizes++
	}
}

// lastWQE is the event that a queue pair in error completes no other shared receive.
func (w *world) lastWQE(h *host, qp *nic.QP) {
	for _, q := range h.qps {
		if q.qp == qp && q.pool != nil && q.lastWQE == 0 && qp.State() == nic.Err {
			q.lastWQE++
			return
		}
	}
	if s := h.xrcs[qp.Num()]; s != nil && s.tgt == qp && qp.State() == nic.Err {
		return
	}
	w.fail("host %d: the event of the last shared receive of QP %06x, for which there is no cause", h.index, qp.Num())
}

// settleShared is a part of settle: the event must have come, and a reset may have cost a receive.
func (w *world) settleShared(q *qpair) {
	if q.pool == nil {
		return
	}
	if q.reset {
		q.pool.resets++
		w.replenish(q.pool, nil) // the last one may be gone with it: others would wait for ever
	} else if q.errState && q.lastWQE != 1 {
		w.fail("%v is in ERR, and %d events said that its last shared receive had completed (11.6.3.4)", q, q.lastWQE)
	}
}

// finishPool looks for receives that were taken and never completed.
func (w *world) finishPool(p *pool) {
	lost := 0
	for i, r := range p.recvs {
		if !r.done && i < len(p.recvs)-p.waiting() {
			lost++
			p.h.mem.accept(r.local) // the message that took it may be in it in part
		}
	}
	open := 0
	for _, q := range w.ucs {
		if q.pool == p && q.uc.receiving != nil { // the end of its message was lost, and nothing came behind it
			open++
		}
	}
	if lost > p.resets+open {
		w.fail("host %d: %d shared receives were taken and never completed; %d queue pairs were reset, %d messages are open", p.h.index, lost, p.resets, open)
	}
}

// ---- Completion queues that change.

// resizeCQ goes over to another queue, with what was not polled.
func (w *world) resizeCQ(c *cqueue) {
	entries := uint32(w.between(4096, 9000))
	g, err := ring.GeometryFor(entries, ring.CQESize)
	w.must(err, "shaping a completion queue")
	nics, programs := newQueue(w, g)
	w.must(c.cq.Resize(nics), "resizing a completion queue")
	c.ring = programs
	w.count.Resizes++
}

// pacing is the model of a completion queue's moderation.
type pacing struct {
	count, period int
	waiting       int
	due           int64
}

func (w *world) moderate(c *cqueue) {
	c.pace.count, c.pace.period = w.between(0, 12), w.between(0, 300)
	w.must(c.cq.Moderate(uint16(c.pace.count), uint16(c.pace.period)), "moderating a completion queue")
}

// tell decides what event a completion leads to, which the queue is armed for.
func (c *cqueue) tell(urgent bool) {
	p := &c.pace
	if p.waiting++; urgent || p.period == 0 || p.waiting >= p.count {
		c.oweEvent()
	} else if p.due == 0 {
		p.due = c.h.w.now + int64(p.period)*1000
	}
}

func (c *cqueue) oweEvent() {
	c.armed, c.pace.waiting, c.pace.due = notArmed, 0, 0
	c.owed++
}

// timePassed is called after the timers have acted.
func (c *cqueue) timePassed() {
	if c.pace.due != 0 && c.pace.due <= c.h.w.now {
		c.oweEvent()
	}
}

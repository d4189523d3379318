package sim

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// An unreliable connection with a shared receive queue. Whether a message found a receive there is known only in part:
// while some are left after a batch, there was one for every message of it. A receive that a dropped message has taken
// completes with an error, because a shared queue does not take it back (fault class E, 9.9.3).

// sharedMessages are the messages of which the present batch decided.
type sharedMessages struct {
	ended   []sharedMessage
	certain bool // the message under way has a receive
	fresh   bool // it began in this batch
}

type sharedMessage struct {
	x       *work
	whole   bool // it has arrived; else it was dropped
	certain bool // it has taken a receive
	fresh   bool
}

// addSharedUnreliable makes an unreliable connection that takes from p. A message whose end is lost keeps its receive until
// the next one comes: there is one more for that.
func (w *world) addSharedUnreliable(a, b *host, p *pool) {
	w.addUnreliable(a, b, p)
	w.after(w.nanos(0, 3_000_000), func() { w.replenish(p, nil) })
}

// windowGone tells whether the message goes through a window that is not bound as it was any more.
func (x *work) windowGone() bool {
	return x.isWrite() && x.n > 0 && x.remote.r.win != nil && x.remote.r.win.bound != x.remote.r
}

// dropShared ends the message under way before its end.
func (q *qpair) dropShared() {
	u := &q.uc
	if x := u.receiving; x != nil && !x.isWrite() {
		u.shared.ended = append(u.shared.ended, sharedMessage{x, false, u.shared.certain, u.shared.fresh})
	}
	u.receiving = nil
}

// arriveShared is the rest of arriveUnreliable with a shared receive queue.
func (w *world) arriveShared(q *qpair, p ucPacket, inOrder bool) {
	u, x := &q.uc, p.x
	switch {
	case p.i == 0:
		q.dropShared()
		u.receiving, u.shared.certain, u.shared.fresh = x, false, true
	case !inOrder:
		q.dropShared()
	}
	if u.receiving == nil {
		return
	}
	from := p.i * q.mtu
	to := min(from+q.mtu, x.n)
	last := p.i == x.ucPackets()-1
	switch {
	case x.refused || x.windowGone():
		u.receiving = nil
		return
	case !x.isWrite() && to > q.pool.size:
		q.dropShared()
		return
	case x.isWrite() && !(last && x.consumes()): // else the bytes are dropped if there is no receive
		copy(q.h.mem.want[x.remote.off+from:], x.data[from:to])
	}
	if !last {
		return
	}
	u.receiving = nil
	if !x.consumes() {
		x.delivered++
		w.count.DeliveredUC++
		return
	}
	if x.isWrite() {
		u.shared.certain, u.shared.fresh = false, true
	}
	u.shared.ended = append(u.shared.ended, sharedMessage{x, true, u.shared.certain, u.shared.fresh})
}

// sharedUnreliable finds the message that a receive has completed for; false: it is flushed, or fails as others do.
func (w *world) sharedUnreliable(r *work, e *ring.CQE) bool {
	q, mem := r.q, r.q.h.mem
	list := &q.uc.shared.ended
	switch e.Status {
	case ring.StatusWRFlushErr:
		mem.accept(r.local) // a part of a message may be in it
		return false
	case ring.StatusSuccess, ring.StatusRemInvReqErr:
	default:
		return false
	}
	whole := e.Status == ring.StatusSuccess
	for len(*list) > 0 {
		m := (*list)[0]
		*list = (*list)[1:]
		if m.whole == whole && m.fits(r, e) {
			w.sharedReceived(r, &m, e)
			return true
		}
		if m.certain {
			w.fail("%s completes with %q, and is not the receive of %s, which arrived earlier, whole %v", r, e.Status, m.x, m.whole)
		}
	}
	w.fail("%s completes with %q and holds no message that has arrived: something is missing, or behind its end", r, e.Status)
	return false
}

// fits tells whether a receive has completed for the message: another one may have found none.
func (m *sharedMessage) fits(r *work, e *ring.CQE) bool {
	mem, x := r.q.h.mem, m.x
	if !m.whole {
		return mem.mixes(r.local, x.data)
	}
	at, data := m.landing(r)
	_, ok := mem.holds(at, data)
	return ok && int(e.ByteLen) == x.n && x.isWrite() == (e.Opcode == ring.WCRecvImm) && (!x.withImm() || e.Imm == x.imm)
}

// landing is where the message must be, and what: in the receive, or for a WRITE what its last packet brought.
func (m *sharedMessage) landing(r *work) (at []seg, data []byte) {
	x := m.x
	if !x.isWrite() {
		return r.local, x.data
	}
	from := (x.ucPackets() - 1) * x.q.mtu
	if data = x.data[from:]; len(data) > 0 {
		at = []seg{{x.remote.r, x.remote.off + from, len(data)}}
	}
	return at, data
}

// sharedReceived takes note of a receive that has completed for a message.
func (w *world) sharedReceived(r *work, m *sharedMessage, e *ring.CQE) {
	mem := r.q.h.mem
	if !m.whole {
		mem.accept(r.local)
		w.count.DroppedShared++
		return
	}
	r.match, r.success = m.x, true
	m.x.delivered++
	w.count.DeliveredUC++
	w.checkReceiveFields(r, m.x, e)
	at, _ := m.landing(r)
	mem.accept(at)
}

// checkSharedUnreliable holds when a batch has been received: what had a receive has completed.
func (w *world) checkSharedUnreliable(q *qpair) {
	u := &q.uc.shared
	alive := q.qp.State() != nic.Err && q.qp.State() != nic.Reset && !q.errState && !q.deaf
	left := q.pool.waiting() > 0
	for _, m := range u.ended {
		if alive && (m.certain || m.fresh && left) {
			w.fail("%s has arrived at %v, whole %v, and no receive has completed for it", m.x, q, m.whole)
		}
	}
	u.ended = u.ended[:0]
	u.certain = u.certain || u.fresh && left
	u.fresh = false
}

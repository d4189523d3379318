package sim

import "rnic/internal/ring"

// promised is the receive that the peer's message number i will take, if it is known already.
func (q *qpair) promised(i int) *work {
	if i < len(q.recvs) {
		return q.recvs[i]
	}
	if i -= len(q.recvs); i < len(q.planned) {
		return q.planned[i]
	}
	return nil
}

// provide sees to it that there is, or will be, a receive for the message x.
func (w *world) provide(q *qpair, x *work, bomb bombKind) bool {
	p := q.peer
	if p.pool != nil { // it takes what comes next
		q.lateRecv = true
		return true
	}
	need := x.n
	if x.op == ring.OpWriteImm {
		need = 0
	}
	r := p.promised(len(q.consuming))
	if r == nil {
		if w.chance(50) {
			need += w.rng.IntN(200)
		}
		if bomb == bombShortRecv {
			need = max(0, pick(w, x.n-1, w.rng.IntN(max(1, x.n))))
		}
		if r = w.newReceive(p, need); r == nil {
			return false
		}
		if bomb == bombRecvLKey {
			w.spoilReceive(r, x.n)
		}
		p.planned = append(p.planned, r)
		delay := int64(0)
		if w.chance(30) {
			delay = w.nanos(1000, pick(w, int64(50_000), 500_000, 20_000_000))
		}
		number := p.number
		w.after(delay, func() { w.postPlanned(p, number) })
		if delay == 0 {
			w.postPlanned(p, number)
		}
		if len(p.planned) > 0 {
			q.lateRecv = true
		}
	}
	x.match, r.match = r, x
	return true
}

// newReceive makes a receive of n bytes, not posted yet; nil if there is no memory for it.
func (w *world) newReceive(q *qpair, n int) *work {
	list, ok := w.takeList(q.h.writable(), n, int(q.cap.MaxRecvSGE))
	if !ok {
		return nil
	}
	r := w.newWork(q, true)
	r.n, r.local = n, list
	r.describe()
	return r
}

// spareReceives posts receives before anything is connected.
func (w *world) spareReceives(q *qpair) {
	if q.pool != nil {
		return
	}
	for n := w.rng.IntN(12); n > 0 && q.rq.Free() > 0; n-- {
		if r := w.newReceive(q, w.size(q.mtu)/4); r != nil {
			w.postReceive(q, r)
		}
	}
}

// postPlanned posts the receives that are due, in their order.
func (w *world) postPlanned(q *qpair, number int) {
	if q.number != number || q.down || q.reset {
		return
	}
	for len(q.planned) > 0 {
		if q.rq.Free() == 0 {
			q.recvBlocked = true // goes on with the next completion
			return
		}
		r := q.planned[0]
		q.planned = q.planned[1:]
		w.postReceive(q, r)
	}
}

func (w *world) postReceive(q *qpair, r *work) {
	var e ring.RecvWQE
	e.WRID, e.NumSGE = r.id, len(r.sge)
	w.copyEntries(e.SGE[:], r.sge)
	q.rq.StoreRecv(q.rq.Position(), &e)
	w.must(q.rq.Publish(), "posting a receive")
	r.index = len(q.recvs)
	q.recvs = append(q.recvs, r)
	w.count.PostedRecvs++
	w.note(q.h, "%v posts receive %x of %d bytes", q, r.id, r.n)
	if q.errState {
		q.h.ring(q) // it is to be flushed at once
	}
}

package sim

import (
	"bytes"

	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// addDatagrams makes a queue pair for unreliable datagrams.
func (w *world) addDatagrams(h *host, p *pool) {
	q := w.addQP(h, nic.UD, p)
	q.number, q.bombAt = 1, -1
	q.attr = nic.Attr{PKeyIndex: h.partition(0), QKey: w.rng.Uint32() &^ (1 << 31), SQPSN: w.randomPSN()}
	if w.chance(70) {
		q.attr.QKey = w.qkey
	}
	w.uds = append(w.uds, q)
}

// startDatagrams brings the queue pair to RTS and starts its program.
func (w *world) startDatagrams(q *qpair) {
	a := q.attr
	a.State, a.Port = nic.Init, 1
	w.modify(q, &a, nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrQKey)
	w.later(q, nic.Init, func() {
		a.State = nic.RTR
		w.modify(q, &a, nic.AttrState)
		w.later(q, nic.RTR, func() {
			a.State = nic.RTS
			w.modify(q, &a, nic.AttrState|nic.AttrSQPSN)
			q.ready = true
			w.runDatagrams(q)
		})
	})
	w.after(0, func() { w.receiveDatagrams(q, w.between(0, 60)) })
}

// later does something at once, or in a while, if the queue pair has stayed in the state.
func (w *world) later(q *qpair, s nic.State, do func()) {
	w.after(pick(w, 0, w.nanos(0, 100_000)), func() {
		if q.qp.State() == s {
			do()
		}
	})
}

// runDatagrams is the program of a queue pair in RTS.
func (w *world) runDatagrams(q *qpair) {
	q.left = w.between(0, 40)
	if q.left > 0 && w.chance(30) {
		q.bombAt = w.rng.IntN(q.left)
	}
	w.after(w.nanos(0, 50_000), func() { w.stepUnacknowledged(q, w.newDatagram) })
	w.maybe(15, q, func() {
		if q.qp.State() == nic.RTS {
			w.modify(q, &nic.Attr{State: nic.SQD, EnSQDAsyncNotify: 1}, nic.AttrState|nic.AttrEnSQDAsyncNotify)
		}
	})
	w.maybe(6, q, func() { w.resetUnreliable(q) })
	if w.chance(20) {
		w.after(w.nanos(0, 600_000), func() {
			if q.down {
				return
			}
			q.progErr = true
			w.modify(q, &nic.Attr{State: nic.Err}, nic.AttrState)
			w.endUnreliable(q)
		})
	}
}

// resetUnreliable takes a queue pair down without a flush: nothing completes any more.
func (w *world) resetUnreliable(q *qpair) {
	if q.ending || q.errState || q.deaf {
		return
	}
	q.reset, q.down, q.ending = true, true, true
	w.modify(q, &nic.Attr{State: nic.Reset}, nic.AttrState)
	w.settle(q)
}

// endUnreliable resets a queue pair that is in ERR, once everything must have been flushed.
func (w *world) endUnreliable(q *qpair) {
	if q.ending {
		return
	}
	q.ending = true
	posting := w.nanos(0, 1_000_000) // work requests go on being posted, and flushed
	w.after(posting, func() { q.down = true })
	w.after(posting+flushNanos, func() {
		w.settle(q)
		q.ready = false
		w.modify(q, &nic.Attr{State: nic.Reset}, nic.AttrState)
	})
}

// receiveDatagrams posts receives from time to time: enough or not, large enough or not.
func (w *world) receiveDatagrams(q *qpair, left int) {
	if q.down || q.pool != nil {
		return
	}
	for n := w.between(0, 12); n > 0 && left > 0 && q.rq.Free() > 0; n-- {
		size := pick(w, roce.GRHSize+4096, roce.GRHSize+1024, roce.GRHSize+w.between(0, 4096), w.between(0, roce.GRHSize+8))
		r := w.newReceive(q, size)
		if r == nil {
			return
		}
		if w.chance(1) {
			w.spoilReceive(r, roce.GRHSize)
		}
		w.postReceive(q, r)
		left--
	}
	if left > 0 && !q.down { // a full queue costs a turn, too: nobody may come and empty it
		w.after(w.nanos(1000, 150_000), func() { w.receiveDatagrams(q, left-1) })
	}
}

// stepUnacknowledged posts a few messages that no peer acknowledges, each made by next, and comes back
// for more. nil ends it.
func (w *world) stepUnacknowledged(q *qpair, next func(*qpair) *work) {
	if q.down {
		return
	}
	for n := w.between(1, 6); n > 0 && q.left > 0 && q.sq.Free() > 0; n-- {
		x := next(q)
		if x == nil {
			q.left = 0
			break
		}
		q.left--
		w.post(q, x)
	}
	q.h.ring(q)
	if q.left > 0 {
		w.after(w.nanos(0, 100_000), func() { w.stepUnacknowledged(q, next) })
	}
}

func (w *world) newDatagram(q *qpair) *work {
	x := w.newWork(q, false)
	x.op = pick(w, ring.OpSend, ring.OpSend, ring.OpSendImm)
	x.dest = w.uds[w.rng.IntN(len(w.uds))]
	x.n = min(w.size(1024), q.h.mtu, x.dest.h.mtu)
	if len(w.groups) > 0 && w.chance(30) {
		x.group = w.groups[w.rng.IntN(len(w.groups))]
		for _, h := range w.hosts {
			x.n = min(x.n, h.mtu)
		}
	}
	if x.n < 8 {
		x.op = ring.OpSendImm // so that it can be told apart when it arrives
	}
	x.imm = w.rng.Uint32()
	x.signalled = q.sigAll || w.chance(60)
	x.solicited = w.chance(40)
	x.reachable = !w.chance(10)
	if !w.fillSource(q, x, noBomb) {
		return nil
	}
	if len(q.sends) == q.bombAt {
		w.spoilDatagram(q, x)
	}
	return x
}

// spoilDatagram makes an error of the sender's own.
func (w *world) spoilDatagram(q *qpair, x *work) {
	x.mustFail = true
	switch w.rng.IntN(3) {
	case 0:
		x.why, x.allowed = ": no such address handle", statuses(ring.StatusLocQPOpErr)
		x.strayAH, x.alienAH = true, w.chance(50)
	case 1:
		x.why, x.allowed = ": longer than the MTU", statuses(ring.StatusLocLenErr)
		s := q.h.mem.regions[regionSource]
		x.inline, x.n = false, q.h.mtu+1
		x.local = []seg{{s, s.off, x.n}}
		x.data = collect(q.h.mem.space.Mem, x.local)
		x.describe()
	default:
		if i := x.someEntryIn(x.n); i >= 0 && !x.inline {
			x.why, x.allowed = ": "+bombNames[bombBadLKey], statuses(ring.StatusLocProtErr)
			x.sge[i].LKey ^= 1 << w.rng.IntN(32)
			return
		}
		x.mustFail = false
	}
}

// receiveDatagram finds the datagram that a receive holds and checks it.
func (w *world) receiveDatagram(r *work, e *ring.CQE) {
	mem := r.q.h.mem
	if r.capacity() < roce.GRHSize || int(e.ByteLen) < roce.GRHSize || int(e.ByteLen) > r.capacity() {
		w.fail("%s completes with %d bytes", r, e.ByteLen)
	}
	got := collect(mem.space.Mem, r.local)[:e.ByteLen]
	m := w.findDatagram(r.q, e, got[roce.GRHSize:])
	if m == nil {
		w.fail("%s holds %d bytes from QP %06x that nobody sent to it", r, len(got), e.SrcQP)
	}
	r.match, r.success = m, true
	m.deliver(r.q)
	w.checkReceiveFields(r, m, e)
	if e.Flags&ring.WCGRH == 0 {
		w.fail("%s for %s completes without the GRH flag", r, m)
	}
	path, ok := roce.GRH(got).Path()
	if from := w.hostOf(path.Src); !ok || from != m.q.h || m.group == nil && w.hostOf(path.Dst) != r.q.h || m.group != w.groupOf(path.Dst) {
		w.fail("%s for %s has a GRH from %v to %v", r, m, path.Src, path.Dst)
	}
	if at, ok := mem.holds(r.local, got); !ok {
		w.fail("%s for %s: something was written behind its end, at byte %d", r, m, at)
	}
	mem.accept(r.local)
}

// findDatagram finds what was sent to q with these contents, the one that arrived least often.
func (w *world) findDatagram(q *qpair, e *ring.CQE, data []byte) (found *work) {
	for _, from := range w.uds {
		if from.qp.Num() != e.SrcQP {
			continue
		}
		for _, m := range from.sends {
			imm := e.Flags&ring.WCWithImm != 0
			if m.mayReach(q) && m.withImm() == imm && (!imm || m.imm == e.Imm) && bytes.Equal(m.data, data) &&
				(found == nil || m.deliveries[q] < found.deliveries[q]) {
				found = m
			}
		}
	}
	return found
}

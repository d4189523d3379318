package sim

import (
	"rnic/internal/nic"
	"rnic/internal/ring"
)

// plan decides what the program at q means to do with a new connection.
func (w *world) plan(q *qpair) {
	q.left, q.bombAt = w.between(0, 40), -1
	if q.left > 0 && w.chance(30) {
		q.bombAt, q.bombKind = w.rng.IntN(q.left), bombKind(w.rng.IntN(int(bombKinds)))
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
	w.maybe(12, q, func() {
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
	if q.errState { // both came with one batch of packets
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

// size chooses the bytes of a message.
func (w *world) size(mtu int) int {
	switch p := w.rng.IntN(100); {
	case p < 10:
		return 0
	case p < 40:
		return w.between(1, 64)
	case p < 65:
		return w.between(1, 4096)
	case p < 90: // around a multiple of the MTU
		return max(0, w.between(1, 6)*mtu+w.between(-4, 4))
	case p < 97:
		return w.between(1, 32<<10)
	}
	return w.between(32<<10, 200<<10)
}

// nextSend makes up the next work request of a reliable connection.
func (w *world) nextSend(q *qpair) *work {
	x := w.newWork(q, false)
	bomb := noBomb
	if len(q.sends) == q.bombAt {
		bomb = q.bombKind
	}
	x.op = w.chooseOp(bomb)
	if permitted := permits(q.peer.attr.AccessFlags, x.op); permitted == (bomb == bombQPRights) {
		if bomb = noBomb; !permitted {
			x.op = ring.OpSend
		}
	}
	x.n = w.size(q.mtu)
	if bomb == bombDeregistered || bomb == bombLocalDeregistered {
		x.n = w.between(1, 40*q.mtu) // it should take a while
	}
	if bomb != noBomb {
		x.n = max(x.n, 16)
	}
	if x.isAtomic() {
		x.n = 8
	}
	if r := q.peer.promised(len(q.consuming)); bomb.local() && x.op != ring.OpRead && r != nil && r.capacity() < x.n {
		bomb = noBomb // one error at a time
	}
	x.imm = w.rng.Uint32()
	x.signalled = q.sigAll || w.chance(60)
	x.fenced = w.chance(8)
	x.solicited = w.chance(40) && x.consumes()
	for try := 0; ; try++ {
		if w.fill(q, x, bomb) {
			break
		}
		if x.n /= 8; try == 3 || x.isAtomic() {
			return nil
		}
	}
	if bomb != noBomb {
		if x.n < 8 {
			return nil
		}
		w.plant(q, x, bomb)
	}
	return x
}

func (w *world) chooseOp(bomb bombKind) ring.SendOpcode {
	if ops := bomb.ops(); ops != nil {
		return pick(w, ops...)
	}
	return pick(w, ring.OpWrite, ring.OpWrite, ring.OpWrite, ring.OpWriteImm, ring.OpWriteImm,
		ring.OpSend, ring.OpSend, ring.OpSend, ring.OpSendImm, ring.OpSendImm,
		ring.OpRead, ring.OpRead, ring.OpRead, ring.OpCompareSwap, ring.OpFetchAdd, ring.OpFetchAdd)
}

// fill finds memory for the message at both ends, and a receive if it takes one; false if there is
// no room.
func (w *world) fill(q *qpair, x *work, bomb bombKind) bool {
	switch {
	case x.isAtomic():
		return w.fillAtomic(q, x)
	case x.op == ring.OpRead:
		return w.fillRead(q, x, bomb)
	}
	if x.consumes() && bomb == noBomb && x.op != ring.OpWriteImm {
		if r := q.peer.promised(len(q.consuming)); r != nil {
			x.n = min(x.n, r.capacity())
		}
	}
	if !w.fillSource(q, x, bomb) {
		return false
	}
	if x.isWrite() {
		s, ok := w.take(w.remoteRegion(q, bomb), x.n, 1)
		if !ok {
			return false
		}
		w.target(x, s)
	}
	if x.isWrite() && x.n > 0 && bomb == noBomb {
		q.lastWrite = x
	}
	return !x.consumes() || w.provide(q, x, bomb)
}

// target sets where in the peer's memory the message is meant for.
func (w *world) target(x *work, s seg) {
	x.remote, x.raddr, x.rkey = s, s.addr(), s.key()
	if s.n == 0 && w.chance(50) { // 9.3.3: without data neither counts
		x.raddr, x.rkey = w.rng.Uint64(), w.rng.Uint32()
	}
}

func (w *world) remoteRegion(q *qpair, bomb bombKind) *region {
	if bomb == bombForeign {
		return q.peer.h.mem.regions[regionMoved]
	}
	return q.peer.h.mem.regions[pick(w, regionPlain, regionMoved, regionShared)]
}

// fillSource finds or makes the bytes to send.
func (w *world) fillSource(q *qpair, x *work, bomb bombKind) bool {
	mem := q.h.mem
	if r := q.lastRead; r != nil && bomb == noBomb && w.chance(40) && (x.op == ring.OpWrite || x.n >= r.n) {
		// What a READ brings is sent on: the fence makes it wait for the read (10.8.3.3).
		x.local, x.n, x.data, x.fenced, x.inline = r.local, r.n, r.data, true, false
		x.describe()
		return true
	}
	x.inline = x.n <= int(q.cap.MaxInline) && q.cap.MaxInline > 0 && w.chance(50) && !bomb.local()
	var ok bool
	if x.local, ok = w.takeList(mem.regions, x.n, int(q.cap.MaxSendSGE)); !ok {
		return false
	}
	x.data = collect(mem.space.Mem, x.local)
	x.describe()
	return true
}

// describe makes the scatter/gather list of local.
func (x *work) describe() {
	x.sge = x.sge[:0]
	for _, s := range x.local {
		x.sge = append(x.sge, ring.SGE{Addr: s.addr(), Length: uint32(s.n), LKey: s.key()})
	}
}

// writable are the regions that the NIC may write to on the program's own behalf.
func (h *host) writable() []*region { return h.mem.regions[:regionSource] }

func (w *world) fillRead(q *qpair, x *work, bomb bombKind) bool {
	p := q.peer.h.mem
	if y := q.lastWrite; y != nil && bomb == noBomb && w.chance(30) {
		// What was written before is read back: the order of 9.5 holds between them.
		x.n, x.data = y.n, y.data
		w.target(x, y.remote)
	} else {
		s, ok := w.take(w.remoteRegion(q, bomb), x.n, 1)
		if !ok {
			return false
		}
		w.target(x, s)
		x.data = collect(p.space.Mem, []seg{s})
	}
	var ok bool
	x.local, ok = w.takeList(q.h.writable(), x.n, int(q.cap.MaxSendSGE))
	x.describe()
	if ok && bomb == noBomb && x.n > 0 {
		q.lastRead = x
	}
	return ok
}

func (w *world) fillAtomic(q *qpair, x *work) bool {
	word := q.peer.h.words[w.rng.IntN(len(q.peer.h.words))]
	x.onWord = word
	w.target(x, word.at)
	x.add, x.swap, x.compare = w.rng.Uint64(), w.rng.Uint64(), word.last
	if w.chance(15) {
		x.compare = w.rng.Uint64()
	}
	s, ok := w.take(q.h.writable()[w.rng.IntN(regionSource)], 8, 1)
	x.local = []seg{s}
	if ok {
		x.describe()
	}
	return ok
}

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

// copyEntries posts a scatter/gather list. An entry without length may name anything.
func (w *world) copyEntries(to, from []ring.SGE) {
	for i, e := range from {
		if e.Length == 0 && w.chance(50) {
			e.Addr, e.LKey = w.rng.Uint64(), w.rng.Uint32()
		}
		to[i] = e
	}
}

// post puts a work request into the send queue.
func (w *world) post(q *qpair, x *work) {
	var e ring.SendWQE
	e.WRID, e.Opcode, e.Imm = x.id, x.op, x.imm
	e.RemoteAddr, e.RKey = x.raddr, x.rkey
	e.CompareAdd, e.Swap = x.compare, x.swap
	if x.op == ring.OpFetchAdd {
		e.CompareAdd = x.add
	}
	for _, f := range []struct {
		on  bool
		bit ring.SendFlags
	}{{x.signalled && !(q.sigAll && w.chance(50)), ring.SendSignaled}, {x.fenced, ring.SendFence}, {x.solicited, ring.SendSolicited}, {x.inline, ring.SendInline}} {
		if f.on {
			e.Flags |= f.bit
		}
	}
	e.NumSGE = len(x.sge)
	w.copyEntries(e.SGE[:], x.sge)
	if x.inline {
		e.NumSGE, e.InlineLen = 0, copy(e.Inline[:], x.data)
	}
	if q.ud {
		w.addressDatagram(q, x, &e)
	}
	q.sq.StoreSend(q.sq.Position(), &e, q.ud)
	w.must(q.sq.Publish(), "posting a send")
	w.posted(q, x)
	if x.inline { // the buffer is the program's again
		q.h.mem.scribble(x.local)
	}
}

// posted tells the model.
func (w *world) posted(q *qpair, x *work) {
	x.index = len(q.sends)
	q.sends = append(q.sends, x)
	w.note(q.h, "%v posts %s %x of %d bytes, signalled %v fenced %v inline %v%s", q, OpNames[x.op], x.id, x.n,
		x.signalled, x.fenced, x.inline, x.why)
	if q.ud {
		w.count.PostedUD++
		return
	}
	w.count.Posted[x.op]++
	x.psnOff, x.psnCount = q.psnCount, max(1, uint32((x.n+q.mtu-1)/q.mtu))
	q.psnCount += x.psnCount
	if x.consumes() {
		x.takes = len(q.consuming)
		q.consuming = append(q.consuming, x)
	}
	if x.isAtomic() && !x.mustFail {
		x.onWord.ops = append(x.onWord.ops, x)
	}
	if x.remoteErr {
		q.peer.hitByPeer = true
	}
	if x.allowed != 0 {
		w.count.Intended++
		q.bomb = x
	}
}

// addressDatagram fills in where a datagram goes.
func (w *world) addressDatagram(q *qpair, x *work, e *ring.SendWQE) {
	e.RemoteQPN, e.RemoteQKey = x.dest.qp.Num(), x.dest.attr.QKey
	if !x.reachable {
		e.RemoteQKey ^= 1 << w.rng.IntN(31)
	}
	e.AHNum = w.addressHandle(q.h, x.dest.h, w.rng.IntN(2)).Num()
	if x.strayAH {
		e.AHNum ^= 1 << w.between(8, 31)
	}
}

// addressHandle finds or makes the handle for a host.
func (w *world) addressHandle(h, to *host, family int) *nic.AH {
	key := ahKey{to, family}
	if a := h.ahs[key]; a != nil {
		return a
	}
	a, err := h.nic.CreateAH(h.pd, nic.AHAttr{DGID: gidOf(to, family), SGIDIndex: uint8(family), HopLimit: 64,
		IsGlobal: true, Port: 1})
	w.must(err, "creating an address handle")
	h.ahs[key] = a
	return a
}

package sim

import "rnic/internal/ring"

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
	if x := w.windowWork(q); x != nil {
		return x
	}
	x := w.newWork(q, false)
	bomb := noBomb
	if len(q.sends) >= q.bombAt && q.bombAt >= 0 {
		if !q.bombKind.ofWindows() || w.windowFor(q, q.bombKind, 0, 0) != nil { // else it has to wait for a window
			bomb, q.bombAt = q.bombKind, -1
		}
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
	if x.isWord() {
		x.n = 8
	}
	if x.op == ring.OpFlush {
		x.n = 0
	}
	if r := q.peer.promised(len(q.consuming)); bomb.local() && x.op != ring.OpRead && r != nil && r.capacity() < x.n {
		bomb = noBomb // one error at a time
	}
	x.imm = w.rng.Uint32()
	x.signalled = q.sigAll || w.chance(60)
	x.fenced = w.chance(8)
	if bomb == noBomb {
		w.takeAway(q, x)
	}
	x.solicited = w.chance(40) && x.consumes()
	for try := 0; ; try++ {
		if w.fill(q, x, bomb) {
			break
		}
		if x.n /= 8; try == 3 || x.isWord() {
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
		ring.OpRead, ring.OpRead, ring.OpRead, ring.OpCompareSwap, ring.OpFetchAdd, ring.OpFetchAdd,
		ring.OpAtomicWrite, ring.OpFlush)
}

// fill finds memory for the message at both ends, and a receive if it takes one; false if there is
// no room.
func (w *world) fill(q *qpair, x *work, bomb bombKind) bool {
	switch {
	case x.isAtomic():
		return w.fillAtomic(q, x)
	case x.op == ring.OpRead:
		return w.fillRead(q, x, bomb)
	case x.op == ring.OpFlush:
		w.fillFlush(q, x)
		return true
	}
	if x.consumes() && (bomb == noBomb || bomb == bombInvalidate) && x.op != ring.OpWriteImm {
		if r := q.peer.promised(len(q.consuming)); r != nil {
			x.n = min(x.n, r.capacity())
		}
	}
	if p := q.peer.pool; p != nil && x.consumes() && !x.isWrite() {
		x.n = min(x.n, p.size)
	}
	if !w.fillSource(q, x, bomb) {
		return false
	}
	if x.isWrite() {
		align := 1
		if x.isWord() {
			align = 8
		}
		s, ok := w.take(w.remoteRegion(q, x.op, x.n, bomb), x.n, align)
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
	if v := s.r.win; v != nil {
		v.works = append(v.works, x)
	}
	if s.n == 0 && w.chance(50) { // 9.3.3: without data neither counts
		x.raddr, x.rkey = w.rng.Uint64(), w.rng.Uint32()
	}
}

func (w *world) remoteRegion(q *qpair, op ring.SendOpcode, n int, bomb bombKind) *region {
	switch {
	case bomb == noBomb:
		if r := w.throughWindow(q, op); r != nil && n+32 <= r.off+r.size-r.next {
			return r
		}
	case bomb == bombForeign:
		return q.peer.h.mem.regions[regionMoved]
	}
	if op == ring.OpAtomicWrite {
		return q.peer.h.mem.regions[regionPlain]
	}
	return q.peer.h.mem.regions[pick(w, regionPlain, regionMoved, regionShared)]
}

// fillSource finds or makes the bytes to send.
func (w *world) fillSource(q *qpair, x *work, bomb bombKind) bool {
	mem := q.h.mem
	if r := q.lastRead; r != nil && bomb == noBomb && x.op != ring.OpAtomicWrite && w.chance(40) && (x.op == ring.OpWrite || x.n >= r.n) {
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
	if y := q.lastWrite; y != nil && y.remote.r.win == nil && bomb == noBomb && w.chance(30) {
		// What was written before is read back: the order of 9.5 holds between them.
		x.n, x.data = y.n, y.data
		w.target(x, y.remote)
	} else {
		s, ok := w.take(w.remoteRegion(q, x.op, x.n, bomb), x.n, 1)
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

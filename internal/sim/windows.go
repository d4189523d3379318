package sim

import (
	"slices"

	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A window is a memory window of one end of a connection. Its program binds it to a range of its memory and
// tells the peer, which moves data through it; then one of the two invalidates it, and it is bound again.
type window struct {
	q      *qpair
	mw     *nic.MW
	typ    nic.MWType
	key    uint32
	bound  *region    // what the NIC has it bound to; nil: nothing
	now    *region    // the same, as long as the peer may use it
	busy   bool       // a bind or an invalidation is under way
	works  []*work    // that go through now
	remote []*xrcSend // likewise, of XRC
	dead   []uint32
}

// addWindows gives the program at q some windows for a new connection.
func (w *world) addWindows(q *qpair) {
	if !w.chance(60) {
		return
	}
	for range w.between(1, 2) {
		typ := pick(w, nic.MWType1, nic.MWType2, nic.MWType2)
		mw, err := q.h.nic.AllocMW(q.h.pd, typ)
		w.must(err, "allocating a memory window")
		q.windows = append(q.windows, &window{q: q, mw: mw, typ: typ, key: mw.RKey()})
	}
}

// dropWindows ends the windows of q's connection.
func (w *world) dropWindows(q *qpair) {
	for _, v := range q.windows {
		w.must(v.mw.Dealloc(), "deallocating a memory window")
		v.now, v.bound = nil, nil
	}
	q.windows = nil
}

// windowRights are what a window must grant for op; none: no window is for it.
func windowRights(op ring.SendOpcode) nic.Access {
	switch op {
	case ring.OpWrite, ring.OpWriteImm, ring.OpAtomicWrite:
		return nic.AccessRemoteWrite
	case ring.OpRead:
		return nic.AccessRemoteRead
	case ring.OpFlush:
		return nic.AccessFlushGlobal
	}
	return 0
}

// grants tells whether the window lets the peer do op with n bytes.
func (v *window) grants(op ring.SendOpcode, n int) bool {
	need := windowRights(op)
	return v.now != nil && need != 0 && need&^v.now.access == 0 && n <= v.now.size
}

// throughWindow finds a window of the peer that op may go through.
func (w *world) throughWindow(q *qpair, op ring.SendOpcode) *region {
	if len(q.peer.windows) == 0 || !w.chance(50) {
		return nil
	}
	v := pick(w, q.peer.windows...)
	if !v.grants(op, 0) || op == ring.OpAtomicWrite && v.now.iova != 0 {
		return nil
	}
	return v.now
}

// windowWork makes up what the program at q does with one of its windows; nil: nothing.
func (w *world) windowWork(q *qpair) *work {
	if len(q.windows) == 0 || !w.chance(25) {
		return nil
	}
	v := pick(w, q.windows...)
	switch {
	case v.busy:
		return nil
	case v.bound == nil:
		return w.bindWork(v)
	case v.now != nil && w.chance(60):
		v.now = nil // the peer is told to stop
		return nil
	case v.now != nil || !v.idle() || slices.ContainsFunc(v.works, func(x *work) bool { return !x.success }):
		return nil
	case v.typ == nic.MWType1:
		return w.bindWork(v)
	}
	x := w.newWork(q, false)
	x.op, x.signalled, x.imm, x.win = ring.OpLocalInv, true, v.key, v
	v.busy = true
	return x
}

// bindWork binds a window to fresh memory, or one of type 1 to nothing.
func (w *world) bindWork(v *window) *work {
	x := w.newWork(v.q, false)
	x.op, x.signalled, x.win, x.fenced = ring.OpBindMW, true, v, w.chance(8)
	x.bind = ring.Bind{MWKey: v.key, RKey: v.key + 1}
	for slices.Contains(v.dead, v.key&^0xff|x.bind.RKey&0xff) {
		x.bind.RKey++
	}
	v.busy = true
	if v.bound != nil && w.chance(20) {
		return x
	}
	r := v.q.h.mem.regions[regionMoved]
	s, ok := w.take(r, w.between(64, 8192)&^7, 8)
	if !ok {
		v.busy = false
		return nil
	}
	access := pick(w, nic.AccessRemoteWrite, nic.AccessRemoteRead, nic.AccessRemoteWrite|nic.AccessRemoteRead,
		nic.AccessRemoteWrite|nic.AccessRemoteRead|nic.AccessFlushGlobal)
	x.grant = &region{a: r.a, off: s.off, size: s.n, next: s.off, iova: s.addr(), access: access, win: v,
		key: v.key&^0xff | x.bind.RKey&0xff}
	x.bind.Addr, x.bind.Length, x.bind.LKey, x.bind.Access = s.addr(), uint64(s.n), r.mr.LKey(), uint32(access)
	if v.typ == nic.MWType2 && w.chance(50) {
		x.bind.Access |= uint32(nic.AccessZeroBased)
		x.grant.iova = 0
	}
	return x
}

// windowDone takes note of a bind or an invalidation that has succeeded.
func (w *world) windowDone(x *work) {
	v := x.win
	v.busy, v.works, v.remote = false, nil, nil
	v.dead = append(v.dead, v.key) // of a window that is bound it becomes another
	if x.op == ring.OpBindMW {
		v.key = v.key&^0xff | x.bind.RKey&0xff
	}
	v.bound, v.now = x.grant, x.grant
	if got := v.mw.RKey(); got != v.key {
		w.fail("%s is complete, and the window's key is %x, not %x", x, got, v.key)
	}
}

// takeAway makes a SEND the one that invalidates a window of the peer, if there is one to invalidate. The
// fence makes it wait for the READs that go through the window.
func (w *world) takeAway(q *qpair, x *work) {
	if x.op != ring.OpSend || len(q.peer.windows) == 0 || !w.chance(60) {
		return
	}
	v := pick(w, q.peer.windows...)
	if v.typ != nic.MWType2 || v.now == nil || v.busy {
		return
	}
	x.op, x.imm, x.win, x.fenced = ring.OpSendInv, v.key, v, true
	v.now, v.busy = nil, true
}

// fillFlush chooses what a FLUSH means: a range of a region or of a window, or all of it.
func (w *world) fillFlush(q *qpair, x *work) {
	r := w.throughWindow(q, x.op)
	if r == nil {
		r = q.peer.h.mem.regions[pick(w, regionPlain, regionMoved)]
	}
	off := w.rng.IntN(r.size + 1)
	x.raddr, x.rkey = r.iova+uint64(off), seg{r: r}.key()
	x.flush = ring.Flush{Length: uint32(w.rng.IntN(r.size - off + 1)), Type: uint8(roce.PlaceGlobal)}
	if w.chance(30) {
		x.flush.Level = uint8(roce.SelectRegion)
		x.raddr, x.flush.Length = w.rng.Uint64(), w.rng.Uint32()
	}
	if r.win != nil {
		r.win.works = append(r.win.works, x)
	}
}

// windowFor finds a window for an error of kind k that a program at q makes on purpose; one that would let op
// through if the NIC did not look, if there is one.
func (w *world) windowFor(q *qpair, k bombKind, op ring.SendOpcode, n int) (found *window) {
	for _, p := range q.peer.h.qps {
		for _, v := range p.windows {
			fits := v.now != nil && (p == q.peer)
			switch k {
			case bombWindowStale:
				fits = fits && len(v.dead) > 0
			case bombWindowForeign:
				fits = v.now != nil && p != q.peer && v.typ == nic.MWType2
			}
			if fits && (found == nil || v.grants(op, n)) {
				found = v
			}
		}
	}
	return found
}

// ofWindows tells whether the error needs a window.
func (k bombKind) ofWindows() bool { return k >= bombWindowBeyond && k <= bombWindowForeign }

// plantWindow aims x at a window that it may not go through.
func (w *world) plantWindow(q *qpair, x *work, k bombKind) {
	v := w.windowFor(q, k, x.op, x.n)
	r := v.now
	x.rkey = r.key
	x.raddr = r.iova + uint64(w.rng.IntN(max(1, r.size-x.n+1)))
	switch k {
	case bombWindowBeyond:
		x.raddr = r.iova + uint64(r.size-x.n+w.between(1, x.n))
	case bombWindowStale:
		x.rkey = pick(w, v.dead...)
	}
}

// plantInvalidate has a SEND invalidate what it may not: an ordinary region, a window of type 1, a window of
// another queue pair, or what is not bound any more.
func (w *world) plantInvalidate(q *qpair, x *work) {
	keys := []uint32{q.peer.h.mem.regions[regionPlain].mr.RKey()}
	for _, p := range q.peer.h.qps {
		for _, v := range p.windows {
			if p != q.peer || v.typ == nic.MWType1 {
				keys = append(keys, v.key)
			}
			for _, key := range v.dead {
				if key != v.key || v.bound == nil && !v.busy {
					keys = append(keys, key)
				}
			}
		}
	}
	x.imm = pick(w, keys...)
	x.match.allowed, x.match.mustFail = statuses(ring.StatusRemInvReqErr), true
}

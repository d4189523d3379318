package nic

import (
	"bytes"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// testWindow is a memory window of an end, with the key that its program believes it to have.
type testWindow struct {
	t  *testing.T
	e  *end
	mw *MW
}

const windowAccess = AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic

// newWindow makes a window, and a region that windows may be bound to.
func newWindow(t *testing.T, e *end, typ MWType) testWindow {
	t.Helper()
	mw, err := e.h.n.AllocMW(e.h.pd, typ)
	if err != nil {
		t.Fatal(err)
	}
	return testWindow{t, e, mw}
}

// bindable is a region of all the end's memory with the right to bind.
func bindable(t *testing.T, e *end, more Access) *MR {
	t.Helper()
	m, err := e.h.n.RegMR(e.h.pd, e.h.mem, memBase, 1<<20, memBase, AccessLocalWrite|AccessMWBind|more)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// bind is the work request that binds to bytes [off, off+n) of the region.
func (w testWindow) bind(id uint64, m *MR, off, n uint64, access Access) *ring.SendWQE {
	s := wr(id, ring.OpBindMW)
	s.Bind = ring.Bind{Addr: memBase + off, Length: n, LKey: m.LKey(), MWKey: w.mw.RKey(), RKey: w.mw.RKey() + 1, Access: uint32(access)}
	return s
}

func invalidate(id uint64, op ring.SendOpcode, key uint32, sge ...ring.SGE) *ring.SendWQE {
	s := wr(id, op, sge...)
	s.Imm = key
	return s
}

// through aims a request at an address by a key.
func through(s *ring.SendWQE, key uint32, va uint64) *ring.SendWQE {
	s.RKey, s.RemoteAddr = key, va
	return s
}

// 10.6.7: a window gives its rights to its bytes and no others, whatever the region's own rights are; its key
// changes with each bind, in its lowest 8 bits (10.6.3.3).
func TestWindowGrants(t *testing.T) {
	for _, typ := range []MWType{MWType1, MWType2} {
		w, a, b := connected(t, Config{}, nil)
		m, mw := bindable(t, b, 0), newWindow(t, b, typ)
		unbound := mw.mw.RKey()
		b.post(mw.bind(1, m, 4096, 64, windowAccess))
		w.run(1e6)
		b.want(t, "1:success")
		key := mw.mw.RKey()
		if key == unbound || key>>8 != unbound>>8 || key&0xff != (unbound+1)&0xff {
			t.Errorf("type %d: key %#x after a bind, %#x before", typ, key, unbound)
		}
		a.post(through(wr(1, ring.OpWrite, a.sge(0, 64)), key, memBase+4096), through(wr(2, ring.OpRead, a.sge(100, 64)), key, memBase+4096))
		w.run(1e6)
		a.want(t, "1:success", "2:success")
		if !bytes.Equal(b.bytes(4096, 64), a.bytes(0, 64)) || !bytes.Equal(a.bytes(100, 64), a.bytes(0, 64)) {
			t.Errorf("type %d: the bytes did not come through the window", typ)
		}
	}
}

// 9.7.5.2.4, 10.6.7: beyond the window's bounds, without its right, by its earlier key, or where it is bound to
// nothing, access is refused.
func TestWindowRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		access Access
		req    func(a *end, old, key uint32) *ring.SendWQE
	}{
		{"a byte beyond", windowAccess, func(a *end, _, key uint32) *ring.SendWQE {
			return through(wr(1, ring.OpWrite, a.sge(0, 65)), key, memBase+4096)
		}},
		{"a byte before", windowAccess, func(a *end, _, key uint32) *ring.SendWQE {
			return through(wr(1, ring.OpWrite, a.sge(0, 8)), key, memBase+4095)
		}},
		{"write without the right", AccessRemoteRead, func(a *end, _, key uint32) *ring.SendWQE {
			return through(wr(1, ring.OpWrite, a.sge(0, 8)), key, memBase+4096)
		}},
		{"read without the right", AccessRemoteWrite, func(a *end, _, key uint32) *ring.SendWQE {
			return through(wr(1, ring.OpRead, a.sge(0, 8)), key, memBase+4096)
		}},
		{"atomic without the right", AccessRemoteWrite | AccessRemoteRead, func(a *end, _, key uint32) *ring.SendWQE {
			return through(wr(1, ring.OpFetchAdd, a.sge(0, 8)), key, memBase+4096)
		}},
		{"earlier key", windowAccess, func(a *end, old, _ uint32) *ring.SendWQE {
			return through(wr(1, ring.OpWrite, a.sge(0, 8)), old, memBase+4096)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			m, mw := bindable(t, b, AccessRemoteWrite|AccessRemoteRead|AccessRemoteAtomic), newWindow(t, b, MWType2)
			old := mw.mw.RKey()
			b.post(mw.bind(9, m, 4096, 64, c.access))
			w.run(1e6)
			b.want(t, "9:success")
			before := bytes.Clone(b.h.mem.Mem)
			a.post(c.req(a, old, mw.mw.RKey()))
			w.run(1e6)
			a.want(t, "1:remote access error")
			if !bytes.Equal(before, b.h.mem.Mem) || b.q.State() != Err || b.h.events(EventQPAccessErr) != 1 {
				t.Errorf("memory changed, or state %v, %d events", b.q.State(), b.h.events(EventQPAccessErr))
			}
		})
	}
}

// 10.6.7.2: a type 2B window is of use to the queue pair that bound it, and to no other; one of type 1 to every
// queue pair of the protection domain.
func TestWindowOfAnotherQueuePair(t *testing.T) {
	for typ, want := range map[MWType]string{MWType1: "1:success", MWType2: "1:remote access error"} {
		w, _, b := connected(t, Config{}, nil)
		c, d := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
		c.to(RTS, defaultAttr(), d)
		d.to(RTS, defaultAttr(), c)
		m, mw := bindable(t, b, 0), newWindow(t, b, typ)
		b.post(mw.bind(9, m, 4096, 64, windowAccess))
		w.run(1e6)
		c.post(through(wr(1, ring.OpWrite, c.sge(0, 8)), mw.mw.RKey(), memBase+4096))
		w.run(1e6)
		c.want(t, want)
	}
}

// 10.6.7.2: addresses in a zero-based window begin with 0.
func TestZeroBasedWindow(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(mw.bind(9, m, 4096, 64, windowAccess|AccessZeroBased))
	w.run(1e6)
	a.post(through(wr(1, ring.OpWrite, a.sge(0, 64)), mw.mw.RKey(), 0), through(wr(2, ring.OpWrite, a.sge(0, 64)), mw.mw.RKey(), 1))
	w.run(1e6)
	a.want(t, "1:success", "2:remote access error")
	if !bytes.Equal(b.bytes(4096, 64), a.bytes(0, 64)) {
		t.Error("the bytes are not in the window")
	}
}

// C10-72 to C10-75, o10-37.2.30: a bind that may not be is a memory window bind error; it takes the queue pair to
// the error state, behind what was posted before it, and leaves the window as it was.
func TestBindErrors(t *testing.T) {
	type setup struct {
		b  *end
		m  *MR
		mw testWindow
	}
	for _, c := range []struct {
		name   string
		typ    MWType
		change func(t *testing.T, x *setup, s *ring.SendWQE)
	}{
		{"region without the right to bind", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.LKey = x.b.h.mr.LKey() }},
		{"no region", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.LKey ^= 1 }},
		{"a window as region", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.LKey = x.mw.mw.RKey() }},
		{"no window", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.MWKey ^= 1 }},
		{"a region as window", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.MWKey = x.m.RKey() }},
		{"beyond the region", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Length = 1<<20 - 4096 + 1 }},
		{"before the region", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Addr = memBase - 1 }},
		{"a range that wraps", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Length = 1<<64 - 4096 }},
		{"nothing, type 2", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Length = 0 }},
		{"zero-based, type 1", MWType1, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Access |= uint32(AccessZeroBased) }},
		{"unknown right", MWType1, func(t *testing.T, x *setup, s *ring.SendWQE) { s.Bind.Access |= 1 << 20 }},
		{"write to a region without local write", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) {
			m, err := x.b.h.n.RegMR(x.b.h.pd, x.b.h.mem, memBase, 1<<20, memBase, AccessMWBind)
			if err != nil {
				t.Fatal(err)
			}
			s.Bind.LKey = m.LKey()
		}},
		{"zero-based region", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) {
			m, err := x.b.h.n.RegMR(x.b.h.pd, x.b.h.mem, memBase, 1<<20, 0, AccessLocalWrite|AccessMWBind|AccessZeroBased)
			if err != nil {
				t.Fatal(err)
			}
			s.Bind.LKey, s.Bind.Addr = m.LKey(), 0
		}},
		{"region of another protection domain", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) {
			m, err := x.b.h.n.RegMR(mustPD(t, x.b.h.n), x.b.h.mem, memBase, 1<<20, memBase, AccessLocalWrite|AccessMWBind)
			if err != nil {
				t.Fatal(err)
			}
			s.Bind.LKey = m.LKey()
		}},
		{"window of another protection domain", MWType2, func(t *testing.T, x *setup, s *ring.SendWQE) {
			mw, err := x.b.h.n.AllocMW(mustPD(t, x.b.h.n), MWType2)
			if err != nil {
				t.Fatal(err)
			}
			s.Bind.MWKey = mw.RKey()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			x := &setup{b: b, m: bindable(t, b, 0), mw: newWindow(t, b, c.typ)}
			s, key := x.mw.bind(2, x.m, 4096, 64, windowAccess), x.mw.mw.RKey()
			c.change(t, x, s)
			b.post(remote(wr(1, ring.OpWrite, b.sge(0, 5000)), a, 0), s, remote(wr(3, ring.OpWrite, b.sge(0, 8)), a, 0))
			w.run(1e9)
			b.want(t, "1:success", "2:memory window bind error", "3:work request flushed error")
			if b.q.State() != Err || x.mw.mw.RKey() != key || x.mw.mw.bound() {
				t.Errorf("state %v, key %#x of %#x, bound %v", b.q.State(), x.mw.mw.RKey(), key, x.mw.mw.bound())
			}
		})
	}
}

// o10-37.2.30: a type 2 window that is bound must be invalidated before it can be bound again; one of type 1 is
// rebound, or unbound by a length of 0 (11.2, Bind Memory Window).
func TestRebind(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType1)
	b.post(mw.bind(1, m, 4096, 64, windowAccess))
	w.run(1e6)
	first := mw.mw.RKey()
	b.post(mw.bind(2, m, 8192, 64, windowAccess))
	w.run(1e6)
	second := mw.mw.RKey()
	b.post(mw.bind(3, m, 8192, 0, 0))
	w.run(1e6)
	b.want(t, "1:success", "2:success", "3:success")
	if first == second || mw.mw.bound() || mw.mw.RKey() == second {
		t.Errorf("keys %#x, %#x, %#x, bound %v", first, second, mw.mw.RKey(), mw.mw.bound())
	}
	a.post(through(wr(1, ring.OpWrite, a.sge(0, 8)), mw.mw.RKey(), memBase+8192))
	w.run(1e6)
	a.want(t, "1:remote access error")

	w, _, b = connected(t, Config{}, nil)
	m, mw = bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(mw.bind(1, m, 4096, 64, windowAccess))
	w.run(1e6)
	b.post(invalidate(2, ring.OpLocalInv, mw.mw.RKey()), mw.bind(3, m, 8192, 64, windowAccess))
	w.run(1e6)
	b.post(mw.bind(4, m, 4096, 64, windowAccess))
	w.run(1e6)
	b.want(t, "1:success", "2:success", "3:success", "4:memory window bind error")
}

// 10.6.5, 9.4.1.1.3: what is invalidated, here or by the peer's SEND WITH INVALIDATE, grants nothing from then
// on; the receive that completes tells the key (11.4.2.1).
func TestInvalidate(t *testing.T) {
	for _, local := range []bool{true, false} {
		w, a, b := connected(t, Config{}, nil)
		m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
		b.post(mw.bind(1, m, 4096, 64, windowAccess))
		w.run(1e6)
		b.want(t, "1:success")
		key := mw.mw.RKey()
		if local {
			b.post(invalidate(2, ring.OpLocalInv, key))
			w.run(1e6)
			b.want(t, "2:success")
		} else {
			b.recv(2, b.sge(0, 3000))
			a.post(invalidate(2, ring.OpSendInv, key, a.sge(500, 3000)))
			w.run(1e6)
			a.want(t, "2:success")
			got := b.poll()
			if len(got) != 1 || got[0].Status != ring.StatusSuccess || got[0].Flags&ring.WCWithInv == 0 || got[0].Imm != key || got[0].ByteLen != 3000 {
				t.Errorf("completions %+v, want key %#x", got, key)
			}
			if !bytes.Equal(b.bytes(0, 3000), a.bytes(500, 3000)) {
				t.Error("the message did not arrive")
			}
		}
		if mw.mw.bound() {
			t.Error("the window is still bound")
		}
		a.post(through(wr(3, ring.OpWrite, a.sge(0, 8)), key, memBase+4096))
		w.run(1e6)
		a.want(t, "3:remote access error")
	}
}

// 9.4.1.1.3, 9.9.6.2: SEND WITH INVALIDATE of a key that is not of a type 2 window bound to this queue pair is a
// remote access error; the receive fails, and nothing is invalidated.
func TestInvalidateWhatMayNotBe(t *testing.T) {
	for _, c := range []struct {
		name string
		key  func(t *testing.T, w *wire, b *end) uint32
	}{
		{"ordinary region", func(t *testing.T, w *wire, b *end) uint32 { return b.h.mr.RKey() }},
		{"no key", func(t *testing.T, w *wire, b *end) uint32 { return b.h.mr.RKey() ^ 0x100 }},
		{"window of type 1", func(t *testing.T, w *wire, b *end) uint32 {
			mw := newWindow(t, b, MWType1)
			b.post(mw.bind(9, bindable(t, b, 0), 0, 64, windowAccess))
			w.run(1e6)
			return mw.mw.RKey()
		}},
		{"window that is not bound", func(t *testing.T, w *wire, b *end) uint32 { return newWindow(t, b, MWType2).mw.RKey() }},
		{"window of another queue pair", func(t *testing.T, w *wire, b *end) uint32 {
			c, d := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
			c.to(RTS, defaultAttr(), d)
			d.to(RTS, defaultAttr(), c)
			mw := newWindow(t, d, MWType2)
			d.post(mw.bind(9, bindable(t, d, 0), 0, 64, windowAccess))
			w.run(1e6)
			return mw.mw.RKey()
		}},
	} {
		for _, op := range []ring.SendOpcode{ring.OpSendInv, ring.OpLocalInv} {
			w, a, b := connected(t, Config{}, nil)
			key := c.key(t, w, b)
			b.poll()
			m := b.h.n.lookupMR(key)
			if op == ring.OpLocalInv {
				b.post(invalidate(1, op, key))
				w.run(1e6)
				b.want(t, "1:memory window bind error")
			} else {
				b.recv(5, b.sge(0, 64))
				a.post(invalidate(1, op, key, a.sge(0, 64)))
				w.run(1e6)
				a.want(t, "1:remote access error")
				b.want(t, "5:remote invalid request error")
			}
			if b.q.State() != Err || b.h.n.lookupMR(key) != m || m != nil && m.dead {
				t.Errorf("%s: state %v, or the key was invalidated", c.name, b.q.State())
			}
		}
	}
}

// 10.8.3: a bind completes in its place in the queue, and not before what stands before it, however often that
// has to be sent again.
func TestLocalOperationsCompleteInOrder(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	lost := 0
	w.drop = func(f frame) bool {
		lost++
		return f.from == b.h && lost < 40 && lost%3 != 0
	}
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(remote(wr(1, ring.OpWrite, b.sge(0, 9000)), a, 0), mw.bind(2, m, 4096, 64, windowAccess),
		invalidate(3, ring.OpLocalInv, mw.mw.RKey()&^0xff|(mw.mw.RKey()+1)&0xff), remote(wr(4, ring.OpRead, b.sge(20000, 9000)), a, 0),
		invalidate(5, ring.OpLocalInv, 1))
	w.run(10 * second)
	b.want(t, "1:success", "2:success", "3:success", "4:success", "5:memory window bind error")
}

// 10.8.3.3: a local invalidate with a fence waits for the READs before it.
func TestFencedInvalidate(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(mw.bind(1, m, 4096, 64, windowAccess))
	w.run(1e6)
	held := true
	w.drop = func(f frame) bool { return held && f.op == roce.RCReadResponseOnly }
	inv := invalidate(3, ring.OpLocalInv, mw.mw.RKey())
	inv.Flags |= ring.SendFence
	b.post(remote(wr(2, ring.OpRead, b.sge(0, 8)), a, 0), inv)
	w.settle()
	if !mw.mw.bound() {
		t.Error("invalidated before the READ has completed")
	}
	held = false
	w.run(second)
	b.want(t, "1:success", "2:success", "3:success")
	if mw.mw.bound() {
		t.Error("still bound")
	}
}

// 11.2, Deregister Memory Region: a region is busy while windows are bound to it. 11.2, Deallocate Memory Window: one
// may be deallocated while it is bound. 10.6.7.2: with its queue pair a type 2B window's binding ends.
func TestLivesOfWindows(t *testing.T) {
	w, _, b := connected(t, Config{}, nil)
	m, one, two := bindable(t, b, 0), newWindow(t, b, MWType1), newWindow(t, b, MWType2)
	b.post(one.bind(1, m, 0, 64, windowAccess), two.bind(2, m, 0, 64, windowAccess))
	w.run(1e6)
	b.want(t, "1:success", "2:success")
	wantErrno(t, m.Dereg(), EBUSY)
	if err := one.mw.Dealloc(); err != nil {
		t.Error(err)
	}
	wantErrno(t, one.mw.Dealloc(), ENOENT)
	wantErrno(t, m.Dereg(), EBUSY)
	if err := b.q.Destroy(); err != nil || two.mw.bound() {
		t.Errorf("%v, bound %v", err, two.mw.bound())
	}
	if err := m.Dereg(); err != nil {
		t.Error(err)
	}
	if err := two.mw.Dealloc(); err != nil || b.h.n.mws != 0 {
		t.Errorf("%v, %d windows", err, b.h.n.mws)
	}
}

// 11.2, Allocate Memory Window: what AllocMW refuses.
func TestAllocMWArguments(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxMW: 1, MaxMR: 1}})
	pd := mustPD(t, n)
	_, err := n.AllocMW(pd, 0)
	wantErrno(t, err, EINVAL)
	_, err = n.AllocMW(pd, 3)
	wantErrno(t, err, EINVAL)
	_, err = n.AllocMW(nil, MWType1)
	wantErrno(t, err, EINVAL)
	mw, err := n.AllocMW(pd, MWType1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.AllocMW(pd, MWType2)
	wantErrno(t, err, ENOMEM)
	if _, err := n.RegMR(pd, memory(0x1000, 64), 0x1000, 64, 0, 0); err != nil {
		t.Errorf("a window counts as a region: %v", err)
	}
	wantErrno(t, pd.Dealloc(), EBUSY)
	if err := mw.Dealloc(); err != nil {
		t.Fatal(err)
	}
}

// 10.6.7: a window's key is no local key, bound or not.
func TestWindowIsNoLocalKey(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType1)
	b.post(mw.bind(1, m, 0, 64, windowAccess))
	w.run(1e6)
	s := remote(wr(2, ring.OpWrite, b.sge(0, 8)), a, 0)
	s.SGE[0].LKey = mw.mw.RKey()
	b.post(s)
	w.run(1e6)
	b.want(t, "1:success", "2:local protection error")
}

// 9.8.2: an unreliable connection binds windows too, for its peer's WRITEs.
func TestWindowOfUnreliableConnection(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(remote(wr(1, ring.OpWrite, b.sge(0, 3000)), a, 0), mw.bind(2, m, 4096, 64, windowAccess), remote(wr(3, ring.OpWrite, b.sge(0, 8)), a, 0))
	w.run(second)
	b.want(t, "1:success", "2:success", "3:success")
	key := mw.mw.RKey()
	a.post(through(wr(1, ring.OpWrite, a.sge(0, 64)), key, memBase+4096))
	w.run(second)
	if !bytes.Equal(b.bytes(4096, 64), a.bytes(0, 64)) {
		t.Error("the bytes did not come through the window")
	}
	b.post(invalidate(4, ring.OpLocalInv, key))
	w.run(second)
	b.want(t, "4:success")
	before := bytes.Clone(b.h.mem.Mem)
	a.post(through(wr(2, ring.OpWrite, a.sge(200, 64)), key, memBase+4096))
	w.run(second)
	if !bytes.Equal(before, b.h.mem.Mem) {
		t.Error("an invalidated window let a WRITE in")
	}
}

// 9.7.5.1: a READ that is repeated, by the network, after its window was invalidated does not end the connection.
func TestDuplicateReadOfInvalidatedWindow(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
	b.post(mw.bind(1, m, 4096, 64, windowAccess))
	w.run(1e6)
	a.post(through(wr(1, ring.OpRead, a.sge(0, 64)), mw.mw.RKey(), memBase+4096))
	w.run(1e6)
	var request []byte
	for _, f := range w.log {
		if f.op == roce.RCReadRequest {
			request = f.data
		}
	}
	b.post(invalidate(2, ring.OpLocalInv, mw.mw.RKey()))
	w.run(1e6)
	b.h.inject(b.pathFrom(a), request)
	w.run(1e6)
	b.want(t, "1:success", "2:success")
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 3000)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:success")
	if a.q.State() != RTS || b.q.State() != RTS {
		t.Errorf("states %v and %v", a.q.State(), b.q.State())
	}
}

// 10.6.5, 10.8.2: when the completion of a local invalidate or of a bind shows, nothing reads through what the key
// stood for before any more: not the response of a READ either that left in the same batch.
func TestInvalidateCompletesBehindTransfers(t *testing.T) {
	for _, other := range []bool{false, true} {
		w, a, b := connected(t, Config{}, nil)
		m, mw := bindable(t, b, 0), newWindow(t, b, MWType2)
		b.post(mw.bind(1, m, 4096, 64, windowAccess))
		w.run(1e6)
		b.want(t, "1:success")
		inv := invalidate(2, ring.OpLocalInv, mw.mw.RKey())
		a.post(through(wr(1, ring.OpRead, a.sge(0, 64)), mw.mw.RKey(), memBase+4096))
		a.h.transmit()
		b.h.deliver()
		if other { // something stands before it
			b.post(remote(wr(3, ring.OpWrite, b.sge(0, 8)), a, 9000))
		}
		b.post(inv)
		b.h.tx.Reset()
		b.h.n.Transmit(w.now, b.h.tx)
		if got := b.poll(); len(got) != 0 && len(b.h.tx.Gather.Segs) != 0 {
			t.Errorf("completions %+v, while %d pieces of memory are still to be read", got, len(b.h.tx.Gather.Segs))
		}
		b.h.tx.Gather.Gather()
		b.h.n.GatherDone(w.now, b.h.tx)
		for i := range b.h.tx.Packets {
			w.carry(b.h, &b.h.tx.Packets[i])
		}
		w.run(second)
		want := []string{"2:success"}
		if other {
			want = []string{"3:success", "2:success"}
		}
		b.want(t, want...)
		a.want(t, "1:success")
	}
}

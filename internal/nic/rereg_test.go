package nic

import (
	"testing"

	"rnic/internal/ring"
)

// 11.2, Reregister Memory Region: what the flags name changes, the rest stays, and the old keys are refused.
func TestReregister(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	h := w.hosts[1]
	old := h.mr
	again := func(flags ReregFlags, r Region) *MR {
		t.Helper()
		mr, err := h.n.ReregMR(h.mr, flags, r)
		if err != nil {
			t.Fatal(err)
		}
		if mr.RKey() == h.mr.RKey() {
			t.Error("the key is the old one")
		}
		h.mr = mr
		return mr
	}
	write := func(id uint64, key uint32, at uint64, want string) {
		t.Helper()
		x := wr(id, ring.OpWrite, a.sge(0, 100))
		x.RemoteAddr, x.RKey = at, key
		a.post(x)
		w.settle()
		a.want(t, want)
	}
	again(ReregTranslation, Region{Space: h.mem, Start: memBase + 4096, Length: 1000, IOVA: 0x7000_0000})
	write(1, h.mr.RKey(), 0x7000_0000+900, "1:success")
	if string(b.bytes(4096+900, 100)) != string(a.bytes(0, 100)) {
		t.Error("the bytes are not where the new translation says")
	}
	again(ReregAccess, Region{Access: AccessLocalWrite | AccessRemoteWrite})
	write(2, h.mr.RKey(), 0x7000_0000, "2:success") // the translation has stayed
	if h.mr.access != AccessLocalWrite|AccessRemoteWrite || h.mr.pd != h.pd {
		t.Error("the region is not what was asked for")
	}
	other := mustPD(t, h.n)
	again(ReregPD, Region{PD: other})
	wantErrno(t, other.Dealloc(), EBUSY)
	wantErrno(t, old.Dereg(), ENOENT)
	write(3, h.mr.RKey(), 0x7000_0000, "3:remote access error") // of another domain than the queue pair
	if err := h.mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, other.Dealloc(), 0)
}

// 10.6.3.3: an old key is refused after each kind of change.
func TestReregisterRefusesOldKeys(t *testing.T) {
	for _, flags := range []ReregFlags{ReregTranslation, ReregPD, ReregAccess, ReregTranslation | ReregPD | ReregAccess} {
		w, a, b := connected(t, Config{}, nil)
		h := w.hosts[1]
		stale := remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 0)
		if _, err := h.n.ReregMR(h.mr, flags, Region{h.pd, h.mem, memBase, 1 << 20, memBase, allAccess}); err != nil {
			t.Fatal(err)
		}
		a.post(stale)
		w.settle()
		a.want(t, "1:remote access error")
	}
}

// What had begun with the old keys does not go on with them: neither a WRITE between two of its packets
// nor a READ that is being answered.
func TestReregisterEndsWhatIsUnderWay(t *testing.T) {
	for _, op := range []ring.SendOpcode{ring.OpWrite, ring.OpRead} {
		w, a, b := connected(t, Config{}, nil)
		h := w.hosts[1]
		a.post(remote(wr(1, op, a.sge(0, 500_000)), b, 0))
		for range 2 {
			for _, x := range w.hosts {
				x.transmit()
				x.deliver()
			}
		}
		if _, err := h.n.ReregMR(h.mr, ReregTranslation, Region{Space: h.mem, Start: memBase, Length: 10, IOVA: 5}); err != nil {
			t.Fatal(err)
		}
		w.run(second)
		a.want(t, "1:remote access error")
	}
}

func TestReregisterRefusals(t *testing.T) {
	w := newWire(t, Config{})
	h := w.hosts[0]
	for _, c := range []struct {
		flags ReregFlags
		r     Region
		want  Errno
	}{
		{0, Region{}, EINVAL},
		{8, Region{}, EINVAL},
		{ReregPD, Region{}, EINVAL},
		{ReregAccess, Region{Access: AccessRemoteWrite}, EINVAL},
		{ReregAccess, Region{Access: 1 << 30}, EINVAL},
		{ReregAccess, Region{Access: AccessFlushPersist}, EOPNOTSUPP},
		{ReregTranslation, Region{Space: h.mem, Start: ^uint64(0), Length: 10}, EINVAL},
		{ReregTranslation, Region{Space: h.mem, Length: 10, IOVA: ^uint64(0)}, EINVAL},
	} {
		_, err := h.n.ReregMR(h.mr, c.flags, c.r)
		wantErrno(t, err, c.want)
		if h.n.lookupMR(h.mr.RKey()) != h.mr {
			t.Fatalf("flags %d: a refused command has ended the region", c.flags)
		}
	}
	if err := h.mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	_, err := h.n.ReregMR(h.mr, ReregAccess, Region{})
	wantErrno(t, err, ENOENT)
}

// 11.2, Reregister Memory Region: not while memory windows are bound to the region.
func TestReregisterWithWindows(t *testing.T) {
	w := newWire(t, Config{})
	h := w.hosts[0]
	window := &MW{}
	h.mr.windows = addWindow(h.mr.windows, window)
	_, err := h.n.ReregMR(h.mr, ReregAccess, Region{Access: AccessLocalWrite})
	wantErrno(t, err, EBUSY)
	if h.n.lookupMR(h.mr.RKey()) != h.mr {
		t.Error("the region is gone")
	}
}

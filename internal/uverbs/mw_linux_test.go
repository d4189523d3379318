package uverbs

import (
	"bytes"
	"syscall"
	"testing"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

func (p *program) allocMW(fd int, pd uint32, typ nic.MWType) (handle, key uint32, errno syscall.Errno) {
	p.t.Helper()
	req, resp := make([]byte, 16), make([]byte, 8)
	le.PutUint32(req[8:], pd)
	req[12] = byte(typ)
	errno = p.command(fd, cmdAllocMW, req, resp, nil)
	return le.Uint32(resp), le.Uint32(resp[4:]), errno
}

// A program binds a window by a work request, writes through it, and finds its region busy until the window is
// gone (ib_uverbs_alloc_mw, ib_uverbs_dealloc_mw; struct rxe_send_wr, wr.mw).
func TestMemoryWindow(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	for _, typ := range []nic.MWType{0, 3} {
		if _, _, errno := p.allocMW(fd, pd, typ); errno != syscall.EINVAL {
			t.Errorf("type %d: %v, want EINVAL", typ, errno)
		}
	}
	if _, _, errno := p.allocMW(fd, 999, nic.MWType1); errno != syscall.EINVAL {
		t.Errorf("in no PD: %v, want EINVAL", errno)
	}
	mem := make([]byte, 64)
	mr, lkey, errno := p.tryRegMR(fd, pd, p.address(mem), 64, nic.AccessLocalWrite|nic.AccessMWBind)
	p.must(errno)
	mw, key, errno := p.allocMW(fd, pd, nic.MWType1)
	p.must(errno)
	other, _, errno := p.allocMW(fd, pd, nic.MWType2)
	p.must(errno)
	cq, cqMem := p.cq(fd, -1, 1)
	a, _ := p.connected(fd, pd, cq, cq)
	a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpBindMW, Bind: ring.Bind{Addr: p.address(mem), Length: 64,
		LKey: lkey, MWKey: key, RKey: key + 1, Access: uint32(nic.AccessRemoteWrite)}}, false)
	p.must(errnoOf(a.send.Publish()))
	bound := key&^0xff | (key+1)&0xff
	for _, k := range []uint32{bound, key} {
		a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled | ring.SendInline,
			RemoteAddr: p.address(mem), RKey: k, InlineLen: 8, Inline: [ring.MaxInline]byte{1, 2, 3}}, false)
		p.must(errnoOf(a.send.Publish()))
	}
	a.doorbell()
	p.notify(fd, cq)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	view := ring.View(cqMem, g)
	for i, want := range []ring.Status{ring.StatusSuccess, ring.StatusRemAccessErr} {
		var e ring.CQE
		if view.Pending() <= uint32(i) {
			t.Fatalf("%d completions", view.Pending())
		}
		view.LoadCQE(uint32(i), &e)
		if e.Status != want {
			t.Errorf("WRITE %d completed with %v, want %v", i, e.Status, want)
		}
	}
	if !bytes.Equal(mem[:3], []byte{1, 2, 3}) {
		t.Error("the WRITE did not arrive")
	}
	if _, errno := p.ioctl(fd, objMR, 1, number(destroyHandle, uint64(mr))); errno != syscall.EBUSY {
		t.Errorf("destroying a region with a window: %v, want EBUSY", errno)
	}
	if _, errno := p.ioctl(fd, objMW, 0, number(destroyHandle, uint64(mw))); errno != 0 {
		t.Errorf("destroying the window: %v", errno)
	}
	if errno := p.command(fd, cmdDeallocMW, words(other), nil, nil); errno != 0 {
		t.Errorf("DEALLOC_MW: %v", errno)
	}
	if _, errno := p.ioctl(fd, objMR, 1, number(destroyHandle, uint64(mr))); errno != 0 {
		t.Errorf("destroying the region: %v", errno)
	}
}

// After execve windows grant nothing of another program's memory.
func TestWindowsEndWithTheMemoryOfTheirProcess(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	mem := make([]byte, 64)
	_, lkey, errno := p.tryRegMR(fd, pd, p.address(mem), 64, nic.AccessLocalWrite|nic.AccessMWBind)
	p.must(errno)
	_, key, errno := p.allocMW(fd, pd, nic.MWType1)
	p.must(errno)
	cq, cqMem := p.cq(fd, -1, 1)
	a, _ := p.connected(fd, pd, cq, cq)
	a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpBindMW, Bind: ring.Bind{Addr: p.address(mem), Length: 64,
		LKey: lkey, MWKey: key, RKey: key, Access: uint32(nic.AccessRemoteWrite)}}, false)
	p.must(errnoOf(a.send.Publish()))
	a.doorbell()
	p.notify(fd, cq)
	p.drv.MemoryGone(p.pid)
	a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled | ring.SendInline,
		RemoteAddr: p.address(mem), RKey: key, InlineLen: 8, Inline: [ring.MaxInline]byte{1, 2, 3}}, false)
	p.must(errnoOf(a.send.Publish()))
	a.doorbell()
	p.notify(fd, cq)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	view := ring.View(cqMem, g)
	var e ring.CQE
	if view.Pending() == 0 {
		t.Fatal("no completion")
	}
	view.LoadCQE(0, &e)
	if e.Status != ring.StatusRemAccessErr || !bytes.Equal(mem, make([]byte, 64)) {
		t.Errorf("a WRITE through the window completed with %v", e.Status)
	}
}

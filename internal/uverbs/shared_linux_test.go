package uverbs

import (
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// A stock program changes shared receive queues and completion queues, and gets their events.
func TestStockProgramWithSharedQueues(t *testing.T) {
	stock(t, "ibv_devinfo")
	cmd := isolated(t, buildRnic(t), "run", "-v", "--", buildC(t, "shared"))
	if out, err := outcome(t, cmd, time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// rereg is REREG_MR (struct ib_uverbs_rereg_mr).
func (p *program) rereg(fd int, mr uint32, flags nic.ReregFlags, start, length, iova uint64, pd uint32, access nic.Access) (key uint32, errno syscall.Errno) {
	p.t.Helper()
	req, resp := make([]byte, 48), make([]byte, 8)
	le.PutUint32(req[8:], mr)
	le.PutUint32(req[12:], uint32(flags))
	le.PutUint64(req[16:], start)
	le.PutUint64(req[24:], length)
	le.PutUint64(req[32:], iova)
	le.PutUint32(req[40:], pd)
	le.PutUint32(req[44:], uint32(access))
	errno = p.command(fd, cmdReregMR, req, resp, nil)
	return le.Uint32(resp), errno
}

// The provider of rdma-core 44 has no ibv_rereg_mr; later ones send this.
func TestRereg(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd, other := p.pd(fd), p.pd(fd)
	mem, more := make([]byte, 4096), make([]byte, 8192)
	mr, key := p.regMR(fd, pd, mem)
	for what, c := range map[string]struct {
		got  syscall.Errno
		want syscall.Errno
	}{
		"no flags":        {second(p.rereg(fd, mr, 0, 0, 0, 0, 0, 0)), syscall.EINVAL},
		"unknown flags":   {second(p.rereg(fd, mr, 8, 0, 0, 0, 0, 0)), syscall.EOPNOTSUPP},
		"no region":       {second(p.rereg(fd, 999, 4, 0, 0, 0, 0, 0)), syscall.ENOENT},
		"another kind":    {second(p.rereg(fd, pd, 4, 0, 0, 0, 0, 0)), syscall.EINVAL},
		"no such domain":  {second(p.rereg(fd, mr, nic.ReregPD, 0, 0, 0, 999, 0)), syscall.EINVAL},
		"rights":          {second(p.rereg(fd, mr, nic.ReregAccess, 0, 0, 0, 0, nic.AccessRemoteWrite)), syscall.EINVAL},
		"nothing mapped":  {second(p.rereg(fd, mr, nic.ReregTranslation, 0x1000, 4096, 0x1000, 0, 0)), syscall.EFAULT},
		"it wraps around": {second(p.rereg(fd, mr, nic.ReregTranslation, ^uint64(0)-10, 100, 0, 0, 0)), syscall.EINVAL},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
	again, errno := p.rereg(fd, mr, nic.ReregTranslation|nic.ReregPD|nic.ReregAccess, p.address(more), 8192, 0x700000, other, nic.AccessLocalWrite)
	p.must(errno)
	if again == key || again == 0 {
		t.Errorf("key %#x, it was %#x", again, key)
	}
	length, lkey := make([]byte, 8), make([]byte, 4)
	_, errno = p.ioctl(fd, objMR, 3, number(mrHandle, uint64(mr)), p.output(mrRespLKey, lkey), p.output(mrRespRKey, make([]byte, 4)),
		p.output(mrRespLength, length))
	p.must(errno)
	if le.Uint64(length) != 8192 || le.Uint32(lkey) != again {
		t.Errorf("the region has %d bytes and key %#x", le.Uint64(length), le.Uint32(lkey))
	}
	if _, errno := p.ioctl(fd, objPD, 0, number(destroyHandle, uint64(other))); errno != syscall.EBUSY {
		t.Errorf("destroying the domain that it moved to: %v", errno)
	}
	if _, errno := p.ioctl(fd, objPD, 0, number(destroyHandle, uint64(pd))); errno != 0 {
		t.Errorf("destroying the domain that it was in: %v", errno)
	}
}

// moderate is EX_MODIFY_CQ, which the stock provider does not send.
func (p *program) moderate(fd int, cq, mask uint32, count, period uint16) syscall.Errno {
	return p.command(fd, exModifyCQ, words(cq, mask, uint32(count)|uint32(period)<<16, 0), nil, nil)
}

func TestModeration(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd, ch := p.pd(fd), p.compChannel(fd)
	cq, _ := p.cq(fd, ch, 1)
	a, b := p.connected(fd, pd, cq, cq)
	if errno := p.moderate(fd, cq, 0, 2, 2); errno != syscall.EINVAL {
		t.Errorf("no attribute: %v", errno)
	}
	if errno := p.moderate(fd, cq, 2, 2, 2); errno != syscall.EOPNOTSUPP {
		t.Errorf("unknown attribute: %v", errno)
	}
	if errno := p.moderate(fd, pd, 1, 2, 2); errno != syscall.EINVAL {
		t.Errorf("another kind of object: %v", errno)
	}
	p.must(p.moderate(fd, cq, 1, 4, 65535))
	p.notify(fd, cq)
	b.receive0()
	b.receive0()
	a.send0()
	p.notify(fd, cq) // executes the doorbell: two completions
	var r [8]byte
	if err := unix.SetNonblock(ch, true); err != nil {
		t.Fatal(err)
	}
	if n, _ := unix.Read(ch, r[:]); n > 0 {
		t.Error("an event after two completions of four")
	}
	a.send0()
	if !readable(t, ch, 10*time.Second) {
		t.Error("no event after four completions")
	}
}

// Commands as libraries before the ioctl write them: the structures of ib_user_verbs.h.
func TestSharedQueueCommands(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	create := func(pd, wr, sge uint32) ([]byte, []byte, syscall.Errno) {
		req, resp, info := make([]byte, 32), make([]byte, 16), make([]byte, sizeSRQResp)
		copy(req[16:], words(pd, wr, sge, 3))
		return resp, info, p.command(fd, cmdCreateSRQ, req, resp, info)
	}
	for _, bad := range [][3]uint32{{999, 10, 1}, {pd, 0, 1}, {pd, 1 << 20, 1}, {pd, 10, 33}} {
		if _, _, errno := create(bad[0], bad[1], bad[2]); errno != syscall.EINVAL {
			t.Errorf("%v: %v", bad, errno)
		}
	}
	resp, _, errno := create(pd, 10, 0)
	p.must(errno)
	if le.Uint32(resp[8:]) != 1 {
		t.Errorf("asked for no entries, granted %d, want 1 as of Linux's Soft-RoCE", le.Uint32(resp[8:]))
	}
	p.must(p.command(fd, cmdDestroySRQ, append(make([]byte, 8), words(le.Uint32(resp), 0)...), make([]byte, 4), nil))
	resp, info, errno := create(pd, 10, 2)
	p.must(errno)
	srq := le.Uint32(resp)
	if le.Uint32(resp[4:]) != 15 || le.Uint32(resp[8:]) != 2 {
		t.Errorf("granted %d receives of %d entries", le.Uint32(resp[4:]), le.Uint32(resp[8:]))
	}
	g, _ := ring.GeometryFor(10, ring.RecvWQESize+2*ring.SGESize)
	program := ring.View(p.mmap(fd, info), g)
	program.StoreRecv(0, &ring.RecvWQE{WRID: 77})
	if err := program.Publish(); err != nil {
		t.Fatal(err)
	}
	query := func() uint32 {
		q := make([]byte, 16)
		p.must(p.command(fd, cmdQuerySRQ, append(make([]byte, 8), words(srq, 0)...), q, nil))
		return le.Uint32(q[8:])
	}
	if query() != 0 {
		t.Error("the limit was armed by the creation")
	}
	p.must(p.command(fd, cmdModifySRQ, words(srq, srqAttrLimit, 0, 5), nil, nil))
	if query() != 5 {
		t.Error("the limit is not armed")
	}
	for what, req := range map[string][]byte{"limit": words(srq, srqAttrLimit, 0, 16), "mask": words(srq, 4, 0, 0), "kind": words(cq, srqAttrLimit, 0, 0),
		"no provider's part": words(srq, srqAttrMaxWR, 20, 0), "none": words(srq, srqAttrMaxWR, 0, 0)} {
		if errno := p.command(fd, cmdModifySRQ, req, nil, nil); errno != syscall.EINVAL {
			t.Errorf("modify, %s: %v", what, errno)
		}
	}
	mapped := make([]byte, sizeMMInfo)
	resize := func(at uint64) syscall.Errno {
		_, errno := p.ioctl(fd, objDevice, methodInvokeWrite, p.input(invokeCommand, le.AppendUint64(nil, cmdModifySRQ)),
			p.input(invokeCoreIn, words(srq, srqAttrMaxWR, 100, 0)), p.input(attrUHWIn, le.AppendUint64(nil, at)))
		return errno
	}
	if errno := resize(16); errno != syscall.EFAULT {
		t.Errorf("a new queue that cannot be announced: %v", errno)
	}
	p.must(resize(p.address(mapped)))
	g, _ = ring.GeometryFor(100, ring.RecvWQESize+2*ring.SGESize)
	program = ring.View(p.mmap(fd, mapped), g)
	var w ring.RecvWQE
	if _, err := program.LoadRecv(0, &w); err != nil || w.WRID != 77 || program.Produced() != 1 {
		t.Errorf("the new queue holds %d receives, the first is %d", program.Produced(), w.WRID)
	}

	q := make([]byte, 32)
	qp := append(make([]byte, 16), words(pd, cq, cq, srq, 1, 9, 1, 9, 0)...) // its own receives mean nothing
	qp = append(qp, 0, byte(nic.RC), 1, 0)
	mmap := make([]byte, 2*sizeMMInfo)
	p.must(p.command(fd, cmdCreateQP, qp, q, mmap))
	if le.Uint64(mmap) != 0 || le.Uint32(mmap[8:]) != 0 || le.Uint64(mmap[16:]) == 0 {
		t.Errorf("queues at %x", mmap)
	}
	if c := decodeCap(q[8:]); c.MaxRecvWR != 0 || c.MaxRecvSGE != 0 {
		t.Errorf("capabilities %+v", c)
	}
	destroySRQ := func() syscall.Errno {
		return p.command(fd, cmdDestroySRQ, append(make([]byte, 8), words(srq, 0)...), make([]byte, 4), nil)
	}
	if errno := destroySRQ(); errno != syscall.EBUSY {
		t.Errorf("destroying it in use: %v", errno)
	}
	p.must(p.command(fd, cmdDestroyQP, append(make([]byte, 8), words(le.Uint32(q), 0)...), make([]byte, 4), nil))
	p.must(destroySRQ())
	if errno := destroySRQ(); errno != syscall.ENOENT {
		t.Errorf("destroying it twice: %v", errno)
	}
}

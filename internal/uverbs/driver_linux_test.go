package uverbs

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// modify is MODIFY_QP with the fields that set writes into struct ib_uverbs_modify_qp.
func (q *qp) modify(mask nic.AttrMask, set func(b []byte)) syscall.Errno {
	q.p.t.Helper()
	b := make([]byte, sizeModifyQP)
	le.PutUint32(b[64:], q.handle)
	le.PutUint32(b[68:], uint32(mask))
	set(b)
	return q.p.command(q.fd, cmdModifyQP, b, nil, nil)
}

// connect takes an RC queue pair to RTS, towards another of the same device.
func (q *qp) connect(peer *qp) {
	q.p.t.Helper()
	gid := q.p.drv.dev.GIDs()[0]
	q.p.must(q.modify(nic.AttrState|nic.AttrPKeyIndex|nic.AttrPort|nic.AttrAccessFlags, func(b []byte) {
		b[96], b[104] = byte(nic.Init), 1
		le.PutUint32(b[88:], uint32(nic.AccessRemoteWrite|nic.AccessLocalWrite))
	}))
	q.p.must(q.modify(nic.AttrState|nic.AttrAV|nic.AttrPathMTU|nic.AttrDestQPN|nic.AttrRQPSN|nic.AttrMaxDestRDAtomic|nic.AttrMinRNRTimer,
		func(b []byte) {
			copy(b, gid.GID[:])
			b[24], b[25], b[30], b[31] = byte(gid.Index), 64, 1, 1
			le.PutUint32(b[76:], 1000) // rq_psn
			le.PutUint32(b[84:], peer.num)
			b[96], b[98], b[102], b[103] = byte(nic.RTR), 3, 1, 12
		}))
	q.p.must(q.modify(nic.AttrState|nic.AttrTimeout|nic.AttrRetryCnt|nic.AttrRNRRetry|nic.AttrSQPSN|nic.AttrMaxRDAtomic,
		func(b []byte) {
			le.PutUint32(b[80:], 1000) // sq_psn
			b[96], b[101], b[105], b[106], b[107] = byte(nic.RTS), 1, 14, 7, 7
		}))
}

// connected makes two RC queue pairs that are connected to each other.
func (p *program) connected(fd int, pd, cqA, cqB uint32) (a, b *qp) {
	p.t.Helper()
	a, b = p.qp(fd, pd, cqA, uint64(nic.RC)), p.qp(fd, pd, cqB, uint64(nic.RC))
	a.connect(b)
	b.connect(a)
	return a, b
}

// send posts an empty signalled SEND and rings.
func (q *qp) send0() {
	q.p.t.Helper()
	pos := q.send.Position()
	q.send.StoreSend(pos, &ring.SendWQE{WRID: 1, Opcode: ring.OpSend, Flags: ring.SendSignaled}, false)
	if err := q.send.Publish(); err != nil {
		q.p.t.Fatal(err)
	}
	q.doorbell()
}

// receive0 posts an empty receive.
func (q *qp) receive0() {
	q.p.t.Helper()
	q.recv.StoreRecv(q.recv.Position(), &ring.RecvWQE{WRID: 2})
	if err := q.recv.Publish(); err != nil {
		q.p.t.Fatal(err)
	}
}

func (p *program) notify(fd int, cq uint32) {
	p.t.Helper()
	p.must(p.command(fd, cmdReqNotifyCQ, words(cq, 0), nil, nil))
}

func (p *program) destroyCQ(fd int, cq uint32) (comp, async uint32) {
	p.t.Helper()
	resp := make([]byte, 8)
	_, errno := p.ioctl(fd, objCQ, 1, p.output(destroyResp, resp), number(destroyHandle, uint64(cq)))
	p.must(errno)
	return le.Uint32(resp), le.Uint32(resp[4:])
}

func (q *qp) destroy() (async uint32) {
	q.p.t.Helper()
	resp := make([]byte, 4)
	_, errno := q.p.ioctl(q.fd, objQP, 1, q.p.output(destroyResp, resp), number(destroyHandle, uint64(q.handle)))
	q.p.must(errno)
	return le.Uint32(resp)
}

// openFDs is the number of open descriptors. Others of this process, such as the NIC's look at the load, have
// one more open for moments: the least of several looks counts.
func openFDs(t *testing.T) int {
	t.Helper()
	least := 1 << 30
	for range 20 {
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		least = min(least, len(d))
	}
	return least
}

func TestClosingTheDeviceFreesEverything(t *testing.T) {
	p := newProgram(t, nil)
	before := openFDs(t)
	fd, async := p.context()
	pd := p.pd(fd)
	ch := p.compChannel(fd)
	cq, _ := p.cq(fd, ch, 1)
	p.qp(fd, pd, cq, uint64(nic.RC))
	mem := make([]byte, 4096)
	p.regMR(fd, pd, mem)
	if n, o := p.drv.Contexts(); n != 1 || o != 4 {
		t.Fatalf("%d contexts with %d objects", n, o)
	}
	p.close(fd)
	if n, o := p.drv.Contexts(); n != 0 || o != 0 {
		t.Errorf("%d contexts with %d objects are left", n, o)
	}
	p.close(ch)
	p.close(async)
	for deadline := time.Now().Add(10 * time.Second); openFDs(t) != before || p.forgotten() != 2; {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors are open, %d before; the sandbox was told of %d closed channels, want 2",
				openFDs(t), before, p.forgotten())
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *program) regMR(fd int, pd uint32, mem []byte) (handle, key uint32) {
	p.t.Helper()
	h, key, errno := p.tryRegMR(fd, pd, p.address(mem), uint64(len(mem)), nic.AccessLocalWrite|nic.AccessRemoteWrite)
	p.must(errno)
	return h, key
}

func (p *program) tryRegMR(fd int, pd uint32, addr, length uint64, access nic.Access) (handle, key uint32, errno syscall.Errno) {
	p.t.Helper()
	req, resp := make([]byte, 40), make([]byte, 12)
	le.PutUint64(req[8:], addr)
	le.PutUint64(req[16:], length)
	le.PutUint64(req[24:], addr)
	le.PutUint32(req[32:], pd)
	le.PutUint32(req[36:], uint32(access))
	errno = p.command(fd, cmdRegMR, req, resp, nil)
	return le.Uint32(resp), le.Uint32(resp[8:]), errno
}

func TestErrorsChangeNothing(t *testing.T) {
	p := newProgram(t, nil)
	bare := p.open()
	if errno := p.command(bare, cmdAllocPD, make([]byte, 8), make([]byte, 4), nil); errno != syscall.EINVAL {
		t.Errorf("ALLOC_PD before GET_CONTEXT: %v, want EINVAL", errno)
	}
	p.close(bare)

	fd, _ := p.context()
	pd := p.pd(fd)
	if pd == 0 {
		t.Error("a handle is 0")
	}
	cq, _ := p.cq(fd, -1, 1)
	q := p.qp(fd, pd, cq, uint64(nic.RC))
	_, objects := p.drv.Contexts()

	destroy := func(obj, meth uint16, handle uint64) syscall.Errno {
		attrs := []attr{number(destroyHandle, handle)}
		if obj == objCQ {
			attrs = append(attrs, p.output(destroyResp, make([]byte, 8)))
		}
		_, errno := p.ioctl(fd, obj, meth, attrs...)
		return errno
	}
	resp := make([]byte, 176)
	access := nic.AccessLocalWrite
	for name, c := range map[string]struct{ got, want syscall.Errno }{
		"destroy a PD in use":              {destroy(objPD, 0, uint64(pd)), syscall.EBUSY},
		"destroy a CQ in use":              {destroy(objCQ, 1, uint64(cq)), syscall.EBUSY},
		"destroy with an unknown handle":   {destroy(objPD, 0, 999), syscall.ENOENT},
		"destroy another kind of object":   {destroy(objPD, 0, uint64(cq)), syscall.EINVAL},
		"a handle beyond 32 bits":          {destroy(objPD, 0, 1<<32|uint64(pd)), syscall.ENOENT},
		"a negative handle":                {destroy(objPD, 0, 1<<63|uint64(pd)), syscall.EINVAL},
		"the probe of libibverbs":          {p.command(fd, cmdQueryDevice, nil, nil, nil), syscall.ENOSPC},
		"an answer that is too short":      {p.command(fd, cmdQueryDevice, make([]byte, 8), resp[:100], nil), syscall.ENOSPC},
		"a command that is not supported":  {p.command(fd, exCreateWQ, make([]byte, 40), make([]byte, 24), nil), syscall.EOPNOTSUPP},
		"a second GET_CONTEXT":             {second(p.ioctl(fd, objDevice, 3)), syscall.EINVAL},
		"REG_MR in no PD":                  {third(p.tryRegMR(fd, 999, p.address(resp), 1, access)), syscall.EINVAL},
		"REG_MR of nothing mapped":         {third(p.tryRegMR(fd, pd, 0x1000, 4096, access)), syscall.EFAULT},
		"REG_MR that wraps around":         {third(p.tryRegMR(fd, pd, ^uint64(0)-10, 100, access)), syscall.EINVAL},
		"REMOTE_WRITE without LOCAL_WRITE": {third(p.tryRegMR(fd, pd, p.address(resp), 1, nic.AccessRemoteWrite)), syscall.EINVAL},
		"unknown bits of a QP mask":        {q.modify(1<<30, func([]byte) {}), syscall.EOPNOTSUPP},
		"a transition there is not":        {q.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.RTS) }), syscall.EINVAL},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	cqAttrs := func(cqe, vector uint32) syscall.Errno {
		_, errno := p.ioctl(fd, objCQ, 0, number(cqHandle, 0), p.output(cqRespCQE, make([]byte, 4)), p.input(cqCQE, words(cqe)),
			p.input(cqUserHandle, make([]byte, 8)), p.input(cqCompVector, words(vector)), p.output(attrUHWOut, make([]byte, 16)))
		return errno
	}
	if errno := cqAttrs(0, 0); errno != syscall.EINVAL {
		t.Errorf("CQ without entries: %v", errno)
	}
	if errno := cqAttrs(1<<20, 0); errno != syscall.EINVAL {
		t.Errorf("CQ that is too large: %v", errno)
	}
	if errno := cqAttrs(10, 1); errno != syscall.EINVAL {
		t.Errorf("CQ with a vector that there is not: %v", errno)
	}
	if _, n := p.drv.Contexts(); n != objects {
		t.Errorf("%d objects, %d before the errors", n, objects)
	}
}

func second[A, B any](_ A, b B) B        { return b }
func third[A, B, C any](_ A, _ B, c C) C { return c }

func TestAnswerThatCannotBeWritten(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	resp := make([]byte, 4)
	at := p.address(resp)
	c := &fakeCall{p: p, readOnly: [2]uint64{at, at + 4}}
	_, errno := p.ioctlWith(c, fd, objDevice, methodInvokeWrite, p.input(invokeCommand, le.AppendUint64(nil, cmdAllocPD)),
		p.input(invokeCoreIn, make([]byte, 8)), p.output(invokeCoreOut, resp))
	if errno != syscall.EFAULT {
		t.Errorf("ALLOC_PD answering into memory that is read-only: %v, want EFAULT", errno)
	}
	if _, n := p.drv.Contexts(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

func TestCallThatNobodyWaitsFor(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	_, errno := p.ioctlWith(&fakeCall{p: p, invalid: true}, fd, objDevice, methodInvokeWrite,
		p.input(invokeCommand, le.AppendUint64(nil, cmdAllocPD)), p.input(invokeCoreIn, make([]byte, 8)), p.output(invokeCoreOut, make([]byte, 4)))
	if errno != syscall.EINTR {
		t.Errorf("%v, want EINTR", errno)
	}
	if _, n := p.drv.Contexts(); n != 0 {
		t.Errorf("%d objects were made", n)
	}
}

// A caller that is killed while its command runs: its thread's number may be another's when the answer is
// ready (seccomp_unotify(2), SECCOMP_IOCTL_NOTIF_ID_VALID).
func TestCallerThatDiesDuringACommand(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	resp := make([]byte, 4)
	_, errno := p.ioctlWith(&fakeCall{p: p, dies: 1}, fd, objDevice, methodInvokeWrite,
		p.input(invokeCommand, le.AppendUint64(nil, cmdAllocPD)), p.input(invokeCoreIn, make([]byte, 8)), p.output(invokeCoreOut, resp))
	if errno != syscall.EINTR {
		t.Errorf("%v, want EINTR", errno)
	}
	if le.Uint32(resp) != 0 {
		t.Error("an answer was written into memory that may be another program's")
	}
	if _, n := p.drv.Contexts(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// A command that old libraries write and that this device does not have: EOPNOTSUPP, as by ioctl.
func TestWrittenCommandThatIsNotSupported(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	for num, c := range commands {
		if c.run != nil {
			continue
		}
		b := make([]byte, 256)
		le.PutUint32(b, num)
		le.PutUint16(b[4:], uint16(len(b)/4))
		le.PutUint16(b[6:], 64)
		if num&commandExtended != 0 {
			le.PutUint16(b[4:], uint16(len(b)-sizeCmdHdr-sizeExCmdHdr)/8)
		}
		le.PutUint64(b[sizeCmdHdr:], p.address(make([]byte, 512)))
		call := &fakeCall{p: p}
		p.drv.Write(call, p.files[fd], p.address(b), uint64(len(b)))
		if call.errno != syscall.EOPNOTSUPP {
			t.Errorf("%s: %v, want EOPNOTSUPP", c.name, call.errno)
		}
	}
}

// A completion channel belongs to the context that it was made in; any other descriptor is EBADF
// (lookup_get_fd_uobject of the kernel's drivers/infiniband/core/rdma_core.c).
func TestCompletionChannelOfAnotherContext(t *testing.T) {
	p := newProgram(t, nil)
	fd, async := p.context()
	other, _ := p.context()
	for name, channel := range map[string]int{"of another context": p.compChannel(other), "the asynchronous events": async, "none": 9999} {
		_, errno := p.ioctl(fd, objCQ, 0, number(cqHandle, 0), p.output(cqRespCQE, make([]byte, 4)), p.input(cqCQE, words(10)),
			p.input(cqUserHandle, make([]byte, 8)), p.input(cqCompVector, words(0)), p.output(attrUHWOut, make([]byte, 16)),
			number(cqCompChannel, uint64(channel)))
		if errno != syscall.EBADF {
			t.Errorf("channel %s: %v, want EBADF", name, errno)
		}
	}
}

// The kernel marks what it wrote (UVERBS_ATTR_F_VALID_OUTPUT); optional attributes may be left out.
func TestValidOutputFlags(t *testing.T) {
	p := newProgram(t, nil)
	fd := p.open()
	vectors := make([]byte, 4)
	a, errno := p.ioctl(fd, objDevice, 3, p.output(contextVectors, vectors), attr{id: 0x55})
	p.must(errno)
	if a[0].flags != flagMandatory|flagValidOutput || le.Uint32(vectors) != 1 {
		t.Errorf("flags %d, %d completion vectors", a[0].flags, le.Uint32(vectors))
	}
	if a[1].flags != 0 {
		t.Errorf("an unknown attribute got flags %d", a[1].flags)
	}
}

// In the kernel a doorbell is synchronous: what a program rang comes before its next command.
func TestCommandsDoNotOvertakeDoorbells(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, mem := p.cq(fd, -1, 1)
	a, b := p.connected(fd, pd, cq, cq)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	view := ring.View(mem, g)
	for i := range 300 {
		b.receive0()
		a.send0()
		p.notify(fd, cq)
		if n := view.Pending(); n != 2 {
			t.Fatalf("round %d: %d completions are there after the command, want 2", i, n)
		}
		for view.Pending() > 0 {
			var e ring.CQE
			view.LoadCQE(view.Position(), &e)
			if e.Status != ring.StatusSuccess {
				t.Fatalf("completion with %v", e.Status)
			}
			if err := view.Consume(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The destroy commands answer how many events the program has read; unread ones are taken back
// (ib_uverbs_release_ucq), those of other objects stay.
func TestDestroyCountsEventsThatWereRead(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd, ch := p.pd(fd), p.compChannel(fd)
	const handleA, handleB = 0xaaaa0001, 0xbbbb0002
	cqA, _ := p.cq(fd, ch, handleA)
	cqB, _ := p.cq(fd, ch, handleB)
	a, b := p.connected(fd, pd, cqA, cqB)
	event := func() {
		p.notify(fd, cqA)
		p.notify(fd, cqB)
		b.receive0()
		a.send0()
		p.notify(fd, cqA) // both events have been sent when this returns
	}
	read := func() uint64 {
		if !readable(t, ch, 10*time.Second) {
			t.Fatal("no event came")
		}
		var r [16]byte // more than a record: one comes all the same
		if n, err := unix.Read(ch, r[:]); n != sizeCompEvent || err != nil {
			t.Fatalf("an event of %d bytes, %v", n, err)
		}
		return le.Uint64(r[:])
	}
	event()
	got := map[uint64]int{}
	got[read()]++
	got[read()]++
	if got[handleA] != 1 || got[handleB] != 1 {
		t.Fatalf("events of %x", got)
	}
	event() // two more, unread
	a.destroy()
	b.destroy()
	if comp, async := p.destroyCQ(fd, cqA); comp != 1 || async != 0 {
		t.Errorf("the first CQ reported %d, %d events, the program has read 1, 0", comp, async)
	}
	if h := read(); h != handleB {
		t.Errorf("an event of %#x after its CQ was destroyed", h)
	}
	if readable(t, ch, 0) {
		t.Error("one event too many")
	}
	if comp, _ := p.destroyCQ(fd, cqB); comp != 2 {
		t.Errorf("the second CQ reported %d events, the program has read 2", comp)
	}
}

// More events than fit into the pipe wait in the NIC.
func TestEventsOfAProgramThatReadsLate(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	ch := p.compChannel(fd)
	c := p.files[ch].Data.(*channel)
	const events = 500
	var origin eventOrigin
	for i := range uint64(events) {
		var r [sizeAsyncEvent]byte
		le.PutUint64(r[:], i)
		c.post(&origin, r)
	}
	for i := range uint64(events) {
		if !readable(t, ch, 10*time.Second) {
			t.Fatalf("event %d did not come", i)
		}
		var r [8]byte
		if n, err := unix.Read(ch, r[:]); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if le.Uint64(r[:]) != i {
			t.Fatalf("event %d came as number %d", le.Uint64(r[:]), i)
		}
	}
	if n := c.remove(&origin); n != events {
		t.Errorf("%d events were read, the channel says %d", events, n)
	}
}

func TestAsynchronousEventOfAQueuePair(t *testing.T) {
	p := newProgram(t, nil)
	fd, async := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	a, b := p.connected(fd, pd, cq, cq)
	a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled | ring.SendInline,
		RemoteAddr: 0x1000, RKey: 0xdead00, InlineLen: 8}, false)
	if err := a.send.Publish(); err != nil {
		t.Fatal(err)
	}
	a.doorbell()
	if !readable(t, async, 10*time.Second) {
		t.Fatal("no asynchronous event of a WRITE without a right to it")
	}
	var r [32]byte
	if n, err := unix.Read(async, r[:]); n != sizeAsyncEvent || err != nil {
		t.Fatal(n, err)
	}
	if le.Uint64(r[:]) != 0x5151 || nic.EventType(le.Uint32(r[8:])) != nic.EventQPAccessErr {
		t.Errorf("event %d of %#x, want %d of the queue pair", le.Uint32(r[8:]), le.Uint64(r[:]), nic.EventQPAccessErr)
	}
	if n := b.destroy(); n != 1 {
		t.Errorf("the target reported %d events, the program has read 1", n)
	}
	if n := a.destroy(); n != 0 {
		t.Errorf("the requester reported %d events", n)
	}
}

// After execve the memory that a region refers to is another program's.
func TestRegionsEndWithTheMemoryOfTheirProcess(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	mem := make([]byte, 64)
	h, key := p.regMR(fd, pd, mem)
	cq, cqMem := p.cq(fd, -1, 1)
	a, _ := p.connected(fd, pd, cq, cq)
	p.drv.MemoryGone(p.pid)
	a.send.StoreSend(a.send.Position(), &ring.SendWQE{Opcode: ring.OpWrite, Flags: ring.SendSignaled | ring.SendInline,
		RemoteAddr: p.address(mem), RKey: key, InlineLen: 8, Inline: [ring.MaxInline]byte{1, 2, 3}}, false)
	if err := a.send.Publish(); err != nil {
		t.Fatal(err)
	}
	a.doorbell()
	p.notify(fd, cq)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	view := ring.View(cqMem, g)
	var e ring.CQE
	if view.Pending() == 0 {
		t.Fatal("no completion")
	}
	view.LoadCQE(0, &e)
	if e.Status != ring.StatusRemAccessErr {
		t.Errorf("a WRITE to the region completed with %v", e.Status)
	}
	if !bytes.Equal(mem, make([]byte, 64)) {
		t.Error("the WRITE arrived")
	}
	if _, errno := p.ioctl(fd, objMR, 1, number(destroyHandle, uint64(h))); errno != 0 {
		t.Errorf("destroying the region: %v", errno)
	}
}

// written is a command by write().
func (p *program) written(fd int, b []byte) syscall.Errno {
	p.t.Helper()
	c := &fakeCall{p: p}
	p.drv.Write(c, p.files[fd], p.address(b), uint64(len(b)))
	if !c.answered || c.errno == 0 && c.value != int64(len(b)) {
		p.t.Fatalf("a write of %d bytes was answered with %d", len(b), c.value)
	}
	return c.errno
}

// rdma-core before 22 has the same commands by write() (struct ib_uverbs_cmd_hdr).
func TestCommandsByWrite(t *testing.T) {
	p := newProgram(t, nil)
	fd := p.open()
	command := func(cmd uint32, body, resp []byte) syscall.Errno {
		if len(resp) > 0 {
			le.PutUint64(body, p.address(resp))
		}
		return p.written(fd, writeBytes(cmd, len(resp), body))
	}
	ctx := make([]byte, 8)
	p.must(command(cmdGetContext, make([]byte, 8), ctx))
	if p.files[int(le.Uint32(ctx))] == nil || le.Uint32(ctx[4:]) != 1 {
		t.Errorf("GET_CONTEXT answered %x", ctx)
	}
	dev := make([]byte, sizeDeviceAttr)
	p.must(command(cmdQueryDevice, make([]byte, 8), dev))
	if le.Uint64(dev) != 1<<32|2<<16|3 || le.Uint32(dev[52:]) == 0 {
		t.Errorf("QUERY_DEVICE answered %x", dev)
	}
	pd := make([]byte, 4)
	p.must(command(cmdAllocPD, make([]byte, 8), pd))
	cqReq, cqResp := make([]byte, 32), make([]byte, 8+sizeMMInfo)
	le.PutUint32(cqReq[16:], 100)
	le.PutUint32(cqReq[24:], 0xffffffff) // no channel
	p.must(command(cmdCreateCQ, cqReq, cqResp))
	p.mmap(fd, cqResp[8:])
	qpReq, qpResp := make([]byte, sizeCreateQP), make([]byte, 32+2*sizeMMInfo)
	for i, v := range []uint32{le.Uint32(pd), le.Uint32(cqResp), le.Uint32(cqResp), 0, 5, 5, 1, 1, 0} {
		le.PutUint32(qpReq[16+4*i:], v)
	}
	qpReq[53] = byte(nic.RC)
	p.must(command(cmdCreateQP, qpReq, qpResp))
	p.mmap(fd, qpResp[32:])
	if cap := decodeCap(qpResp[8:]); cap.MaxSendWR < 5 || cap.MaxInline != 16 {
		t.Errorf("CREATE_QP answered %+v", cap)
	}
	req := make([]byte, 16)
	le.PutUint32(req[8:], le.Uint32(qpResp))
	p.must(command(cmdDestroyQP, req, make([]byte, 4)))
	// rdma-core 18 and 19 say 16 bytes, of 24.
	resp := make([]byte, 8)
	short := writeBytes(cmdDestroyCQ, 8, make([]byte, 16))
	le.PutUint64(short[8:], p.address(resp))
	le.PutUint32(short[16:], le.Uint32(cqResp))
	le.PutUint16(short[4:], 4)
	p.must(p.written(fd, short[:16:24]))
	p.must(command(cmdDeallocPD, pd, nil))
	if _, n := p.drv.Contexts(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

func TestShortSharedMemoryIsENOMEM(t *testing.T) {
	p := newProgram(t, nil)
	p.drv.cfg.ShmDir = "/nonexistent"
	c := &fakeCall{p: p}
	p.drv.Open(c, unix.O_RDWR)
	if c.errno != syscall.ENOMEM {
		t.Errorf("open without shared memory: %v, want ENOMEM", c.errno)
	}
}

// A program that truncates its file harms itself only.
func TestTruncatedFile(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	other, _ := p.context()
	pd := p.pd(fd)
	cq, _ := p.cq(fd, -1, 1)
	a, b := p.connected(fd, pd, cq, cq)
	b.receive0()
	a.send0()
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	p.command(fd, cmdReqNotifyCQ, words(cq, 0), nil, nil) // must not crash
	_ = a.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Err) })
	p.close(fd)

	pd = p.pd(other)
	cq, _ = p.cq(other, -1, 1)
	a, b = p.connected(other, pd, cq, cq)
	b.receive0()
	a.send0()
	p.notify(other, cq)
}

func TestDeviceNames(t *testing.T) {
	for name, ok := range map[string]bool{"rxe0": true, "rxe_a-1": true, "mlx5_0": true, "7.b": true, "": false, "rxe/..": false, "..": false,
		"_x": false, "a b": false, "a%d": false, "r" + strings.Repeat("x", 62): true, "r" + strings.Repeat("x", 63): false} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestErrorNumbers(t *testing.T) {
	for err, want := range map[error]syscall.Errno{
		nil: 0, &nic.Error{Errno: nic.EBUSY}: syscall.EBUSY, errors.New("anything"): syscall.EINVAL, unix.EMFILE: syscall.EMFILE,
	} {
		if got := errnoOf(err); got != want {
			t.Errorf("%v is %v, want %v", err, got, want)
		}
	}
}

// rdma/ib_user_verbs.h: struct ib_uverbs_attach_mcast. A datagram to a group reaches the queue pair that is
// attached; the errors are the kernel's.
func TestMulticastCommands(t *testing.T) {
	p := newProgram(t, nil)
	fd, _ := p.context()
	pd := p.pd(fd)
	cq, cqMem := p.cq(fd, -1, 8)
	g, _ := ring.GeometryFor(100, ring.CQESize)
	completions := ring.View(cqMem, g)
	q, rc := p.qp(fd, pd, cq, uint64(nic.UD)), p.qp(fd, pd, cq, uint64(nic.RC))
	set := nic.AttrState | nic.AttrPKeyIndex | nic.AttrPort | nic.AttrQKey
	p.must(q.modify(set, func(b []byte) { b[96], b[104] = byte(nic.Init), 1; le.PutUint32(b[72:], 0x77) }))
	p.must(q.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.RTR) }))
	p.must(q.modify(nic.AttrState|nic.AttrSQPSN, func(b []byte) { b[96] = byte(nic.RTS) }))

	own := p.drv.dev.GIDs()[0]
	group := own.GID
	group[0] = 0xff
	if own.GID.Addr().Is4() {
		group = own.GID
		copy(group[12:], []byte{239, 1, 2, 3})
	}
	mcast := func(cmd uint32, gid [16]byte, handle uint32) syscall.Errno {
		return p.command(fd, cmd, append(append([]byte(nil), gid[:]...), words(handle, 0xc000)...), nil, nil)
	}
	for name, c := range map[string]struct{ got, want syscall.Errno }{
		"a queue pair that there is not": {mcast(cmdAttachMcast, group, 999), syscall.EINVAL},
		"a connection":                   {mcast(cmdAttachMcast, group, rc.handle), syscall.EINVAL},
		"no group":                       {mcast(cmdAttachMcast, own.GID, q.handle), syscall.EINVAL},
		"detach of no member":            {mcast(cmdDetachMcast, group, q.handle), syscall.EINVAL},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
	p.must(mcast(cmdAttachMcast, group, q.handle))
	p.must(mcast(cmdAttachMcast, group, q.handle)) // once more does nothing
	if _, errno := p.ioctl(fd, objQP, 1, p.output(destroyResp, make([]byte, 4)), number(destroyHandle, uint64(q.handle))); errno != syscall.EBUSY {
		t.Errorf("destroying a member: %v, want EBUSY", errno)
	}

	ah := make([]byte, 56)
	le.PutUint32(ah[16:], pd)
	copy(ah[24:], group[:])
	ah[24+20], ah[24+21], ah[24+29], ah[24+30] = byte(own.Index), 64, 1, 1
	num := make([]byte, 8)
	p.must(p.command(fd, cmdCreateAH, ah, make([]byte, 4), num))
	mem := make([]byte, 4096)
	_, key := p.regMR(fd, pd, mem)
	recv := &ring.RecvWQE{WRID: 5, NumSGE: 1}
	recv.SGE[0] = ring.SGE{Addr: p.address(mem), Length: 4096, LKey: key}
	q.recv.StoreRecv(q.recv.Position(), recv)
	if err := q.recv.Publish(); err != nil {
		t.Fatal(err)
	}
	q.send.StoreSend(q.send.Position(), &ring.SendWQE{WRID: 1, Opcode: ring.OpSend, AHNum: le.Uint32(num), RemoteQPN: 0xffffff, RemoteQKey: 0x77}, true)
	if err := q.send.Publish(); err != nil {
		t.Fatal(err)
	}
	q.doorbell()
	var e ring.CQE
	for deadline := time.Now().Add(10 * time.Second); completions.Pending() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing arrives")
		}
	}
	completions.LoadCQE(completions.Position(), &e)
	if e.Status != 0 || e.WRID != 5 || e.ByteLen != 40 || e.SrcQP != q.num {
		t.Errorf("completion %+v", e)
	}
	p.must(mcast(cmdDetachMcast, group, q.handle))
	q.destroy()
}

package uverbs

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/ring"
	"rnic/internal/sandbox"
)

// program stands for a program under the sandbox: its memory is this process's, its descriptors are
// duplicates here.
type program struct {
	t   *testing.T
	drv *Driver
	pid int

	closed   bool // drv is
	stranded bool // what its calls say

	mu    sync.Mutex
	files map[int]*sandbox.File
	gone  []*sandbox.File
}

func (p *program) Forget(f *sandbox.File) {
	p.mu.Lock()
	p.gone = append(p.gone, f)
	p.mu.Unlock()
}

// forgotten is how many files the sandbox was told to forget.
func (p *program) forgotten() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.gone)
}

// newProgram makes a driver over a device without a network, and a program on it.
func newProgram(t *testing.T, trace io.Writer) *program {
	t.Helper()
	return newWatchedProgram(t, trace, Watch{})
}

// newWatchedProgram is newProgram with somebody who watches.
func newWatchedProgram(t *testing.T, trace io.Writer, w Watch) *program {
	t.Helper()
	dev, err := device.New(device.Config{Local: true, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, pid: unix.Getpid(), files: map[int]*sandbox.File{}}
	p.drv, err = New(dev, p, Config{Version: [3]uint16{1, 2, 3}, Logf: t.Logf, Trace: trace, Watch: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for fd := range p.files {
			unix.Close(fd)
		}
		if !p.closed {
			p.drv.Close()
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// fakeCall is one system call of a program.
type fakeCall struct {
	p        *program
	readOnly [2]uint64 // no write in this range of addresses
	invalid  bool
	dies     int // Valid says so often yes, and no afterwards; 0: for ever

	signalled atomic.Bool // a signal waits to be handled

	mu       sync.Mutex // of what follows, until it is answered
	answered bool
	value    int64
	errno    syscall.Errno
}

// await waits for the answer of a call that may be answered by another goroutine.
func (c *fakeCall) await() bool {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		answered := c.answered
		c.mu.Unlock()
		if answered || time.Now().After(deadline) {
			return answered
		}
	}
}

func (c *fakeCall) TID() int { return c.p.pid }
func (c *fakeCall) PID() int { return c.p.pid }

func (c *fakeCall) ReadMem(addr uint64, b []byte) error {
	return c.move(unix.SYS_PROCESS_VM_READV, addr, b)
}

func (c *fakeCall) WriteMem(addr uint64, b []byte) error {
	if addr >= c.readOnly[0] && addr < c.readOnly[1] {
		return syscall.EFAULT
	}
	return c.move(unix.SYS_PROCESS_VM_WRITEV, addr, b)
}

func (c *fakeCall) move(nr uintptr, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	l := unix.Iovec{Base: &b[0]}
	l.SetLen(len(b))
	r := unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	n, _, e := unix.Syscall6(nr, uintptr(unix.Getpid()), uintptr(unsafe.Pointer(&l)), 1, uintptr(unsafe.Pointer(&r)), 1, 0)
	if e != 0 || int(n) != len(b) {
		return syscall.EFAULT
	}
	return nil
}

func (c *fakeCall) Valid() bool {
	if c.dies > 0 {
		c.dies--
		c.invalid = c.invalid || c.dies == 0
		return true
	}
	return !c.invalid
}

func (c *fakeCall) Inject(fd int, _ sandbox.Range, _ bool, data any) (int, *sandbox.File, error) {
	n, err := unix.Dup(fd)
	if err != nil {
		return -1, nil, err
	}
	f := &sandbox.File{Data: data}
	c.p.files[n] = f
	return n, f, nil
}

func (c *fakeCall) File(fd int) *sandbox.File { return c.p.files[fd] }
func (c *fakeCall) Nonblocking(int) bool      { return false }
func (c *fakeCall) SignalPending() bool       { return c.signalled.Load() }
func (c *fakeCall) Stranded() bool            { return c.p.stranded }
func (c *fakeCall) FD() int                   { return -1 }
func (c *fakeCall) Reply(v int64)             { c.end(v, 0) }
func (c *fakeCall) Fail(e syscall.Errno)      { c.end(-1, e) }
func (c *fakeCall) Continue()                 { c.end(-1, syscall.ENOSYS) }

func (c *fakeCall) end(v int64, e syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answered {
		c.p.t.Error("a call was answered twice")
	}
	c.answered, c.value, c.errno = true, v, e
}

// open opens the device.
func (p *program) open() int {
	p.t.Helper()
	c := &fakeCall{p: p}
	p.drv.Open(c, unix.O_RDWR|unix.O_CLOEXEC)
	if c.errno != 0 || !c.answered {
		p.t.Fatalf("open: %v", c.errno)
	}
	return int(c.value)
}

// close closes a descriptor of the device: the last one.
func (p *program) close(fd int) {
	f := p.files[fd]
	delete(p.files, fd)
	unix.Close(fd)
	if _, regular := f.Data.(*verbsContext); regular {
		p.drv.Closed(f)
	}
}

// address keeps b alive for the length of the test and returns where it is.
func (p *program) address(b []byte) uint64 {
	p.t.Cleanup(func() { _ = b[:0] })
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// ioctl calls a method; attributes that point somewhere have their data set by the caller. It returns the
// attributes as the program sees them afterwards.
func (p *program) ioctl(fd int, object, meth uint16, attrs ...attr) ([]attr, syscall.Errno) {
	p.t.Helper()
	return p.ioctlWith(&fakeCall{p: p}, fd, object, meth, attrs...)
}

func (p *program) ioctlWith(c *fakeCall, fd int, object, meth uint16, attrs ...attr) ([]attr, syscall.Errno) {
	p.t.Helper()
	b := ioctlBytes(object, meth, attrs...)
	p.drv.Ioctl(c, p.files[fd], p.address(b))
	if !c.await() {
		p.t.Fatal("the ioctl was not answered")
	}
	after := make([]attr, len(attrs))
	for i := range after {
		a := b[sizeIoctlHdr+i*sizeIoctlAttr:]
		after[i] = attr{id: le.Uint16(a), len: le.Uint16(a[2:]), flags: le.Uint16(a[4:]), data: le.Uint64(a[8:])}
	}
	return after, c.errno
}

// input is an input attribute, inline if it is short.
func (p *program) input(id uint16, b []byte) attr {
	a := attr{id: id, len: uint16(len(b)), flags: flagMandatory}
	if len(b) <= inlineLimit {
		a.data = le.Uint64(append(slices.Clone(b), make([]byte, 8)...))
	} else {
		a.data = p.address(b)
	}
	return a
}

// output is an output attribute to b.
func (p *program) output(id uint16, b []byte) attr {
	return attr{id: id, len: uint16(len(b)), flags: flagMandatory, data: p.address(b)}
}

func number(id uint16, v uint64) attr { return attr{id: id, flags: flagMandatory, data: v} }

// command is a command wrapped in an ioctl.
func (p *program) command(fd int, cmd uint32, req, resp, uhw []byte) syscall.Errno {
	p.t.Helper()
	attrs := []attr{p.input(invokeCommand, le.AppendUint64(nil, uint64(cmd)))}
	if req != nil {
		attrs = append(attrs, p.input(invokeCoreIn, req))
	}
	if resp != nil {
		attrs = append(attrs, p.output(invokeCoreOut, resp))
	}
	if uhw != nil {
		attrs = append(attrs, p.output(attrUHWOut, uhw))
	}
	_, errno := p.ioctl(fd, objDevice, methodInvokeWrite, attrs...)
	return errno
}

func (p *program) must(errno syscall.Errno) {
	p.t.Helper()
	if errno != 0 {
		p.t.Fatal(errno)
	}
}

// context opens the device as libibverbs does, and returns the descriptors of device and events.
func (p *program) context() (fd, async int) {
	p.t.Helper()
	fd = p.open()
	_, errno := p.ioctl(fd, objDevice, 3, p.output(contextVectors, make([]byte, 4)))
	p.must(errno)
	a, errno := p.ioctl(fd, objAsyncEvent, 0, number(0, 0))
	p.must(errno)
	return fd, int(a[0].data)
}

func (p *program) pd(fd int) uint32 {
	p.t.Helper()
	resp := make([]byte, 4)
	p.must(p.command(fd, cmdAllocPD, make([]byte, 8), resp, nil))
	return le.Uint32(resp)
}

func (p *program) compChannel(fd int) int {
	p.t.Helper()
	resp := make([]byte, 4)
	p.must(p.command(fd, cmdCreateCompChannel, make([]byte, 8), resp, nil))
	return int(le.Uint32(resp))
}

// cq creates a completion queue on a channel (none: -1) and returns its handle and mapped queue.
func (p *program) cq(fd, channel int, userHandle uint64) (handle uint32, q []byte) {
	p.t.Helper()
	info := make([]byte, sizeMMInfo)
	attrs := []attr{number(cqHandle, 0), p.output(cqRespCQE, make([]byte, 4)), p.input(cqCQE, words(100)),
		p.input(cqUserHandle, le.AppendUint64(nil, userHandle)), p.input(cqCompVector, words(0)), p.output(attrUHWOut, info)}
	if channel >= 0 {
		attrs = append(attrs, number(cqCompChannel, uint64(channel)))
	}
	a, errno := p.ioctl(fd, objCQ, 0, attrs...)
	p.must(errno)
	return uint32(a[0].data), p.mmap(fd, info)
}

func (p *program) mmap(fd int, info []byte) []byte {
	p.t.Helper()
	m, err := unix.Mmap(fd, int64(le.Uint64(info)), int(le.Uint32(info[8:])), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

// qp is a queue pair as the program has it.
type qp struct {
	p          *program
	fd         int
	handle     uint32
	num        uint32
	cap        []byte
	send, recv *ring.Queue
}

func (p *program) qp(fd int, pd, cq uint32, typ uint64) *qp {
	p.t.Helper()
	return p.qpWith(fd, pd, cq, typ, words(10, 10, 2, 2, 0))
}

// qpWith is qp with other capabilities than the usual.
func (p *program) qpWith(fd int, pd, cq uint32, typ uint64, asked []byte) *qp {
	p.t.Helper()
	q := &qp{p: p, fd: fd, cap: make([]byte, sizeQPCap)}
	num, info := make([]byte, 4), make([]byte, 32)
	a, errno := p.ioctl(fd, objQP, 0, number(qpPD, uint64(pd)), number(qpSendCQ, uint64(cq)), number(qpRecvCQ, uint64(cq)),
		number(qpHandle, 0), p.input(qpType, le.AppendUint64(nil, typ)), p.input(qpUserHandle, le.AppendUint64(nil, 0x5151)),
		p.input(qpCap, asked), p.output(qpRespCap, q.cap), p.output(qpRespNum, num), p.output(attrUHWOut, info))
	p.must(errno)
	q.handle, q.num = uint32(a[3].data), le.Uint32(num)
	cap := decodeCap(q.cap)
	sg, _ := ring.GeometryFor(cap.MaxSendWR, ring.SendWQESize+cap.MaxInline)
	rg, _ := ring.GeometryFor(cap.MaxRecvWR, ring.RecvWQESize+cap.MaxRecvSGE*ring.SGESize)
	q.recv = ring.View(p.mmap(fd, info[:16]), rg)
	q.send = ring.View(p.mmap(fd, info[16:]), sg)
	return q
}

// doorbell rings as the rxe provider does.
func (q *qp) doorbell() {
	q.p.t.Helper()
	b := make([]byte, 32)
	binary.LittleEndian.PutUint32(b, cmdPostSend)
	binary.LittleEndian.PutUint32(b[16:], q.handle)
	binary.LittleEndian.PutUint32(b[28:], 128)
	if _, err := unix.Write(q.fd, b); err != nil {
		q.p.t.Fatal(err)
	}
}

// readable waits until a descriptor is readable.
func readable(t *testing.T, fd int, wait time.Duration) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(wait.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

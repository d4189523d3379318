package ucm

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"rnic/internal/cma"
	"rnic/internal/device"
	"rnic/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program stands for a program under the sandbox, on a NIC without a network. Its memory is mem, from address memBase; its
// descriptors are duplicates here.
type program struct {
	t    testing.TB
	drv  *Driver
	mgr  *cma.Manager
	addr netip.Addr // of the NIC

	mu    sync.Mutex
	mem   []byte
	next  int
	files map[int]*sandbox.File
	gone  int // files that the sandbox was told to forget
}

const (
	memBase    = 0x10000
	memSize    = 1 << 20
	nowhere    = 0xdead0000 // no memory is there
	responseAt = 1024       // from the request
	slot       = 2048
)

func newProgram(t testing.TB) *program {
	t.Helper()
	dev, err := device.New(device.Config{Local: true, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := cma.New(dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mgr.Close(); dev.Close() })
	return programOn(t, mgr, dev)
}

func programOn(t testing.TB, mgr *cma.Manager, dev *device.Device) *program {
	t.Helper()
	p := &program{t: t, mgr: mgr, mem: make([]byte, memSize), files: map[int]*sandbox.File{}, addr: netip.AddrFrom16(dev.GIDs()[0].GID).Unmap()}
	var err error
	if p.drv, err = New(mgr, p, Config{Tell: func(Report) {}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

// end ends the program: nothing may be left.
func (p *program) end() {
	p.t.Helper()
	if p.drv == nil {
		return
	}
	for fd := range p.files {
		p.close(fd)
	}
	if err := p.drv.Close(); err != nil {
		p.t.Error(err)
	}
	if f, i := p.drv.Contexts(); f+i+len(p.drv.groups) != 0 {
		p.t.Errorf("%d files, %d ids and %d memberships are left", f, i, len(p.drv.groups))
	}
	if n := p.mgr.IDs(); n != 0 {
		p.t.Errorf("%d ids are left in the manager", n)
	}
	p.drv = nil
}

func (p *program) Forget(*sandbox.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone++
}

// call is one system call of a program.
type call struct {
	p        *program
	fd       int
	invalid  atomic.Bool
	signal   atomic.Bool
	nonblock bool
	done     chan struct{}
	value    int64
	errno    syscall.Errno
	answers  atomic.Int32
}

func (p *program) call(fd int) *call { return &call{p: p, fd: fd, done: make(chan struct{})} }

func (c *call) TID() int { return 1 }
func (c *call) PID() int { return 1 }
func (c *call) FD() int  { return c.fd }

// at finds memory. The program's mu is held.
func (c *call) at(addr uint64, n int) []byte {
	at := addr - memBase
	if addr < memBase || at > memSize || uint64(n) > memSize-at {
		return nil
	}
	return c.p.mem[at : at+uint64(n)]
}

func (c *call) ReadMem(addr uint64, b []byte) error {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	m := c.at(addr, len(b))
	if m == nil && len(b) > 0 {
		return syscall.EFAULT
	}
	copy(b, m)
	return nil
}

func (c *call) WriteMem(addr uint64, b []byte) error {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	m := c.at(addr, len(b))
	if m == nil && len(b) > 0 {
		return syscall.EFAULT
	}
	copy(m, b)
	return nil
}

func (c *call) Valid() bool          { return !c.invalid.Load() }
func (c *call) SignalPending() bool  { return c.signal.Load() }
func (c *call) Stranded() bool       { return false }
func (c *call) Nonblocking(int) bool { return c.nonblock }

func (c *call) Inject(fd int, r sandbox.Range, _ bool, data any) (int, *sandbox.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	f := &sandbox.File{Data: data}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	c.p.files[n] = f
	return n, f, nil
}

func (c *call) File(fd int) *sandbox.File {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.p.files[fd]
}

func (c *call) Reply(v int64)        { c.end(v, 0) }
func (c *call) Fail(e syscall.Errno) { c.end(-1, e) }
func (c *call) Continue()            { c.end(-1, syscall.ENOSYS) }

func (c *call) end(v int64, e syscall.Errno) {
	if c.answers.Add(1) > 1 {
		c.p.t.Error("a call was answered twice")
		return
	}
	c.value, c.errno = v, e
	close(c.done)
}

func (c *call) wait() *call {
	c.p.t.Helper()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		c.p.t.Fatal("a call was not answered")
	}
	return c
}

func (p *program) open() int {
	p.t.Helper()
	c := p.call(-1)
	p.drv.Open(c, unix.O_RDWR|unix.O_CLOEXEC)
	if c.wait(); c.errno != 0 {
		p.t.Fatal(c.errno)
	}
	return int(c.value)
}

// close closes a descriptor, the file's last one.
func (p *program) close(fd int) {
	p.mu.Lock()
	delete(p.files, fd)
	p.mu.Unlock()
	unix.Close(fd)
}

// space is room for a request and its response.
func (p *program) space() (addr uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.next
	p.next = (p.next + slot) % (memSize - slot)
	clear(p.mem[at : at+slot])
	return memBase + uint64(at)
}

func (p *program) put(addr uint64, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	copy(p.mem[addr-memBase:], b)
}

func (p *program) get(addr uint64, n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]byte(nil), p.mem[addr-memBase:][:n]...)
}

// write writes a command, as header and input say.
func (p *program) write(c *call, at uint64, num uint32, in []byte, out int) {
	b := le.AppendUint32(nil, num)
	b = le.AppendUint16(b, uint16(len(in)))
	b = append(le.AppendUint16(b, uint16(out)), in...)
	p.put(at, b)
	p.drv.Write(c, c.File(c.fd), at, uint64(len(b)))
}

// do carries a command out; its response goes where the form says, by default behind the request. out is the response's length.
func (p *program) do(fd int, f form, out int) ([]byte, syscall.Errno) {
	p.t.Helper()
	at := p.space()
	if f.responds() && f.num("response") == 0 {
		f = f.with("response", at+responseAt)
	}
	c := p.call(fd)
	c.nonblock = true
	p.write(c, at, f.command(), f.b, out)
	if c.wait(); c.errno == 0 && c.value != int64(len(f.b))+sizeHeader {
		p.t.Errorf("%s answered %d", f.name, c.value)
	}
	return p.get(at+responseAt, out), c.errno
}

func (p *program) must(fd int, f form, out int) []byte {
	p.t.Helper()
	b, errno := p.do(fd, f, out)
	if errno != 0 {
		p.t.Fatalf("%s: %v", f.name, errno)
	}
	return b
}

func (p *program) refused(what string, fd int, f form, out int, want syscall.Errno) {
	p.t.Helper()
	if _, errno := p.do(fd, f, out); errno != want {
		p.t.Errorf("%s: %s: %v, want %v", f.name, what, errno, want)
	}
}

// event waits for an event of a type, and returns it.
func (p *program) event(fd int, want cma.EventType) event_ {
	p.t.Helper()
	at := p.space()
	c := p.call(fd)
	p.write(c, at, commandNumbers["GET_EVENT"], newForm("get_event", "response", at+responseAt).b, sizeEvent)
	if c.wait(); c.errno != 0 {
		p.t.Fatalf("no event %v: %v", want, c.errno)
	}
	e := event_(p.get(at+responseAt, sizeEvent))
	if e.typ() != want {
		p.t.Fatalf("event %v (status %d), want %v", e.typ(), e.status(), want)
	}
	return e
}

// event_ is struct rdma_ucm_event_resp.
type event_ []byte

func (e event_) get(field string) uint64 { return field_("event_resp", field).get(e) }
func (e event_) uid() uint64             { return e.get("uid") }
func (e event_) id() uint32              { return uint32(e.get("id")) }
func (e event_) typ() cma.EventType      { return cma.EventType(e.get("event")) }
func (e event_) status() int32           { return int32(e.get("status")) }
func (e event_) param() []byte           { return e[20:] }

// readable tells whether poll(2) says that an event waits.
func readable(fd int) bool {
	now := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := unix.Poll(now, 0)
	return n == 1 && now[0].Revents&unix.POLLIN != 0
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatal("never: ", what)
		}
	}
}

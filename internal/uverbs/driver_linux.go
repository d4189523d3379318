package uverbs

import (
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rnic/internal/device"
	"rnic/internal/dma"
	"rnic/internal/rdmanl"
	"rnic/internal/sandbox"
	"rnic/internal/shm"
)

// Config is what a Driver is made with.
type Config struct {
	// Name is the device's name. Clients that find their devices through sysfs, for want of netlink (see Netlink),
	// take it for an rxe device only if it begins with "rxe".
	Name string
	// Version is the firmware version that the device reports: major, minor, patch.
	Version [3]uint16
	// Warnf, if set, is told of what the machine lacks: shared memory, rights, descriptors. Logf, if
	// set, is told why commands failed.
	Warnf, Logf func(format string, args ...any)
	// NoIoctl refuses the ioctl, so that libraries send their commands by write(), as old ones do.
	NoIoctl bool
	// Trace, if set, gets every ioctl with its attributes and answers as text.
	Trace io.Writer
	// Watch says what is told of commands, events and mistakes.
	Watch Watch
	// CMIDs, if set, are the ids of the connection manager that are of this device, or of none.
	CMIDs func() []rdmanl.CMID
	// CMCounters, if set, are the connection manager's counters of this device, the same ones in each answer.
	CMCounters func() []rdmanl.Counter
	// Index numbers the devices of one run: the node is uverbs0 for 0.
	Index int
	// Programs is the way to the programs; nil where this process traces them itself.
	Programs Programs
	// ShmDir is where the shared files live; default shm.DefaultDir.
	ShmDir string
}

// Programs reaches the programs that make calls.
type Programs interface {
	// Space is the memory of a call's process: the same for all calls of one process, until its MemoryGone.
	Space(sandbox.Call) (*dma.Process, error)
	// SizeLimit is RLIMIT_FSIZE of the process that opens the device in bytes, 0 for none.
	SizeLimit(sandbox.Call) (uint64, error)
}

// ownPrograms are those of this process's own sandbox, by process. That all regions of one have one memory lets the NIC batch their
// transfers.
type ownPrograms map[int]*dma.Process

func (p ownPrograms) SizeLimit(sys sandbox.Call) (uint64, error) { return shm.SizeLimit(sys.PID()) }

func (p ownPrograms) Space(sys sandbox.Call) (*dma.Process, error) {
	pid := sys.PID()
	s := p[pid]
	if s == nil {
		s = dma.NewProcess(pid)
		p[pid] = s
	}
	return s, nil
}

// Forgetter is what the Driver needs of the sandbox beside its calls: Supervisor.Forget.
type Forgetter interface{ Forget(*sandbox.File) }

// Driver is the verbs ABI of one device, as the sandbox's Device for its uverbs node.
type Driver struct {
	dev    *device.Device
	cfg    Config
	attr   deviceAttr
	port   portAttr
	tracer *tracer
	pump   *pump // of events

	journal  *journal      // nil: nobody watches
	stopLook chan struct{} // closed: counters are not looked at any more

	mu       sync.Mutex // held by every command, and by cleanup
	contexts map[*verbsContext]struct{}
	own      ownPrograms // nil with cfg.Programs
	noHook   func()      // ends the calls of the device at changes of the port
	tally    tally
	opened   bool // by a program, ever
	pedant   pedant

	warnedOfLost bool // see warnOfLost

	prefetches atomic.Int32 // that are under way
}

// New makes the verbs ABI of dev. The device belongs to the caller.
func New(dev *device.Device, sup Forgetter, cfg Config) (*Driver, error) {
	if cfg.Name == "" {
		cfg.Name = DefaultName
	}
	if err := checkName(cfg.Name); err != nil {
		return nil, err
	}
	p, err := newPump(sup)
	if err != nil {
		return nil, err
	}
	d := &Driver{dev: dev, cfg: cfg, tracer: newTracer(cfg.Trace), pump: p,
		contexts: map[*verbsContext]struct{}{}, noHook: func() {}}
	if cfg.Programs == nil {
		d.own = ownPrograms{}
		d.cfg.Programs = d.own
	}
	d.describe()
	if d.journal = newJournal(cfg.Watch); d.journal != nil {
		d.tally.began = dev.Readings()
		d.pedant = newPedant(d.journal)
		if d.journal.pedantic() {
			d.stopLook = make(chan struct{})
			go d.watchCounters(d.stopLook)
		}
	}
	return d, nil
}

// Close ends every context and the events. The programs must be gone.
func (d *Driver) Close() error {
	d.noHook()
	if d.stopLook != nil {
		close(d.stopLook)
	}
	d.mu.Lock()
	for c := range d.contexts {
		c.close()
	}
	d.mu.Unlock()
	d.pump.close()
	d.journal.close(d.summary)
	return nil
}

func (d *Driver) logf(format string, args ...any) {
	if d.cfg.Logf != nil {
		d.cfg.Logf(format, args...)
	}
}

// report tells of an error, and returns its number.
func (d *Driver) report(pid int, err error) syscall.Errno {
	tell, hint := d.cfg.Logf, ""
	if d.journal.tellsCommands() {
		tell = nil // the record has it
	}
	if lacking(err) && d.cfg.Warnf != nil {
		tell, hint = d.cfg.Warnf, " (rnic doctor looks at what is missing here)"
	}
	if err != nil && tell != nil {
		tell("process %d: %v%s", pid, err, hint)
	}
	return errnoOf(err)
}

// lacking tells whether an error is the machine's, and not the program's.
func lacking(err error) bool {
	for _, e := range []error{shm.ErrNoRoom, dma.ErrRefused, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Open implements sandbox.Device: every open of the node is a context of its own.
func (d *Driver) Open(sys sandbox.Call, flags int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened = true
	if d.dev.Removed() {
		sys.Fail(syscall.ENXIO)
		return
	}
	limit, err := d.cfg.Programs.SizeLimit(sys)
	if err != nil {
		d.logf("opening device %s: %v", d.cfg.Name, err)
	}
	file, app, err := shm.Create(shm.Options{Dir: d.cfg.ShmDir, SizeLimit: limit})
	if err != nil {
		sys.Fail(d.report(sys.PID(), fmt.Errorf("opening device %s: %w", d.cfg.Name, err)))
		return
	}
	ctx := newContext(d, file)
	ctx.dev.SetPID(sys.PID())
	if !sys.Valid() {
		unix.Close(app)
		ctx.close()
		sys.Fail(syscall.EINTR)
		return
	}
	n, _, err := sys.Inject(app, sandbox.RangeVerbs, flags&unix.O_CLOEXEC != 0, ctx)
	unix.Close(app) // at once: the program's must be the last
	if err != nil {
		ctx.close()
		sys.Fail(d.report(sys.PID(), fmt.Errorf("opening device %s: %w", d.cfg.Name, err)))
		return
	}
	d.tracer.note(sys.PID(), "open")
	ctx.tellOpen(sys, n)
	sys.Reply(int64(n))
}

// Ioctl implements sandbox.Device.
func (d *Driver) Ioctl(sys sandbox.Call, f *sandbox.File, arg uint64) {
	ctx, ok := f.Data.(*verbsContext)
	if !ok || d.cfg.NoIoctl {
		sys.Fail(syscall.ENOTTY)
		return
	}
	c := &call{drv: d, ctx: ctx, sys: sys, base: arg, rec: d.journal.begin(sys)}
	errno := c.ioctl()
	if errno == 0 && c.after != nil {
		go c.answerAfter()
		return
	}
	c.end(errno)
}

// end answers an ioctl.
func (c *call) end(errno syscall.Errno) {
	c.trace.end(errno)
	c.tellEnd(errno)
	if errno != 0 {
		c.sys.Fail(errno)
		return
	}
	c.sys.Reply(0)
}

// patience is how often a command that waits looks whether its thread has a signal to handle.
const patience = 20 * time.Millisecond

// answerAfter ends an ioctl that waits for something, or its thread has a signal to handle or is gone.
func (c *call) answerAfter() {
	done := make(chan error, 1)
	go func() { done <- c.after() }()
	t := time.NewTicker(patience)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				c.end(c.failed(err))
			} else {
				c.end(0)
			}
			return
		case <-t.C:
			if c.sys.SignalPending() || !c.sys.Valid() {
				c.end(syscall.EINTR)
				return
			}
		}
	}
}

// ioctl reads, checks and runs one ioctl.
func (c *call) ioctl() syscall.Errno {
	var hdr [sizeIoctlHdr]byte
	if c.sys.ReadMem(c.base, hdr[:]) != nil {
		return syscall.EFAULT
	}
	h, errno := decodeIoctlHeader(hdr[:])
	if errno != 0 {
		return errno
	}
	if h.Driver != driverRXE {
		return syscall.EINVAL
	}
	c.raw = make([]byte, int(h.Attrs)*sizeIoctlAttr)
	if c.sys.ReadMem(c.base+sizeIoctlHdr, c.raw) != nil {
		return syscall.EFAULT
	}
	c.method = methods[uint32(h.Object)<<16|uint32(h.Method)]
	c.trace = c.drv.tracer.begin(c.sys, &h, c.method)
	c.rec.named(&h, c.method)
	if c.method == nil {
		return syscall.EPROTONOSUPPORT
	}
	if c.attrs, errno = decodeAttrs(c.raw, c.method); errno == 0 {
		errno = fetch(c.attrs, c.sys.ReadMem)
	}
	c.trace.input(c.attrs)
	if errno != 0 {
		return errno
	}
	return c.execute(c.method.run)
}

// Write implements sandbox.Device: the commands of libraries that do not know the ioctl.
func (d *Driver) Write(sys sandbox.Call, f *sandbox.File, addr, n uint64) {
	ctx, ok := f.Data.(*verbsContext)
	if !ok || n > maxWrite {
		sys.Fail(syscall.EINVAL)
		return
	}
	c := &call{drv: d, ctx: ctx, sys: sys, rec: d.journal.begin(sys)}
	errno := c.write(addr, int(n))
	c.trace.end(errno)
	c.tellEnd(errno)
	if errno != 0 {
		sys.Fail(errno)
		return
	}
	sys.Reply(int64(n))
}

func (c *call) write(addr uint64, n int) syscall.Errno {
	b := make([]byte, n)
	if c.sys.ReadMem(addr, b) != nil {
		return syscall.EFAULT
	}
	if isShortDestroyCQ(b) {
		b = make([]byte, destroyCQSize)
		if c.sys.ReadMem(addr, b) != nil {
			return syscall.EFAULT
		}
		le.PutUint16(b[4:], destroyCQSize/4)
	}
	w, errno := decodeWrite(b)
	if w.cmd != nil {
		c.trace = c.drv.tracer.beginWrite(c.sys, w.cmd, n)
		c.rec.wraps(w.cmd)
	}
	if errno == syscall.EOPNOTSUPP && w.cmd != nil {
		return c.failed(fmt.Errorf("%s: this NIC does not have it: %w", w.cmd.name, errno))
	}
	if errno != 0 {
		return errno
	}
	c.req, c.uhw, c.resp, c.uhwResp, c.command = w.req, w.uhw, w.resp, w.uhwResp, w.cmd
	return c.execute(w.cmd.run)
}

// execute runs a command whose input is complete.
func (c *call) execute(run func(*call) syscall.Errno) syscall.Errno {
	// What the NIC does for this command touches queues that the program may have truncated.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if !c.sys.Valid() {
		return syscall.EINTR
	}
	c.drv.mu.Lock()
	defer c.drv.mu.Unlock()
	if c.ctx.dead {
		return c.failed(fmt.Errorf("the device was removed: %w", syscall.EIO))
	}
	if c.ctx.closed {
		return syscall.EIO
	}
	// In the kernel a doorbell is synchronous: a command must not overtake those before it.
	if c.ctx.qps > 0 {
		c.ctx.dev.Drain()
	}
	c.watchedStart()
	errno := run(c)
	c.watchedDone(errno)
	if errno != 0 {
		return errno
	}
	return c.finish()
}

// Closed implements sandbox.Device.
func (d *Driver) Closed(f *sandbox.File) {
	switch o := f.Data.(type) {
	case *verbsContext:
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		d.mu.Lock()
		d.tracer.note(0, fmt.Sprintf("close with %d objects", len(o.objects)))
		o.tellClosed()
		o.close()
		d.mu.Unlock()
	case *channel:
		d.pump.remove(o)
	}
}

// MemoryGone implements sandbox.Device: the regions that the process registered refer to nothing
// any more. Their handles stay until they are destroyed, or their context is. With a process that has exited the context
// mostly goes too, in a moment: until then peers get no answer, where after an exec they learn that the region is gone.
func (d *Driver) MemoryGone(pid int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, gone := 0, dma.Exited(pid)
	for c := range d.contexts {
		for _, o := range c.objects {
			if m, ok := o.(*mrObject); ok && m.pid == pid {
				n++
				if gone {
					m.space.End()
				} else {
					m.drop()
				}
			}
		}
	}
	if gone && n > 0 {
		d.dev.Settle() // what was under way when the process ended
	}
	d.tracer.note(pid, fmt.Sprintf("memory gone, with %d regions", n))
	d.journal.memoryGone(pid, n)
	delete(d.own, pid)
}

// Contexts is the number of open devices, and Objects that of the objects in them.
func (d *Driver) Contexts() (contexts, objects int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.contexts {
		objects += len(c.objects)
	}
	return len(d.contexts), objects
}

var _ sandbox.Device = (*Driver)(nil)

// checkName refuses names that cannot be directories, and those that programs' options could not spell.
func checkName(name string) error {
	for i, r := range name {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || i > 0 && (r == '_' || r == '-' || r == '.')) {
			return fmt.Errorf("device name %q: letters and digits, and behind the first _, - and . too", name)
		}
	}
	if len(name) == 0 || len(name) > 63 { // IB_DEVICE_NAME_MAX
		return fmt.Errorf("device name %q: 1 to 63 characters", name)
	}
	return nil
}

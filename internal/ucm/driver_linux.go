package ucm

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"rnic/internal/cma"
	"rnic/internal/pipewatch"
	"rnic/internal/sandbox"
)

// Numbers of the device node: a miscellaneous device.
const (
	major = 10
	minor = 124
)

// abiVersion is RDMA_USER_CM_ABI_VERSION.
const abiVersion = 4

var le = binary.LittleEndian

// Config is what a Driver is made with.
type Config struct {
	// Logf, if set, is told why commands failed. Trace, if set, of every command, its answer and every event in words.
	Logf, Trace func(format string, args ...any)
}

// Tree is what the Driver needs of the sandbox to build its files.
type Tree interface {
	AddFile(path, content string) error
	AddDevice(path string, major, minor uint32, d sandbox.Device) error
}

// Forgetter is Supervisor.Forget.
type Forgetter interface{ Forget(*sandbox.File) }

// Driver is the RDMA CM ABI of one run, as the sandbox's Device for its node.
type Driver struct {
	mgr   *cma.Manager
	sup   Forgetter
	cfg   Config
	pipes *pipewatch.Watcher[*file] // for the programs' last close

	closing chan struct{} // closed: calls that wait are not answered any more
	waits   sync.WaitGroup

	mu     sync.Mutex // never held while the manager is called
	ids    map[uint32]*id
	groups map[uint32]*member
	last   uint32
	files  map[*file]struct{}
}

// New makes the ABI of a connection manager, which belongs to the caller.
func New(mgr *cma.Manager, sup Forgetter, cfg Config) (*Driver, error) {
	d := &Driver{mgr: mgr, sup: sup, cfg: cfg, closing: make(chan struct{}), ids: map[uint32]*id{}, groups: map[uint32]*member{}, files: map[*file]struct{}{}}
	var err error
	d.pipes, err = pipewatch.New(func(_ int32, f *file, _ bool) { d.hungUp(f) })
	return d, err
}

// AddTo adds the node and what clients read below /sys.
func (d *Driver) AddTo(t Tree) error {
	if err := t.AddFile("/sys/class/misc/rdma_cm/abi_version", fmt.Sprintf("%d\n", abiVersion)); err != nil {
		return err
	}
	if err := t.AddFile("/sys/class/misc/rdma_cm/dev", fmt.Sprintf("%d:%d\n", major, minor)); err != nil {
		return err
	}
	return t.AddDevice("/dev/infiniband/rdma_cm", major, minor, d)
}

// Close ends every file. The programs must be gone.
func (d *Driver) Close() error {
	close(d.closing)
	d.waits.Wait()
	d.pipes.Close()
	d.mu.Lock()
	var all []*file
	for f := range d.files {
		all = append(all, f)
	}
	d.mu.Unlock()
	for _, f := range all {
		d.end(f)
	}
	return nil
}

// Open implements sandbox.Device: every open of the node is an event channel of its own.
func (d *Driver) Open(sys sandbox.Call, flags int) {
	f, readEnd, err := d.newFile()
	if err != nil {
		sys.Fail(cma.Errno(err))
		return
	}
	if flags&unix.O_NONBLOCK != 0 {
		_ = unix.SetNonblock(readEnd, true)
	}
	if !sys.Valid() {
		unix.Close(readEnd)
		d.end(f)
		sys.Fail(syscall.EINTR)
		return
	}
	n, sf, err := sys.Inject(readEnd, sandbox.RangeCM, flags&unix.O_CLOEXEC != 0, f)
	if err == nil {
		f.mu.Lock()
		f.sandbox = sf
		err = d.pipes.Add(f.w, f, false, func(id int32) { f.watch = id })
		f.mu.Unlock()
	}
	unix.Close(readEnd)
	if err != nil {
		d.end(f)
		sys.Fail(cma.Errno(err))
		return
	}
	sys.Reply(int64(n))
}

// Ioctl implements sandbox.Device: the file has none.
func (d *Driver) Ioctl(sys sandbox.Call, _ *sandbox.File, _ uint64) { sys.Fail(syscall.ENOTTY) }

// maxCommand is the longest command that means anything, and what is read of one.
const maxCommand = 4096

// Write implements sandbox.Device: one command.
func (d *Driver) Write(sys sandbox.Call, sf *sandbox.File, addr, n uint64) {
	f, ok := sf.Data.(*file)
	if !ok || n < sizeHeader {
		sys.Fail(syscall.EINVAL)
		return
	}
	c := &command{drv: d, file: f, sys: sys, length: n}
	b := make([]byte, min(n, maxCommand))
	if sys.ReadMem(addr, b) != nil {
		sys.Fail(syscall.EFAULT)
		return
	}
	c.num, c.outLen = le.Uint32(b), int(le.Uint16(b[6:]))
	in := int(le.Uint16(b[4:]))
	if in+sizeHeader > len(b) {
		sys.Fail(syscall.EINVAL)
		return
	}
	c.in = b[sizeHeader : sizeHeader+in]
	c.run()
}

// Closed implements sandbox.Device; a pipe's last close shows at its other end (hungUp).
func (d *Driver) Closed(sf *sandbox.File) {
	if f, ok := sf.Data.(*file); ok {
		d.end(f)
	}
}

// MemoryGone implements sandbox.Device: nothing here refers to memory, but calls that wait.
func (d *Driver) MemoryGone(int) {}

// hungUp ends a file that no program has open any more.
func (d *Driver) hungUp(f *file) {
	f.mu.Lock()
	sf := f.sandbox
	f.mu.Unlock()
	if sf != nil {
		d.sup.Forget(sf)
	}
	d.end(f)
}

// end destroys everything that a file owns.
func (d *Driver) end(f *file) {
	d.mu.Lock()
	if _, ok := d.files[f]; !ok {
		d.mu.Unlock()
		return
	}
	delete(d.files, f) // from now on nothing comes to it but what its listeners have heard already
	for n, m := range d.groups {
		if m.id.file == f {
			delete(d.groups, n)
		}
	}
	d.mu.Unlock()
	for ids := d.takeIDs(f); len(ids) > 0; ids = d.takeIDs(f) {
		for _, i := range ids {
			i.cm.Destroy()
		}
	}
	f.close()
}

// takeIDs takes a file's ids out of the table.
func (d *Driver) takeIDs(f *file) (ids []*id) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, i := range d.ids {
		if i.file == f {
			i.dead = true
			ids = append(ids, i)
			delete(d.ids, n)
		}
	}
	return ids
}

// open tells whether a file has not ended. mu is held.
func (d *Driver) open(f *file) bool {
	_, ok := d.files[f]
	return ok
}

// Contexts are the open files and the ids in them.
func (d *Driver) Contexts() (files, ids int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.files), len(d.ids)
}

// id is one rdma_cm_id of a program. Fields but cm are guarded by Driver.mu.
type id struct {
	num      uint32
	uid      uint64 // the program's word for it
	cm       *cma.ID
	ud       bool // its queue pairs are of datagrams
	file     *file
	reported uint32 // events that the program has fetched
	dead     bool
}

// member is one membership.
type member struct {
	num      uint32
	uid      uint64
	id       *id
	m        *cma.Membership
	reported uint32
}

// number finds a free number. mu is held.
func (d *Driver) number() uint32 {
	for {
		d.last++
		_, a := d.ids[d.last]
		_, b := d.groups[d.last]
		if !a && !b && d.last != 0 {
			return d.last
		}
	}
}

// get finds an id of a file: ENOENT without one, EINVAL if it is another file's.
func (d *Driver) get(f *file, num uint32) (*id, syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.ids[num]
	switch {
	case i == nil || i.dead:
		return nil, syscall.ENOENT
	case i.file != f:
		return nil, syscall.EINVAL
	}
	return i, 0
}

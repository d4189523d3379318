//go:build linux && (amd64 || arm64)

package sandbox

import (
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// call is a notified system call handed to a Device.
type call struct {
	s    *server
	n    notif
	id   atomic.Uint64 // of the notification to answer; a repeated call takes it over
	head [24]byte      // of the argument, to know a repeated call by (see replay)
	done atomic.Bool
	void atomic.Bool // the Device has been told that nobody waits, and so has done nothing

	node *node // for Inject: the device node, or that of the file the call is on

	mu  sync.Mutex
	pid int
}

var _ Call = (*call)(nil)

func (c *call) TID() int { return int(c.n.tid) }

func (c *call) FD() int {
	switch c.n.nr {
	case unix.SYS_IOCTL, unix.SYS_WRITE:
		return int(int32(c.n.args[0]))
	}
	return -1
}

func (c *call) PID() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		pid := threadGroup(c.TID())
		// The number means the caller only if the caller was alive while it was looked up.
		if pid != 0 && c.s.watch.track(pid) && c.s.l.valid(c.id.Load()) {
			c.pid = pid
		}
	}
	return c.pid
}

func (c *call) ReadMem(addr uint64, p []byte) error  { return readMem(c.TID(), addr, p) }
func (c *call) WriteMem(addr uint64, p []byte) error { return writeMem(c.TID(), addr, p) }
func (c *call) Nonblocking(fd int) bool              { return openFlags(c.TID(), fd)&unix.O_NONBLOCK != 0 }
func (c *call) SignalPending() bool                  { return signalPending(c.TID()) }

func (c *call) Stranded() bool { return c.s.aborted.Load() && onlyThread(c.TID()) }

func (c *call) Valid() bool {
	ok := c.s.valid(c.id.Load())
	c.void.Store(!ok)
	return ok
}

func (c *call) File(fd int) *File {
	id, ok := fileAt(c.TID(), fd)
	if !ok {
		return nil
	}
	return c.s.files.find(id)
}

func (c *call) Inject(fd int, r Range, closeOnExec bool, data any) (int, *File, error) {
	f, fresh, err := c.s.files.add(fd, c.node, r, data)
	if err != nil {
		return -1, nil, err
	}
	n, e := c.s.inject(c.TID(), c.id.Load(), fd, r, 0, closeOnExec)
	if e != 0 {
		if fresh {
			c.s.files.remove(f)
		}
		c.void.Store(e == unix.ENOENT)
		return -1, nil, e
	}
	return n, f, nil
}

func (c *call) Reply(v int64)            { c.answer(notifResp{val: v}) }
func (c *call) Fail(errno syscall.Errno) { c.answer(notifResp{err: -int32(errno)}) }
func (c *call) Continue() {
	c.answer(notifResp{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

func (c *call) answer(r notifResp) {
	if c.done.Swap(true) {
		return
	}
	if c.s.replay != nil {
		c.s.replay.answer(c, r)
		return
	}
	r.id = c.id.Load()
	c.s.send(&r)
}

// inject installs fd in the caller of notification id, in range r at no less than from.
func (s *server) inject(tid int, id uint64, fd int, r Range, from uint32, closeOnExec bool) (int, syscall.Errno) {
	if r == RangeLow {
		return s.l.addFD(id, fd, -1, closeOnExec)
	}
	lo, hi := s.ranges.of(r)
	s.numbers.Lock() // a number found free must stay so until it is used
	defer s.numbers.Unlock()
	// From the top: the kernel gives ordinary files the lowest free number.
	for n := hi; n > max(lo, from); n-- {
		var st unix.Stat_t
		if unix.Lstat(fdPath(tid, int(n-1)), &st) == nil {
			continue
		}
		got, e := s.l.addFD(id, fd, int(n-1), closeOnExec)
		if e == unix.EBADF { // above RLIMIT_NOFILE, which the program has lowered
			continue
		}
		return got, e
	}
	return -1, unix.EMFILE
}

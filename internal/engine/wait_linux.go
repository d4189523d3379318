//go:build !plain

package engine

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/link"
)

// waiter is what the unit's thread sleeps on: one epoll of the link's sockets, the inotify
// descriptor of the doorbells and an eventfd for commands; and, while a caller drives the unit, the eventfd alone.
type waiter struct {
	all     int // epoll of everything
	quiet   int // epoll of the eventfd
	event   int
	inotify int
	armed   map[Doorbells]bool // watched now; guarded by the unit, as is what follows
	used    bool               // something was watched once: the inotify descriptor may have events
	deaf    bool               // a source cannot be watched: the system's limit of watches is reached

	life   sync.RWMutex // wake may come from any goroutine, at any time
	closed bool
	buf    []byte
	ev     [8]unix.EpollEvent // what happened does not matter: everything is looked at
}

func newWaiter(net link.Link) (_ *waiter, err error) {
	w := &waiter{all: -1, quiet: -1, event: -1, inotify: -1, armed: map[Doorbells]bool{}, buf: make([]byte, 64<<10)}
	defer func() {
		if err != nil {
			w.close()
			err = fmt.Errorf("engine: preparing to wait for events: %w", err)
		}
	}()
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if w.inotify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		return nil, fmt.Errorf("inotify instance, of which a user has few: sysctl -w fs.inotify.max_user_instances=1024: %w", err)
	}
	if w.all, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if w.quiet, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	fds := []int{w.event, w.inotify}
	if net != nil {
		fds = append(fds, net.FDs()...)
	}
	for _, fd := range fds {
		if err = add(w.all, fd); err != nil {
			return nil, err
		}
	}
	if err = add(w.quiet, w.event); err != nil {
		return nil, err
	}
	return w, nil
}

func add(epoll, fd int) error {
	return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (w *waiter) close() {
	w.life.Lock()
	defer w.life.Unlock()
	w.closed = true
	for _, fd := range []int{w.all, w.quiet, w.event, w.inotify} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// watch adds a source at once, whether the unit sleeps or not.
func (w *waiter) watch(d Doorbells) {
	w.armed[d] = d.Arm(w.inotify) == nil
	w.used = w.used || w.armed[d]
}

func (w *waiter) unwatch(d Doorbells) {
	if w.armed[d] {
		d.Disarm(w.inotify)
	}
	delete(w.armed, d)
}

// arm watches every source. Watches stay: a doorbell while the unit is awake merges with the event
// that is queued already, and is cheaper than taking the watch away and setting it again.
func (w *waiter) arm(sources []*source) {
	w.deaf = false
	for _, s := range sources {
		if !w.armed[s.d] {
			w.watch(s.d)
			w.deaf = w.deaf || !w.armed[s.d]
		}
	}
	// Also when nothing is watched any more: a watch that is taken away leaves an event (IN_IGNORED), on
	// which no sleep would last.
	if w.used {
		w.read(w.inotify)
	}
}

// read empties a descriptor.
func (w *waiter) read(fd int) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&w.buf[0])), uintptr(len(w.buf)))
		if e == unix.EINTR {
			continue
		}
		if e != 0 || int(n) < len(w.buf)/2 {
			return
		}
	}
}

// wait sleeps until something happens, for at most timeout nanoseconds. It tells whether the network has
// something, or may have.
func (w *waiter) wait(timeout int64) (network bool) { return w.waitOn(w.all, timeout) }

// nap sleeps until wake, for at most timeout nanoseconds.
func (w *waiter) nap(timeout int64) { w.waitOn(w.quiet, timeout) }

func (w *waiter) waitOn(epoll int, timeout int64) (network bool) {
	ts := unix.NsecToTimespec(timeout)
	r, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&w.ev[0])), uintptr(len(w.ev)),
		uintptr(unsafe.Pointer(&ts)), 0, 0)
	n := int(r)
	switch e {
	case 0:
	case unix.ENOSYS: // before Linux 5.11
		var err error
		if n, err = unix.EpollWait(epoll, w.ev[:], int(max(1, timeout/1_000_000))); err != nil {
			return true
		}
	default:
		return true
	}
	for _, ev := range w.ev[:n] {
		switch int(ev.Fd) {
		case w.event:
			w.read(w.event)
		case w.inotify: // read by arm
		default:
			network = true
		}
	}
	return network
}

// wake ends a wait or nap.
func (w *waiter) wake() {
	w.life.RLock()
	defer w.life.RUnlock()
	if w.closed {
		return
	}
	one := [8]byte{1}
	unix.RawSyscall(unix.SYS_WRITE, uintptr(w.event), uintptr(unsafe.Pointer(&one[0])), 8)
}

func yieldThread() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// schedAttr is struct sched_attr (linux/sched/types.h), first version.
type schedAttr struct {
	size, policy              uint32
	flags                     uint64
	nice                      int32
	priority                  uint32
	runtime, deadline, period uint64
}

// setUpThread gives the unit's thread what lets it preempt programs that spin: the shortest slice, which
// needs no privilege (Linux 6.12). No better priority is asked for, even where that is allowed: a
// thread that spins at one would hold up the machine, and programs at nice 19 give way as well.
func setUpThread() {
	a := schedAttr{runtime: 100_000}
	a.size = uint32(unsafe.Sizeof(a))
	if n, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
		a.nice = int32(20 - n) // the system call's answer is 20 minus the nice value
	}
	unix.RawSyscall(unix.SYS_SCHED_SETATTR, 0, uintptr(unsafe.Pointer(&a)), 0)
}

// coreWatch knows whether a core is free for spinning: how many threads are runnable, looked at
// every few milliseconds.
type coreWatch struct {
	cpus int
	next int64
	last bool
}

const coreLook = 4_000_000 // nanoseconds between looks

func (c *coreWatch) free(now int64) bool {
	if now < c.next {
		return c.last
	}
	c.next = now + coreLook
	if c.cpus == 0 {
		c.cpus = runtime.NumCPU()
	}
	n, err := runnable()
	c.last = err == nil && n <= c.cpus
	return c.last
}

// runnable is the number of threads that run or wait for a core, the caller included: the fourth
// field of /proc/loadavg.
func runnable() (int, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b))
	if len(f) < 4 {
		return 0, fmt.Errorf("/proc/loadavg: %q", b)
	}
	n, _, _ := strings.Cut(f[3], "/")
	return strconv.Atoi(n)
}

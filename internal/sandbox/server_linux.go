//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// server answers the notified calls of one run.
type server struct {
	l       listener
	ranges  ranges
	tree    *tree
	files   *files
	watch   *watcher
	replay  *replay  // nil where the kernel makes it needless
	netlink *netlink // nil: not served
	numbers sync.Mutex
	aborted atomic.Bool // a call has ended before it was received, or answered: see Call.Stranded
	opened  bool        // a device node; the loop's alone

	path [pathMax]byte // of the call being served; the loop's alone
}

// loop serves until nobody is left under the filter. Calls on paths are answered here, calls on
// devices by the Device, in this goroutine too: a handover to another thread costs more than most
// of them.
func (s *server) loop() {
	runtime.LockOSThread()
	var n notif
	for {
		switch e := s.l.recv(&n); e {
		case 0:
			s.serve(&n)
		case unix.ENOENT:
			if s.l.abandoned() {
				return
			}
			s.aborted.Store(true)
		default:
			// Without us every call of the program waits for ever: die, so that the front ends it.
			panic(fmt.Sprintf("receive a notification: %v", e))
		}
	}
}

// serve answers one call. A panic of a device costs the program EIO, not the run.
func (s *server) serve(n *notif) {
	defer func() {
		if r := recover(); r != nil {
			complain(int(n.tid), r)
			s.fail(n, unix.EIO)
		}
	}()
	kind := callOther
	if n.nr >= 0 && int(n.nr) < len(kinds) {
		kind = kinds[n.nr]
	}
	switch kind {
	case callOpen, callOpenat, callOpenat2, callStat, callLstat, callFstatat, callStatx,
		callAccess, callFaccessat, callReadlink, callReadlinkat, callGetxattr, callListxattr:
		s.pathCall(n, kind)
	case callFstat:
		s.fstat(n)
	case callIoctl:
		s.onFile(n, func(f *File) bool { return f.reg.place == RangeVerbs },
			func(c *call, f *File) { f.reg.node.dev.Ioctl(c, f, n.args[2]) }, n.args[2])
	case callWrite:
		if s.holdClosed(n) {
			return
		}
		s.onFile(n, func(f *File) bool { return f.reg.place != RangeLow },
			func(c *call, f *File) { f.reg.node.dev.Write(c, f, n.args[1], n.args[2]) }, n.args[1])
	case callDup:
		s.dup(n, 0, false)
	case callFcntl:
		s.dup(n, uint32(n.args[2]), uint32(n.args[1]) == unix.F_DUPFD_CLOEXEC)
	case callExecve, callExecveat:
		s.exec(n, kind)
	case callSocket:
		s.netlinkSocket(n)
	case callSendto, callSendmsg:
		s.netlinkSend(n, kind)
	case callRecvfrom, callRecvmsg:
		s.netlinkReceive(n, kind)
	case callConnect:
		s.netlinkConnect(n)
	case callRead, callPread:
		s.readLive(n, kind)
	default: // dup2 and dup3 to a number of the program's choice: the copy is known by its inode
		s.proceed(n)
	}
}

// complain reports what has panicked in a call of thread tid.
func complain(tid int, what any) {
	fmt.Fprintf(os.Stderr, "rnic run: internal error in a system call of thread %d: %v\n%s", tid, what, debug.Stack())
}

// opens forgets, at the first open of a device, that calls were aborted: the Go runtime of the process that has become the program has sent signals
// to its thread while that waited with its execve for the supervisor to begin.
func (s *server) opens() {
	if !s.opened {
		s.opened = true
		s.aborted.Store(false)
	}
}

// send answers a call, if its caller still waits (ENOENT); valid asks whether it does.
func (s *server) send(r *notifResp) syscall.Errno {
	e := s.l.send(r)
	if e == unix.ENOENT {
		s.aborted.Store(true)
	}
	return e
}

func (s *server) valid(id uint64) bool {
	ok := s.l.valid(id)
	if !ok {
		s.aborted.Store(true)
	}
	return ok
}

func (s *server) reply(n *notif, v int64) { s.l.send(&notifResp{id: n.id, val: v}) }
func (s *server) fail(n *notif, errno syscall.Errno) {
	s.l.send(&notifResp{id: n.id, err: -int32(errno)})
}
func (s *server) proceed(n *notif) {
	s.l.send(&notifResp{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

// newCall makes the Call for a device node; arg is the address of what the call carries out.
func (s *server) newCall(n *notif, nd *node, arg uint64) *call {
	c := &call{s: s, n: *n, node: nd}
	c.id.Store(n.id)
	if s.replay != nil && arg != 0 {
		copyMem(unix.SYS_PROCESS_VM_READV, int(n.tid), arg, c.head[:])
	}
	return c
}

// onFile hands a call on descriptor args[0] to do, if it is one of our files and wanted; the kernel
// answers for all others.
func (s *server) onFile(n *notif, wanted func(*File) bool, do func(*call, *File), arg uint64) {
	f := s.fileArg(n)
	if f == nil || !wanted(f) || !s.valid(n.id) {
		s.proceed(n)
		return
	}
	c := s.newCall(n, f.reg.node, arg)
	if s.replay != nil && s.replay.begin(c) {
		return
	}
	do(c, f)
}

// fileArg is our file at descriptor args[0], or nil.
func (s *server) fileArg(n *notif) *File {
	id, ok := fileAt(int(n.tid), int(int32(n.args[0])))
	if !ok {
		return nil
	}
	return s.files.find(id)
}

// dup answers dup and F_DUPFD on a number in the ranges so that the copy is in the range too, at no
// less than from. Where that is not possible the kernel gives it an ordinary number: ioctl and the
// doorbell work there all the same, but fstat shows a regular file.
func (s *server) dup(n *notif, from uint32, closeOnExec bool) {
	f := s.fileArg(n)
	if sock := s.netlinkArg(n); sock != nil {
		f = sock.file()
	}
	if f == nil || f.reg.place == RangeLow {
		s.proceed(n)
		return
	}
	fd, err := s.borrow(n, f)
	if err != nil {
		s.proceed(n)
		return
	}
	// For as long as fd is open here the program's last close is not seen; closing it shows it.
	defer unix.Close(fd)
	got, e := s.inject(int(n.tid), n.id, fd, f.reg.place, from, closeOnExec)
	if e != 0 {
		s.proceed(n)
		return
	}
	s.reply(n, int64(got))
}

// borrow duplicates descriptor args[0] of the caller, the open file description itself, after a check
// that it is f.
func (s *server) borrow(n *notif, f *File) (int, error) {
	pid := threadGroup(int(n.tid))
	if pid == 0 {
		return -1, unix.ESRCH
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(int32(n.args[0])), 0)
	if err != nil {
		return -1, err
	}
	if id, _, err := identify(fd, "", unix.AT_EMPTY_PATH); err != nil || id != f.reg.id {
		unix.Close(fd)
		return -1, unix.EBADF
	}
	return fd, nil
}

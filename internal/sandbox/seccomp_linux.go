//go:build linux && (amd64 || arm64)

package sandbox

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notif is struct seccomp_notif with struct seccomp_data inside (linux/seccomp.h).
type notif struct {
	id    uint64
	tid   uint32 // the calling thread, in the listener's pid namespace
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// notifResp is struct seccomp_notif_resp; err is a negative errno.
type notifResp struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

// notifAddFD is struct seccomp_notif_addfd.
type notifAddFD struct {
	id         uint64
	flags      uint32
	srcfd      uint32
	newfd      uint32
	newfdFlags uint32
}

// listener is the descriptor that seccomp(2) returned for the filter.
//
// Every ioctl on it may return EINTR, because the Go runtime preempts threads by a signal, and is
// repeated then. All are idempotent so, but ADDFD with SECCOMP_ADDFD_FLAG_SEND: a restart after the
// answer has gone out fails, and the program sees descriptor 0. It is never used.
type listener int

func (l listener) ioctl(req uintptr, arg unsafe.Pointer) (int, syscall.Errno) {
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l), req, uintptr(arg))
		if e != unix.EINTR {
			return int(r), e
		}
	}
}

// recv waits for the next call. ENOENT: the caller died meanwhile, or (Linux 6.11) nobody is
// left under the filter.
func (l listener) recv(n *notif) syscall.Errno {
	*n = notif{} // the kernel insists on zeros
	_, e := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
	return e
}

// send answers. It never waits, so the Go scheduler need not know of it.
func (l listener) send(r *notifResp) syscall.Errno {
	for {
		_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(r)))
		if e != unix.EINTR {
			return e
		}
	}
}

// valid reports that the caller still waits for the answer.
func (l listener) valid(id uint64) bool {
	for {
		_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&id)))
		if e != unix.EINTR {
			return e == 0
		}
	}
}

// addFD installs a duplicate of fd in the caller: at number at, or at the lowest free one if at is
// negative.
func (l listener) addFD(id uint64, fd, at int, closeOnExec bool) (int, syscall.Errno) {
	a := notifAddFD{id: id, srcfd: uint32(fd)}
	if at >= 0 {
		a.flags, a.newfd = unix.SECCOMP_ADDFD_FLAG_SETFD, uint32(at)
	}
	if closeOnExec {
		a.newfdFlags = unix.O_CLOEXEC
	}
	return l.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&a))
}

// wakeOnThisCPU asks that a caller is woken on the processor that answers (Linux 6.6): a wake-up of
// an idle processor costs many times the call. Older kernels refuse, which changes nothing else.
func (l listener) wakeOnThisCPU() {
	unix.RawSyscall(unix.SYS_IOCTL, uintptr(l), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// abandoned reports that no thread is left under the filter.
func (l listener) abandoned() bool {
	p := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
	n, _ := unix.Poll(p, 0)
	return n > 0 && p[0].Revents&unix.POLLHUP != 0
}

// installFilter puts the calling thread under prog for ever and returns the listener. killable
// reports that a call which the supervisor has received is interrupted by fatal signals only (Linux
// 5.19).
//
// Preconditions: the goroutine is locked to its thread.
func installFilter(prog []unix.SockFilter) (l listener, killable bool, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, false, err
	}
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	flags := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if notKillable {
		flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&f)))
	if e == unix.EINVAL {
		flags &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		fd, _, e = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&f)))
	}
	if e != 0 {
		return -1, false, e
	}
	return listener(fd), flags&unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV != 0, nil
}

// notKillable makes installFilter do as on a kernel before 5.19; tests set it.
var notKillable bool

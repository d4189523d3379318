// Package sandbox starts a program under a seccomp filter with user notification and answers, in
// the kernel's place, the system calls that concern RDMA: those on a small emulated file tree
// (/sys/class/infiniband*, /sys/class/misc/rdma_cm, /dev/infiniband) and those on the device
// descriptors handed out there. Everything else the program does runs natively.
//
// Three processes take part, all of the same binary:
//
//	front       Run: what the user started. It passes signals on and returns the exit code.
//	supervisor  MaybeHelper's callback: holds the listener, the tree and the devices.
//	helper      installs the filter on itself and becomes the program by execve.
//
// The package knows paths and numbers, not verbs: what an ioctl means is the Device's business.
// It works on Linux 5.9 and later on amd64 and arm64; elsewhere Run returns ErrUnsupported.
//
// A program of another ABI (i386 on amd64, arm on arm64, x32) passes the filter untouched, and so
// does what is submitted through io_uring: both see no RDMA device. Nor does a program whose memory
// its parent may not read (PR_SET_DUMPABLE 0, an executable without read permission). Relative
// paths after a chdir into the tree are the kernel's too: it does not know the directory.
package sandbox

import (
	"errors"
	"syscall"
)

// VerbsIoctl is RDMA_VERBS_IOCTL (rdma/rdma_user_ioctl_cmds.h), _IOWR(0x1b, 1, struct
// ib_uverbs_ioctl_hdr): the only ioctl request that is notified, on whatever descriptor.
const VerbsIoctl = 0xc0181b01

// DoorbellSize is the length in bytes of the write that passes natively on descriptors of
// RangeVerbs; a write of any other length is notified.
const DoorbellSize = 32

// Exit codes of a run that did not get as far as the program's own, as env(1), nice(1) and the
// shells have them.
const (
	ExitFailure       = 125 // the sandbox itself failed, or its supervisor died
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Errors of Run, for errors.Is.
var (
	// ErrUnsupported: not Linux, not an architecture with a filter, or a kernel without
	// seccomp user notification.
	ErrUnsupported = errors.New("seccomp user notification is not available")
	// ErrMemory: the system refuses to let one process copy another's memory (process_vm_readv(2)), in which paths, commands
	// and the buffers of the program are.
	ErrMemory = errors.New("access to the program's memory is refused")
	// ErrNested: the process already runs under a filter with a listener (EBUSY of
	// seccomp(2)): rnic run inside rnic run, or a container whose runtime intercepts calls.
	ErrNested = errors.New("already under a system-call listener")
	// ErrSupervisorDied: the supervisor was killed; the program and its descendants were too.
	ErrSupervisorDied = errors.New("the supervisor died")
	// ErrNICDied: the process that has the NIC was killed; so were the programs that used it.
	ErrNICDied = errors.New("the NIC died")
	// ErrOptions: what the options ask for does not go with the NICs that there are.
	ErrOptions = errors.New("options that do not go together")
	// ErrJudged: Supervisor.OnEnd's function has found fault with the run.
	ErrJudged = errors.New("the run was not as it should be")
	// ErrNotFound and ErrNotExecutable concern the command given.
	ErrNotFound      = errors.New("command not found")
	ErrNotExecutable = errors.New("command cannot be executed")
)

// Options of one run.
type Options struct {
	// Command is the program, looked up in PATH as execvp(3) does, and its arguments.
	Command []string
	// Config is handed to the supervisor unread: Supervisor.Config returns it. At most 64 KiB.
	Config []byte
	// Nice, if not zero, is the nice value (setpriority(2)) at which the program starts.
	Nice int
}

// Range says at which numbers an injected descriptor appears. The filter decides by the number,
// so the ranges are fixed for a run: 80 numbers each below 960, or an eighth of RLIMIT_NOFILE
// each near its top where that is lower. Behind them are a few for sockets of NETLINK_RDMA, and for live files. A number is found from the top of the range downwards.
type Range int

const (
	// RangeLow is any free number: an ordinary descriptor whose reads, writes and polls are
	// native. Completion channels and asynchronous event files.
	RangeLow Range = iota
	// RangeVerbs: writes of DoorbellSize bytes are native, other writes and the stat family
	// are answered by the supervisor.
	RangeVerbs
	// RangeCM: every write and the stat family are answered by the supervisor.
	RangeCM
)

// File is an open file that was injected into a program. It is known by the device and inode
// numbers of its descriptor, never by the descriptor's number: duplicates, forked children and
// descriptors passed over a socket all lead to the same File.
type File struct {
	// Data belongs to the Device: what it gave to Inject. It is set before the program can
	// use the descriptor and not changed afterwards.
	Data any

	reg file // the sandbox's own record; zero in a File made by a test
}

// Device answers the calls on one device node of the tree.
//
// Open, Ioctl, Write are called one at a time, from the loop that serves every call of the run:
// they must not block. Each must end in exactly one of Call.Reply, Call.Fail and Call.Continue,
// in the method or later from any goroutine; a blocking command is handed to a goroutine.
// Closed and MemoryGone may come from another goroutine at the same time.
type Device interface {
	// Open answers an open of the device node with the flags of open(2): inject a descriptor
	// and reply with its number.
	Open(c Call, flags int)
	// Ioctl answers ioctl(fd, VerbsIoctl, arg) on a file of RangeVerbs. arg is the address of
	// struct ib_uverbs_ioctl_hdr in the caller.
	Ioctl(c Call, f *File, arg uint64)
	// Write answers write(fd, addr, n) on a file of RangeVerbs (n is not DoorbellSize) or of
	// RangeCM. On success the reply is n.
	Write(c Call, f *File, addr uint64, n uint64)
	// Closed reports that the last descriptor and mapping of a *regular* file that was
	// injected are gone, a crash of the program included, or that the run is over (then for every
	// file). It comes once for each such File, which is unknown from then on.
	// Files that are not regular (sockets, pipes) show their last close at their other end:
	// the Device watches that itself and calls Supervisor.Forget.
	//
	// The supervisor must keep no descriptor of the injected open file description, only a
	// separate open of the same file. Closing such a separate open that is writable looks like
	// a last close too: keep it until Closed.
	Closed(f *File)
	// MemoryGone reports that the address space of process pid is going away: it is about to execve
	// (and waits until MemoryGone returns), or it has exited. Whatever refers to its memory must
	// not be touched any more after the return. Files that survive the exec (without close-on-exec)
	// stay open; the others are Closed afterwards. It comes only for processes for which Call.PID
	// was asked on this run, at least once for each. An execve that then fails (after the checks
	// that can be made beforehand) finds its regions gone.
	MemoryGone(pid int)
}

// NetlinkHandler answers a datagram that a program has sent to the kernel on a socket of NETLINK_RDMA: it returns
// those to send back to the socket, whose port ID is port. admin: the sender has CAP_NET_ADMIN. It may be
// called from several goroutines at once.
type NetlinkHandler func(datagram []byte, port uint32, admin bool) [][]byte

// Call is one system call of a program, stopped until it is answered.
//
// Order of use: read the arguments from the caller's memory (once, into a copy that is then
// checked), ask Valid, act, write the results, answer.
type Call interface {
	// TID is the thread that called, PID its process (thread group), both in the supervisor's
	// pid namespace. Asking for PID makes the sandbox watch the process for Device.MemoryGone.
	// PID is 0 if the thread is gone, or the process cannot be watched for want of descriptors.
	TID() int
	PID() int
	// FD is the number of the descriptor that an Ioctl or Write is on, -1 of an Open.
	FD() int
	// ReadMem fills p from the caller's memory at addr, WriteMem copies p there: all of it, or
	// the error is syscall.EFAULT (with the page protections that the caller itself has), or
	// EPERM, ESRCH as of process_vm_readv(2).
	ReadMem(addr uint64, p []byte) error
	WriteMem(addr uint64, p []byte) error
	// Valid reports that the caller still waits. When false (it was killed, or a signal
	// aborted the call) nothing may be changed on its behalf; what was read from its memory may
	// be another process's. Answer with Fail all the same: it releases the call.
	Valid() bool
	// Inject installs a duplicate of descriptor fd of the supervisor in the caller, at a number in
	// range r, and registers the file with data. fd stays open here and belongs to the supervisor,
	// which should close it at once (Device.Closed). Injecting the same file again
	// returns the same File. Errors: EMFILE (no number free, or RLIMIT_NOFILE),
	// ENOENT (the caller is gone: undo what was done).
	Inject(fd int, r Range, closeOnExec bool, data any) (number int, f *File, err error)
	// File returns the injected file that is at descriptor number fd of the caller, or nil.
	File(fd int) *File
	// Nonblocking reports O_NONBLOCK on descriptor fd of the caller.
	Nonblocking(fd int) bool
	// SignalPending reports that a signal which the thread does not block waits to be
	// handled: a long wait must then end with Fail(syscall.EINTR), because the kernel lets
	// only fatal signals interrupt a call that waits for the supervisor.
	SignalPending() bool
	// Stranded reports that a signal has, since the first Open, ended a call of this run before the supervisor had it, or had answered it,
	// so that a program has seen EINTR (or has died) where a kernel's driver cannot be interrupted; and that the caller is
	// the only thread of its process: what it then waits for, and does not do itself, nobody does.
	Stranded() bool

	// Reply ends the call with the value v, Fail with -1 and errno, Continue lets the kernel
	// execute it. Only the first of them counts.
	Reply(v int64)
	Fail(errno syscall.Errno)
	Continue()
}

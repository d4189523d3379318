package doctor

import (
	"rnic/internal/netdev"
)

// System is the machine as the checks see it.
type System struct {
	// ReadFile, ReadDir (names, sorted) and Readlink are those of package os.
	ReadFile func(path string) ([]byte, error)
	ReadDir  func(path string) ([]string, error)
	Readlink func(path string) (string, error)
	Getenv   func(name string) string

	Seccomp func() Seccomp
	Memory  func() Memory
	Shm     func() Shm
	Limits  func() Limits
	Socket  func(port int) Socket
	// TempDir makes and removes a directory for temporary files.
	TempDir func() error
	// Inotify makes an instance of inotify(7) with a watch.
	Inotify func() error
	Network func() (*netdev.Table, error)
	// Segmentation reports whether an interface cuts UDP_SEGMENT sends in hardware.
	Segmentation func(ifname string) (bool, error)
	// Processors that the process may run on.
	Processors func() int
	// Trial starts a program under the NIC, as rnic run does, which looks for the device; nil:
	// no trial is wanted.
	Trial func() error
	// Stock runs a stock program the same way, by its name, and returns what it printed.
	Stock func(command string) (string, error)

	tried, worked bool
	trialErr      error
}

// Seccomp is what the kernel offers of user notification, tried out on a thread that has ended.
type Seccomp struct {
	Err          error // of installing a filter with a listener, nil if it can be done
	WaitKillable bool  // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	AddFD        bool  // SECCOMP_IOCTL_NOTIF_ADDFD
	SyncWakeUp   bool  // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
}

// Memory is what could be done with another process, errors nil where it went well.
type Memory struct {
	Started     error // of starting the child that the rest was tried with
	Read, Write error // process_vm_readv and process_vm_writev on a child
	NonChild    error // process_vm_readv on a process that is no descendant
	ProcMem     error // reading and writing /proc/PID/mem of a child
	GetFD       error // pidfd_getfd on a child
	// Override: writing a read-only page of a child by /proc/PID/mem succeeded.
	Override bool
}

// Shm is the file system at /dev/shm.
type Shm struct {
	Err         error  // of statfs(2)
	Type        string // tmpfs, or the magic number in hexadecimal
	Size, Free  uint64 // bytes; Size 0: without limit
	NoExec      bool
	ReadOnly    bool
	CreateErr   error // of making a file without a name, O_TMPFILE
	AllocateErr error // of allocating 2 MiB in it and mapping them
}

// Limits are the soft limits of getrlimit(2); Unlimited where there is none.
type Limits struct{ FileSize, Files, Processes uint64 }

// Unlimited is RLIM_INFINITY.
const Unlimited = ^uint64(0)

// Socket is what a UDP socket gets.
type Socket struct {
	BindErr4, BindErr6 error // of binding the port on all addresses; nil also where there is no IPv6
	ReceiveBuffer      int   // granted of the 4 MiB asked for, as SO_RCVBUF counts (twice, with bookkeeping)
	Segment, GRO       bool  // UDP_SEGMENT and UDP_GRO
}

// exists reports that path can be looked at: a file or a directory.
func (s *System) exists(path string) bool {
	if _, err := s.ReadFile(path); err == nil {
		return true
	}
	_, err := s.ReadDir(path)
	return err == nil
}

// read is a file's content, empty if there is none.
func (s *System) read(path string) string {
	b, _ := s.ReadFile(path)
	return string(b)
}

// TrialEnv is in the environment of the runs that an examination makes.
const TrialEnv = "RNIC_DOCTOR"

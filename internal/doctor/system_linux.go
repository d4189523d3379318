package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"rnic/internal/netdev"
)

// Here is this machine. self are the arguments with which this binary runs a command under the
// NIC: "run", "--" or more options between; nil makes no trial.
func Here(self []string) *System {
	s := &System{
		ReadFile:     os.ReadFile,
		ReadDir:      readNames,
		Readlink:     os.Readlink,
		Getenv:       os.Getenv,
		Seccomp:      sync.OnceValue(probeSeccomp),
		Memory:       sync.OnceValue(probeMemory),
		Shm:          func() Shm { return probeShm("/dev/shm") },
		Limits:       probeLimits,
		Socket:       probeSocket,
		TempDir:      probeTemp,
		Inotify:      probeInotify,
		Network:      func() (*netdev.Table, error) { return netdev.Read(netdev.Selection{}) },
		Segmentation: udpSegmentation,
		Processors:   runtime.NumCPU,
	}
	if self != nil {
		s.Trial = func() error { return trial(self) }
		s.Stock = func(command string) (string, error) { return stock(self, command) }
	}
	return s
}

func readNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// probeSeccomp installs a filter that allows everything on a thread which then ends.
func probeSeccomp() Seccomp {
	result := make(chan Seccomp)
	go func() {
		runtime.LockOSThread() // and never unlocked: thread, filter and no_new_privs go with the goroutine
		result <- tryListener()
	}()
	return <-result
}

func tryListener() (p Seccomp) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return Seccomp{Err: err}
	}
	program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	install := func(flags uintptr) (int, syscall.Errno) {
		fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&f)))
		return int(fd), e
	}
	fd, e := install(unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	p.WaitKillable = e == 0
	if e == unix.EINVAL {
		fd, e = install(0)
	}
	if e != 0 {
		p.Err = e
		return p
	}
	defer unix.Close(fd)
	// No call has this id: a kernel that knows the command says ENOENT, one that does not EINVAL.
	add := struct {
		id                              uint64
		flags, srcfd, newfd, newfdFlags uint32
	}{id: 1, srcfd: uint32(fd)}
	_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_ADDFD, uintptr(unsafe.Pointer(&add)))
	p.AddFD = e == unix.ENOENT
	_, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	p.SyncWakeUp = e == 0
	return p
}

func probeShm(dir string) (p Shm) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Shm{Err: &os.PathError{Op: "statfs", Path: dir, Err: err}}
	}
	block := uint64(st.Bsize)
	p.Size, p.Free = st.Blocks*block, st.Bavail*block
	p.NoExec, p.ReadOnly = st.Flags&unix.ST_NOEXEC != 0, st.Flags&unix.ST_RDONLY != 0
	p.Type = "tmpfs"
	if st.Type != unix.TMPFS_MAGIC {
		p.Type = fmt.Sprintf("a file system of type 0x%x", uint64(st.Type))
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		p.CreateErr = err
		return p
	}
	defer unix.Close(fd)
	p.AllocateErr = allocate(fd)
	return p
}

// allocate takes room for queues and maps it, within the limit of file sizes, which is another check's.
func allocate(fd int) error {
	size := int64(2 << 20)
	if limit := probeLimits().FileSize; limit < uint64(size) {
		size = int64(limit) &^ 4095
	}
	if size == 0 {
		return nil
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		return err
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return unix.Munmap(b)
}

// probeLimits reads those that the process was started with, before the Go runtime raises its own for files.
func probeLimits() Limits {
	syscall.Exec("", []string{""}, nil) // fails, and puts the original RLIMIT_NOFILE back
	get := func(which int) uint64 {
		var r unix.Rlimit
		if unix.Getrlimit(which, &r) != nil {
			return Unlimited
		}
		return r.Cur
	}
	return Limits{FileSize: get(unix.RLIMIT_FSIZE), Files: get(unix.RLIMIT_NOFILE), Processes: get(unix.RLIMIT_NPROC)}
}

// probeSocket binds the port on all addresses, as a NIC without --addr does.
func probeSocket(port int) (p Socket) {
	p.BindErr4 = bindAny(unix.AF_INET, &unix.SockaddrInet4{Port: port}, &p)
	p.BindErr6 = bindAny(unix.AF_INET6, &unix.SockaddrInet6{Port: port}, nil)
	if errors.Is(p.BindErr6, unix.EAFNOSUPPORT) || errors.Is(p.BindErr6, unix.EADDRNOTAVAIL) {
		p.BindErr6 = nil
	}
	return p
}

func bindAny(family int, sa unix.Sockaddr, p *Socket) error {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if p != nil {
		const wanted = 4 << 20 // as the NIC asks
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, wanted)
		p.ReceiveBuffer, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		p.Segment = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 0) == nil
		p.GRO = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
	}
	if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	return unix.Bind(fd, sa)
}

func probeTemp() error {
	dir, err := os.MkdirTemp("", "rnic-doctor-")
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

func probeInotify() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("no instance to be had: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, "/proc/self/exe", unix.IN_CLOSE_WRITE); err != nil {
		return fmt.Errorf("no watch to be had: %w", err)
	}
	return nil
}

// Hidden commands of this binary.
const (
	targetCommand = "doctor-memory-child"
	trialCommand  = "doctor-trial-child"
)

// MaybeChild takes over in the processes that an examination starts of this binary, and returns in all
// others. Call it first thing in main, and in a TestMain.
func MaybeChild() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case targetCommand:
		os.Exit(memoryTarget())
	case trialCommand:
		if err := lookForDevice(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// trial starts this binary under the NIC, to look for the device.
func trial(self []string) error {
	cmd := exec.Command("/proc/self/exe", append(self[:len(self):len(self)], "/proc/self/exe", trialCommand)...)
	cmd.Env = append(os.Environ(), TrialEnv+"=1")
	return runQuietly(cmd)
}

func runQuietly(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) > 0 {
		return errors.New(firstLine(strings.TrimPrefix(string(out), "rnic: ")))
	}
	return err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func stock(self []string, command string) (string, error) {
	if _, err := exec.LookPath(command); err != nil {
		return "", errNotInstalled
	}
	cmd := exec.Command("/proc/self/exe", append(self[:len(self):len(self)], command)...)
	cmd.Env = append(os.Environ(), TrialEnv+"=1")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, firstLine(said.String()))
	}
	return string(out), nil
}

// lookForDevice is the program under the NIC.
func lookForDevice() error {
	names, err := os.ReadDir("/sys/class/infiniband_verbs")
	if err != nil {
		return fmt.Errorf("a program in rnic run sees no device: %w", err)
	}
	for _, n := range names {
		if !strings.HasPrefix(n.Name(), "uverbs") {
			continue
		}
		f, err := os.OpenFile("/dev/infiniband/"+n.Name(), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("a program in rnic run cannot open its device: %w", err)
		}
		return f.Close()
	}
	return errors.New("a program in rnic run sees no device: /sys/class/infiniband_verbs has none")
}

// readable is memory of ours for a child to read.
var readable [8]byte

// probeMemory tries a child of this binary, and lets the child try us.
func probeMemory() (m Memory) {
	m.Started = errors.New("the child said nothing")
	cmd := exec.Command("/proc/self/exe", targetCommand, fmt.Sprint(os.Getpid()), fmt.Sprint(addressOf(readable[:])))
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		m.Started = err
		return m
	}
	if err := cmd.Start(); err != nil {
		m.Started = err
		return m
	}
	defer cmd.Wait()
	defer in.Close() // ends the child
	var rw, ro uint64
	var other int
	if _, err := fmt.Fscanln(bufio.NewReader(out), &rw, &ro, &other); err != nil {
		return m
	}
	m.Started = nil
	if other != 0 {
		m.NonChild = syscall.Errno(other)
	}
	m.tryChild(cmd.Process.Pid, rw, ro)
	return m
}

// tryChild reaches into process pid: 8 bytes at rw, and at ro, which it may only read.
func (m *Memory) tryChild(pid int, rw, ro uint64) {
	var b [8]byte
	m.Read = vmCopy(unix.SYS_PROCESS_VM_READV, pid, rw, b[:])
	m.Write = vmCopy(unix.SYS_PROCESS_VM_WRITEV, pid, rw, b[:])
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err == nil {
		defer f.Close()
		_, err = f.ReadAt(b[:], int64(rw))
		if err == nil {
			_, err = f.WriteAt(b[:], int64(rw))
		}
		_, refused := f.WriteAt(b[:], int64(ro))
		m.Override = refused == nil
	}
	m.ProcMem = err
	m.GetFD = tryGetFD(pid)
}

func tryGetFD(pid int) error {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, 0, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func vmCopy(call uintptr, pid int, addr uint64, p []byte) error {
	local := unix.Iovec{Base: &p[0], Len: uint64(len(p))}
	remote := unix.RemoteIovec{Base: uintptr(addr), Len: len(p)}
	_, _, e := unix.Syscall6(call, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e != 0 {
		return e
	}
	return nil
}

func addressOf(p []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&p[0]))) }

// memoryTarget is the child: it maps a page to write and one to read, tells where they are and whether it
// may read its parent's memory, and waits for the end of its input.
func memoryTarget() int {
	if len(os.Args) != 4 {
		return 1
	}
	var parent int
	var addr uint64
	if _, err := fmt.Sscan(os.Args[2]+" "+os.Args[3], &parent, &addr); err != nil {
		return 1
	}
	rw, err1 := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	ro, err2 := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err1 != nil || err2 != nil {
		return 1
	}
	var b [8]byte
	other, _ := vmCopy(unix.SYS_PROCESS_VM_READV, parent, addr, b[:]).(syscall.Errno)
	fmt.Printf("%d %d %d\n", addressOf(rw), addressOf(ro), int(other))
	bufio.NewReader(os.Stdin).ReadByte()
	return 0
}

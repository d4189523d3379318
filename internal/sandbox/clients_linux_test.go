//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var le = binary.LittleEndian

const uverbs0 = "/dev/infiniband/uverbs0"

// clients are the programs under the filter.
var clients = map[string]func([]string) error{
	"alarm":        clientAlarm,
	"dup":          clientDup,
	"exec":         clientExec,
	"afterexec":    clientAfterExec,
	"execfails":    clientExecFails,
	"hungfs":       clientHungFS,
	"tree":         clientTree,
	"threads":      clientThreads,
	"writes":       clientWrites,
	"socket":       clientSocket,
	"netlink":      clientNetlink,
	"netlinkpanic": clientNetlinkPanic,
	"nonetlink":    clientNoNetlink,
	"fork":         clientFork,
	"signals":      clientSignals,
	"sleep":        clientSleep,
	"limit":        clientLimit,
	"rangesgone":   clientRangesGone,
	"wait":         clientWait,
	"closed":       clientClosed,
	"panic":        clientPanic,
	"crash":        clientCrash,
	"empty":        clientEmpty,
	"live":         clientLive,
	"livemany":     clientLiveMany,
}

// null performs one ioctl of the null device.
func null(fd int, op uint16, v uint64) (uint64, error) {
	b := new([32]byte)
	le.PutUint16(b[:], op)
	le.PutUint64(b[24:], v)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), VerbsIoctl, uintptr(unsafe.Pointer(b)))
	if e != 0 {
		return 0, e
	}
	return le.Uint64(b[24:]), nil
}

func openNull() (int, error) { return unix.Open(uverbs0, unix.O_RDWR|unix.O_CLOEXEC, 0) }

// clientAlarm creates and destroys args[0] objects while SIGALRM comes every millisecond, aimed at
// the very thread that is in the ioctl. It prints whether any came, how many objects were destroyed
// already, and how many are left.
func clientAlarm(args []string) error {
	runtime.LockOSThread()
	count, _ := strconv.Atoi(args[0])
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGALRM)
	var alarms atomic.Int64
	go func() {
		for range ch {
			alarms.Add(1)
		}
	}()
	// struct sigevent: value 8, signo 4, notify 4 (SIGEV_THREAD_ID), tid 4.
	var ev [64]byte
	le.PutUint32(ev[8:], uint32(unix.SIGALRM))
	le.PutUint32(ev[12:], 4)
	le.PutUint32(ev[16:], uint32(unix.Gettid()))
	var timer int32
	if _, _, e := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ev)), uintptr(unsafe.Pointer(&timer))); e != 0 {
		return fmt.Errorf("timer_create: %w", e)
	}
	every := [4]int64{0, int64(time.Millisecond), 0, int64(time.Millisecond)}
	if _, _, e := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&every)), 0, 0, 0); e != 0 {
		return fmt.Errorf("timer_settime: %w", e)
	}
	fd, err := openNull()
	if err != nil {
		return err
	}
	twice := 0
	for i := range count {
		op := uint16(nullCreate)
		if i%10 == 0 {
			op = nullLater
		}
		h, err := null(fd, op, 0)
		if err != nil {
			return fmt.Errorf("create %d: %w", i, err)
		}
		switch _, err := null(fd, nullDestroy, h); err {
		case nil:
		case unix.ENOENT:
			twice++
		default:
			return fmt.Errorf("destroy %d (handle %d): %w", i, h, err)
		}
	}
	live, err := null(fd, nullLive, 0)
	fmt.Print(alarms.Load() > 0, twice, live)
	return err
}

func isDevice(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(231, 192) {
		return fmt.Errorf("fstat(%d): mode %o rdev %#x", fd, st.Mode, st.Rdev)
	}
	var sx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &sx); err != nil {
		return err
	}
	if sx.Mode&unix.S_IFMT != unix.S_IFCHR || sx.Rdev_major != 231 || sx.Rdev_minor != 192 {
		return fmt.Errorf("statx(%d): mode %o rdev %d:%d", fd, sx.Mode, sx.Rdev_major, sx.Rdev_minor)
	}
	return nil
}

// clientDup uses a device through every kind of copy of its descriptor.
func clientDup([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	if err := isDevice(fd); err != nil {
		return err
	}
	want, err := null(fd, nullCreate, 0)
	if err != nil {
		return err
	}
	d1, e1 := unix.Dup(fd)
	d2, e2 := unix.FcntlInt(uintptr(fd), unix.F_DUPFD, 3)
	d3, e3 := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err := errors.Join(e1, e2, e3); err != nil {
		return err
	}
	for _, d := range []int{d1, d2, d3} {
		if err := isDevice(d); err != nil {
			return err
		}
	}
	for d, want := range map[int]int{d1: 0, d2: 0, d3: unix.FD_CLOEXEC} {
		if flags, _ := unix.FcntlInt(uintptr(d), unix.F_GETFD, 0); flags != want {
			return fmt.Errorf("descriptor flags of copy %d: %d, want %d", d, flags, want)
		}
	}
	const low, low2 = 100, 101
	if err := errors.Join(unix.Dup3(fd, low, 0), unix.Dup3(d1, low2, unix.O_CLOEXEC)); err != nil {
		return err
	}
	unix.Close(fd)
	for _, d := range []int{d1, d2, d3, low, low2} {
		h, err := null(d, nullCreate, 0)
		if err != nil {
			return fmt.Errorf("ioctl on copy %d: %w", d, err)
		}
		if h <= want {
			return fmt.Errorf("ioctl on copy %d: handle %d after %d", d, h, want)
		}
		want = h
		if is, err := null(d, nullFile, uint64(low)); err != nil || is != 1 {
			return fmt.Errorf("File(%d) by way of %d: %d, %v", low, d, is, err)
		}
		if is, err := null(d, nullFile, 0); err != nil || is != 0 {
			return fmt.Errorf("File(0) by way of %d: %d, %v", d, is, err)
		}
	}
	for _, d := range []int{d1, d2, d3, low} {
		unix.Close(d)
	}
	live, err := null(low2, nullLive, 0) // still open
	if err != nil || live != 6 {
		return fmt.Errorf("objects at the last copy: %d (%v), want 6", live, err)
	}
	if _, err := null(0, nullLive, 0); err == nil {
		return errors.New("the ioctl on standard input succeeded")
	}
	return nil
}

// clientExec registers memory, keeps one descriptor over the exec, and executes.
func clientExec([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	kept, err := unix.Dup(fd)
	if err != nil {
		return err
	}
	if pid, err := null(fd, nullRegion, 0); err != nil || int(pid) != os.Getpid() {
		return fmt.Errorf("PID: %d, %v, want %d", pid, err, os.Getpid())
	}
	if _, err := null(fd, nullCreate, 0); err != nil {
		return err
	}
	self := os.Getenv("SELF")
	return syscall.Exec(self, []string{self, "client", "afterexec", strconv.Itoa(kept), strconv.Itoa(fd)}, os.Environ())
}

func clientAfterExec(args []string) error {
	kept, _ := strconv.Atoi(args[0])
	closed, _ := strconv.Atoi(args[1])
	if gone, err := null(kept, nullGone, 0); err != nil || gone != 1 {
		return fmt.Errorf("MemoryGone calls when the new program runs: %d (%v), want 1", gone, err)
	}
	if live, err := null(kept, nullLive, 0); err != nil || live != 1 {
		return fmt.Errorf("objects after exec: %d (%v), want 1", live, err)
	}
	if _, err := null(closed, nullLive, 0); err != unix.EBADF {
		return fmt.Errorf("ioctl on the close-on-exec descriptor: %v", err)
	}
	fmt.Print(os.Getpid())
	return nil
}

// clientExecFails tries to execute what cannot be, and keeps its memory.
func clientExecFails([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	if _, err := null(fd, nullRegion, 0); err != nil {
		return err
	}
	for _, p := range []string{"/nonexistent/true", "/etc/passwd", "/etc", "", "nonexistent", "/etc/passwd/x"} {
		if err := syscall.Exec(p, []string{p}, nil); err == nil {
			return errors.New("impossible")
		}
	}
	if gone, err := null(fd, nullGone, 0); err != nil || gone != 0 {
		return fmt.Errorf("MemoryGone after failed execs: %d (%v)", gone, err)
	}
	return nil
}

// clientHungFS mounts a file system at args[0] that answers nothing: FUSE whose server, this process, is
// busy. It executes a file there in one thread, copies a descriptor of it in another, opens by a way that leads through it in a
// third, and uses the device in a fourth. It prints what could not be done because of it.
func clientHungFS(args []string) error {
	server, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Mount("rnic-test", args[0], "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server))
	}
	if err != nil {
		fmt.Print("no FUSE: ", err)
		return nil
	}
	watchdog := time.AfterFunc(10*time.Second, func() {
		fmt.Print("the run waits for the file system")
		unix.Close(server) // every request fails with ENOTCONN
	})
	fd, err := openNull()
	if err == nil {
		_, err = null(fd, nullRegion, 0)
	}
	if err != nil {
		return err
	}
	const inRange = 850
	root, err := unix.Open(args[0], unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Dup3(root, inRange, unix.O_CLOEXEC)
	}
	if err == nil {
		_, err = unix.Dup(inRange)
	}
	if err != nil {
		return err
	}
	above, err := unix.Open(filepath.Dir(args[0]), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	path, _ := unix.BytePtrFromString(args[0] + "/program")
	executed := inThread(unix.SYS_EXECVE, func() error {
		_, _, e := unix.Syscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&[2]*byte{path})), 0)
		return e
	})
	opened := inThread(unix.SYS_OPENAT, func() error {
		_, err := unix.Openat(above, filepath.Base(args[0])+"/sub/uverbs0", unix.O_RDONLY, 0)
		return err
	})
	if _, err := openNull(); err != nil { // behind both in the supervisor's queue
		return err
	}
	if watchdog.Stop() {
		unix.Close(server)
	}
	for _, result := range []chan error{executed, opened} {
		if err := <-result; err != unix.ENOTCONN && err != unix.ECONNABORTED {
			return fmt.Errorf("execve or open: %w", err)
		}
	}
	return nil
}

// inThread calls f in a thread of its own, which is in a system call when it returns.
func inThread(call int, f func() error) chan error {
	tid, result := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		result <- f()
	}()
	for state := fmt.Sprintf("/proc/self/task/%d/syscall", <-tid); ; time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(state); err != nil || strings.HasPrefix(string(b), strconv.Itoa(call)+" ") {
			return result
		}
	}
}

// clientTree looks at the emulated files in every way.
func clientTree([]string) error {
	content, err := os.ReadFile("//sys/./class/net/../infiniband//rxe0/node_type")
	if err != nil || string(content) != "1: CA\n" {
		return fmt.Errorf("node_type: %q, %v", content, err)
	}
	names, err := filepath.Glob("/sys/class/infiniband_verbs/*/ibdev")
	if err != nil || len(names) != 1 || names[0] != "/sys/class/infiniband_verbs/uverbs0/ibdev" {
		return fmt.Errorf("glob: %v, %v", names, err)
	}
	dir, err := unix.Open("/sys/class/infiniband", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	if fd, err := unix.Openat(dir, "rxe0/node_guid", unix.O_RDONLY, 0); err != nil {
		return err
	} else {
		unix.Close(fd)
	}
	dev, err := unix.Open("/dev/infiniband/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	fd, err := unix.Openat(dev, "uverbs0", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := isDevice(fd); err != nil {
		return fmt.Errorf("opened relative to the directory: %w", err)
	}
	if fd, err = unix.Openat2(unix.AT_FDCWD, uverbs0, &unix.OpenHow{Flags: unix.O_RDWR}); err != nil {
		return fmt.Errorf("openat2: %w", err)
	}
	if err := isDevice(fd); err != nil {
		return err
	}
	return errors.Join(treeStats(), treeErrors())
}

func treeStats() error {
	var st unix.Stat_t
	for _, stat := range []func(string, *unix.Stat_t) error{unix.Stat, unix.Lstat} {
		if err := stat(uverbs0, &st); err != nil || st.Mode != unix.S_IFCHR|0o666 || st.Rdev != unix.Mkdev(231, 192) {
			return fmt.Errorf("stat: mode %o rdev %#x, %v", st.Mode, st.Rdev, err)
		}
	}
	var sx unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/dev/infiniband/rdma_cm", 0, unix.STATX_BASIC_STATS, &sx); err != nil ||
		sx.Mode != unix.S_IFCHR|0o666 || sx.Rdev_major != 10 || sx.Rdev_minor != 58 {
		return fmt.Errorf("statx: mode %o rdev %d:%d, %v", sx.Mode, sx.Rdev_major, sx.Rdev_minor, err)
	}
	buf := make([]byte, 100)
	if n, err := unix.Readlink("/sys/class/infiniband/link", buf); err != nil || string(buf[:n]) != "rxe0" {
		return fmt.Errorf("readlink: %q, %v", buf[:max(n, 0)], err)
	}
	if err := unix.Stat("/sys/class/infiniband/link", &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fmt.Errorf("stat of the link: mode %o, %v", st.Mode, err)
	}
	if err := unix.Lstat("/sys/class/infiniband/link", &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return fmt.Errorf("lstat of the link: mode %o, %v", st.Mode, err)
	}
	return unix.Access(uverbs0, unix.R_OK|unix.W_OK)
}

// treeErrors checks the errno of what must fail, as root too.
func treeErrors() error {
	var st unix.Stat_t
	open := func(path string, flags int) error { _, err := unix.Open(path, flags, 0o644); return err }
	type failing struct {
		what string
		got  error
		want error
	}
	readlink := func(p string) error { _, err := unix.Readlink(p, make([]byte, 10)); return err }
	for _, f := range []failing{
		{"stat a missing device", unix.Stat("/dev/infiniband/uverbs1", &st), unix.ENOENT},
		{"stat a missing class", unix.Stat("/sys/class/infiniband_mad", &st), unix.ENOENT},
		{"open below a device", open(uverbs0+"/x", 0), unix.ENOTDIR},
		{"open a device as a directory", open(uverbs0, unix.O_DIRECTORY), unix.ENOTDIR},
		{"create a device", open("/dev/infiniband/x", unix.O_CREAT|unix.O_WRONLY), unix.EACCES},
		{"write an attribute", open("/sys/class/infiniband/rxe0/node_type", unix.O_RDWR), unix.EACCES},
		{"truncate an attribute", open("/sys/class/infiniband/rxe0/node_type", unix.O_TRUNC), unix.EACCES},
		{"write a directory", open("/sys/class/infiniband/rxe0", unix.O_RDWR), unix.EISDIR},
		{"create exclusively", open(uverbs0, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL), unix.EEXIST},
		{"execute a device", unix.Access(uverbs0, unix.X_OK), unix.EACCES},
		{"access for writing", unix.Access("/sys/class/infiniband/rxe0/node_type", unix.W_OK), unix.EACCES},
		{"access with a wrong mode", unix.Access(uverbs0, 8), unix.EINVAL},
		{"readlink of a file", readlink("/sys/class/infiniband/rxe0/node_type"), unix.EINVAL},
		{"a path in nowhere", statAt(8), unix.EFAULT},
		{"a name that only looks like it", unix.Stat("/dev/infinibandx", &st), unix.ENOENT},
	} {
		if !errors.Is(f.got, f.want) {
			return fmt.Errorf("%s: %v, want %v", f.what, f.got, f.want)
		}
	}
	// A result that cannot be written.
	p, _ := unix.BytePtrFromString(uverbs0)
	at := unix.AT_FDCWD
	if _, _, e := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(at), uintptr(unsafe.Pointer(p)), 8, 0, 0, 0); e != unix.EFAULT {
		return fmt.Errorf("stat into nowhere: %v", e)
	}
	return nil
}

func statAt(path uintptr) error {
	var st unix.Stat_t
	at := unix.AT_FDCWD
	_, _, e := unix.Syscall6(unix.SYS_NEWFSTATAT, uintptr(at), path, uintptr(unsafe.Pointer(&st)), 0, 0, 0)
	return e
}

// clientThreads opens ordinary and emulated files from 50 threads at once: nobody may get another's
// answer.
func clientThreads([]string) error {
	dir, err := os.MkdirTemp("", "threads-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const threads = 50
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			mine := fmt.Sprintf("%s/%d", dir, i)
			if errs[i] = os.WriteFile(mine, []byte(mine), 0o600); errs[i] != nil {
				return
			}
			for range 40 {
				if errs[i] = oneThread(i, mine); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func oneThread(i int, mine string) error {
	if got, err := os.ReadFile(mine); err != nil || string(got) != mine {
		return fmt.Errorf("read %s: %q, %v", mine, got, err)
	}
	if _, err := os.Stat(mine + "/missing"); !errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("stat below a file: %v", err)
	}
	if got, err := os.ReadFile("/sys/class/infiniband_verbs/uverbs0/dev"); err != nil || string(got) != "231:192\n" {
		return fmt.Errorf("read dev: %q, %v", got, err)
	}
	if i%5 != 0 {
		return nil
	}
	fd, err := openNull()
	if err != nil {
		return err
	}
	h, err := null(fd, nullLater, 0)
	if err == nil {
		_, err = null(fd, nullDestroy, h)
	}
	return errors.Join(err, isDevice(fd), unix.Close(fd))
}

// clientWrites writes doorbells and commands.
func clientWrites([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	doorbell := make([]byte, DoorbellSize)
	copy(doorbell, "doorbell")
	if n, err := unix.Write(fd, doorbell); n != len(doorbell) || err != nil {
		return fmt.Errorf("doorbell: %d, %v", n, err)
	}
	if n, err := unix.Write(fd, []byte("verbs command")); n != 13 || err != nil {
		return fmt.Errorf("command: %d, %v", n, err)
	}
	// The doorbell went to the file, the command did not.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if pos, err := unix.Seek(fd, 0, 1); pos != DoorbellSize || err != nil {
		return fmt.Errorf("position after a doorbell and a command: %d, %v", pos, err)
	}
	cm, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if n, err := unix.Write(cm, doorbell); n != len(doorbell) || err != nil {
		return fmt.Errorf("CM command of %d bytes: %d, %v", len(doorbell), n, err)
	}
	if _, _, e := unix.Syscall(unix.SYS_WRITE, uintptr(cm), 8, 8); e != unix.EFAULT {
		return fmt.Errorf("CM command from nowhere: %v", e)
	}
	if _, err := null(cm, nullLive, 0); err != unix.ENOTTY && err != unix.ENOTSUP {
		return fmt.Errorf("verbs ioctl on a CM descriptor: %v", err)
	}
	return nil
}

// clientSocket checks the descriptors that come in answers, and a netlink protocol that is the kernel's.
func clientSocket([]string) error {
	route, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("socket(NETLINK_ROUTE): %w", err)
	}
	unix.Close(route)
	fd, err := openNull()
	if err != nil {
		return err
	}
	s, err := null(fd, nullSocket, 0)
	if err != nil {
		return err
	}
	if s >= 100 {
		return fmt.Errorf("event descriptor %d is not low", s)
	}
	b := make([]byte, 16)
	if n, err := unix.Read(int(s), b); err != nil || string(b[:n]) != "event" {
		return fmt.Errorf("event: %q, %v", b[:max(n, 0)], err)
	}
	if is, err := null(fd, nullFile, s); err != nil || is != 1 {
		return fmt.Errorf("File of the event descriptor: %d, %v", is, err)
	}
	return nil
}

// clientFork leaves a process behind, which holds a device file and uses the tree once args[0]/go
// exists.
func clientFork(args []string) error {
	fd, err := unix.Open(uverbs0, unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err := null(fd, nullCreate, 0); err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; cat /sys/class/infiniband/rxe0/node_type >out")
	cmd.Dir = args[0]
	return cmd.Start()
}

// clientSignals prints the signals it gets, and ends by SIGTERM.
func clientSignals([]string) error {
	ch := make(chan os.Signal, 16)
	signal.Notify(ch, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH)
	fmt.Println("ready")
	for s := range ch {
		fmt.Println(s)
		if s == unix.SIGTERM {
			os.Exit(7)
		}
	}
	return nil
}

// clientSleep starts grandchildren, of which one is an orphan in a session of its own, prints all
// process ids and sleeps.
func clientSleep([]string) error {
	if _, err := openNull(); err != nil {
		return err
	}
	child := exec.Command("/bin/sh", "-c", "setsid sh -c 'sleep 1000 & echo $!; echo $$; while cat /sys/class/infiniband/rxe0/node_type >/dev/null; do :; done' & echo $$; sleep 1000")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Println(os.Getpid())
	for { // calls all the time, so that one is pending when the supervisor dies
		if _, err := os.Stat("/sys/class/infiniband/rxe0"); err != nil {
			return err
		}
	}
}

// clientLimit shows the descriptor number under a low RLIMIT_NOFILE.
func clientLimit([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	fmt.Print(fd)
	return isDevice(fd)
}

// clientRangesGone opens more device files than the range has numbers.
func clientRangesGone([]string) error {
	for i := 0; ; i++ {
		if _, err := openNull(); err != nil {
			fmt.Print(i)
			if err != unix.EMFILE {
				return err
			}
			return nil
		}
	}
}

// clientWait waits in the device for a signal that comes from another thread; its own are not
// blocked.
func clientWait([]string) error {
	runtime.LockOSThread()
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGUSR1)
	fd, err := openNull()
	if err != nil {
		return err
	}
	pid, tid := os.Getpid(), unix.Gettid()
	time.AfterFunc(50*time.Millisecond, func() { unix.Tgkill(pid, tid, unix.SIGUSR1) })
	if _, err := null(fd, nullWait, 0); err != unix.EINTR {
		return fmt.Errorf("wait: %v, want EINTR", err)
	}
	<-ch
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	for f, want := range map[int]uint64{p[0]: 1, fd: 0, 999: 0} {
		if got, err := null(fd, nullFlags, uint64(f)); err != nil || got != want {
			return fmt.Errorf("Nonblocking(%d): %d, %v, want %d", f, got, err, want)
		}
	}
	return nil
}

// clientClosed ends while a command that waits is on a descriptor just closed: no error comes of it before. Other commands
// get theirs at once, and so does one on a number that has become another file's.
func clientClosed([]string) error {
	cm, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Close(cm); err != nil {
		return err
	}
	wait := make([]byte, waitSize)
	for _, other := range [][]byte{make([]byte, waitSize+8), wait} {
		begin := time.Now()
		if _, err := unix.Write(cm, other); err != unix.EBADF || time.Since(begin) >= WaitClosed {
			return fmt.Errorf("another command on a closed descriptor: %v after %v, want EBADF at once", err, time.Since(begin))
		}
	}
	wait[0] = cmdGetEvent
	if err := unix.Dup3(1, cm, unix.O_CLOEXEC); err != nil {
		return err
	}
	if _, err := unix.Write(cm, []byte("sixteen letters.")); err != nil {
		return fmt.Errorf("write to an ordinary file with the same number: %w", err)
	}
	if err := unix.Close(cm); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() {
		_, err := unix.Write(cm, wait)
		answered <- err
	}()
	select {
	case err := <-answered:
		return fmt.Errorf("a wait on a closed descriptor was answered: %v", err)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}

// clientPanic finds that an error in the device costs one call.
func clientPanic([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	if _, err := null(fd, nullPanic, 0); err != unix.EIO {
		return fmt.Errorf("ioctl: %v, want EIO", err)
	}
	if _, err := null(fd, 999, 0); err != unix.ENOTTY {
		return fmt.Errorf("the next ioctl: %v, want ENOTTY", err)
	}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), VerbsIoctl, 8); e != unix.EFAULT {
		return fmt.Errorf("ioctl with an argument nowhere: %v, want EFAULT", e)
	}
	if _, err := unix.Open(liveFaulty, unix.O_RDONLY, 0); err != unix.EIO {
		return fmt.Errorf("open of a live file: %v, want EIO", err)
	}
	return nil
}

// clientCrash dies with an object, and with a mapping of the device file that outlives its descriptor.
func clientCrash([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	if _, err := null(fd, nullCreate, 0); err != nil {
		return err
	}
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return err
	}
	unix.Close(fd)
	if other, err := openNull(); err != nil {
		return err
	} else if live, err := null(other, nullLive, 0); err != nil || live != 1 {
		return fmt.Errorf("objects while the file is mapped: %d (%v), want 1", live, err)
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// clientEmpty waits until the device has no objects.
func clientEmpty([]string) error {
	fd, err := openNull()
	if err != nil {
		return err
	}
	for range 1000 {
		if live, err := null(fd, nullLive, 0); err != nil || live == 0 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("objects of the dead program are still there")
}

//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supervisor is the run as its supervisor process sees it: the emulated tree, the devices in it,
// and Serve.
type Supervisor struct {
	sock      int // to the front
	program   string
	argv      []string
	nice      int
	config    []byte
	inherited []int // descriptors that are the program's, above standard error
	tree      *tree
	files     *files
	netlink   *netlink // nil: not served

	dir   string // of the tree
	group int    // process group of the front, and so of the program
	ttou  bool   // the program is to have SIGTTOU as usual

	startMu  sync.Mutex   // held while the program is started, and to give that up
	started  bool         // there is something to kill
	main     atomic.Int64 // pid of the program, 0 before and after
	aborted  atomic.Pointer[failure]
	over     chan struct{} // closed: aborted is set
	reported atomic.Bool   // the front has the exit code, or will not want it
	code     int           // exit code of the program
	onEnd    func(code int) error
	ending   sync.Once
	judged   error // what onEnd returned
}

// MaybeHelper must be called first thing in main (and in a TestMain). In an ordinary process it
// returns at once. In a process that Run started it never returns: as the supervisor it calls
// supervise, whose error becomes Run's; as the helper it becomes the program.
//
//	sandbox.MaybeHelper(func(s *sandbox.Supervisor) error {
//		nic := ...              // from s.Config()
//		defer nic.Close()
//		s.AddFile("/sys/class/infiniband_verbs/abi_version", "6\n")
//		s.AddDevice("/dev/infiniband/uverbs0", 231, 192, dev)
//		return s.Serve()
//	})
//
// The supervisor must start no child processes, and supervise must call Serve once.
func MaybeHelper(supervise func(*Supervisor) error) {
	if len(os.Args) < 4 || os.Args[0] != supervisorName && os.Args[0] != helperName {
		return
	}
	sock, err := strconv.Atoi(os.Args[1])
	if err != nil || sock < 3 {
		return
	}
	unix.CloseOnExec(sock)
	if os.Args[0] == helperName {
		helperMain(sock, os.Args[2:])
	}
	supervisorMain(sock, os.Args[2:], supervise)
}

// supervisorMain takes the directory of the tree, the path of the program, its argv.
func supervisorMain(sock int, args []string, supervise func(*Supervisor) error) {
	setName(supervisorName)
	s := &Supervisor{sock: sock, over: make(chan struct{}), program: args[1], argv: args[2:], dir: args[0], inherited: inheritedFDs()}
	s.group, _ = unix.Getpgid(os.Getppid())
	s.ttou = !signal.Ignored(unix.SIGTTOU)
	// Being no part of the terminal's foreground group, we would be stopped for a message (stty tostop).
	signal.Ignore(unix.SIGTTOU)
	drop := catch() // the program gets its own copy, or one by way of the front
	go func() {
		for range drop {
		}
	}()
	err := s.prepare(args[0])
	if err == nil {
		go s.obeyFront()
		err = supervise(s)
	}
	os.RemoveAll(args[0])
	if !s.reported.Load() {
		if err != nil {
			f := failureOf(err)
			tell(sock, msgFailed, f.encode(), -1)
		} else {
			s.report(msgExited)
		}
	}
	os.Exit(0)
}

// prepare reads the configuration and makes what the builder of the tree needs.
func (s *Supervisor) prepare(dir string) error {
	// First of all, lest it lie unread in the socket when we end: the front would see ECONNRESET in place of our reason (unix(7)).
	m, err := hear(s.sock)
	if err != nil || m.kind != msgConfig || len(m.body) < 4 {
		return errors.New("no configuration from the front process")
	}
	if err := becomeSubreaper(); err != nil {
		return fmt.Errorf("become the reaper of the program's orphans: %w", err)
	}
	if err := tryFilter(); err != nil {
		return err
	}
	if err := tryMem(); err != nil {
		return err
	}
	s.nice = int(int32(binary.LittleEndian.Uint32(m.body)))
	s.config = m.body[4:]
	if s.tree, err = newTree(dir); err != nil {
		return err
	}
	s.files, err = newFiles()
	return err
}

// Config is what the caller of Run gave in Options.Config.
func (s *Supervisor) Config() []byte { return s.config }

// AddDir makes a directory of the tree, and its parents. The path is absolute, clean, and lies at or
// below /sys/class/infiniband*, /sys/class/misc/rdma_cm or /dev/infiniband; any other is
// os.ErrInvalid.
func (s *Supervisor) AddDir(path string) error { return s.tree.addDir(path) }

// AddFile makes or atomically replaces a read-only file of the tree, and makes its parents. It
// may be called while the program runs.
func (s *Supervisor) AddFile(path, content string) error { return s.tree.addFile(path, content) }

// Remove takes away a file, or a directory with all that is in it, also while programs run: devices that are not there any more. What is open
// stays open.
func (s *Supervisor) Remove(path string) error { return s.tree.remove(path) }

// AddSymlink makes a symbolic link of the tree. The target is relative and should stay in the
// tree.
func (s *Supervisor) AddSymlink(path, target string) error { return s.tree.addSymlink(path, target) }

// AddDevice makes a character device node (mode 0666) of the tree, whose opens go to d. One Device
// may serve several nodes. Call it before Serve.
func (s *Supervisor) AddDevice(path string, major, minor uint32, d Device) error {
	return s.tree.addDevice(path, major, minor, d)
}

// Forget drops a file that is not regular, when its Device has seen its last close.
func (s *Supervisor) Forget(f *File) { s.files.remove(f) }

// exitGrace is how long after the program's end its other processes, such as the rest of a
// pipeline, are waited for, before the front returns without them.
const exitGrace = 250 * time.Millisecond

// Serve starts the program and answers its calls until it and every process it started are gone.
// Then every file has been Closed to its device. The error says why the program could not be
// started (then nothing was served).
func (s *Supervisor) Serve() error {
	runtime.LockOSThread() // the helper's death signal comes with the end of the thread that started it
	watch, err := newWatcher(s.files, s.tree)
	if err != nil {
		return err
	}
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	defer unix.Close(ours)
	pid, err := s.startHelper(theirs)
	unix.Close(theirs)
	if err != nil {
		return err
	}
	s.letGoOfStreams()
	srv, err := s.accept(ours, watch)
	if err != nil {
		reap(pid)
		if f := s.aborted.Load(); f != nil {
			return f
		}
		return err
	}
	go watch.run()
	go srv.loop()
	err = s.reapAll(pid, ours)
	watch.finish()
	s.netlink.close()
	return err
}

// startHelper starts the process that becomes the program, unless the run has been given up.
func (s *Supervisor) startHelper(sock int) (pid int, err error) {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	if f := s.aborted.Load(); f != nil {
		return 0, f
	}
	pid, err = spawn(helperName, sock, append([]string{strconv.Itoa(s.nice), strconv.FormatBool(s.ttou), s.program}, s.argv...),
		&syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: s.group > 0, Pgid: s.group})
	if err != nil {
		return 0, fmt.Errorf("start the program: %w", err)
	}
	s.main.Store(int64(pid))
	s.started = true
	return pid, nil
}

// accept takes the listener from the helper and gives the front a copy.
func (s *Supervisor) accept(sock int, watch *watcher) (*server, error) {
	m, err := hear(sock)
	if err != nil {
		return nil, errors.New("the process that was to become the program died")
	}
	if m.kind == msgFailed {
		return nil, decodeFailure(m.body)
	}
	st, err := decodeStarted(m.body)
	if err != nil || m.kind != msgStarted || m.fd < 0 {
		return nil, errors.New("malformed message from the process that was to become the program")
	}
	l := listener(m.fd)
	l.wakeOnThisCPU()
	if err := tell(s.sock, msgStarted, nil, m.fd); err != nil {
		return nil, fmt.Errorf("pass the listener to the front process: %w", err)
	}
	srv := &server{l: l, ranges: st.ranges, tree: s.tree, files: s.files, watch: watch, netlink: s.netlink}
	if !st.killable {
		srv.replay = newReplay()
	}
	return srv, nil
}

// execResult is the error of the helper's exec, nil if that closed the socket.
//
// Preconditions: the helper, or the program it became, has ended.
func execResult(sock int) error {
	m, err := hear(sock)
	if err == nil && m.kind == msgFailed {
		return decodeFailure(m.body)
	}
	return nil
}

// reapAll waits for every descendant. When the program itself, pid main, ends it keeps the exit
// code, and reports it if others outlive it. The error is that of the helper's execve, heard on
// sock.
func (s *Supervisor) reapAll(main, sock int) (failed error) {
	var late *time.Timer
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD
			if late != nil {
				late.Stop()
			}
			if f := s.aborted.Load(); f != nil {
				s.ending.Do(func() {}) // onEnd is not called any more, nor running: the caller takes away what it looks at
				return f
			}
			if failed == nil {
				failed = s.ended()
			}
			return failed
		case pid != main:
		case ws.Stopped():
			tell(s.sock, msgStopped, nil, -1)
		default:
			s.main.Store(0)
			s.code = ws.ExitStatus()
			if ws.Signaled() {
				s.code = 128 + int(ws.Signal())
			}
			if failed = execResult(sock); failed == nil {
				late = time.AfterFunc(exitGrace, s.stayBehind)
			}
		}
	}
}

// report gives the front the exit code, once.
func (s *Supervisor) report(kind byte) {
	if !s.reported.Swap(true) {
		tell(s.sock, kind, binary.LittleEndian.AppendUint32(nil, uint32(s.code)), -1)
	}
}

// OnEnd has f called once, when the program itself has ended, with its exit code, before the front returns. If it returns an error, that
// becomes Run's: it may have a method ExitCode. Call it before Serve.
func (s *Supervisor) OnEnd(f func(code int) error) { s.onEnd = f }

// ended has onEnd called, and returns its error to each caller: the program's last process may end while it is called.
func (s *Supervisor) ended() error {
	s.ending.Do(func() {
		if s.onEnd != nil {
			s.judged = s.onEnd(s.code)
		}
	})
	return s.judged
}

// stayBehind lets the front return while processes are left, and lets go of standard error as well,
// so that nobody who reads it waits for us.
func (s *Supervisor) stayBehind() {
	if s.reported.Load() {
		return
	}
	if err := s.ended(); err != nil && !s.reported.Swap(true) {
		tell(s.sock, msgFailedLeft, failureOf(err).encode(), -1)
	}
	toNull(2)
	s.report(msgLeft)
}

// Abort kills the program and everything it started, or sees to it that it does not start, and makes err what Serve
// returns: the NIC that they use is gone.
func (s *Supervisor) Abort(err error) {
	f := &failure{code: ExitFailure, kind: ErrNICDied, text: err.Error()}
	s.startMu.Lock()
	first, started := s.aborted.CompareAndSwap(nil, f), s.started
	s.startMu.Unlock()
	if first {
		close(s.over)
		if started {
			killDescendants()
		}
	}
}

// Over is closed when the run has been given up or aborted: who prepares it must not wait for anything any more.
func (s *Supervisor) Over() <-chan struct{} { return s.over }

// errGivenUp is what Serve returns when the user has ended the run before the program was started.
var errGivenUp = errors.New("ended before the program was started")

// giveUp ends a run whose program has not been started yet, as signal sig would have ended that. The front returns at
// once, whatever we wait for. False: the program has been started.
func (s *Supervisor) giveUp(sig syscall.Signal) bool {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	if s.started {
		return false
	}
	if !endsByDefault(sig) {
		return true
	}
	if s.aborted.CompareAndSwap(nil, failureOf(errGivenUp)) {
		close(s.over)
		s.code = 128 + int(sig)
		toNull(0, 1, 2)
		s.report(msgLeft)
	}
	return true
}

// Leave lets the front return with the exit code, or with the error of Serve, while this process stays: other
// runs use its NIC. Nothing is left of the run but the process. Call it after Serve.
func (s *Supervisor) Leave(failed error) {
	os.RemoveAll(s.dir)
	s.letGoOfStreams()
	os.Chdir("/") // do not keep the user's file system busy
	if failed == nil {
		toNull(2)
		s.report(msgLeft)
		return
	}
	if !s.reported.Swap(true) {
		tell(s.sock, msgFailedLeft, failureOf(failed).encode(), -1)
	}
	toNull(2)
}

// obeyFront passes signals to the program; if the front dies, the program and all else goes too.
func (s *Supervisor) obeyFront() {
	for {
		m, err := hear(s.sock)
		switch {
		case err != nil: // the front is dead: it said no goodbye
			s.reported.Store(true)
			s.Abort(errGivenUp)
			return
		case m.kind == msgBye:
			return
		case m.kind == msgSignal && len(m.body) == 2:
			sig, had := syscall.Signal(m.body[0]), m.body[1] != 0
			if s.giveUp(sig) || had {
				continue
			}
			if pid := int(s.main.Load()); pid > 0 {
				unix.Kill(pid, sig)
			}
		}
	}
}

// inheritedFDs lists the descriptors above standard error that were open when the process started:
// those without close-on-exec, which everything opened by Go has.
func inheritedFDs() []int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range d {
		fd, _ := strconv.Atoi(e.Name())
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fd > 2 && err == nil && flags&unix.FD_CLOEXEC == 0 {
			out = append(out, fd)
		}
	}
	return out
}

// letGoOfStreams drops the program's descriptors, so that the reader of a pipe sees its end when the
// program closes it. Standard error stays, for messages.
func (s *Supervisor) letGoOfStreams() {
	for _, fd := range s.inherited {
		unix.Close(fd)
	}
	s.inherited = nil
	toNull(0, 1)
}

// toNull makes descriptors refer to /dev/null, or to nothing where that is missing (chroot).
func toNull(fds ...int) {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		null, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return
	}
	defer unix.Close(null)
	for _, fd := range fds {
		unix.Dup3(null, fd, 0)
	}
}

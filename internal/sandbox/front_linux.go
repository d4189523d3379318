//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the re-executed processes, in argv[0] and in ps.
const (
	supervisorName = "rnic-supervisor"
	helperName     = "rnic-exec"
)

// selfExe is this binary, whatever has happened to its file.
const selfExe = "/proc/self/exe"

// Run starts opts.Command under the filter and returns when it has ended: its exit code, or 128
// plus the number of the signal that killed it. An error is one line for the user, without a
// prefix; the exit code is then one of the Exit constants.
//
// Processes that the program leaves behind keep their device: the supervisor stays, in the
// background, until the last of them has ended.
//
// Run takes the process over: it passes signals on, becomes the reaper of orphans and, if the
// supervisor dies, kills every child of the process. Call it from main, once, with no child
// processes of your own.
func Run(opts Options) (exitCode int, err error) {
	code, err := run(opts)
	if err != nil {
		f := failureOf(err)
		return f.code, err
	}
	return code, nil
}

func run(opts Options) (int, error) {
	if len(opts.Command) == 0 {
		return 0, &failure{ExitNotFound, ErrNotFound, "no command given"}
	}
	if len(opts.Config) > maxMessage-16 {
		return 0, fmt.Errorf("configuration of %d bytes for the supervisor: at most %d", len(opts.Config), maxMessage-16)
	}
	program, err := lookPath(opts.Command[0])
	if err != nil {
		return 0, err
	}
	if err := becomeSubreaper(); err != nil {
		return 0, fmt.Errorf("become the reaper of the program's orphans: %w", err)
	}
	removeStale(os.TempDir(), time.Now())
	dir, err := os.MkdirTemp("", treePrefix)
	if err != nil {
		return 0, fmt.Errorf("directory for the emulated tree: %w", err)
	}
	hold(dir)
	fr := &front{dir: dir, listener: -1, signals: catch()}
	defer signal.Stop(fr.signals)
	if err := fr.start(opts, program); err != nil {
		os.RemoveAll(dir)
		return 0, err
	}
	return fr.wait()
}

// front is the process that the user started, while the program runs.
type front struct {
	dir        string
	sock       int
	supervisor int // pid
	listener   int // a copy: the program's calls wait, rather than fail, while the supervisor's death is dealt with
	signals    chan os.Signal
}

func (fr *front) start(opts Options, program string) error {
	if err := os.Chmod(fr.dir, 0o755); err != nil {
		return err
	}
	ours, theirs, err := pair()
	if err != nil {
		return err
	}
	fr.sock = ours
	defer unix.Close(theirs)
	fr.supervisor, err = spawn(supervisorName, theirs, append([]string{fr.dir, program}, opts.Command...),
		// A group of its own: what ends this run's group does not end a NIC that other runs use.
		&syscall.SysProcAttr{Setpgid: true})
	if err != nil {
		unix.Close(ours)
		return fmt.Errorf("start the supervisor: %w", err)
	}
	nice := binary.LittleEndian.AppendUint32(nil, uint32(int32(opts.Nice)))
	tell(fr.sock, msgConfig, append(nice, opts.Config...), -1) // if it fails, so does wait
	return nil
}

// spawn starts this binary again under another name, with a control socket whose number is its
// first argument. All descriptors that we inherited are inherited on, at their numbers.
func spawn(name string, sock int, args []string, attr *syscall.SysProcAttr) (pid int, err error) {
	if _, err := unix.FcntlInt(uintptr(sock), unix.F_SETFD, 0); err != nil {
		return 0, err
	}
	argv := append([]string{name, strconv.Itoa(sock)}, args...)
	return syscall.ForkExec(selfExe, argv, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   attr,
	})
}

// wait passes signals on until the supervisor reports or dies.
func (fr *front) wait() (int, error) {
	messages := make(chan message)
	go func() {
		for {
			m, err := hear(fr.sock)
			if err != nil {
				close(messages)
				return
			}
			messages <- m
		}
	}()
	for {
		select {
		case s := <-fr.signals:
			sig, had := s.(syscall.Signal), byte(0)
			if fromTerminal(sig) {
				had = 1
			}
			if had == 0 || fr.listener < 0 { // before it is there the program has had nothing
				tell(fr.sock, msgSignal, []byte{byte(sig), had}, -1)
			}
		case m, ok := <-messages:
			if !ok {
				return 0, fr.supervisorDied()
			}
			switch m.kind {
			case msgStarted:
				fr.listener = m.fd
			case msgStopped:
				// Our parent shell waits for us: stop as the program did. SIGCONT resumes us and is
				// passed on.
				unix.Kill(os.Getpid(), unix.SIGSTOP)
			case msgExited, msgLeft:
				tell(fr.sock, msgBye, nil, -1)
				if m.kind == msgExited {
					reap(fr.supervisor)
				}
				return int(binary.LittleEndian.Uint32(m.body)), nil
			case msgFailed, msgFailedLeft:
				tell(fr.sock, msgBye, nil, -1)
				if m.kind == msgFailed {
					reap(fr.supervisor)
				}
				return 0, decodeFailure(m.body)
			}
		}
	}
}

// supervisorDied kills what it served: without it every call on a file would fail with ENOSYS, and
// a program that polls a completion queue would do so for ever.
func (fr *front) supervisorDied() error {
	status := reap(fr.supervisor)
	killDescendants()
	if fr.listener >= 0 {
		unix.Close(fr.listener)
	}
	os.RemoveAll(fr.dir)
	how := fmt.Sprintf("exit code %d", status.ExitStatus())
	if status.Signaled() {
		how = "killed by " + unix.SignalName(status.Signal())
	}
	return &failure{ExitFailure, ErrSupervisorDied,
		fmt.Sprintf("the supervisor, process %d, has died (%s): the program and all its descendants were killed", fr.supervisor, how)}
}

func reap(pid int) (status syscall.WaitStatus) {
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}

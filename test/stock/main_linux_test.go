package stock

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inNamespace makes the test binary set up the network namespace that it was started in, become an
// ordinary user with little lockable memory, and then the command in its arguments.
const inNamespace = "STOCK_TEST_IN_NAMESPACE"

// Of the ordinary user: the usual limit of lockable memory, and any uid that is not root's.
const (
	ordinaryUser = 1000
	lockable     = 64 << 10
)

var binary struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		fmt.Fprintf(os.Stderr, "setting up the test's namespace: %v\n", become())
		os.Exit(1)
	}
	code := m.Run()
	if binary.dir != "" {
		os.RemoveAll(binary.dir)
	}
	os.Exit(code)
}

func become() error {
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: lockable, Max: lockable}); err != nil {
		return err
	}
	if os.Getenv(inNamespace) == "drop" {
		if err := syscall.Setgroups(nil); err != nil {
			return err
		}
		if err := syscall.Setgid(ordinaryUser); err != nil {
			return err
		}
		if err := syscall.Setuid(ordinaryUser); err != nil {
			return err
		}
	}
	os.Unsetenv(inNamespace)
	path, err := exec.LookPath(os.Args[1])
	if err != nil {
		return err
	}
	return syscall.Exec(path, os.Args[1:], os.Environ())
}

// loopbackUp sets interface lo up (SIOCSIFFLAGS): a new namespace has it down.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	var req [40]byte // struct ifreq
	copy(req[:], "lo")
	req[16] = unix.IFF_UP | unix.IFF_RUNNING
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(&req[0]))); e != 0 {
		return e
	}
	return nil
}

// rnic builds the binary once, where an ordinary user can execute it.
func rnic(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.dir, binary.err = os.MkdirTemp("", "rnic-stock-"); binary.err != nil {
			return
		}
		if binary.err = os.Chmod(binary.dir, 0o755); binary.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", filepath.Join(binary.dir, "rnic"), "rnic/cmd/rnic").CombinedOutput()
		if err != nil {
			binary.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return filepath.Join(binary.dir, "rnic")
}

// user is who runs a program.
type user int

const (
	ordinary user = iota // without any privilege
	fakeRoot             // the same, but root in a user namespace: for programs that look at their user id
)

// run runs rnic run with arguments, as an ordinary user in a network namespace of its own that has only
// lo, and returns what was written and the exit code.
func run(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	return runAs(t, ordinary, args...)
}

func runAs(t *testing.T, who user, args ...string) (out string, code int) {
	t.Helper()
	return command(t, who, append([]string{rnic(t), "run"}, args...)...)
}

// uncalibrated is what perftest says when it was interrupted too often while it compared the processor's cycle
// counter with the clock: then it has no figures, and fails.
const uncalibrated = "Correlation coefficient"

// command is run for any command: argv[0] is its path, or its name in PATH.
func command(t *testing.T, who user, argv ...string) (out string, code int) {
	t.Helper()
	out, code = once(t, who, argv...)
	for range 4 {
		if !strings.Contains(out, uncalibrated) {
			break
		}
		t.Log("perftest could not calibrate its clock on this busy machine: once more")
		out, code = once(t, who, argv...)
	}
	return out, code
}

func once(t *testing.T, who user, argv ...string) (out string, code int) {
	t.Helper()
	rnic(t) // makes the directory for what an ordinary user executes
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	cmd := exec.Command(self, argv...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &b, &b, "/"
	cmd.WaitDelay = 10 * time.Second // for what is left with our pipe
	mode := "drop"
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if os.Getuid() != 0 {
		mode = "keep"
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	} else if err := letIn(filepath.Dir(self)); err != nil {
		t.Fatal(err)
	} else if who == fakeRoot {
		cmd.Args = slices.Insert(cmd.Args, 1, "unshare", "--map-root-user")
	}
	cmd.SysProcAttr = attr
	cmd.Env = append(os.Environ(), inNamespace+"="+mode, "HOME=/tmp")
	if err := cmd.Start(); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	const limit = 2 * time.Minute
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("still running after %v\n%s", limit, b.String())
	}
	if strings.HasPrefix(b.String(), "unshare: unshare failed") { // below chroot(2) nobody may make a user namespace, for one
		t.Skipf("the namespaces of this test cannot be made here: %s", b.String())
	}
	return b.String(), cmd.ProcessState.ExitCode()
}

// letIn lets everybody into a directory. Other rights stay: it may be /tmp.
func letIn(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || info.Mode()&0o005 == 0o005 {
		return err
	}
	return os.Chmod(dir, info.Mode()|0o055)
}

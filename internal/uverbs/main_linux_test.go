package uverbs

import (
	"bytes"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var built struct {
	once      sync.Once
	dir, path string
	err       error
}

// inNamespace is the environment variable that makes the test binary set up the network namespace
// that it was started in, and become the command in its arguments.
const inNamespace = "UVERBS_TEST_IN_NAMESPACE"

func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" {
		becomeCommand()
	}
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

func becomeCommand() {
	err := loopbackUp()
	if err == nil {
		var path string
		if path, err = exec.LookPath(os.Args[1]); err == nil {
			os.Unsetenv(inNamespace)
			err = syscall.Exec(path, os.Args[1:], os.Environ())
		}
	}
	os.Stderr.WriteString("setting up the network namespace: " + err.Error() + "\n")
	os.Exit(1)
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

// isolated is a command in a network namespace of its own, which has lo; as an ordinary user by way of a
// user namespace.
func isolated(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	return cmd
}

// finish runs a command and returns what it wrote; the test fails if the command does.
func finish(t *testing.T, cmd *exec.Cmd, limit time.Duration) string {
	t.Helper()
	out, err := outcome(t, cmd, limit)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// outcome runs a command and returns what it wrote, and how it ended.
func outcome(t *testing.T, cmd *exec.Cmd, limit time.Duration) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		t.Fatalf("still running after %v\n%s", limit, out.String())
	}
	return out.String(), err
}

package device

import (
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// A process is seen to be stopped while it is, whatever its name holds; what is gone, or never told, is not.
func TestStoppedProcesses(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	defer func() { _, _ = c.Process.Kill(), c.Wait() }()
	is := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); processStopped(pid) != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("seen as stopped: %v", !want)
			}
		}
	}
	is(false)
	_ = c.Process.Signal(syscall.SIGSTOP)
	is(true)
	_ = c.Process.Signal(syscall.SIGCONT)
	is(false)
	for _, pid := range []int{0, -1, 1 << 30} {
		if processStopped(pid) {
			t.Errorf("process %d is seen as stopped", pid)
		}
	}
}

//go:build linux && (amd64 || arm64)

package sandbox

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whoever asks how the program's end is judged, while that is being done or later, hears the same.
func TestEndIsJudgedOnce(t *testing.T) {
	s, begun, times := &Supervisor{}, make(chan struct{}), 0
	s.OnEnd(func(int) error {
		times++
		close(begun)
		time.Sleep(10 * time.Millisecond)
		return ErrJudged
	})
	first := make(chan error, 1)
	go func() { first <- s.ended() }()
	<-begun
	if second, first := s.ended(), <-first; first != ErrJudged || second != ErrJudged || times != 1 {
		t.Errorf("%v, then %v; judged %d times", first, second, times)
	}
}

// A run that waits for something before its program is there ends by a signal as the program would: whether the
// terminal sends it to the whole group, somebody to the front, or the front is killed. The program does not start later.
func TestEndedBeforeTheStart(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(r *testRun, master io.Writer)
		code int
	}{
		"Ctrl-C":  {func(_ *testRun, master io.Writer) { io.WriteString(master, "\x03") }, 130},
		"SIGTERM": {func(r *testRun, _ io.Writer) { r.Process.Signal(unix.SIGTERM) }, 143},
		"SIGKILL": {func(r *testRun, _ io.Writer) { r.Process.Kill() }, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fifo, started := filepath.Join(t.TempDir(), "fifo"), filepath.Join(t.TempDir(), "started")
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			master, slave := pty(t)
			r := launch(t, "touch", started)
			r.Args[2] = "wait " + fifo
			r.Stdin, r.Stdout, r.Stderr = slave, slave, slave
			r.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			if err := r.Start(); err != nil {
				t.Fatal(err)
			}
			slave.Close()
			supervisor, err := os.OpenFile(fifo, os.O_WRONLY, 0) // returns when it reads
			if err != nil {
				t.Fatal(err)
			}
			c.end(r, master)
			late := time.AfterFunc(20*time.Second, func() { r.Process.Kill() })
			code := r.code(t)
			if !late.Stop() || code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			supervisor.Close()
			await(t, "the end of the supervisor", func() bool {
				left, _ := filepath.Glob(r.tmp + "/*")
				return len(left) == 0
			})
			if _, err := os.Stat(started); err == nil {
				t.Error("the program was started all the same")
			}
		})
	}
}

// The supervisor is in no foreground group: a message of it must not stop it on a terminal with "stty tostop",
// and the program has the signal's default action all the same.
func TestMessageToATerminalThatStopsWriters(t *testing.T) {
	master, slave := pty(t)
	tio, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Lflag |= unix.TOSTOP
	if err := unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, master)
	r := launch(t, "client", "panic")
	r.Stdin, r.Stderr = slave, slave
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	late := time.AfterFunc(20*time.Second, func() { r.Process.Kill() })
	if code := r.code(t); !late.Stop() || code != 0 {
		t.Errorf("exit code %d", code)
	}
	out, _ := must(t, "grep", "SigIgn", "/proc/self/status")
	mask, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(out, "SigIgn:")), 16, 64)
	if err != nil || mask>>(unix.SIGTTOU-1)&1 != 0 {
		t.Errorf("the program ignores SIGTTOU: %s", out)
	}
}

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// process is a server on our side.
type process struct {
	cmd   *exec.Cmd
	out   output
	ended chan struct{}
	err   error // when ended is closed
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func startProcess(cmd *exec.Cmd) *process {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if p.err = cmd.Start(); p.err != nil {
		close(p.ended)
		return p
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p
}

// stop waits for the end of the process, for so long, and then makes it end.
func (p *process) stop(patience time.Duration) error {
	select {
	case <-p.ended:
		return p.err
	case <-time.After(patience):
	}
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
	}
	return fmt.Errorf("it did not end when the client had (%v)", p.err)
}

// listenLine is what rnic run -v tells of a listener.
var listenLine = regexp.MustCompile(`LISTEN\(id=\d+, backlog=\d+\) = 0\b`)

// listening waits until the process listens, on a TCP port or for connections of the communication manager, of which
// rnic run -v tells.
func (p *process) listening(ctx context.Context, port int, cm bool) error {
	// Local address, remote address, state 0A: listening (proc(5), /proc/net/tcp).
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	for {
		if cm && listenLine.MatchString(p.out.String()) {
			return nil
		}
		for _, table := range []string{"tcp", "tcp6"} {
			if p.cmd.Process == nil {
				break
			}
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, table))
			if err == nil && !cm && row.Match(data) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errNotListening
		case <-p.ended:
			return fmt.Errorf("%w: it has ended: %v", errNotListening, p.err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"time"
)

// plan is what one process needs to run a server and its client.
type plan struct {
	Server, Client []string
	Port           int
	ServerStays    bool
	Until          string
	Again          string
	AgainAnyway    bool
	After          time.Duration
	Timeout        time.Duration
}

// startsPlan makes this binary carry out a plan, the argument after it: so that server and client can be in one
// rnic run.
const startsPlan = "carry-out"

// carryOut is the process that startsPlan asks for. It writes the outcome to standard output.
func carryOut(arg string) error {
	var p plan
	if err := json.Unmarshal([]byte(arg), &p); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(p.run(context.Background()))
}

// run starts the server, and the client once the server listens, and waits for both.
func (p *plan) run(ctx context.Context) *outcome {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	o := &outcome{}
	if len(p.Client) == 0 {
		single := start(ctx, p.Server)
		o.Problem = p.await(ctx, single, single)
		o.Client = single.end()
		return o
	}
	server := start(ctx, p.Server)
	if err := listening(ctx, server, p.Port); err != nil {
		server.kill()
		o.Server, o.Problem = server.end(), err.Error()
		return o
	}
	time.Sleep(p.After)
	client := start(ctx, p.Client)
	o.Problem = p.await(ctx, client, client, server)
	for begin := time.Now(); o.Problem == "" && p.early(client) && server.running() && time.Since(begin) < readiness; {
		time.Sleep(100 * time.Millisecond)
		client = start(ctx, p.Client)
		o.Problem = p.await(ctx, client, client, server)
	}
	if p.ServerStays && o.Problem == "" {
		server.signal(syscall.SIGTERM)
	}
	// A server whose client failed may wait for ever.
	patience := 10 * time.Second
	if client.code() != 0 {
		patience = 300 * time.Millisecond
	}
	select {
	case <-server.ended:
	case <-time.After(patience):
		if o.Problem == "" && client.code() == 0 && !p.ServerStays {
			o.Problem = "the server did not end when the client had"
		}
		server.kill()
	}
	o.Client, o.Server = client.end(), server.end()
	if p.ServerStays && o.Problem == "" {
		o.Server.Code = 0
	}
	return o
}

// readiness is how long a server may take until it listens.
const readiness = 5 * time.Second

// early tells whether a client that has ended was there before its server.
func (p *plan) early(client *process) bool {
	return p.Again != "" && (client.code() != 0 || p.AgainAnyway) && regexp.MustCompile(p.Again).MatchString(client.out.String())
}

// await waits until the first process has ended, or has written what ends it, and returns what went wrong.
func (p *plan) await(ctx context.Context, first *process, all ...*process) string {
	var until *regexp.Regexp
	if p.Until != "" {
		until = regexp.MustCompile(p.Until)
	}
	for {
		select {
		case <-first.ended:
			return ""
		case <-ctx.Done():
			for _, a := range all {
				a.kill()
			}
			return fmt.Sprintf("not ended after %v", p.Timeout)
		case <-time.After(50 * time.Millisecond):
			if until != nil && until.MatchString(first.out.String()) {
				for _, a := range all {
					a.signal(syscall.SIGTERM)
				}
				<-first.ended
				first.forgiven = true
				return ""
			}
		}
	}
}

// process is a program in a process group of its own.
type process struct {
	cmd      *exec.Cmd
	out      output
	ended    chan struct{}
	err      error
	forgiven bool // it was ended on purpose
}

// output collects what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// maxOutput is how much of an output is kept: programs may go on to write for ever.
const maxOutput = 1 << 20

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.buf.Len() < maxOutput {
		o.buf.Write(b)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func start(ctx context.Context, args []string) *process {
	p := &process{cmd: exec.CommandContext(ctx, args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	p.cmd.WaitDelay = 3 * time.Second
	if p.err = p.cmd.Start(); p.err != nil {
		fmt.Fprintln(&p.out, p.err)
		close(p.ended)
		return p
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p
}

func (p *process) signal(s syscall.Signal) {
	if p.cmd.Process != nil {
		syscall.Kill(-p.cmd.Process.Pid, s)
	}
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.ended
}

// code is the exit code of a process that has ended.
func (p *process) code() int {
	var exit *exec.ExitError
	<-p.ended
	switch {
	case p.err == nil || p.forgiven:
		return 0
	case !errors.As(p.err, &exit):
		return 127
	case exit.ExitCode() < 0:
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	}
	return exit.ExitCode()
}

func (p *process) end() said {
	return said{Out: p.out.String(), Code: p.code()}
}

// listening waits until somebody listens on a TCP port of the process's network namespace. It does not connect:
// the server would take that for its client.
func listening(ctx context.Context, server *process, port int) error {
	if port == 0 {
		return nil
	}
	// Local address, remote address, state 0A: listening (proc(5), /proc/net/tcp).
	row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	for {
		for _, table := range []string{"tcp", "tcp6"} {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", server.cmd.Process.Pid, table))
			if err == nil && row.Match(data) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("the server does not listen")
		case <-server.ended:
			return errors.New("the server ended before it listened: " + tail(server.out.String()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

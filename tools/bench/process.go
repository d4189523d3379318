package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// command returns a command whose children, too, end with the context.
func command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// output runs a command and returns its standard output.
func output(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := command(ctx, env, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s%s", strings.Join(args, " "), errors.Join(ctx.Err(), err), out, stderr.Bytes())
	}
	return string(out), nil
}

// pair runs a server and, once it listens, its client, and returns the
// client's standard output. The server is ended if it does not by itself.
func pair(ctx context.Context, env []string, commands func(port string) (server, client []string)) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	serverArgs, clientArgs := commands(fmt.Sprint(port))
	serverCtx, stop := context.WithCancel(ctx)
	defer stop()
	server := command(serverCtx, env, serverArgs...)
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	if err := server.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	go func() {
		server.Wait()
		close(ended)
	}()
	if err = waitListening(ctx, port, ended); err == nil {
		var out string
		if out, err = output(ctx, env, clientArgs...); err == nil {
			select {
			case <-ended:
			case <-time.After(time.Second):
			}
			stop()
			<-ended
			return out, nil
		}
	}
	stop()
	<-ended
	return "", fmt.Errorf("%w; the server said: %s", err, said.Bytes())
}

// freePort returns a TCP port that was free a moment ago.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitListening waits until somebody listens on the port. It does not connect:
// the server would take that for its client.
func waitListening(ctx context.Context, port int, ended <-chan struct{}) error {
	// Local address, remote address, state 0A: listening (proc(5), /proc/net/tcp).
	listening := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	for {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if data, err := os.ReadFile(table); err == nil && listening.Match(data) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the server to listen: %w", ctx.Err())
		case <-ended:
			return errors.New("the server ended before it listened")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rnic/internal/testnet"
)

// program is a run of rnic.
type program struct {
	cmd         *exec.Cmd
	out, errOut bytes.Buffer
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command("/proc/self/exe", args...)}
	p.cmd.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.errOut
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	return p
}

// end waits for the program and returns its exit code.
func (p *program) end(t *testing.T) int {
	t.Helper()
	limit := time.AfterFunc(60*time.Second, func() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) })
	defer limit.Stop()
	var exit *exec.ExitError
	switch err := p.cmd.Wait(); {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		t.Fatal(err)
		return -1
	}
}

// run runs rnic to its end and wants this exit code.
func run(t *testing.T, code int, args ...string) *program {
	t.Helper()
	p := start(t, args...)
	if c := p.end(t); c != code {
		t.Fatalf("rnic %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), c, code, &p.out, &p.errOut)
	}
	return p
}

// loopback is a command line of a measurement between two NICs.
func loopback(operation string, options ...string) []string {
	return slices.Concat([]string{"perf", operation}, two(), options)
}

// two are options for two NICs on addresses that only this process uses.
func two() []string { return []string{"--loopback", "--addr", address(1), "--addr", address(2)} }

func address(n int) string { return testnet.Loopback(212, byte(n)).String() }

func TestPerfTable(t *testing.T) {
	p := run(t, 0, loopback("write-bw", "-n", "50", "-q", "2", "--check")...)
	lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("output:\n%s", &p.out)
	}
	head, row := strings.Fields(lines[0]), strings.Fields(lines[1])
	if len(head) != len(row) {
		t.Fatalf("%d titles, %d columns:\n%s", len(head), len(row), &p.out)
	}
	got := map[string]string{}
	for i := range head {
		got[head[i]] = row[i]
	}
	for title, want := range map[string]string{"operation": "write-bw", "bytes": "65536", "iterations": "100", "qps": "2", "mtu": "4096", "errors": "0"} {
		if got[title] != want {
			t.Errorf("%s is %q, want %q:\n%s", title, got[title], want, &p.out)
		}
	}
}

func TestPerfJSON(t *testing.T) {
	p := run(t, 0, loopback("send-lat", "-n", "50", "--json", "--check")...)
	var r struct {
		Operation string `json:"operation"`
		Latency   *struct {
			P50 int64 `json:"p50"`
		} `json:"latency_ns"`
	}
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil || r.Operation != "send-lat" || r.Latency == nil || r.Latency.P50 <= 0 {
		t.Errorf("%v, %+v:\n%s", err, r, &p.out)
	}
}

// Client and server in two processes, every operation, through 1% loss.
func TestPerfClientAndServer(t *testing.T) {
	for _, op := range []string{"write-bw", "read-bw", "send-bw", "atomic-bw", "write-lat", "read-lat", "send-lat", "atomic-lat"} {
		t.Run(op, func(t *testing.T) {
			port := freePort(t)
			server := start(t, "perf", op, "--addr", address(1), "-p", port, "--fault", "drop=1%,seed=3")
			waitListening(t, port)
			p := run(t, 0, "perf", op, address(1), "--addr", address(2), "-p", port, "-n", "100", "--check", "--json", "--fault", "drop=1%,seed=4")
			var r map[string]any
			if err := json.Unmarshal(p.out.Bytes(), &r); err != nil || r["operation"] != op || r["errors"] != 0. {
				t.Errorf("%v:\n%s", err, &p.out)
			}
			if c := server.end(t); c != 0 {
				t.Errorf("server: exit code %d\n%s%s", c, &server.out, &server.errOut)
			}
		})
	}
}

// The modes that both sides have to agree on, between two processes.
func TestPerfModesOfClientAndServer(t *testing.T) {
	for _, c := range [][]string{
		{"write-bw", "--bidirectional", "--check"},
		{"read-bw", "--bidirectional", "--check", "--rate", "20000/s"},
		{"send-bw", "--bidirectional", "--check", "--srq", "-q", "2", "-s", "5000", "--fault", "drop=1%,seed=4"},
		{"send-bw", "--bidirectional", "-c", "uc", "-s", "3000"},
		{"send-bw", "--bidirectional", "-c", "ud", "--srq"},
		{"send-bw", "-c", "ud"},
		{"send-lat", "-c", "ud", "--histogram"},
		{"send-lat", "--srq", "--check"},
		{"write-bw", "--cm", "--check", "-q", "2", "--bidirectional"},
		{"read-bw", "--cm", "--check"},
		{"send-bw", "--cm", "--check", "--srq", "-q", "2"},
		{"send-lat", "--cm", "--check"},
		{"write-lat", "--cm"},
	} {
		t.Run(strings.Join(c, " "), func(t *testing.T) {
			port := freePort(t)
			server := start(t, "perf", c[0], "--addr", address(1), "-p", port)
			waitListening(t, port)
			args := slices.Concat([]string{"perf", c[0], address(1), "--addr", address(2), "-p", port, "-n", "100", "--json"}, c[1:])
			p := run(t, 0, args...)
			want := 100.
			if slices.Contains(c, "-q") {
				want *= 2
			}
			if slices.Contains(c, "--bidirectional") {
				want *= 2
			}
			var r map[string]any
			if err := json.Unmarshal(p.out.Bytes(), &r); err != nil || r["iterations"] != want || r["errors"] != 0. {
				t.Errorf("%v, want %v iterations:\n%s", err, want, &p.out)
			}
			if _, has := r["latency_histogram_ns"]; has != slices.Contains(c, "--histogram") {
				t.Errorf("histogram:\n%s", &p.out)
			}
			if c := server.end(t); c != 0 {
				t.Errorf("server: exit code %d\n%s%s", c, &server.out, &server.errOut)
			}
		})
	}
}

// --progress writes lines to standard error and leaves standard output alone; without it, what is not a terminal gets none.
func TestPerfProgress(t *testing.T) {
	p := run(t, 0, loopback("write-bw", "--progress", "--json", "-D", "2500ms")...)
	if !regexp.MustCompile(`^write-bw, 65536 bytes: \d+ s, \d+ messages, \d+ messages/s, [0-9.]+ GB/s\n`).Match(p.errOut.Bytes()) || !json.Valid(p.out.Bytes()) {
		t.Errorf("stdout %q\nstderr %q", &p.out, &p.errOut)
	}
	p = run(t, 0, loopback("write-bw", "-D", "1500ms")...)
	if p.errOut.Len() > 0 {
		t.Errorf("without --progress: %q", &p.errOut)
	}
}

// Progress never comes between the JSON objects of one stream.
func TestPerfProgressAmongJSON(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", loopback("write-bw", "--progress", "--json", "-n", "10")...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput() // one pipe for both
	if cmd.ProcessState.ExitCode() != 2 || !strings.HasPrefix(string(out), "rnic: bad option: --progress") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("%v: %q", err, out)
	}
}

func TestPerfServerOfAnotherOperation(t *testing.T) {
	port := freePort(t)
	server := start(t, "perf", "read-bw", "--addr", address(1), "-p", port)
	waitListening(t, port)
	p := run(t, 1, "perf", "write-bw", address(1), "--addr", address(2), "-p", port)
	if c := server.end(t); c != 1 {
		t.Errorf("server: exit code %d", c)
	}
	if e := p.errOut.String(); !strings.Contains(e, "read-bw") || strings.Count(e, "\n") != 1 {
		t.Errorf("the client says %q", e)
	}
	if e := server.errOut.String(); !strings.Contains(e, "write-bw") || strings.Count(e, "\n") != 1 {
		t.Errorf("the server says %q", e)
	}
}

// What the server fails of, the client says, at once and not when it has waited for messages in vain; and a server whose client goes while it
// waits for its connections ends.
func TestPerfOneSideFails(t *testing.T) {
	for _, op := range []string{"write-lat", "send-lat"} {
		port := freePort(t)
		server := start(t, "perf", op, "--addr", address(1), "-p", port, "--fault", "nak=100%:remote-access,skip=100")
		waitListening(t, port)
		p := run(t, 1, "perf", op, address(1), "--addr", address(2), "-p", port, "-D", "1h")
		if c := server.end(t); c != 1 {
			t.Errorf("%s: server: exit code %d", op, c)
		}
		if e := p.errOut.String(); !strings.Contains(e, "remote access error") || strings.Count(e, "\n") != 1 {
			t.Errorf("%s: the client says %q", op, e)
		}
	}
	port := freePort(t)
	server := start(t, "perf", "write-bw", "--addr", address(1), "-p", port)
	waitListening(t, port)
	c, err := net.Dial("tcp", net.JoinHostPort(address(1), port))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(c, `{"version":4,"operation":"write-bw","transport":"RC","size":64,"queue_pairs":1,"depth":1,"cm":true}`)
	if _, err := c.Read(make([]byte, 1)); err != nil { // the answer: it listens
		t.Error(err)
	}
	c.Close()
	if c := server.end(t); c != 1 || !strings.Contains(server.errOut.String(), "the client is gone") {
		t.Errorf("server without client: exit code %d, %q", c, &server.errOut)
	}
}

func TestPerfWithoutServer(t *testing.T) {
	p := run(t, 1, "perf", "write-bw", address(1), "--addr", address(2), "-p", freePort(t))
	if e := p.errOut.String(); !strings.Contains(e, "is `rnic perf write-bw` running there?") || strings.Count(e, "\n") != 1 {
		t.Errorf("stderr: %q", e)
	}
}

// waitListening waits until a server listens on a TCP port: by the kernel's table, as a connection
// would be taken for the client's.
func waitListening(t *testing.T, port string) {
	t.Helper()
	n, _ := strconv.Atoi(port)
	listening := regexp.MustCompile(fmt.Sprintf(`:%04X [0-9A-F]+:0000 0A `, n))
	for range 1000 {
		v4, _ := os.ReadFile("/proc/net/tcp")
		v6, _ := os.ReadFile("/proc/net/tcp6")
		if listening.Match(v4) || listening.Match(v6) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// The target buffer is in a child process; one page of one of four queue pairs' buffers goes away in
// mid-run: remote access error (InfiniBand vol. 1, 9.7.5.2), the rest of that queue pair flushed.
func TestPerfMemoryOfAnotherProcess(t *testing.T) {
	p := run(t, 0, loopback("write-bw", "--memory=process", "-s", "16384", "-n", "300", "-q", "4")...)
	out := p.out.String()
	for _, segments := range []string{"1", "8", "32"} {
		if !regexp.MustCompile(`(?m)^ *` + segments + ` segments a call: +[0-9.]+ GB/s .*errors 0\)$`).MatchString(out) {
			t.Errorf("no figure for %s segments a call:\n%s", segments, out)
		}
	}
	m := regexp.MustCompile(`after (\d+) good messages the first that touched it completed with "remote access error", ` +
		`(\d+) behind it were flushed; (\d+) messages of the other 3 queue pairs completed; (\d+) buffers verified`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no report of the unmapped page:\n%s", out)
	}
	for i, what := range []string{"good messages", "flushed", "messages of the others", "buffers verified"} {
		if n, _ := strconv.Atoi(m[i+1]); n == 0 {
			t.Errorf("%s: none\n%s", what, out)
		}
	}
}

func TestPerfCapture(t *testing.T) {
	name := filepath.Join(t.TempDir(), "c.pcapng")
	run(t, 0, loopback("write-bw", "-n", "20", "-s", "4096", "--capture", name)...)
	b, err := os.ReadFile(name)
	if err != nil || len(b) < 20*4096 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("no tshark here: the file is not read back")
		return
	}
	out, err := exec.Command(tshark, "-r", name, "-Y", "infiniband.bth.opcode == 10", "-T", "fields", "-e", "infiniband.reth.dmalen").Output()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "4096"); n < 20 {
		t.Errorf("tshark finds %d RDMA WRITEs, 20 and more were sent", n)
	}
}

// A capture that could not be written is a failure, although the figures are good.
func TestPerfCaptureFails(t *testing.T) {
	p := run(t, 1, loopback("write-bw", "-n", "20", "--capture", "/dev/full")...)
	if e := p.errOut.String(); !strings.Contains(e, "no space left") || strings.Count(e, "\n") != 1 || p.out.Len() == 0 {
		t.Errorf("stdout %q\nstderr %q", &p.out, &p.errOut)
	}
}

// One clear line, and exit code 2.
func TestPerfBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"fly-bw", "--loopback"},
		{"write-bw", "--loopback", "-s", "-5"},
		{"write-bw", "--loopback", "-s", "many"},
		{"write-bw", "--loopback", "--no-such-option"},
		{"write-bw", "--loopback", "-m", "1000"},
		{"write-bw", "--loopback", "-q", "0"},
		{"write-bw", "--loopback", "-n", "-1"},
		{"write-bw", "--loopback", "-D", "1 fortnight"},
		{"write-bw", "--loopback", "-D", "-1s"},
		{"write-bw", "--loopback", "-D", "1s", "-n", "5"},
		{"write-bw", "--loopback", "-n", "0"},
		{"write-bw", "-p", "0"},
		{"write-bw", "--loopback", "--units", "0"},
		{"write-bw", "--loopback", "--inline=-5"},
		{"write-bw", "--loopback", "--gid-index=-5"},
		{"write-bw", "--loopback", "-g", "0"},
		{"write-bw", "--loopback", "-t", "0"},
		{"write-bw", "--loopback", "-a", "-s", "8"},
		{"write-bw", "--loopback", "-4", "-6"},
		{"write-bw", "--loopback", "-I", "513"},
		{"write-bw", "--loopback", "-4", "-6"},
		{"write-bw", "--loopback", "--fault", "drop=101%"},
		{"write-bw", "--loopback", "--fault", "lose=1%"},
		{"write-bw", "--loopback", "--addr", "nowhere"},
		{"write-bw", "--loopback", "--addr", "127.0.0.9"},
		{"write-bw", "--loopback", "--interface", "lo"},
		{"write-bw", "--interface", "nosuch0"},
		{"write-bw", "--addr", "192.0.2.99"},
		{"write-bw", "--memory=nowhere", "--loopback"},
		{"send-bw", "--memory=process", "--loopback"},
		{"write-bw", "--memory=process", "--loopback", "-s", "8"},
		{"write-bw", "-p", "65536"},
		{"write-bw", "--loopback", "--rate", "fast"},
		{"write-bw", "--loopback", "--rate", "100MB"},
		{"write-bw", "--loopback", "--rate", "0/s"},
		{"write-bw", "--loopback", "--rate", "-5/s"},
		{"write-lat", "--loopback", "--rate", "5/s"},
		{"write-lat", "--loopback", "--bidirectional"},
		{"atomic-bw", "--loopback", "--bidirectional"},
		{"write-bw", "--loopback", "--srq"},
		{"write-bw", "--loopback", "--histogram"},
		{"write-bw", "--loopback", "-c", "ud"},
		{"send-bw", "--loopback", "-c", "ud", "-s", "4097"},
		{"send-bw", "--loopback", "-c", "ud", "-m", "512", "-s", "1024"},
		{"write-bw", "server", "--loopback"},
		{"write-bw", "server", "more"},
		{"atomic-bw", "--loopback", "-s", "4"},
		{"write-lat", "--loopback", "-q", "2"},
		{"write-lat", "--loopback", "-t", "2"},
		{"read-lat", "--loopback", "-I", "8"},
		{"send-bw", "--loopback", "--multicast", "239.1.2.3"},
		{"send-bw", "--loopback", "-c", "ud", "--multicast", "127.0.0.1"},
		{"send-bw", "--loopback", "-c", "ud", "--multicast", "group"},
		{"send-bw", "--loopback", "-g", "2"},
		loopback("write-bw", "-x", "99")[1:],
	} {
		args = append([]string{"perf"}, args...)
		p := run(t, 2, args...)
		e := p.errOut.String()
		if !strings.HasPrefix(e, "rnic: ") || strings.Count(e, "\n") != 1 || len(e) < 12 || strings.Contains(e, "%!") || p.out.Len() > 0 {
			t.Errorf("rnic %s:\nstdout %q\nstderr %q", strings.Join(args, " "), &p.out, e)
		}
	}
}

func TestPerfInterrupted(t *testing.T) {
	p := start(t, loopback("write-bw", "-D", "1h")...)
	time.Sleep(200 * time.Millisecond)
	_ = p.cmd.Process.Signal(os.Interrupt)
	if c := p.end(t); c == 0 || c == 2 || strings.Contains(p.errOut.String(), "goroutine") {
		t.Errorf("exit code %d:\n%s%s", c, &p.out, &p.errOut)
	}
}

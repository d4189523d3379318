package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runner runs cases.
type runner struct {
	rnic, self string // binaries that an ordinary user can execute
	dir        string // where it works; who started it removes it
	scratch    string // for the programs to write to
	other      *other
	root       bool // the runner is root outside its namespaces too, so that the programs get another user
	kernel     *kernelPeer
}

// lockable is the usual limit of lockable memory: the NIC does without.
const lockable = 64 << 10

// ordinaryUser is who runs the programs when root runs the tests.
const ordinaryUser = "65534"

// newRunner makes a runner that works in a directory, in which it may mount things.
func newRunner(rnic, dir string) (*runner, error) {
	r := &runner{root: os.Getenv(asRoot) != "", dir: dir}
	r.rnic, r.self, r.scratch = filepath.Join(r.dir, "rnic"), filepath.Join(r.dir, "conformance"), filepath.Join(r.dir, "scratch")
	err := errors.Join(os.Chmod(r.dir, 0o755), copyBinary(rnic, r.rnic), copyBinary("/proc/self/exe", r.self), os.Mkdir(r.scratch, 0o777), os.Chmod(r.scratch, 0o1777),
		unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: lockable, Max: lockable}))
	if err != nil {
		return nil, err
	}
	if err = adoptOrphans(); err != nil {
		return nil, err
	}
	r.other, err = makeNetwork()
	return r, err
}

func (r *runner) close() {
	if r.other != nil {
		r.other.close()
	}
	if r.kernel != nil {
		r.kernel.close()
	}
}

func copyBinary(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// asOrdinary is what comes before a command so that an ordinary user runs it.
func (r *runner) asOrdinary() []string {
	if !r.root {
		return nil
	}
	return []string{"setpriv", "--reuid", ordinaryUser, "--regid", ordinaryUser, "--clear-groups"}
}

// expand fills in what is known only when a case runs.
func (r *runner) expand(args []string, address string) []string {
	replace := strings.NewReplacer(serverAddress, address, "@TMP", r.scratch, "@DIR", r.dir, "@CACHE", cacheDir())
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = replace.Replace(a)
	}
	return out
}

// rnicRun is the command that starts a program on the NIC.
func (r *runner) rnicRun(c *testCase, options []string, program ...string) []string {
	var args []string
	if c.wrap != nil {
		args = append(args, r.expand(c.wrap, "")...)
	} else {
		args = append(args, r.asOrdinary()...)
	}
	args = append(args, r.rnic, "run")
	args = append(args, options...)
	args = append(args, c.run...)
	return append(append(args, "--"), program...)
}

// run runs a case once.
func (r *runner) run(ctx context.Context, c *testCase) *outcome {
	before := children()
	defer func() { endOrphans(before) }()
	emptyDir(r.scratch)
	r.awaitQuiet(ctx)
	if err := makeFiles(r.scratch, c.files); err != nil {
		return &outcome{Problem: err.Error(), Case: c}
	}
	begin := time.Now()
	address := "127.0.0.1"
	if c.layout == twoNICs {
		address = addrHere
	}
	p := plan{Server: r.expand(c.server, address), Client: r.expand(c.client, address), Port: c.port, ServerStays: c.serverStays, Again: c.again, AgainAnyway: c.againAnyway, After: c.after, Until: c.until, Timeout: c.timeout}
	if c.env != nil {
		p.Server = slices.Concat([]string{"env"}, r.expand(c.env, address), p.Server)
		if len(p.Client) > 0 {
			p.Client = slices.Concat([]string{"env"}, r.expand(c.env, address), p.Client)
		}
	}
	if c.meanwhile != "" {
		cmd := exec.Command("sh", "-c", c.meanwhile)
		cmd.Start()
		defer cmd.Wait()
	}
	var o *outcome
	if c.do != nil {
		o = c.do(ctx, r, c)
		o.Seconds, o.Case, o.scratch = time.Since(begin).Seconds(), c, r.scratch
		return o
	}
	switch c.layout {
	case oneNIC:
		o = r.inOneRun(ctx, c, &p)
	case alone:
		p.Server = r.rnicRun(c, nil, p.Server...)
		o = p.run(ctx)
	case joined:
		p.Server, p.Client = r.rnicRun(c, nil, p.Server...), r.rnicRun(c, nil, p.Client...)
		o = p.run(ctx)
	case twoNICs:
		p.Server = r.rnicRun(c, []string{"--interface", vethHere}, p.Server...)
		p.Client = append([]string{"nsenter", "--net=" + r.other.path}, r.rnicRun(c, []string{"--interface", vethThere}, p.Client...)...)
		o = p.run(ctx)
	}
	o.Seconds, o.Case, o.scratch = time.Since(begin).Seconds(), c, r.scratch
	return o
}

// awaitQuiet waits, for a few seconds at most, until no NIC of an earlier case holds the port of RoCEv2 (UDP 4791).
func (r *runner) awaitQuiet(ctx context.Context) {
	for range 100 {
		held := false
		for _, pid := range []int{os.Getpid(), r.other.holder.Process.Pid} {
			for _, table := range []string{"udp", "udp6"} {
				data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
				held = held || err == nil && bytes.Contains(data, []byte(":12B7 "))
			}
		}
		if !held || ctx.Err() != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// inOneRun runs server and client in one rnic run.
func (r *runner) inOneRun(ctx context.Context, c *testCase, p *plan) *outcome {
	arg, err := json.Marshal(p)
	if err != nil {
		return &outcome{Problem: err.Error()}
	}
	args := r.rnicRun(c, nil, r.self, startsPlan, string(arg))
	ctx, cancel := context.WithTimeout(ctx, p.Timeout+20*time.Second)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.WaitDelay = &out, &said, r.scratch, 5*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	o := &outcome{}
	if jsonErr := json.Unmarshal(out.Bytes(), o); jsonErr != nil || err != nil {
		o.Problem = fmt.Sprintf("rnic run ended with %v: %s", err, tail(said.String()+out.String()))
	}
	o.Runs = said.String()
	return o
}

func emptyDir(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		os.RemoveAll(filepath.Join(dir, e.Name()))
	}
}

// uncalibrated is what perftest says, before it uses the device, when it was interrupted too often while it compared the
// processor's cycle counter with the clock: then it has no figures.
const uncalibrated = "Correlation coefficient"

// early is what perftest's client says of -R, and then crashes, when the server does not listen yet for its second connection, the one that is
// measured: the first one's end is the client's sign to go on, and the server's to listen.
const early = "Failed to connect RDMA CM events"

// toolFailed tells whether perftest has failed for one of these reasons, which no device can help.
func (c *testCase) toolFailed(o *outcome) bool {
	out := o.Server.Out + o.Client.Out
	return strings.Contains(out, uncalibrated) || strings.Contains(out, early) && strings.Contains(c.command(), "-R")
}

// result is what became of a case.
type result struct {
	ID, Group, Command, Layout string
	Status                     status
	Reason                     string `json:",omitempty"`
	Seconds                    float64
	Tries                      int
}

type status string

const (
	passed  status = "pass"
	failed  status = "fail"
	skipped status = "skip"
	limited status = "limit" // fails in the way that the tool, its provider or the kernel's device does
)

// try runs a case and judges it.
func (r *runner) try(ctx context.Context, c *testCase) (result, *outcome) {
	res := result{ID: c.id, Group: c.group, Command: c.command(), Layout: c.layout.String(), Tries: 1}
	for _, n := range c.needs {
		if why := n.missing(r); why != "" {
			res.Status, res.Reason = skipped, why
			return res, nil
		}
	}
	o := r.run(ctx, c)
	for res.Tries < 5 && c.toolFailed(o) {
		res.Tries++
		o = r.run(ctx, c)
	}
	res.Status, res.Reason = r.judge(ctx, c, o)
	if o.timedOut() && res.Status == failed && ctx.Err() == nil {
		// The machine may have been busy with something else: once more, and the document says so.
		res.Tries++
		first := res.Reason
		o = r.run(ctx, c)
		if res.Status, res.Reason = r.judge(ctx, c, o); res.Status == passed {
			res.Reason = "at the second try; the first: " + first
		}
	}
	res.Seconds = o.Seconds
	return res, o
}

// judge says what an outcome means.
func (r *runner) judge(ctx context.Context, c *testCase, o *outcome) (status, string) {
	err := c.check(o)
	if err == nil {
		return passed, ""
	}
	if c.limit == nil {
		return failed, err.Error()
	}
	says := c.limit.pattern().FindString(o.all() + o.Problem + "\n" + statusOf(o.Client.Code) + "\n")
	if says == "" {
		return failed, "it fails, but not as expected: " + tail(o.all()) + o.Problem
	}
	reason := fmt.Sprintf("%s; it says: %s", c.limit.reason, says)
	if c.limit.kernel {
		return r.beside(ctx, c, reason)
	}
	return limited, reason
}

// command is what a reader would type.
func (c *testCase) command() string {
	words := c.server
	if len(c.client) > 0 {
		words = c.client
	}
	text := strings.Join(words, " ")
	if len(c.env) > 0 {
		text = strings.Join(c.env, " ") + " " + text
	}
	text = strings.NewReplacer(serverAddress, "SERVER", "@TMP", "/tmp", "@DIR/", "").Replace(text)
	if len(c.run) > 0 {
		text = "rnic run " + strings.Join(c.run, " ") + " -- " + text
	}
	return text
}

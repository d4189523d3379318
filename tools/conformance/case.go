package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// layout says how the programs of a case are placed.
type layout int

const (
	alone   layout = iota // one program, in one rnic run
	oneNIC                // server and client in one rnic run
	joined                // server and client in a rnic run each, in one namespace: the second joins the first's NIC
	twoNICs               // server and client in a rnic run each, in two namespaces that a veth pair joins
)

func (l layout) String() string {
	return [...]string{"one program", "one NIC", "two runs joined", "two NICs"}[l]
}

// serverAddress in an argument stands for the address at which the client finds the server.
const serverAddress = "@SERVER"

// testCase is one run of stock programs and what it must show.
type testCase struct {
	id     string // group/words, what --run matches
	group  string
	layout layout
	server []string // of layout alone: the program
	client []string
	run    []string // options of rnic run
	env    []string
	// port is the TCP port at which the server is ready; with 0 the client starts at once.
	port int
	// again is a pattern: a client that fails and has said this is started again for a while, as there is no port to see whether a server
	// of the connection manager is ready. after is how long the client waits first: a server
	// that comes up between many connections of one client sees only some of them.
	again string
	after time.Duration
	// againAnyway: the client ends with status 0 even then.
	againAnyway bool
	// serverStays: the server goes on when the client has ended, and is then ended with SIGTERM.
	serverStays bool
	// until ends a program that never ends by itself, with SIGTERM, once it has written this.
	until string
	// meanwhile is a shell command that root runs in the namespace when the programs run.
	meanwhile string
	// wrap is put before "rnic run": a container, another user. Empty: the ordinary user.
	wrap    []string
	timeout time.Duration
	check   func(*outcome) error
	// do, if not nil, runs the case, in place of starting server and client; these then only say what it runs.
	do func(context.Context, *runner, *testCase) *outcome
	// limit, if not nil, says that the case may fail, and how: for want of what the tool, its provider or every
	// device of this kind lacks.
	limit *limit
	needs []need
	files []string // that are made for the programs to map
	short bool     // part of --short
}

// limit is a case that fails for a reason that is not ours.
type limit struct {
	says   string // pattern of what the programs write when they fail
	reason string
	// kernel is set if the same command is given to the kernel's Soft-RoCE, which must fail in the same way.
	kernel bool
	// instead is a smaller command of the kind, with server and client alike, for the kernel in its slow machine.
	instead string
	// script, if set, is given to the kernel's machine in place of a command: it fails, and shows what says, if the kernel does.
	script string
	extra  []string // files that it needs in /bin
}

// statusOf is what the exit code of a client looks like to the pattern of a limit.
func statusOf(code int) string { return fmt.Sprintf("client status %d", code) }

// need is what a case cannot do without. missing returns "" or why the case is skipped.
type need struct {
	missing func(*runner) string
}

// outcome is what the programs of a case did. Of one program, server is empty.
type outcome struct {
	Server, Client said
	Runs           string // what rnic run itself said
	Seconds        float64
	Problem        string    // of the run as a whole, as a time-out
	Case           *testCase `json:"-"`
	scratch        string
}

// said is what a program wrote to both its outputs, and its exit code, 128 and more for signals.
type said struct {
	Out  string
	Code int
}

// all is everything that was written, for patterns that either side may show.
func (o *outcome) all() string { return o.Server.Out + o.Client.Out + o.Runs }

// ended checks that all went well as far as exit codes show.
func (o *outcome) ended() error {
	switch {
	case o.Problem != "":
		return fmt.Errorf("%s", o.Problem)
	case o.Client.Code != 0:
		return fmt.Errorf("the client ended with status %d: %s", o.Client.Code, tail(o.Client.Out))
	case o.Server.Code != 0:
		return fmt.Errorf("the server ended with status %d: %s", o.Server.Code, tail(o.Server.Out))
	}
	return nil
}

// timedOut says whether the case was ended because it took too long.
func (o *outcome) timedOut() bool { return strings.HasPrefix(o.Problem, "not ended after") }

// tail is the end of an output, in one line.
func tail(out string) string {
	lines := strings.FieldsFunc(strings.TrimSpace(out), func(r rune) bool { return r == '\n' })
	if len(lines) > 3 {
		lines = lines[len(lines)-3:]
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	text := strings.Join(lines, " / ")
	if len(text) > 300 {
		text = "..." + text[len(text)-300:]
	}
	return text
}

// shows returns a check that the exit codes are 0 and that both sides, or the one program, write what all the
// patterns match.
func shows(patterns ...string) func(*outcome) error {
	var compiled []*regexp.Regexp
	for _, p := range patterns {
		compiled = append(compiled, regexp.MustCompile(p))
	}
	return func(o *outcome) error {
		if err := o.ended(); err != nil {
			return err
		}
		for _, p := range compiled {
			if !p.MatchString(o.Client.Out) {
				return fmt.Errorf("no %q in what the client says: %s", p, tail(o.Client.Out))
			}
			if o.Case.layout != alone && !o.Case.serverStays && !p.MatchString(o.Server.Out) {
				return fmt.Errorf("no %q in what the server says: %s", p, tail(o.Server.Out))
			}
		}
		return nil
	}
}

// refuses returns a check that a program ends with an error, and says this.
func refuses(says string) func(*outcome) error {
	return func(o *outcome) error {
		if o.Client.Code == 0 || o.Problem != "" || !strings.Contains(o.Client.Out, says) {
			return fmt.Errorf("status %d, not refused with %q: %s", o.Client.Code, says, o.Problem+tail(o.Client.Out))
		}
		return nil
	}
}

// all returns a check that is the conjunction of checks.
func all(checks ...func(*outcome) error) func(*outcome) error {
	return func(o *outcome) error {
		for _, check := range checks {
			if err := check(o); err != nil {
				return err
			}
		}
		return nil
	}
}

// defaultTimeout is of a case that says nothing else.
const defaultTimeout = 60 * time.Second

// finish fills in what follows from the rest.
func finish(cases []testCase) []testCase {
	for i := range cases {
		c := &cases[i]
		if c.timeout == 0 {
			c.timeout = defaultTimeout
		}
		c.group, _, _ = strings.Cut(c.id, "/")
		if c.check == nil {
			c.check = (*outcome).ended
		}
	}
	return cases
}

// groups are all cases, by group, in the order of the document.
var groups = []struct {
	name, title, about string
	cases              func() []testCase
}{
	{"ibverbs", "ibverbs-utils", "The programs of rdma-core itself: each option that applies, each path MTU, each GID index.", ibverbsCases},
	{"perftest", "perftest, single options", "Each option that applies, of each program. Not applying: options of InfiniBand and of other transports (`--dlid`, `-c DC`, `-c SRD`, encryption), of two ports (`-O`). Those of the connection manager (`-R`, `-z`) are below.", perftestCases},
	{"pairwise", "perftest, pairs of options", "Combinations such that each legal pair of values of two options is in one of them at least: program and transport, size, path MTU, way to end, directions, events, queue pairs, inline, shared receive queue, and network (one NIC, two, two with 1 % of all packets dropped). Left out is what perftest refuses, and where a receiver would wait for ever for what an unreliable transport has lost: UC and UD with loss or with several queue pairs that share receives, and UC with messages of many packets between two NICs.", pairwiseCases},
	{"qperf", "qperf", "The tests of qperf that need no connection manager.", qperfCases},
	{"cm", "Connection manager", "Programs that connect by address, with stock librdmacm: its own, streams over RDMA (rsockets), perftest with `-R` and `-z`, and held against itself without (medians of seven interleaved runs, none worse by more than a tenth; where the server without `-R` sleeps, and with `-R` polls and so takes a core, also held against itself without `-R` beside a process that takes one), qperf with `-cm 1`, fio, iperf3, libfabric, and UCX. Then networks (three hosts at a bridge, a tun interface), 5 % loss, 10,000 connections after which the NIC has what it had before, Ctrl-C, and peers that are killed.", cmCases},
	{"qemu", "QEMU", "Live migration over `rdma:` of an emulated machine of 128 MiB, which counts on its console and checks and changes a pattern of 24 MiB in each round: after the move it goes on with the next number. QEMU registers the pages as it sends them, or all at once (`rdma-pin-all`). Where the destination is killed meanwhile, the machine goes on at its source.", qemuCases},
	{"ucx", "UCX", "", ucxCases},
	{"mpi", "MPI", "MPICH and Open MPI through UCX; the program checks every element of what it receives.", mpiCases},
	{"versions", "rdma-core of other Debian releases", "Unpacked each with its own C library and loader, and run below a root directory of its own.", versionCases},
	{"container", "Containers", "A user namespace with network, process and mount namespaces of its own, /dev/shm of 64 MiB, and no capability.", containerCases},
}

// allCases are the cases of all groups, checked for ids that are used twice.
func allCases() []testCase {
	var cases []testCase
	seen := map[string]bool{}
	for _, g := range groups {
		for _, c := range finish(g.cases()) {
			if seen[c.id] || c.group != g.name {
				panic("conformance: the id " + c.id + " is used twice, or is not of its group")
			}
			seen[c.id] = true
			cases = append(cases, c)
		}
	}
	return cases
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// built is the need of a C program of testdata, which it builds in the directory where cases find it as @DIR.
func built(name string, libraries ...string) need {
	return need{func(r *runner) string {
		target := filepath.Join(r.dir, name)
		if _, err := os.Stat(target); err == nil {
			return ""
		}
		return compile("gcc", target, "tools/conformance/testdata/"+name+".c", libraries...)
	}}
}

// cmLifeCases are what happens to connections and their programs in the long run: very many, under loss, interrupted, killed.
func cmLifeCases() (cases []testCase) {
	for _, n := range []int{300, 10000} {
		c := testCase{id: fmt.Sprintf("cm/cycles/%d", n), server: []string{"sh", "-c", fmt.Sprintf(cycles, n)}, timeout: 5 * time.Minute, short: n == 300,
			needs: []need{installed("gcc"), installed("rdma"), built("cmcycle", "-lrdmacm", "-libverbs")}}
		c.check = all(shows(`before: `), sameBaseline)
		cases = append(cases, c)
	}
	lossy := func(c testCase, check func(*outcome) error) {
		c.run, c.check, c.timeout = []string{"--fault", "drop=5%,seed=11"}, check, time.Minute
		cases = append(cases, c)
	}
	lossy(cmPair("ucmatose/50_connections/loss", twoNICs, "ucmatose -c 50", "ucmatose -c 50 -s "+addrHere), shows(`return status 0`))
	lossy(cmPair("cycles/loss", twoNICs, "@DIR/cmcycle server 7471 100", "@DIR/cmcycle client "+addrHere+" 7471 100"), shows(`(?m)^ok$`))
	cases[len(cases)-1].needs = []need{installed("gcc"), built("cmcycle", "-lrdmacm", "-libverbs")}

	for _, program := range []string{"rping -s", "ucmatose", "udaddy", "rdma_server", "rstream", "cmtime", "mckey -m 239.91.1.3 -b " + addrHere} {
		// timeout says 124 when the signal was enough, and 137 when it was not.
		c := testCase{id: "cm/interrupt/" + named(program), server: []string{"sh", "-c", "timeout -s INT -k 10 1 " + program + "; echo status $?"}, check: shows(`(?m)^status 124$`)}
		c.needs = []need{installed(strings.Fields(program)[0])}
		c.short = program == "rping -s"
		cases = append(cases, c)
	}
	cases = append(cases, testCase{id: "cm/interrupt/handler", server: []string{"@DIR/cmcycle", "interrupt", "7471"}, check: shows(`(?m)^ok$`),
		needs: []need{installed("gcc"), built("cmcycle", "-lrdmacm", "-libverbs")}})
	return append(cases, killedCases()...)
}

// cycles makes connections one after the other in one run and says before and after what the process of the NIC has: descriptors,
// queue pairs (and what else rdma resource counts), and KiB of memory.
const cycles = `nic=/proc/$PPID
[ "$(cat $nic/comm)" = rnic-supervisor ] || exit 1
have() { echo "$(ls $nic/fd | wc -l) descriptors, $(rdma resource show | tr -s ' ')"; }
memory() { grep VmRSS $nic/status | tr -dc 0-9; }
some() { @DIR/cmcycle server 7471 $1 & s=$!; @DIR/cmcycle client 127.0.0.1 7471 $1 || { kill $s; exit 1; }; wait $s || exit 1; }
some 200
sleep 1
before=$(have) m=$(memory)
some %d
i=0
while after=$(have); [ "$before" != "$after" ] && [ $i -lt 50 ]; do i=$((i+1)); sleep 0.2; done
echo "before: $before, memory $m"
echo "after: $after, memory $(memory)"`

var baseline = regexp.MustCompile(`(?s)before: (.*), memory (\d+)\nafter: (.*), memory (\d+)\n`)

// sameBaseline checks what cycles says: the same descriptors and objects, and no more memory than the garbage collector may leave.
func sameBaseline(o *outcome) error {
	m := baseline.FindStringSubmatch(o.Client.Out)
	if m == nil {
		return fmt.Errorf("nothing was counted: %s", tail(o.Client.Out))
	}
	before, _ := strconv.Atoi(m[2])
	after, _ := strconv.Atoi(m[4])
	if m[1] != m[3] || after > before*3/2+16<<10 {
		return fmt.Errorf("before: %s, %s KiB; after: %s, %s KiB", m[1], m[2], m[3], m[4])
	}
	return nil
}

// killedCases end one of two programs, or all that one of two runs is, with SIGKILL. The other side must learn of it and end by itself.
func killedCases() (cases []testCase) {
	add := func(id string, l layout, server, client, running, says string, kill func(server, client *process) error, survivor func(o *outcome) *said) *testCase {
		c := cmPair("killed/"+id, l, server, client)
		c.do = func(ctx context.Context, r *runner, c *testCase) *outcome {
			return r.killed(ctx, c, running, kill, survivor)
		}
		c.check = func(o *outcome) error {
			if s := survivor(o); o.Problem != "" || !regexp.MustCompile(says).MatchString(s.Out) {
				return fmt.Errorf("%s; the survivor said, with status %d: %s", o.Problem, s.Code, tail(s.Out))
			}
			return nil
		}
		cases = append(cases, c)
		return &cases[len(cases)-1]
	}
	ofServer, ofClient := func(o *outcome) *said { return &o.Server }, func(o *outcome) *said { return &o.Client }
	const ping, gone = `rdma-ping-20: `, `DISCONNECT|cq completion|flush|[Ww]ork [Rr]equest|status`
	for _, l := range []layout{joined, twoNICs} {
		where := named(l.String())
		add("rping_client/"+where, l, "rping -s -v", "rping -c -v -a "+addrHere, ping, gone, func(_, client *process) error { return killProgram(client, "rping") }, ofServer).short = l == twoNICs
		add("rping_server/"+where, l, "rping -s -v", "rping -c -v -a "+addrHere, ping, gone, func(server, _ *process) error { return killProgram(server, "rping") }, ofClient)
	}
	// Nobody is left to say goodbye: the client's requests are repeated in vain (InfiniBand vol. 1, 9.9.2.4.2).
	add("run_of_ib_write_bw_server", twoNICs, "ib_write_bw -R -F -D 60", "ib_write_bw -R -F -D 60 "+addrHere, "", `Failed status 12`,
		func(server, _ *process) error { return killAll(server) }, ofClient).timeout = time.Minute
	// A side that waits for the other's credits has no request under way, and learns nothing on any NIC, but by its keepalive.
	add("run_of_rstream_server", twoNICs, "rstream -k 1 -S 65536 -C 1000000", "rstream -k 1 -S 65536 -C 1000000 -s "+addrHere, "", ``,
		func(server, _ *process) error { return killAll(server) }, ofClient).timeout = time.Minute
	front := testCase{id: "cm/killed/rnic_run", server: []string{"rping", "ib_write_bw -R", "ib_send_bw -R -e: rnic run killed, 20 times"}, timeout: 2 * time.Minute,
		needs: []need{installed("rping"), installed("ib_write_bw")}}
	front.do = func(ctx context.Context, r *runner, c *testCase) *outcome { return r.frontKilled(ctx, c, 20) }
	return append(cases, front)
}

// frontKilled kills rnic run, which the user has started, while its programs are at work: everything that it had started must go too, also
// what is of a session of its own.
func (r *runner) frontKilled(ctx context.Context, c *testCase, rounds int) *outcome {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	o := &outcome{}
	pairs := []string{
		"setsid rping -s & sleep 0.4; exec rping -c -v -a 127.0.0.1",
		"ib_write_bw -R -F -D 100 & sleep 0.4; exec ib_write_bw -R -F -D 100 127.0.0.1",
		"ib_send_bw -R -F -e -n 10000000 & sleep 0.4; exec ib_send_bw -R -F -e -n 10000000 127.0.0.1",
	}
	for i := range rounds {
		run := start(ctx, r.rnicRun(c, nil, "sh", "-c", pairs[i%len(pairs)]))
		time.Sleep(500*time.Millisecond + time.Duration(i)*40*time.Millisecond)
		all := descendants(run.cmd.Process.Pid)
		_ = syscall.Kill(run.cmd.Process.Pid, syscall.SIGKILL)
		for alive := all; len(alive) > 0; time.Sleep(20 * time.Millisecond) {
			alive = slices.DeleteFunc(alive, func(pid int) bool { return !living(pid) })
			if ctx.Err() != nil {
				o.Problem = fmt.Sprintf("round %d (%s): processes %v have not ended", i, pairs[i%len(pairs)], alive)
				return o
			}
		}
		<-run.ended
	}
	return o
}

// living tells whether there is a process that is not only waited for.
func living(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// killed starts both programs, waits until the client has written what says that it is at work, or for two seconds, kills, and waits for the
// survivor to end.
func (r *runner) killed(ctx context.Context, c *testCase, running string, kill func(server, client *process) error, survivor func(o *outcome) *said) *outcome {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	o := &outcome{}
	p := r.placed(c, addrHere)
	server := start(ctx, p.Server)
	time.Sleep(c.after)
	client := start(ctx, p.Client)
	defer func() { server.kill(); client.kill(); o.Server, o.Client = server.end(), client.end() }()
	pattern := regexp.MustCompile(running)
	for begin := time.Now(); running != "" && !pattern.MatchString(client.out.String()) || time.Since(begin) < 2*time.Second; time.Sleep(20 * time.Millisecond) {
		if ctx.Err() != nil || !server.running() {
			o.Problem = "the programs did not get to work"
			return o
		}
		if !client.running() {
			if !regexp.MustCompile(c.again).MatchString(client.out.String()) {
				o.Problem = "the client ended by itself"
				return o
			}
			client, begin = start(ctx, p.Client), time.Now()
		}
	}
	if err := kill(server, client); err != nil {
		o.Problem = err.Error()
		return o
	}
	left := client
	if survivor(o) == &o.Server {
		left = server
	}
	select {
	case <-left.ended:
	case <-ctx.Done():
		o.Problem = fmt.Sprintf("the survivor had not ended %v after the start", c.timeout)
	}
	return o
}

// placed is the plan of a case of two runs, joined or with a NIC each.
func (r *runner) placed(c *testCase, address string) plan {
	server, client := r.expand(c.server, address), r.expand(c.client, address)
	if c.layout == joined {
		return plan{Server: r.rnicRun(c, nil, server...), Client: r.rnicRun(c, nil, client...)}
	}
	return plan{Server: r.rnicRun(c, []string{"--interface", vethHere}, server...),
		Client: append([]string{"nsenter", "--net=" + r.other.path}, r.rnicRun(c, []string{"--interface", vethThere}, client...)...)}
}

// killProgram kills the program of a run, by its name.
func killProgram(run *process, name string) error {
	for _, pid := range descendants(run.cmd.Process.Pid) {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); strings.TrimSpace(string(comm)) == name {
			return syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no process %s in the run", name)
}

// killAll kills a run, its supervisor first: it says nothing to anybody.
func killAll(run *process) error {
	var err error
	for _, pid := range append(descendants(run.cmd.Process.Pid), run.cmd.Process.Pid) {
		if e := syscall.Kill(pid, syscall.SIGKILL); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = e
		}
	}
	return err
}

// descendants are the processes below one, parents first.
func descendants(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		b, _ := os.ReadFile(l)
		for _, f := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tool is a program of perftest.
type tool struct {
	name                              string
	bandwidth                         bool // else latency
	send, write, read, atomic, events bool
	transports                        []string
}

var tools = []tool{
	{name: "ib_send_bw", bandwidth: true, send: true, events: true, transports: []string{"RC", "UC", "UD"}},
	{name: "ib_send_lat", send: true, events: true, transports: []string{"RC", "UC", "UD"}},
	{name: "ib_write_bw", bandwidth: true, write: true, transports: []string{"RC", "UC"}},
	{name: "ib_write_lat", write: true, transports: []string{"RC", "UC"}},
	{name: "ib_read_bw", bandwidth: true, read: true, events: true, transports: []string{"RC"}},
	{name: "ib_read_lat", read: true, events: true, transports: []string{"RC"}},
	{name: "ib_atomic_bw", bandwidth: true, atomic: true, events: true, transports: []string{"RC"}},
	{name: "ib_atomic_lat", atomic: true, events: true, transports: []string{"RC"}},
}

// perftestRow is a row of perftest's table: size, iterations, and figures.
var perftestRow = regexp.MustCompile(`(?m)^ *(\d+) +(\d+) +(-?[\d.]+|nan|inf) +(-?[\d.]+|nan|inf)`)

// rows are the sizes and iterations in perftest's table, in its order, and whether all figures are good.
func rows(out string) (sizes, iterations []int, err error) {
	for _, m := range perftestRow.FindAllStringSubmatch(out, -1) {
		size, _ := strconv.Atoi(m[1])
		n, _ := strconv.Atoi(m[2])
		sizes, iterations = append(sizes, size), append(iterations, n)
		figure, ferr := strconv.ParseFloat(m[4], 64)
		if ferr != nil || figure < 0 {
			err = fmt.Errorf("a figure makes no sense: %q", m[0])
		}
	}
	return sizes, iterations, err
}

// measured checks that a program of perftest ended well with a row for each size, of so many iterations; with
// none given, of any.
func measured(iterations int, sizes ...int) func(*outcome) error {
	return func(o *outcome) error {
		if err := o.ended(); err != nil {
			return err
		}
		if bad := perftestComplaint.FindString(o.all()); bad != "" {
			return fmt.Errorf("it says %q: %s", bad, tail(o.all()))
		}
		got, n, err := rows(o.Client.Out)
		if err != nil {
			return err
		}
		if len(sizes) == 0 && len(got) > 0 {
			sizes = got[:1]
		}
		if !slices.Equal(got, sizes) || len(got) == 0 {
			return fmt.Errorf("rows for the sizes %v, not %v: %s", got, sizes, tail(o.Client.Out))
		}
		for _, n := range n {
			if n < 1 || iterations > 0 && n != iterations {
				return fmt.Errorf("%d iterations, not %d", n, iterations)
			}
		}
		return nil
	}
}

// perftestComplaint is in what perftest writes where it goes on, or ends with status 0, in spite of an error.
var perftestComplaint = regexp.MustCompile(`Completion with error|Failed status \d+|Couldn't|couldn't|unsupported|not supported`)

// doublings are the sizes of -a.
func doublings() (sizes []int) {
	for size := 2; size <= 8<<20; size *= 2 {
		sizes = append(sizes, size)
	}
	return sizes
}

// singles are the options that a tool is run with, one by one.
func (t *tool) singles() (options []string) {
	options = []string{"", "-d rxe0", "-i 1", "-m 256", "-m 512", "-m 1024", "-m 2048", "-m 4096", "-p 18600", "-S 3", "-u 16",
		"-x 0", "-x 1", "-x 2", "-x 3", "-D 1 -f 0", "-D 4 -f 1", "-V", "-W hw_counters/sent_pkts,hw_counters/rcvd_pkts", "--out_json", "--out_json --out_json_file=@TMP/report.json",
		"--cpu_util -D 1 -f 0", "--force-link=Ethernet", "--ipv6", "--source_ip 127.0.0.1", "--use_old_post_send",
		"--perform_warm_up", "--pkey_index=0", "--tclass=96", "--use_hugepages", "--mmap=@TMP/@SIDE", "--mmap=@TMP/@SIDE --mmap-offset=4096"}
	add := func(when bool, more ...string) {
		if when {
			options = append(options, more...)
		}
	}
	add(!t.atomic, "-a", "-s 1", "-s 63", "-s 4095", "-s 65537", "-s 1048579", "-s 8388608")
	add(t.bandwidth, "-b", "-N", "-Q 1", "-Q 50", "-q 1", "-q 2", "-q 16", "-l 4", "-t 1", "-t 16", "-t 1000", "--output=bandwidth",
		"--output=message_rate", "--report_gbits", "-b --report-both", "--mr_per_qp -q 4", "--wait_destroy=1", "--disable_pcie_relaxed", "-w 0", "-y 0", "-w 0 -y 0",
		"--run_infinitely")
	add(t.bandwidth && !t.atomic, "--rate_limit=1 --rate_limit_type=SW", "--rate_limit=100 --rate_units=M --rate_limit_type=SW", "--rate_limit=1000 --rate_units=p --rate_limit_type=SW",
		"--burst_size=10 --rate_limit=1 --rate_limit_type=SW")
	add(t.bandwidth && t.write || t.bandwidth && t.send, "--reversed")
	add(!t.bandwidth, "-C", "-H", "-U", "--output=latency", "--latency_gap=100")
	add(t.send || t.write, "-I 0", "-I 64 -s 64", "-I 128 -s 64")
	add(t.send, "-r 1024", "--use-srq", "--inline_recv=0", "-c UD -s 1024 -g -x 1", "-c UD -s 1024 -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:47:91:1")
	add(t.send && t.bandwidth, "--recv_post_list=4")
	add(t.events, "-e", "-e -X 0")
	add(t.read || t.atomic, "-o 1", "-o 16")
	add(t.atomic, "-A CMP_AND_SWAP", "-A FETCH_AND_ADD")
	for _, transport := range t.transports {
		options = append(options, "-c "+transport)
	}
	return options
}

// perftestPair makes a case of a program of perftest.
func perftestPair(id string, l layout, command string) testCase {
	c := pair(id, l, command)
	c.server, c.client = perftestSide(c.server, "server"), perftestSide(c.client, "client")
	return c
}

// perftestSide is the command of one side, where "@SIDE" is its name.
func perftestSide(args []string, side string) []string {
	args = slices.Clone(args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "@SIDE", side)
	}
	return args
}

// ran is how often a command without -n exchanges in these tests.
const ran = 100

// single is the case of one option of a tool.
func (t *tool) single(options string) testCase {
	command := t.name + " -F " + options
	counted := !strings.Contains(options, "-D ") && options != "-V" && options != "--run_infinitely"
	n := 0
	if counted {
		n = ran
		if options == "-a" || strings.HasPrefix(options, "-s 1048579") || strings.HasPrefix(options, "-s 8388608") {
			n = 10
		}
		command += fmt.Sprintf(" -n %d", n)
	}
	c := perftestPair("perftest/"+strings.TrimPrefix(t.name, "ib_")+"/"+named(options), oneNIC, command)
	c.check = measured(n)
	c.short = options == "" || options == "-e" || options == "--use-srq" || options == "-c UC" && t.send
	switch {
	case options == "-a":
		c.check = measured(n, doublings()...)
	case strings.HasPrefix(options, "-s "):
		size, _ := strconv.Atoi(strings.TrimPrefix(options, "-s "))
		c.check = measured(n, size)
	case options == "-V":
		c.layout, c.port, c.client = alone, 0, nil
		c.check = func(o *outcome) error {
			if !strings.Contains(o.Client.Out, "Version: ") {
				return fmt.Errorf("no version: %s", tail(o.Client.Out))
			}
			return nil
		}
	case strings.HasPrefix(options, "-W "):
		c.check = all(measured(n), clientShows(`hw_counters/sent_pkts=[1-9]`, `hw_counters/rcvd_pkts=[1-9]`))
	case strings.HasPrefix(options, "--output="):
		c.check = clientShows(`(?m)^ *[\d.]+ *$`)
	case options == "--run_infinitely":
		c.client = append(c.client, "-D", "1")
		c.server = append(c.server, "-D", "1")
		c.until, c.serverStays = `(?s)#bytes.*\n *\d+ +\d+ .*\n *\d+ +\d+ `, true
		c.check = func(*outcome) error { return nil } // that "until" came is the check
	case strings.Contains(options, "--out_json_file"):
		c.check = all(measured(n), wrote("report.json"))
	case strings.HasPrefix(options, "--mmap="):
		c.files = []string{"server", "client"}
		if t.name == "ib_write_bw" && options == "--mmap=@TMP/@SIDE" {
			c.check = all(measured(n), arrived(65536))
		}
	case options == "--use_hugepages":
		c.needs = []need{hugepages}
	case strings.HasPrefix(options, "-p "):
		c.port, _ = strconv.Atoi(strings.TrimPrefix(options, "-p "))
	case options == "-b --report-both": // both directions together, and each
		bytes := 65536
		if t.atomic {
			bytes = 8
		}
		c.check = measured(0, bytes, bytes, bytes)
	case t.atomic && options == "--perform_warm_up":
		c.timeout = 20 * time.Second
		c.limit = &limit{says: `Device not recognized to implement inline feature`, reason: "perftest waits on when all its atomics, of the warm-up and after it, have completed, until it is killed", kernel: true}
	case strings.Contains(options, "-q "):
		var pairs int
		fmt.Sscanf(options[strings.Index(options, "-q "):], "-q %d", &pairs)
		c.check = measured(n * pairs)
	}
	return c
}

func perftestCases() (cases []testCase) {
	for i := range tools {
		t := &tools[i]
		for _, options := range t.singles() {
			cases = append(cases, t.single(options))
		}
		for _, l := range []layout{joined, twoNICs} {
			where := map[layout]string{joined: "/two_runs_joined", twoNICs: "/two_NICs"}[l]
			c := perftestPair("perftest/"+strings.TrimPrefix(t.name, "ib_")+where, l, fmt.Sprintf("%s -F -n %d", t.name, ran))
			c.check, c.short = measured(ran), t.write || l == twoNICs && t.bandwidth
			cases = append(cases, c)
		}
		for _, l := range []struct{ options, says, reason string }{
			{"-c XRC", `XRC`, "the rxe provider of rdma-core has no XRC domains"},
			{"--odp", `(?i)failed to create mr|ODP does not support ATOMICS`, "the rxe provider of this release has no on-demand paging"},
			{"--dont_xchg_versions", `not compatible with versions older than`, "this release of perftest refuses its own option before it uses the device"},
		} {
			c := perftestPair("perftest/"+strings.TrimPrefix(t.name, "ib_")+"/"+named(l.options)+"_limit", oneNIC, t.name+" -F -n 5 "+l.options)
			c.check, c.limit = measured(5), &limit{says: l.says, reason: l.reason, kernel: true}
			cases = append(cases, c)
		}
	}
	return cases
}

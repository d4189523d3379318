package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// withoutCases hold each of perftest's programs with -R, whose queue pairs the connection manager makes, against itself without: the same
// queue pairs carry the same data.
func withoutCases() (cases []testCase) {
	for i := range tools {
		t := &tools[i]
		size := map[bool]string{true: " -s 65536 -n 2000", false: " -s 64 -n 3000"}[t.bandwidth]
		if t.atomic {
			size = " -n 3000"
		}
		command := t.name + " -F" + size
		c := cmPair("with_and_without/"+strings.TrimPrefix(t.name, "ib_"), oneNIC, command+" -R", command+" -R "+serverAddress)
		c.timeout = 30 * time.Second // of one run
		c.do = func(ctx context.Context, r *runner, c *testCase) *outcome { return r.withAndWithout(ctx, c, t) }
		cases = append(cases, c)
	}
	return cases
}

// How often each is run, and how often all of it is repeated if the quartiles of a series spread over spread of its median.
const (
	interleaved = 7
	repeats     = 3
	spread      = 0.10
)

// withAndWithout runs them in turn. Client.Out has the figures; what is worse by more than a tenth is a problem.
//
// Where the server has nothing to do, it sleeps in a read from its TCP socket until the client has ended; with -R, where it hears of that over
// the connection, it polls its completion queue, and takes a core (perftest's rdma_read_keys). On two cores, of which the client and the NIC have
// one each, that counts: then -R is held against the same without it beside a process that does nothing but take a core.
func (r *runner) withAndWithout(ctx context.Context, c *testCase, t *tool) *outcome {
	o := &outcome{}
	bare := *c
	bare.server, bare.client = slices.DeleteFunc(slices.Clone(c.server), isR), slices.DeleteFunc(slices.Clone(c.client), isR)
	bare.port, bare.again, bare.after = pingpongPort, "", 0
	series := []*figureSeries{{name: "with -R", c: c}, {name: "without", c: &bare}}
	if t.idleServer() {
		busy := bare
		busy.server = []string{"sh", "-c", besideSpinner, "sh"}
		busy.server = append(busy.server, bare.server...)
		series = append(series, &figureSeries{name: "without, beside a process that spins", c: &busy})
	}
	for range repeats {
		for range interleaved {
			for _, s := range series {
				f, err := r.figure(ctx, s.c, t)
				if err != nil {
					o.Problem = s.name + ": " + err.Error()
					return o
				}
				s.figures = append(s.figures, f) // of all repeats: on a machine where figures spread more of them say more
			}
		}
		with, against := series[0], series[len(series)-1]
		ratio := median(with.figures) / median(against.figures)
		if !t.bandwidth {
			ratio = 1 / ratio
		}
		var says []string
		for _, s := range series {
			says = append(says, s.String())
		}
		o.Client.Out += fmt.Sprintf("%s; %.0f %% as good as the last\n", strings.Join(says, "; "), 100*ratio)
		o.Problem = ""
		if ratio < 0.9 {
			o.Problem = tail(o.Client.Out)
		}
		if quartiles(with.figures) <= spread && quartiles(against.figures) <= spread || ctx.Err() != nil {
			break
		}
	}
	return o
}

// besideSpinner runs a command beside a process that takes a core.
const besideSpinner = `awk 'BEGIN { for (;;); }' & spinner=$!; trap 'kill $spinner' EXIT; "$@"`

// idleServer says that the server only waits until the client has ended.
func (t *tool) idleServer() bool { return t.read || t.atomic || t.write && t.bandwidth }

// figureSeries is what one way to run a program has measured.
type figureSeries struct {
	name    string
	c       *testCase
	figures []float64
}

func (s *figureSeries) String() string {
	return fmt.Sprintf("%s: median %.2f, spread %.0f %%", s.name, median(s.figures), 100*quartiles(s.figures))
}

func isR(arg string) bool { return arg == "-R" }

// figure runs one pair and returns what it measured: MB/s, or microseconds.
func (r *runner) figure(ctx context.Context, c *testCase, t *tool) (float64, error) {
	r.awaitQuiet(ctx)
	p := plan{Server: r.expand(c.server, "127.0.0.1"), Client: r.expand(c.client, "127.0.0.1"), Port: c.port, Again: c.again, After: c.after, Timeout: c.timeout}
	o := r.inOneRun(ctx, c, &p)
	o.Case = c
	if c.toolFailed(o) && ctx.Err() == nil {
		return r.figure(ctx, c, t)
	}
	if err := o.ended(); err != nil {
		return 0, err
	}
	m := figures.FindStringSubmatch(o.Client.Out)
	if m == nil {
		return 0, fmt.Errorf("no figures: %s", tail(o.Client.Out))
	}
	// BW average of "bytes, iterations, BW peak, BW average", or t_typical of "bytes, iterations, t_min, t_max, t_typical".
	return strconv.ParseFloat(m[map[bool]int{true: 2, false: 3}[t.bandwidth]], 64)
}

var figures = regexp.MustCompile(`(?m)^ *\d+[ \t]+\d+[ \t]+([\d.]+)[ \t]+([\d.]+)[ \t]+([\d.]+)`)

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// quartiles is the distance of the quartiles as a part of the median; of seven values the second and the sixth.
func quartiles(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[len(s)*3/4] - s[len(s)/4]) / median(v)
}

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

// withAndWithout runs both in turn. Client.Out has the figures; what is worse by more than a tenth is a problem.
func (r *runner) withAndWithout(ctx context.Context, c *testCase, t *tool) *outcome {
	o := &outcome{}
	bare := *c
	bare.server, bare.client = slices.DeleteFunc(slices.Clone(c.server), isR), slices.DeleteFunc(slices.Clone(c.client), isR)
	bare.port, bare.again, bare.after = pingpongPort, "", 0
	var with, without []float64 // of all repeats: on a machine where figures spread more of them say more
	for range repeats {
		for range interleaved {
			for _, s := range []struct {
				c    *testCase
				list *[]float64
			}{{c, &with}, {&bare, &without}} {
				f, err := r.figure(ctx, s.c, t)
				if err != nil {
					o.Problem = err.Error()
					return o
				}
				*s.list = append(*s.list, f)
			}
		}
		a, b := median(with), median(without)
		ratio := a / b
		if !t.bandwidth {
			ratio = b / a
		}
		o.Client.Out += fmt.Sprintf("with -R: median %.2f, spread %.0f %%; without: %.2f, %.0f %%; %.0f %% as good\n", a, 100*quartiles(with), b, 100*quartiles(without), 100*ratio)
		o.Problem = ""
		if ratio < 0.9 {
			o.Problem = tail(o.Client.Out)
		}
		if quartiles(with) <= spread && quartiles(without) <= spread || ctx.Err() != nil {
			break
		}
	}
	return o
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

// Command bench measures rnic beside what else moves bytes between two
// programs of one machine: several interleaved rounds, so that a change of the
// machine's load meets everyone, of which it prints medians and quartiles.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// contenderTimeout is how long one run may take; a second or two is usual.
const contenderTimeout = 90 * time.Second

func main() {
	rounds := flag.Int("runs", 7, "number of interleaved `rounds`")
	output := flag.String("o", "", "write the tables as markdown to this `file` too")
	only := flag.String("only", "", "measure only contenders whose name matches this `pattern`")
	strict := flag.Bool("strict", false, "end with status 1 if a target is missed")
	flag.Parse()
	if err := run(*rounds, *output, *only, *strict); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, output, only string, strict bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	results := newResults()
	begin := time.Now()
	for round := range rounds {
		for _, c := range contenders {
			if !pattern.MatchString(c.name) {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), contenderTimeout)
			figures, err := c.measure(ctx)
			cancel()
			results.add(c, round, figures, err)
		}
		results.load(loadAverage())
		fmt.Fprintf(os.Stderr, "round %d of %d, %.0f s, load %s\n", round+1, rounds, time.Since(begin).Seconds(), loadAverage())
	}
	results.write(os.Stdout)
	if output != "" {
		var b strings.Builder
		results.write(&b)
		if err := os.WriteFile(output, []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	if len(results.errs) > 0 {
		return fmt.Errorf("%d of the measurements failed, the first: %w", len(results.errs), results.errs[0])
	}
	if strict && results.missed() {
		return errors.New("a target is missed")
	}
	return nil
}

// results are the figures of all rounds by metric.
type results struct {
	figures map[string][]float64       // by metric
	byRound map[string]map[int]float64 // by metric and round, for the ratios
	metrics []metric                   // in the order of their appearance
	loads   []string
	errs    []error
}

func newResults() *results {
	return &results{figures: map[string][]float64{}, byRound: map[string]map[int]float64{}}
}

func (r *results) add(c contender, round int, figures []float64, err error) {
	if err == nil && len(figures) != len(c.metrics) {
		err = fmt.Errorf("%d figures, want %d", len(figures), len(c.metrics))
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", c.name, err)
		fmt.Fprintln(os.Stderr, err)
		r.errs = append(r.errs, err)
		return
	}
	for i, m := range c.metrics {
		if r.byRound[m.name] == nil {
			r.byRound[m.name] = map[int]float64{}
			r.metrics = append(r.metrics, m)
		}
		r.figures[m.name] = append(r.figures[m.name], figures[i])
		r.byRound[m.name][round] = figures[i]
	}
}

func (r *results) load(text string) { r.loads = append(r.loads, text) }

// quartiles returns the lower quartile, the median and the upper quartile,
// interpolated between neighbours.
func quartiles(figures []float64) (q [3]float64) {
	sorted := slices.Sorted(slices.Values(figures))
	for i := range q {
		at := float64(i+1) / 4 * float64(len(sorted)-1)
		low := int(at)
		high := min(low+1, len(sorted)-1)
		q[i] = sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
	}
	return q
}

// target is what the ratio of two metrics' medians has to reach, or where
// there is no second metric, the first one's median.
type target struct {
	metric, to string
	atLeast    bool
	limit      float64
}

var targets = []target{
	{rnicWriteBW, ucxPutBW, true, 1.5},
	{rnicWriteLat, ucxPutLat, false, 0.8},
	{ibWriteBW, ucxPutBW, true, 2},
	{ibWriteLatTypical, "", false, 15},
	{ibWriteLatAverage, "", false, 40},
}

// value returns the ratio of medians, and the ratios of the single rounds.
func (r *results) value(t target) (median float64, rounds []float64, ok bool) {
	if len(r.figures[t.metric]) == 0 || t.to != "" && len(r.figures[t.to]) == 0 {
		return 0, nil, false
	}
	median = quartiles(r.figures[t.metric])[1]
	if t.to == "" {
		return median, r.figures[t.metric], true
	}
	for round, figure := range r.byRound[t.metric] {
		if base, ok := r.byRound[t.to][round]; ok {
			rounds = append(rounds, figure/base)
		}
	}
	return median / quartiles(r.figures[t.to])[1], rounds, true
}

// met reports whether a value reaches the target.
func (t target) met(value float64) bool {
	if t.atLeast {
		return value >= t.limit
	}
	return value <= t.limit
}

func (r *results) missed() bool {
	return slices.ContainsFunc(targets, func(t target) bool {
		value, _, ok := r.value(t)
		return !ok || !t.met(value)
	})
}

// write prints everything as markdown.
func (r *results) write(w io.Writer) {
	fmt.Fprintf(w, "%s, %d processors, Linux %s, %s. Load averages (1, 5, 15 minutes) after each round: %s.\n\n",
		processor(), runtime.NumCPU(), kernelRelease(), runtime.Version(), strings.Join(r.loads, "; "))
	fmt.Fprintf(w, "| | unit | lower quartile | median | upper quartile | runs |\n|---|---|---|---|---|---|\n")
	for _, m := range r.metrics {
		q := quartiles(r.figures[m.name])
		fmt.Fprintf(w, "| %s | %s | %.2f | **%.2f** | %.2f | %d |\n", m.name, m.unit, q[0], q[1], q[2], len(r.figures[m.name]))
	}
	fmt.Fprintf(w, "\n| target | of medians | quartiles of the rounds | |\n|---|---|---|---|\n")
	for _, t := range targets {
		value, rounds, ok := r.value(t)
		if !ok {
			fmt.Fprintf(w, "| %s | | | not measured |\n", t)
			continue
		}
		verdict := "missed"
		if t.met(value) {
			verdict = "met"
		}
		spread := ""
		if len(rounds) > 0 {
			q := quartiles(rounds)
			spread = fmt.Sprintf("%.2f, %.2f, %.2f", q[0], q[1], q[2])
		}
		fmt.Fprintf(w, "| %s | %.2f | %s | %s |\n", t, value, spread, verdict)
	}
}

func (t target) String() string {
	relation := cmp.Or(map[bool]string{true: "at least"}[t.atLeast], "at most")
	if t.to == "" {
		return fmt.Sprintf("%s %s %g", t.metric, relation, t.limit)
	}
	return fmt.Sprintf("%s / %s %s %g", t.metric, t.to, relation, t.limit)
}

func loadAverage() string {
	data, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(data))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func kernelRelease() string {
	data, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(data))
}

var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	if match := modelName.FindSubmatch(data); match != nil {
		return string(match[1])
	}
	return runtime.GOARCH
}

// Command bench measures rnic beside what else moves bytes between two
// programs of one machine: several interleaved rounds, so that a change of the
// machine's load meets everyone, of which it prints medians and quartiles. What was measured in full goes into
// docs/performance.md too, with plots.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// contenderTimeout is how long one run may take; a second or two is usual.
const contenderTimeout = 40 * time.Second

// options are those of the command line.
type options struct {
	rounds   int
	limit    time.Duration
	output   string
	document string
	only     string
	strict   bool
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "runs", 7, "number of interleaved `rounds`")
	flag.DurationVar(&o.limit, "limit", 10*time.Minute+30*time.Second, "begin no round that would end later than this")
	flag.StringVar(&o.output, "o", "", "write the tables as markdown to this `file` too")
	flag.StringVar(&o.document, "doc", "docs/performance.md", "put tables and plots between the markers of this `file`, if everything was measured three times or more; empty: nowhere")
	flag.StringVar(&o.only, "only", "", "measure only contenders whose name matches this `pattern`")
	flag.BoolVar(&o.strict, "strict", false, "end with status 1 if a target is missed")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 {
		fmt.Fprintln(os.Stderr, "bench: options only, and at least one round")
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	pattern, err := regexp.Compile(o.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	results := newResults()
	results.measure(o, pattern)
	var b strings.Builder
	results.write(&b)
	fmt.Print(b.String())
	if o.output != "" {
		if err := os.WriteFile(o.output, []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	if o.document != "" && results.complete() {
		if err := results.document(o.document); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s is written\n", o.document)
	}
	if len(results.errs) > 0 {
		return fmt.Errorf("%d of the measurements failed, the first: %w", len(results.errs), results.errs[0])
	}
	if o.strict && results.missed() {
		return errors.New("a target is missed")
	}
	return nil
}

// measure measures round for round.
func (r *results) measure(o options, pattern *regexp.Regexp) {
	begin := time.Now()
	for rounds := 0; rounds < o.rounds; {
		for _, c := range contenders() {
			if !pattern.MatchString(c.name) {
				continue
			}
			figures, err := c.once()
			for tries := 0; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 5; tries++ {
				fmt.Fprintf(os.Stderr, "%s: something else holds UDP port 4791; trying again\n", c.name)
				time.Sleep(2 * time.Second)
				figures, err = c.once()
			}
			r.add(c, rounds, figures, err)
		}
		rounds++
		r.load(loadAverage())
		took := time.Since(begin)
		fmt.Fprintf(os.Stderr, "round %d of %d, %.0f s, load %s\n", rounds, o.rounds, took.Seconds(), loadAverage())
		if next := took / time.Duration(rounds); rounds < o.rounds && took+next > o.limit {
			fmt.Fprintf(os.Stderr, "no further round: it would end after the limit of %v\n", o.limit)
			break
		}
	}
}

// once measures a contender once.
func (c *contender) once() ([]float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), contenderTimeout)
	defer cancel()
	return c.measure(ctx)
}

package main

import (
	"fmt"
	"os"
	"slices"
)

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

// complete tells whether every metric has figures of three rounds or more.
func (r *results) complete() bool {
	for _, c := range contenders() {
		for _, m := range c.metrics {
			if len(r.figures[m.name]) < 3 {
				return false
			}
		}
	}
	return true
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

package main

import (
	"cmp"
	"fmt"
	"slices"
)

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

func (t target) String() string {
	relation := cmp.Or(map[bool]string{true: "at least"}[t.atLeast], "at most")
	if t.to == "" {
		return fmt.Sprintf("%s %s %g", t.metric, relation, t.limit)
	}
	return fmt.Sprintf("%s / %s %s %g", t.metric, t.to, relation, t.limit)
}

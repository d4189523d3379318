package perf

import (
	"errors"
	"testing"
)

// Over XRC every operation that needs requests one way only: all contents verified, also with losses.
func TestXRC(t *testing.T) {
	for _, kind := range []Kind{{"write", false}, {"read", false}, {"send", false}, {"atomic", false}, {"read", true}, {"atomic", true}} {
		for _, faults := range [][]string{nil, {"drop=1%,dup=1%,seed=7"}} {
			o := options(t, kind, func(o *Options) {
				o.Transport, o.QueuePairs, o.Faults = "XRC", map[bool]int{false: 3, true: 1}[kind.Latency], faults
			})
			r := runJSON(t, o)[0]
			if r["transport"] != "XRC" || r["errors"] != 0. || !kind.Latency && r["iterations"] != float64(o.Iterations*o.QueuePairs) {
				t.Errorf("%v: %v", kind, r)
			}
		}
	}
	for _, kind := range []Kind{{"write", true}, {"send", true}} {
		o := Options{Kind: kind, QueuePairs: 1, Transport: "XRC", Size: 8}
		if err := o.Validate(); !errors.Is(err, ErrUsage) {
			t.Errorf("%v: %v", kind, err)
		}
	}
}

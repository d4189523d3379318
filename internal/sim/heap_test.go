package sim

import (
	"math/rand/v2"
	"testing"
)

// Events come out by time, and those of one time in the order in which they went in: without that
// a seed would not replay.
func TestEventsInOrder(t *testing.T) {
	var h eventHeap
	rng := rand.New(rand.NewPCG(1, 2))
	var last event
	for i := range 5000 {
		if i < 3000 || h.len() == 0 {
			h.push(event{at: last.at + rng.Int64N(20)})
		}
		if i%3 != 0 && h.len() > 0 {
			e := h.pop()
			if e.at < last.at || e.at == last.at && e.seq < last.seq && last.seq != 0 {
				t.Fatalf("event %d at %d comes behind event %d at %d", e.seq, e.at, last.seq, last.at)
			}
			last = e
		}
	}
}

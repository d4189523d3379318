package perf

import (
	"errors"
	"testing"

	"rnic/internal/nic"
)

// Ten thousand queue pairs share one completion queue: what they have in flight fits it by default, and
// more is refused rather than overflow it.
func TestManyQueuePairsFitTheirCompletionQueue(t *testing.T) {
	for _, verb := range []string{"write", "send"} {
		for _, n := range []int{1, 500, 2000, 10000} {
			o := Options{Kind: Kind{Verb: verb}, Loopback: true, Size: -1, QueuePairs: n, Inline: -1}
			if err := o.Validate(); err != nil {
				t.Fatalf("%d queue pairs: %v", n, err)
			}
			if o.slots() < 1 || n*(o.slots()+1) > maxCompletions || n*(o.recvSlots()+1) > maxCompletions {
				t.Errorf("%s, %d queue pairs: %d slots and %d receives overflow the completion queue", verb, n, o.slots(), o.recvSlots())
			}
		}
	}
	if most := int(nic.DefaultLimits().MaxCQE); maxCompletions != most {
		t.Errorf("a completion queue holds %d here, and %d in the NIC", maxCompletions, most)
	}
	o := Options{Kind: Kind{Verb: "write"}, Loopback: true, Size: 64, QueuePairs: 10000, Depth: 64}
	if err := o.Validate(); !errors.Is(err, ErrUsage) {
		t.Errorf("64 requests in flight of each of 10000 queue pairs: %v, want a usage error", err)
	}
}

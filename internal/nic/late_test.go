package nic

import (
	"testing"

	"rnic/internal/ring"
)

// Completions that a fault holds back become visible when they are due, in order, and keep their room meanwhile.
func TestCompletionsHeldBack(t *testing.T) {
	n := objectsNIC(Config{})
	delays := []int64{0, 50, 10, 0, 0, 0, 0}
	n.SetCompletionDelay(func(now int64, qp uint32) (d int64) { d, delays = delays[0], delays[1:]; return d })
	cq := mustCQ(t, n, 4)
	n.Expire(1000)
	visible := func() uint32 { return cq.ring.Capacity() - cq.ring.Free() }
	cq.Arm(false)
	for i, want := range []uint32{1, 1, 1} {
		n.pushCQE(cq, &ring.CQE{WRID: uint64(i)}, false)
		if visible() != want {
			t.Fatalf("after %d completions %d are visible, want %d", i+1, visible(), want)
		}
	}
	wantEvents(t, n, EventCompletion)
	cq.Arm(false)
	if at := n.NextTimer(); at != 1050 {
		t.Errorf("timer at %d", at)
	}
	n.Expire(1049)
	wantEvents(t, n)
	n.Expire(1050) // the second and, not sooner than that, the third
	wantEvents(t, n, EventCompletion)
	if visible() != 3 || n.NextTimer() != 0 {
		t.Errorf("%d visible, timer at %d", visible(), n.NextTimer())
	}
	cq = mustCQ(t, n, 4)
	room := int(cq.ring.Free())
	delays = append([]int64{1000}, make([]int64, 100)...)
	for range room {
		n.pushCQE(cq, good, false)
	}
	if visible() != 0 {
		t.Fatal("not held back")
	}
	wantEvents(t, n)
	n.pushCQE(cq, good, false) // one too many, though nothing is visible
	wantEvents(t, n, EventCQErr)
}

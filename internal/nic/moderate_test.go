package nic

import (
	"fmt"
	"slices"
	"testing"

	"rnic/internal/ring"
)

// A moderated queue raises its event after count completions, or period microseconds after the first, or with an error. The
// specification has nothing of it: rdma/ib_user_verbs.h, struct ib_uverbs_cq_moderation.
func TestModeration(t *testing.T) {
	n := objectsNIC(Config{})
	cq := mustCQ(t, n, 64)
	if err := cq.Moderate(3, 50); err != nil {
		t.Fatal(err)
	}
	n.Expire(1000)
	push := func(e *ring.CQE) (events int) {
		n.pushCQE(cq, e, false)
		return len(n.Events())
	}
	cq.Arm(false)
	if got := []int{push(good), push(good), push(good), push(good)}; fmt.Sprint(got) != "[0 0 1 0]" {
		t.Errorf("by count: %v", got)
	}
	n.Expire(1_000_000)
	wantEvents(t, n)

	cq.Arm(false)
	push(good)
	if at := n.NextTimer(); at != 1_050_000 {
		t.Errorf("timer at %d, want 50 us after the completion", at)
	}
	n.Expire(1_049_999)
	wantEvents(t, n)
	n.Expire(1_050_000)
	wantEvents(t, n, EventCompletion)
	if at := n.NextTimer(); at != 0 {
		t.Errorf("another timer at %d", at)
	}

	cq.Arm(false)
	if got := []int{push(good), push(bad)}; fmt.Sprint(got) != "[0 1]" {
		t.Errorf("with an error: %v", got)
	}

	cq.Arm(true) // what the event is not for does not count
	if got := []int{push(good), push(good), push(good)}; fmt.Sprint(got) != "[0 0 0]" || n.NextTimer() != 0 {
		t.Errorf("solicited only: %v", got)
	}

	cq.Arm(false)
	push(good)
	if err := cq.Moderate(0, 0); err != nil { // what waits is told at once
		t.Fatal(err)
	}
	wantEvents(t, n, EventCompletion)
	cq.Arm(false)
	if push(good) != 1 {
		t.Error("moderated although it is off")
	}
	for _, off := range [][2]uint16{{1, 50}, {0, 50}, {7, 0}} { // none of these may hold an event for ever
		if err := cq.Moderate(off[0], off[1]); err != nil {
			t.Fatal(err)
		}
		cq.Arm(false)
		if push(good) != 1 {
			t.Errorf("count %d and period %d hold an event back", off[0], off[1])
		}
	}
	if err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, cq.Moderate(1, 1), ENOENT)
}

// A queue to which queue pairs of several units complete: the unit of the completion that an event waits for has the timer,
// whatever unit an earlier event waited in, which may sleep.
func TestModerationOfManyUnits(t *testing.T) {
	n := objectsNIC(Config{Units: 3})
	units := n.Units()
	cq := mustCQ(t, n, 64)
	if err := cq.Moderate(2, 50); err != nil {
		t.Fatal(err)
	}
	for i, u := range units {
		cq.Arm(false)
		u.pushCQE(cq, good, false)
		units[(i+1)%3].pushCQE(cq, good, false) // by count: the first unit's timer does not come up
		if got := len(u.Events()) + len(units[(i+1)%3].Events()); got != 1 {
			t.Fatalf("unit %d: %d events by count, want 1", i, got)
		}
	}
	for i, u := range slices.Backward(units) {
		now := int64(4-i) * 1_000_000
		u.Receive(now, nil) // tells it the time
		cq.Arm(false)
		u.pushCQE(cq, good, false)
		if at := u.NextTimer(); at != now+50_000 {
			t.Fatalf("unit %d: timer at %d, want 50 us after its completion at %d", i, at, now)
		}
		u.Expire(now + 50_000)
		wantEvents(t, u, EventCompletion)
	}
	for i, u := range units {
		u.Expire(10_000_000)
		if len(u.held) > 0 || u.NextTimer() != 0 {
			t.Errorf("unit %d holds %d queues, though nothing waits", i, len(u.held))
		}
	}
}

// However often events come by count, the list of queues that wait stays short.
func TestModerationKeepsNoGarbage(t *testing.T) {
	n := objectsNIC(Config{})
	cq := mustCQ(t, n, 64)
	program := ring.View(cq.ring.Bytes(), ring.Geometry{Slots: 64 * 2, ElemLog2: 6})
	if err := cq.Moderate(2, 50); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		cq.Arm(false)
		n.pushCQE(cq, good, false)
		n.pushCQE(cq, good, false)
		wantEvents(t, n, EventCompletion)
		_ = program.ConsumeAll()
	}
	if len(n.held) > 1 {
		t.Errorf("%d entries for one queue", len(n.held))
	}
}

// 11.2, Resize Completion Queue: resizing keeps what was not polled, the arming and the queue pairs.
func TestCompletionQueueResize(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	for i := range 6 {
		b.recv(uint64(i), b.sge(i*100, 100))
		a.post(wr(uint64(i), ring.OpSend, a.sge(0, 10)))
	}
	w.settle()
	wantErrno(t, b.cq.Resize(ringOf(t, 3, ring.CQESize)), EINVAL)
	wantErrno(t, b.cq.Resize(ringOf(t, 3, 128)), EINVAL)
	wantErrno(t, b.cq.Resize(nil), EINVAL)
	b.cq.Arm(false)
	to := ringOf(t, 7, ring.CQESize)
	if err := b.cq.Resize(to); err != nil {
		t.Fatal(err)
	}
	b.cv = ring.View(to.Bytes(), ring.Geometry{Slots: 8, ElemLog2: 6})
	w.hosts[1].ev = nil
	b.recv(6, b.sge(0, 100))
	a.post(wr(6, ring.OpSend, a.sge(0, 10)))
	w.settle()
	if n := w.hosts[1].events(EventCompletion); n != 1 {
		t.Errorf("%d completion events, want 1", n)
	}
	b.want(t, "0:success", "1:success", "2:success", "3:success", "4:success", "5:success", "6:success")
	for i := range 8 { // one more than it holds now
		b.recv(uint64(i), b.sge(0, 100))
		a.post(wr(uint64(i), ring.OpSend, a.sge(0, 10)))
	}
	w.settle()
	if w.hosts[1].events(EventCQErr) != 1 {
		t.Error("the new size does not bound it")
	}
	wantErrno(t, b.cq.Resize(ringOf(t, 63, ring.CQESize)), EINVAL)
}

// Completions carry the time of the NIC's clock at which they were made. The specification has nothing of it:
// rdma/ib_user_verbs.h, IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION.
func TestCompletionTimes(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	last := uint64(0)
	for i := range 3 {
		w.now += 1e6
		before := uint64(w.now)
		b.recv(uint64(i), b.sge(0, 100))
		a.post(wr(uint64(i), ring.OpSend, a.sge(0, 10)))
		w.settle()
		received, sent := b.poll()[0].Time, a.poll()[0].Time
		if received < before || sent < received || sent > uint64(w.now) || received <= last {
			t.Errorf("message %d: posted %d, received %d, acknowledged %d, now %d", i, before, received, sent, w.now)
		}
		last = sent
	}
}

package nic

import (
	"slices"
	"testing"

	"rnic/internal/ring"
)

// kinds are the types of the events, in order.
func kinds(events []Event) (k []EventType) {
	for _, e := range events {
		k = append(k, e.Type)
	}
	return k
}

func wantEvents(t *testing.T, n *NIC, want ...EventType) []Event {
	t.Helper()
	got := n.Events()
	if !slices.Equal(kinds(got), want) {
		t.Errorf("got events %v, want %v", kinds(got), want)
	}
	return got
}

var (
	good = &ring.CQE{WRID: 1}
	bad  = &ring.CQE{WRID: 2, Status: ring.StatusRemAccessErr}
)

// Vol. 1, 11.4.2.2 (request completion notification).
func TestCompletionNotification(t *testing.T) {
	type push struct {
		e         *ring.CQE
		solicited bool
	}
	plain, solicited, failed := push{good, false}, push{good, true}, push{bad, false}
	for _, c := range []struct {
		name   string
		before []push // arming
		arm    []bool // solicitedOnly
		after  []push
		want   []EventType
	}{
		{"not armed", nil, nil, []push{plain, solicited, failed}, nil},
		{"armed, nothing comes", nil, []bool{false}, nil, nil},
		{"what was there before does not count", []push{plain, solicited}, []bool{false}, nil, nil},
		{"next", nil, []bool{false}, []push{plain}, []EventType{EventCompletion}},
		{"one event for one arming", nil, []bool{false}, []push{plain, plain, solicited}, []EventType{EventCompletion}},
		{"solicited only: not for others", nil, []bool{true}, []push{plain, plain}, nil},
		{"solicited only: for solicited", nil, []bool{true}, []push{plain, solicited, solicited}, []EventType{EventCompletion}},
		{"solicited only: for errors", nil, []bool{true}, []push{plain, failed, failed}, []EventType{EventCompletion}},
		{"next, then solicited: next holds", nil, []bool{false, true}, []push{plain}, []EventType{EventCompletion}},
		{"solicited, then next: next holds", nil, []bool{true, false}, []push{plain}, []EventType{EventCompletion}},
		{"armed twice: one event", nil, []bool{false, false}, []push{plain, plain}, []EventType{EventCompletion}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := objectsNIC(Config{})
			cq := mustCQ(t, n, 16)
			for _, p := range c.before {
				n.pushCQE(cq, p.e, p.solicited)
			}
			for _, solicitedOnly := range c.arm {
				cq.Arm(solicitedOnly)
			}
			for _, p := range c.after {
				n.pushCQE(cq, p.e, p.solicited)
			}
			for _, e := range wantEvents(t, n, c.want...) {
				if e.CQ != cq {
					t.Error("the event is of another queue")
				}
			}
			wantEvents(t, n) // taken and cleared
			cq.Arm(false)
			n.pushCQE(cq, good, false)
			wantEvents(t, n, EventCompletion)
			if n.stats.Completions != uint64(len(c.before)+len(c.after)+1) {
				t.Errorf("%d completions counted", n.stats.Completions)
			}
		})
	}
}

// 11.4.2.1: a completion that can be polled is there as a whole.
func TestCompletionIsPublished(t *testing.T) {
	n := objectsNIC(Config{})
	r := ringOf(t, 4, ring.CQESize)
	cq, err := n.CreateCQ(r)
	if err != nil {
		t.Fatal(err)
	}
	program := ring.View(r.Bytes(), ring.Geometry{Slots: r.Capacity() + 1, ElemLog2: 6})
	for i := range uint64(100) {
		want := ring.CQE{WRID: i, Status: ring.StatusSuccess, Opcode: ring.WCRecvImm, ByteLen: 7, Imm: 9, QPN: 11, SrcQP: 13, Flags: ring.WCWithImm}
		n.pushCQE(cq, &want, false)
		if program.Pending() != 1 {
			t.Fatalf("completion %d: %d entries", i, program.Pending())
		}
		var got ring.CQE
		program.LoadCQE(program.Position(), &got)
		if got != want {
			t.Fatalf("completion %d: got %+v, want %+v", i, got, want)
		}
		if err := program.Consume(); err != nil {
			t.Fatal(err)
		}
	}
}

// Vol. 1, 11.6.3: an overrun completion queue raises one CQ error; it is of no use
// any more, and the queue pairs that complete to it are in error, each with one fatal error event.
func TestCompletionQueueOverflow(t *testing.T) {
	n := objectsNIC(Config{})
	pd, cq, other := mustPD(t, n), mustCQ(t, n, 3), mustCQ(t, n, 64)
	both, send, recv := mustQP(t, n, RC, pd, cq, cq), mustQP(t, n, RC, pd, cq, other), mustQP(t, n, UD, pd, other, cq)
	apart, atRest := mustQP(t, n, RC, pd, other, other), mustQP(t, n, RC, pd, cq, cq)
	for _, q := range []*QP{both, send, recv, apart} {
		bring(t, q, RTS)
	}
	for range 3 {
		n.pushCQE(cq, good, false)
	}
	wantEvents(t, n)
	cq.Arm(false)
	n.pushCQE(cq, good, true)
	n.pushCQE(cq, good, true)
	events := wantEvents(t, n, EventCQErr, EventQPFatal, EventQPFatal, EventQPFatal)
	told := map[*QP]bool{}
	for _, e := range events {
		told[e.QP] = true
	}
	if events[0].CQ != cq || !told[both] || !told[send] || !told[recv] {
		t.Errorf("events %+v are not of the queue and its three queue pairs", events)
	}
	for q, want := range map[*QP]State{both: Err, send: Err, recv: Err, apart: RTS, atRest: Reset} {
		if q.State() != want {
			t.Errorf("%v is in %v, want %v", q, q.State(), want)
		}
	}
	// Room again does not revive it.
	if program := ring.View(cq.ring.Bytes(), ring.Geometry{Slots: cq.ring.Capacity() + 1, ElemLog2: 6}); program.Pending() != 3 {
		t.Errorf("%d completions, want the 3 before the overflow", program.Pending())
	} else if err := program.ConsumeAll(); err != nil {
		t.Fatal(err)
	}
	n.pushCQE(cq, good, true)
	wantEvents(t, n)
	if cq.ring.Position() != 3 {
		t.Error("a completion was added to a dead queue")
	}
	a := goodAttr(Init)
	wantErrno(t, n.Modify(1, atRest, &a, AttrState|rcTransitions[Reset][Init].required), EINVAL)
	_, err := n.CreateQP(qpInit(t, n, UD, pd, other, cq, smallCap))
	wantErrno(t, err, EINVAL)
	if n.stats.CQOverflows != 1 {
		t.Errorf("%d overflows counted, want 1", n.stats.CQOverflows)
	}
}

// 11.2, Destroy Completion Queue: a completion queue in use is not destroyed; after destruction it reports nothing.
func TestCQInUse(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxCQ: 2}})
	pd, a, b := mustPD(t, n), mustCQ(t, n, 4), mustCQ(t, n, 4)
	_, err := n.CreateCQ(ringOf(t, 4, ring.CQESize))
	wantErrno(t, err, ENOMEM)
	q := mustQP(t, n, RC, pd, a, b)
	wantErrno(t, a.Destroy(), EBUSY)
	wantErrno(t, b.Destroy(), EBUSY)
	wantErrno(t, q.Destroy(), 0)
	a.Arm(false)
	n.pushCQE(a, good, false)
	b.Arm(false)
	n.pushCQE(b, good, false)
	wantErrno(t, a.Destroy(), 0)
	wantErrno(t, a.Destroy(), ENOENT)
	if e := wantEvents(t, n, EventCompletion); len(e) == 1 && e[0].CQ != b {
		t.Error("an event of a destroyed queue")
	}
	_, err = n.CreateQP(qpInit(t, n, RC, pd, a, b, smallCap))
	wantErrno(t, err, EINVAL)
}

// 11.2, Create Completion Queue: what is refused.
func TestCreateCQArguments(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxCQE: 100}})
	for _, c := range []struct {
		name string
		r    *ring.Queue
		want Errno
	}{
		{"none", nil, EINVAL},
		{"the limit", ringOf(t, 100, ring.CQESize), 0},
		{"beyond the limit", ringOf(t, 128, ring.CQESize), EINVAL},
	} {
		_, err := n.CreateCQ(c.r)
		t.Run(c.name, func(t *testing.T) { wantErrno(t, err, c.want) })
	}
}

func TestPushCQEDoesNotAllocate(t *testing.T) {
	n := objectsNIC(Config{})
	cq := mustCQ(t, n, 16)
	program := ring.View(cq.ring.Bytes(), ring.Geometry{Slots: cq.ring.Capacity() + 1, ElemLog2: 6})
	e := ring.CQE{WRID: 1}
	if allocs := testing.AllocsPerRun(100, func() {
		cq.Arm(false)
		n.pushCQE(cq, &e, false)
		_ = program.ConsumeAll()
		if len(n.Events()) != 1 {
			t.Error("no event")
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func TestPlantedLostSolicited(t *testing.T) {
	n := objectsNIC(Config{Planted: PlantedLostSolicited})
	cq := mustCQ(t, n, 16)
	cq.Arm(true)
	n.pushCQE(cq, good, true)
	wantEvents(t, n)
}

package nic

import (
	"testing"

	"rnic/internal/ring"

	"pgregory.net/rapid"
)

// What Linux' rxe answers to ibv_rc_pingpong and ibv_ud_pingpong.
func TestQueueShapesAsRxe(t *testing.T) {
	n := objectsNIC(Config{})
	granted, sq, rq, err := n.QueueShapes(Cap{MaxSendWR: 1, MaxRecvWR: 500, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		t.Fatal(err)
	}
	if want := (Cap{MaxSendWR: 1, MaxRecvWR: 511, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}); granted != want {
		t.Errorf("granted %+v, want %+v", granted, want)
	}
	if sq != (ring.Geometry{Slots: 2, ElemLog2: 8}) || rq != (ring.Geometry{Slots: 512, ElemLog2: 6}) {
		t.Errorf("queues of shapes %+v and %+v", sq, rq)
	}
}

// 11.2.5.1: what is granted is at least what was asked and within the limits, fits the queues, and
// is granted again.
func TestQueueShapes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := func(most uint32, label string) uint32 { return rapid.Uint32Range(0, most).Draw(t, label) }
		l := Limits{MaxQPWR: u(20000, "max WR"), MaxSGE: u(40, "max SGE"), MaxInline: u(600, "max inline")}
		n := objectsNIC(Config{Limits: l})
		l = n.Limits()
		asked := Cap{u(l.MaxQPWR, "send WR"), u(l.MaxQPWR, "recv WR"), u(l.MaxSGE, "send SGE"), u(l.MaxSGE, "recv SGE"), u(l.MaxInline, "inline")}
		c, sq, rq, err := n.QueueShapes(asked)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if c.MaxSendWR < asked.MaxSendWR || c.MaxRecvWR < asked.MaxRecvWR || c.MaxSendSGE < asked.MaxSendSGE ||
			c.MaxRecvSGE < asked.MaxRecvSGE || c.MaxInline < asked.MaxInline {
			t.Fatalf("granted %+v, asked %+v", c, asked)
		}
		if c.MaxSendSGE > l.MaxSGE || c.MaxRecvSGE > l.MaxSGE || c.MaxInline > l.MaxInline {
			t.Fatalf("granted %+v beyond the limits %+v", c, l)
		}
		room := 1<<sq.ElemLog2 - ring.SendWQESize
		if sq.Capacity() != c.MaxSendWR || rq.Capacity() != c.MaxRecvWR || room < int(c.MaxSendSGE)*ring.SGESize || room < int(c.MaxInline) ||
			1<<rq.ElemLog2-ring.RecvWQESize < int(c.MaxRecvSGE)*ring.SGESize {
			t.Fatalf("granted %+v does not fit %+v, %+v", c, sq, rq)
		}
		if again, sq2, rq2, err := n.QueueShapes(c); err != nil || again != c || sq2 != sq || rq2 != rq {
			t.Fatalf("granted %+v, then %+v, %v", c, again, err)
		}
	})
}

// 11.2.5.1: create queue pair.
func TestCreateQPArguments(t *testing.T) {
	n, stranger := objectsNIC(Config{}), objectsNIC(Config{})
	pd, cq := mustPD(t, n), mustCQ(t, n, 4)
	for _, c := range []struct {
		name   string
		change func(*QPInit)
		want   Errno
	}{
		{"RC", func(i *QPInit) {}, 0},
		{"UD", func(i *QPInit) { i.Type = UD }, 0},
		{"UC", func(i *QPInit) { i.Type = UC }, 0},
		{"type 0", func(i *QPInit) { i.Type = 0 }, EOPNOTSUPP},
		{"raw packets", func(i *QPInit) { i.Type = 8 }, EOPNOTSUPP},
		{"no domain", func(i *QPInit) { i.PD = nil }, EINVAL},
		{"domain of another NIC", func(i *QPInit) { i.PD = mustPD(t, stranger) }, EINVAL},
		{"no send completion queue", func(i *QPInit) { i.SendCQ = nil }, EINVAL},
		{"completion queue of another NIC", func(i *QPInit) { i.RecvCQ = mustCQ(t, stranger, 4) }, EINVAL},
		{"no send queue", func(i *QPInit) { i.SQ = nil }, EINVAL},
		{"no receive queue", func(i *QPInit) { i.RQ = nil }, EINVAL},
		{"send queue too short", func(i *QPInit) { i.Cap.MaxSendWR = 16 }, EINVAL},
		{"send elements too small", func(i *QPInit) { i.Cap.MaxSendSGE = 32 }, EINVAL},
		{"receive elements too small", func(i *QPInit) { i.Cap.MaxRecvSGE = 32 }, EINVAL},
		{"too many work requests", func(i *QPInit) { i.Cap.MaxSendWR = 16384 }, EINVAL},
		{"too many receives", func(i *QPInit) { i.Cap.MaxRecvWR = 1 << 31 }, EINVAL},
		{"too many entries", func(i *QPInit) { i.Cap.MaxSendSGE = 33 }, EINVAL},
		{"too many receive entries", func(i *QPInit) { i.Cap.MaxRecvSGE = 1<<32 - 1 }, EINVAL},
		{"too much inline", func(i *QPInit) { i.Cap.MaxInline = 513 }, EINVAL},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := qpInit(t, n, RC, pd, cq, cq, smallCap)
			c.change(&i)
			live, refs, cqRefs := len(n.qps), pd.refs, cq.refs
			q, err := n.CreateQP(i)
			wantErrno(t, err, c.want)
			if err != nil && (q != nil || len(n.qps) != live || pd.refs != refs || cq.refs != cqRefs) {
				t.Error("a refused queue pair left something behind")
			}
		})
	}
}

// 11.2.5.4, destroy queue pair: in any state, once, and nothing is reported of it afterwards.
func TestQPLimitAndDestroy(t *testing.T) {
	n := objectsNIC(Config{Limits: Limits{MaxQP: 1}})
	pd, cq := mustPD(t, n), mustCQ(t, n, 4)
	q := mustQP(t, n, RC, pd, cq, cq)
	_, err := n.CreateQP(qpInit(t, n, RC, pd, cq, cq, smallCap))
	wantErrno(t, err, ENOMEM)
	bring(t, q, RTS)
	n.event(Event{Type: EventCommEst, QP: q})
	wantErrno(t, q.Destroy(), 0)
	wantErrno(t, q.Destroy(), ENOENT)
	wantErrno(t, n.Modify(1, q, &Attr{State: Reset}, AttrState), ENOENT)
	if n.lookupQP(q.Num()) != nil {
		t.Error("a destroyed queue pair is found by its number")
	}
	wantEvents(t, n) // none of a destroyed queue pair
	mustQP(t, n, UD, pd, cq, cq)
}

package engine

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"rnic/internal/dma"
	"rnic/internal/link"
	"rnic/internal/link/pipe"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An hour of sleep: a wake-up that is lost hangs the test instead of being found a second later.
const anHour = int64(time.Hour)

var localGID = roce.GID{0: 0xfd, 15: 1}

// rig is a unit, and one RC queue pair of its NIC that is connected to itself by the loop, or to
// nobody. The program's sides of its queues are sq and cq.
type rig struct {
	t      *testing.T
	u      *Engine
	pd     *nic.PD
	mr     *nic.MR
	mem    []byte
	base   uint64
	cqCore *nic.CQ
	qp     *nic.QP
	sq, cq *ring.Queue
	events chan nic.EventType
}

func newRig(t *testing.T, net link.Link, waking Waking, peer roce.GID) *rig {
	t.Helper()
	r := &rig{t: t, mem: make([]byte, 1<<20), events: make(chan nic.EventType, 1<<16)}
	core := nic.New(nic.Config{Seed: 1})
	core.SetGID(0, localGID)
	u, err := New(Config{Core: core, Links: []Links{{Net: net, Loop: pipe.Loop(pipe.Config{Reference: true})}}, Waking: waking,
		Event: func(e nic.Event) { r.events <- e.Type }})
	if err != nil {
		t.Fatal(err)
	}
	r.u = u
	t.Cleanup(u.Close)
	u.Do(func(core *nic.NIC, now int64) { err = r.create(core, now, peer) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func queue(t *testing.T, entries, size uint32) (nicSide, own *ring.Queue) {
	t.Helper()
	g, err := ring.GeometryFor(entries, size)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, g.Size())
	if nicSide, err = ring.Format(buf, g); err != nil {
		t.Fatal(err)
	}
	return nicSide, ring.View(buf, g)
}

func (r *rig) create(core *nic.NIC, now int64, peer roce.GID) (err error) {
	space := dma.NewSlice(r.mem)
	r.base = space.Base()
	all := nic.AccessLocalWrite | nic.AccessRemoteWrite | nic.AccessRemoteRead | nic.AccessRemoteAtomic
	if r.pd, err = core.AllocPD(); err != nil {
		return err
	}
	if r.mr, err = core.RegMR(r.pd, space, r.base, uint64(len(r.mem)), r.base, all); err != nil {
		return err
	}
	nicCQ, cq := queue(r.t, 1024, ring.CQESize)
	if r.cqCore, err = core.CreateCQ(nicCQ); err != nil {
		return err
	}
	r.cq = cq
	capacity := nic.Cap{MaxSendWR: 512, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	nicSQ, sq := queue(r.t, capacity.MaxSendWR, ring.SendWQESize+ring.SGESize)
	nicRQ, _ := queue(r.t, capacity.MaxRecvWR, ring.RecvWQESize+ring.SGESize)
	r.sq = sq
	if r.qp, err = core.CreateQP(nic.QPInit{Type: nic.RC, PD: r.pd, SendCQ: r.cqCore, RecvCQ: r.cqCore, SQ: nicSQ, RQ: nicRQ, Cap: capacity}); err != nil {
		return err
	}
	return r.connect(core, now, peer)
}

func (r *rig) connect(core *nic.NIC, now int64, peer roce.GID) error {
	rights := nic.AccessRemoteWrite | nic.AccessRemoteRead | nic.AccessRemoteAtomic
	for _, step := range []struct {
		a    nic.Attr
		mask nic.AttrMask
	}{
		{nic.Attr{State: nic.Init, Port: 1, AccessFlags: rights}, nic.AttrState | nic.AttrPort | nic.AttrPKeyIndex | nic.AttrAccessFlags},
		{nic.Attr{State: nic.RTR, PathMTU: 5, DestQPN: r.qp.Num(), MaxDestRDAtomic: 1, MinRNRTimer: 1,
			AH: nic.AHAttr{DGID: peer, HopLimit: 64, IsGlobal: true, Port: 1}},
			nic.AttrState | nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer},
		// Local ACK timeout 4.096 us * 2^4, one retry: a peer that is not there is given up at once.
		{nic.Attr{State: nic.RTS, Timeout: 4, RetryCnt: 1, RNRRetry: 1, MaxRDAtomic: 1},
			nic.AttrState | nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrSQPSN | nic.AttrMaxRDAtomic},
	} {
		if err := core.Modify(now, r.qp, &step.a, step.mask); err != nil {
			return err
		}
	}
	return nil
}

// post puts an RDMA WRITE of n bytes into the send queue, without ringing the doorbell.
func (r *rig) post(id uint64, n int) {
	r.t.Helper()
	if r.sq.Free() == 0 {
		r.t.Fatal("the send queue is full")
	}
	w := ring.SendWQE{WRID: id, Opcode: ring.OpWrite, Flags: ring.SendSignaled, RemoteAddr: r.base + 1<<19, RKey: r.mr.RKey(), NumSGE: 1}
	w.SGE[0] = ring.SGE{Addr: r.base, Length: uint32(n), LKey: r.mr.LKey()}
	r.sq.StoreSend(r.sq.Position(), &w, false)
	if err := r.sq.Publish(); err != nil {
		r.t.Fatal(err)
	}
}

// poll takes a completion without driving the unit.
func (r *rig) poll() (e ring.CQE, ok bool) {
	if r.cq.Pending() == 0 {
		return e, false
	}
	r.cq.LoadCQE(r.cq.Position(), &e)
	_ = r.cq.Consume()
	return e, true
}

// arm asks for a completion event, as a command.
func (r *rig) arm() { r.u.Do(func(*nic.NIC, int64) { r.cqCore.Arm(false) }) }

// event waits for the next event.
func (r *rig) event(what string) nic.EventType {
	r.t.Helper()
	select {
	case e := <-r.events:
		return e
	case <-time.After(20 * time.Second):
		r.t.Fatalf("%s: nothing happened: a wake-up is lost", what)
		return 0
	}
}

package engine

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"rnic/internal/dma"
	"rnic/internal/link"
	"rnic/internal/link/pipe"
	"rnic/internal/nic"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A unitsRig is a NIC of several units whose threads sleep for an hour, with all of its memory registered.
type unitsRig struct {
	t    *testing.T
	e    *Engine
	pd   *nic.PD
	mr   *nic.MR
	base uint64
}

func newUnitsRig(t *testing.T, nets []link.Link) *unitsRig {
	t.Helper()
	r := &unitsRig{t: t}
	core := nic.New(nic.Config{Seed: 1, Units: len(nets), Policy: nic.Policy{NoEarlyResend: true}, NewLock: func() nic.Lock { return new(sync.Mutex) }})
	core.SetGID(0, localGID)
	var links []Links
	for _, n := range nets {
		links = append(links, Links{Net: n, Loop: pipe.Loop(pipe.Config{Reference: true})})
	}
	e, err := New(Config{Core: core, Links: links, Waking: Waking{SpinNanos: -1, SleepNanos: anHour}})
	if err != nil {
		t.Fatal(err)
	}
	r.e = e
	t.Cleanup(e.Close)
	space := dma.NewSlice(make([]byte, 1<<20))
	r.base = space.Base()
	r.do(func(core *nic.NIC, _ int64) (err error) {
		if r.pd, err = core.AllocPD(); err == nil {
			r.mr, err = core.RegMR(r.pd, space, r.base, 1<<20, r.base, nic.AccessLocalWrite|nic.AccessRemoteWrite)
		}
		return err
	})
	return r
}

func (r *unitsRig) do(f func(core *nic.NIC, now int64) error) {
	r.t.Helper()
	var err error
	r.e.Do(func(core *nic.NIC, now int64) { err = f(core, now) })
	if err != nil {
		r.t.Fatal(err)
	}
}

// unitsEnd is a queue pair with the program's sides of its queues.
type unitsEnd struct {
	r          *unitsRig
	q          *nic.QP
	core       *nic.CQ
	sq, rq, cq *ring.Queue
}

const endDepth = 8192

func (r *unitsRig) end(unit int, typ nic.QPType) *unitsEnd {
	r.t.Helper()
	e := &unitsEnd{r: r}
	var nicCQ *ring.Queue
	nicCQ, e.cq = queue(r.t, 2*endDepth, ring.CQESize)
	r.do(func(core *nic.NIC, _ int64) (err error) {
		e.core, err = core.CreateCQ(nicCQ)
		return err
	})
	e.create(unit, typ, queue)
	return e
}

// beside is end with the completion queue of another.
func (r *unitsRig) beside(o *unitsEnd, unit int, typ nic.QPType) *unitsEnd {
	r.t.Helper()
	e := &unitsEnd{r: r, core: o.core, cq: o.cq}
	e.create(unit, typ, queue)
	return e
}

func (e *unitsEnd) create(unit int, typ nic.QPType, sends func(t *testing.T, entries, size uint32) (nicSide, own *ring.Queue)) {
	e.r.t.Helper()
	var nicSQ, nicRQ *ring.Queue
	nicSQ, e.sq = sends(e.r.t, endDepth, ring.SendWQESize+ring.SGESize)
	nicRQ, e.rq = queue(e.r.t, endDepth, ring.RecvWQESize+ring.SGESize)
	e.r.do(func(core *nic.NIC, _ int64) (err error) {
		e.q, err = core.Units()[unit].CreateQP(nic.QPInit{Type: typ, PD: e.r.pd, SendCQ: e.core, RecvCQ: e.core, SQ: nicSQ, RQ: nicRQ,
			Cap: nic.Cap{MaxSendWR: endDepth, MaxRecvWR: endDepth, MaxSendSGE: 1, MaxRecvSGE: 1}})
		return err
	})
}

const unitsQKey = 0x1234

// connect brings the queue pair to RTS; unless it is of type UD, it is connected to a queue pair at an address, without a local
// ACK timeout: nothing is ever sent twice.
func (e *unitsEnd) connect(dgid roce.GID, qpn uint32) {
	e.r.t.Helper()
	steps := []nic.Attr{
		{State: nic.Init, Port: 1, QKey: unitsQKey, AccessFlags: nic.AccessRemoteWrite},
		{State: nic.RTR, PathMTU: 5, DestQPN: qpn, MaxDestRDAtomic: 1, MinRNRTimer: 1, AH: nic.AHAttr{DGID: dgid, HopLimit: 64, IsGlobal: true, Port: 1}},
		{State: nic.RTS, RetryCnt: 1, RNRRetry: 1, MaxRDAtomic: 1}}
	masks := map[nic.QPType][3]nic.AttrMask{
		nic.UD: {nic.AttrPort | nic.AttrPKeyIndex | nic.AttrQKey, 0, nic.AttrSQPSN},
		nic.UC: {nic.AttrPort | nic.AttrPKeyIndex | nic.AttrAccessFlags, nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN, nic.AttrSQPSN},
		nic.RC: {nic.AttrPort | nic.AttrPKeyIndex | nic.AttrAccessFlags,
			nic.AttrAV | nic.AttrPathMTU | nic.AttrDestQPN | nic.AttrRQPSN | nic.AttrMaxDestRDAtomic | nic.AttrMinRNRTimer,
			nic.AttrSQPSN | nic.AttrTimeout | nic.AttrRetryCnt | nic.AttrRNRRetry | nic.AttrMaxRDAtomic}}[e.q.Type()]
	e.r.do(func(core *nic.NIC, now int64) error {
		for i := range steps {
			if err := core.Modify(now, e.q, &steps[i], nic.AttrState|masks[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// receives posts n receives of 64 bytes.
func (e *unitsEnd) receives(n int) {
	e.r.t.Helper()
	for i := range n {
		w := ring.RecvWQE{WRID: uint64(i), NumSGE: 1}
		w.SGE[0] = ring.SGE{Addr: e.r.base, Length: 64, LKey: e.r.mr.LKey()}
		e.rq.StoreRecv(e.rq.Position(), &w)
		if err := e.rq.Publish(); err != nil {
			e.r.t.Fatal(err)
		}
	}
}

// post puts requests of 8 bytes into the send queue, without ringing the doorbell.
func (e *unitsEnd) post(op ring.SendOpcode, n int) {
	e.r.t.Helper()
	for range n {
		w := ring.SendWQE{Opcode: op, Flags: ring.SendSignaled, RemoteAddr: e.r.base + 4096, RKey: e.r.mr.RKey(), NumSGE: 1}
		w.SGE[0] = ring.SGE{Addr: e.r.base, Length: 8, LKey: e.r.mr.LKey()}
		e.sq.StoreSend(e.sq.Position(), &w, false)
		if err := e.sq.Publish(); err != nil {
			e.r.t.Fatal(err)
		}
	}
}

// completions waits until n are there, without driving a unit.
func (e *unitsEnd) completions(n uint32) {
	e.r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); e.cq.Pending() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			e.r.t.Fatalf("%d completions of %d: a wake-up is lost", e.cq.Pending(), n)
		}
	}
}

// A caller leaves more with another unit than that deals with at once, and goes away: the unit's thread does the rest, though
// nothing has to be answered.
func TestRestOfAParcelWakesTheUnit(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	a, b := r.end(0, nic.UC), r.end(1, nic.UC)
	a.connect(localGID, b.q.Num())
	b.connect(localGID, a.q.Num())
	for range 20 {
		time.Sleep(2 * time.Millisecond) // the threads are asleep
		const sends = 900
		b.receives(sends)
		a.post(ring.OpSend, sends)
		r.e.Ring(a.q)
		b.completions(sends)
		_, _ = a.cq.ConsumeAll(), b.cq.ConsumeAll()
	}
	if n := r.e.HandoverDrops(); n != 0 {
		t.Errorf("%d packets are lost", n)
	}
}

// What finds no room with a unit that is busy for long is lost, as it would be in a socket, and counted; the rest arrives.
func TestLostHandOversAreCounted(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	a, b := r.end(0, nic.UC), r.end(1, nic.UC)
	a.connect(localGID, b.q.Num())
	b.connect(localGID, a.q.Num())
	const more = 500
	const sends = inboxPackets + more
	b.receives(sends)
	r.e.units[1].lock()
	a.post(ring.OpSend, sends)
	r.e.Ring(a.q)
	a.completions(sends) // unreliable: they leave in this step
	r.e.units[0].lock()
	r.e.units[0].mu.Unlock()
	r.e.units[1].mu.Unlock()
	r.e.kick()
	b.completions(inboxPackets)
	if n := r.e.HandoverDrops(); n != more || b.cq.Pending() != inboxPackets {
		t.Errorf("%d of %d messages arrive, and %d are counted as lost", b.cq.Pending(), sends, n)
	}
}

// However often a program rings, what waits for a unit that is busy does not grow; and the last ring counts.
func TestDoorbellsOfAQueuePairWaitOnce(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	a, b := r.end(1, nic.RC), r.end(1, nic.RC)
	a.connect(localGID, b.q.Num())
	b.connect(localGID, a.q.Num())
	const rings = 1000
	r.e.Lock()
	for range rings {
		a.post(ring.OpWrite, 1)
		r.e.Ring(a.q)
		r.e.units[0].doorbell(Now(), a.q) // as the unit that polls the program's doorbells does
	}
	waiting := len(r.e.units[1].rings.q)
	r.e.Unlock()
	if waiting != 1 {
		t.Errorf("%d doorbells of one queue pair wait", waiting)
	}
	r.e.kick()
	a.completions(rings)
}

// arrivals is a network that only receives: packets are there from the beginning.
type arrivals struct {
	link.Link
	waiting []link.Packet
}

func (l *arrivals) Recv(pkts []link.Packet) (int, error) {
	n := copy(pkts, l.waiting)
	l.waiting = l.waiting[n:]
	return n, nil
}
func (l *arrivals) FDs() []int         { return nil }
func (l *arrivals) NextDelayed() int64 { return 0 }
func (l *arrivals) SetNow(int64)       {}

// More has arrived for a queue pair that moves than an inbox holds: nothing of it is lost, and it stays in order.
func TestMoveLosesNothingThatHasArrived(t *testing.T) {
	net := &arrivals{}
	r := newUnitsRig(t, []link.Link{net, &arrivals{}})
	q := r.end(0, nic.UD)
	q.connect(roce.GID{}, 0)
	const n = inboxPackets + 1000
	q.receives(n)
	var waiting []link.Packet
	for i := range n {
		data := make([]byte, roce.BTHSize+8+4)
		roce.BTH(data).Encode(&roce.BTHFields{Opcode: roce.UDSendOnly, PKey: 0xffff, DestQP: q.q.Num(), PSN: roce.PSN(i)})
		roce.DETH(data[roce.BTHSize:]).Encode(&roce.DETHFields{QKey: unitsQKey, SrcQP: uint32(i) + 1})
		path := roce.Path{Src: netip.MustParseAddr("2001:db8::1"), Dst: localGID.Addr(), TTL: 64}
		waiting = append(waiting, link.Packet{Path: path, Data: data})
	}
	r.e.Lock()
	net.waiting = waiting
	r.e.Unlock()
	r.e.Move(q.q, 1, func(int) {})
	q.completions(n)
	for i := range n {
		var e ring.CQE
		q.cq.LoadCQE(q.cq.Position(), &e)
		if _ = q.cq.Consume(); e.SrcQP != uint32(i)+1 {
			t.Fatalf("completion %d is of datagram %d", i, e.SrcQP-1)
		}
	}
	if n := r.e.HandoverDrops(); n != 0 {
		t.Errorf("%d packets are lost", n)
	}
}

// departures is a network that is full for a while.
type departures struct {
	arrivals
	full int // calls of Send
	sent *[]roce.PSN
}

func (l *departures) Send(pkts []link.Packet) (int, error) {
	if l.full > 0 {
		l.full--
		return 0, nil
	}
	for _, p := range pkts {
		*l.sent = append(*l.sent, roce.BTH(p.Data).PSN())
	}
	return len(pkts), nil
}

// A queue pair moves while its packets wait for a full link: what it sends from its new unit comes behind them.
func TestMoveKeepsWhatIsSentInOrder(t *testing.T) {
	var sent []roce.PSN
	r := newUnitsRig(t, []link.Link{&departures{full: 8, sent: &sent}, &departures{sent: &sent}})
	a := r.end(0, nic.RC)
	a.connect(roce.GIDFromAddr(netip.MustParseAddr("2001:db8::1")), 0x111)
	a.post(ring.OpWrite, 2)
	r.e.Ring(a.q)
	r.e.Lock()
	if len(sent) > 0 {
		t.Fatal("the link is not full: the test tests nothing")
	}
	r.e.Unlock()
	r.e.Move(a.q, 1, func(int) {})
	a.post(ring.OpWrite, 2)
	r.e.Ring(a.q)
	r.e.Lock()
	defer r.e.Unlock()
	if fmt.Sprint(sent) != "[0 1 2 3]" {
		t.Errorf("packets %v have left, want 0 to 3 in order", sent)
	}
}

// A caller panics while it drives a unit, and recovers: others find the unit free.
func TestPanicOfACallerLetsTheUnitGo(t *testing.T) {
	r := newUnitsRig(t, []link.Link{nil, nil})
	done := make(chan struct{})
	func() {
		defer func() { _ = recover() }()
		r.e.units[0].drive(func(*Unit) { panic("a bug") })
	}()
	go func() {
		r.e.Do(func(*nic.NIC, int64) {})
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		r.e.units[0].mu.Unlock() // so that the clean-up can end
		t.Fatal("the unit is held for ever")
	}
}

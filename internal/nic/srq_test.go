package nic

import (
	"fmt"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// A pool is a shared receive queue with the program's view of it.
type pool struct {
	h  *host
	s  *SRQ
	rq *ring.Queue
}

func (h *host) newPool(pd *PD, a SRQAttr) *pool {
	t := h.w.t
	t.Helper()
	_, g, err := h.n.SRQShape(a)
	if err != nil {
		t.Fatalf("%v", err)
	}
	p := &pool{h: h}
	buf := make([]byte, g.Size())
	nics, err := ring.Format(buf, g)
	if err != nil {
		t.Fatalf("%v", err)
	}
	p.rq = ring.View(buf, g)
	if p.s, err = h.n.CreateSRQ(pd, nics, a); err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

func (p *pool) recv(id uint64, sge ...ring.SGE) {
	p.h.w.t.Helper()
	r := &ring.RecvWQE{WRID: id, NumSGE: len(sge)}
	copy(r.SGE[:], sge)
	if p.rq.Free() == 0 {
		p.h.w.t.Fatalf("the shared receive queue is full")
	}
	p.rq.StoreRecv(p.rq.Position(), r)
	if err := p.rq.Publish(); err != nil {
		p.h.w.t.Fatalf("%v", err)
	}
}

// newShared is newEnd with the receives of p.
func (h *host) newShared(typ QPType, p *pool) *end {
	t := h.w.t
	t.Helper()
	e := h.newEnd(typ, testCap, 1023)
	if err := e.q.Destroy(); err != nil {
		t.Fatalf("%v", err)
	}
	_, sq, _, err := h.n.QueueShapes(testCap)
	if err != nil {
		t.Fatalf("%v", err)
	}
	buf := make([]byte, sq.Size())
	nics, err := ring.Format(buf, sq)
	if err != nil {
		t.Fatalf("%v", err)
	}
	e.sq, e.rq = ring.View(buf, sq), p.rq
	if e.q, err = h.n.CreateQP(QPInit{Type: typ, PD: h.pd, SendCQ: e.cq, RecvCQ: e.cq, SQ: nics, SRQ: p.s, Cap: testCap}); err != nil {
		t.Fatalf("%v", err)
	}
	return e
}

// sharing are two connections from the first host to the second, where they share a receive queue.
func sharing(t fatalTB, cfg Config, change func(*Attr)) (w *wire, p *pool, from, to [2]*end) {
	t.Helper()
	w = newWire(t, cfg, cfg)
	p = w.hosts[1].newPool(w.hosts[1].pd, SRQAttr{MaxWR: 31, MaxSGE: 4})
	attr := defaultAttr()
	if change != nil {
		change(&attr)
	}
	for i := range from {
		from[i], to[i] = w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newShared(RC, p)
		from[i].to(RTS, attr, to[i])
		to[i].to(RTS, attr, from[i])
	}
	return w, p, from, to
}

// 10.2.9: messages take the receives of a shared queue in the order in which they start, whichever
// queue pair they are of; the receives complete where they were taken.
func TestSharedReceivesAreTakenInOrder(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	for i := range 6 {
		p.recv(uint64(10+i), to[0].sge(i*4096, 4096))
	}
	for i, sender := range []int{0, 1, 1, 0, 1, 0} {
		from[sender].post(wr(uint64(i), ring.OpSend, from[sender].sge(i*4096, 3000)))
		w.settle()
	}
	to[0].want(t, "10:success", "13:success", "15:success")
	to[1].want(t, "11:success", "12:success", "14:success")
	for i := range 6 {
		if string(to[0].bytes(i*4096, 3000)) != string(from[0].bytes(i*4096, 3000)) {
			t.Errorf("message %d is not in its buffer", i)
		}
	}
	if p.rq.Free() != p.rq.Capacity() {
		t.Errorf("%d of %d slots are free", p.rq.Free(), p.rq.Capacity())
	}
}

// The slot of a receive that a message has taken may be posted to again although it has not completed.
func TestSharedReceiveLeavesTheQueueWhenTaken(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	p.recv(1, to[0].sge(0, 65536))
	w.drop = func(f frame) bool { return f.op == roce.RCSendLast }
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 5000)))
	w.settle()
	if p.rq.Free() != p.rq.Capacity() {
		t.Fatal("the slot is not free")
	}
	p.recv(2, to[0].sge(65536, 4096))
	from[1].post(wr(2, ring.OpSend, from[1].sge(0, 100)))
	w.settle()
	to[1].want(t, "2:success")
	w.drop = nil
	w.run(second)
	to[0].want(t, "1:success")
}

// WRITE with immediate data takes a receive of the shared queue with its last packet; UD queue pairs
// take from it too, and leave what is too small for a datagram.
func TestSharedReceivesOfOtherOperations(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	ud := [2]*end{w.hosts[0].newEnd(UD, testCap, 63), w.hosts[1].newShared(UD, p)}
	for _, e := range ud {
		e.to(RTS, defaultAttr(), nil)
	}
	ah, err := w.hosts[0].n.CreateAH(w.hosts[0].pd, AHAttr{DGID: roce.GIDFromAddr(w.hosts[1].addr), IsGlobal: true, Port: 1, HopLimit: 64})
	if err != nil {
		t.Fatal(err)
	}
	send := wr(2, ring.OpSend, ud[0].sge(0, 200))
	send.AHNum, send.RemoteQPN, send.RemoteQKey = ah.Num(), ud[1].q.Num(), 0x11111111
	p.recv(1, to[0].sge(0, 100))
	ud[0].post(send) // does not fit
	w.settle()
	from[1].post(remote(wr(1, ring.OpWriteImm, from[1].sge(0, 9000)), to[1], 1<<16))
	w.settle()
	p.recv(2, to[0].sge(0, 500))
	ud[0].post(send)
	w.settle()
	to[1].want(t, "1:success")
	ud[1].want(t, "2:success")
	ud[0].want(t, "2:success", "2:success")
	if n := w.hosts[1].n.Stats().UDDropped; n != 1 {
		t.Errorf("%d datagrams dropped, want 1", n)
	}
}

// 9.7.5.2.8: an empty shared queue is answered with RNR NAKs. 9.7.7.2: its queue pairs give no
// credits, for another of them may take the receive first.
func TestSharedQueueEmpty(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 100)))
	w.settle()
	if n := w.hosts[1].n.Stats().RNRNAKsSent; n == 0 {
		t.Error("no RNR NAK")
	}
	p.recv(7, to[0].sge(0, 100))
	w.run(second)
	to[0].want(t, "7:success")
	from[0].want(t, "1:success")
	for _, s := range w.syndromes(w.hosts[1]) {
		if s.Kind() == roce.SyndromeACK && s.Value() != roce.CreditsUnlimited {
			t.Errorf("an acknowledgement with credit code %d", s.Value())
		}
	}
}

// 10.2.9: the keys of a shared queue's receives are of the queue's protection domain; what a queue pair
// sends is of its own.
func TestSharedReceivesAreOfTheQueuesDomain(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	h := w.hosts[1]
	other := mustPD(t, h.n)
	foreign, err := h.n.RegMR(other, h.mem, memBase, 1<<20, memBase, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	p := h.newPool(other, SRQAttr{MaxWR: 8, MaxSGE: 1})
	a, b := w.hosts[0].newEnd(RC, testCap, 63), h.newShared(RC, p)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	p.recv(1, ring.SGE{Addr: memBase, Length: 100, LKey: foreign.LKey()})
	p.recv(2, b.sge(0, 100)) // of the queue pair's domain: no
	a.post(wr(1, ring.OpSend, a.sge(0, 100)), wr(2, ring.OpSend, a.sge(0, 100)))
	w.run(second)
	b.want(t, "1:success", "2:local protection error")
	a.want(t, "1:success", "2:remote operation error")
}

// 11.6.3: in the error state a queue pair flushes the receives that it has taken and leaves the others
// in the shared queue; the event says that no other completes with it.
func TestLastWQEReached(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	p.recv(1, to[0].sge(0, 65536))
	p.recv(2, to[0].sge(65536, 100))
	w.drop = func(f frame) bool { return f.op == roce.RCSendLast }
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 5000)))
	w.settle()
	w.drop = nil
	if err := w.hosts[1].n.Modify(w.now, to[0].q, &Attr{State: Err}, AttrState); err != nil {
		t.Fatal(err)
	}
	to[0].want(t, "1:work request flushed error")
	w.settle()
	var last []*QP
	for _, e := range w.hosts[1].ev {
		if e.Type == EventQPLastWQE {
			last = append(last, e.QP)
		}
	}
	if len(last) != 1 || last[0] != to[0].q {
		t.Fatalf("last WQE events of %v, want one of %v", last, to[0].q)
	}
	from[1].post(wr(2, ring.OpSend, from[1].sge(0, 100)))
	w.run(second)
	to[1].want(t, "2:success")
	to[0].want(t)
}

// A receive that the message does not fit completes with its error, and the rest stays for the others.
func TestSharedReceiveInError(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	p.recv(1, to[0].sge(0, 50))
	p.recv(2, to[0].sge(100, 100))
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 100)))
	w.settle()
	to[0].want(t, "1:local length error")
	from[0].want(t, "1:remote invalid request error")
	from[1].post(wr(2, ring.OpSend, from[1].sge(0, 100)))
	w.settle()
	to[1].want(t, "2:success")
	if n := w.hosts[1].events(EventQPLastWQE); n != 1 {
		t.Errorf("%d last WQE events, want 1", n)
	}
}

// 11.6.3, 11.2, Modify Shared Receive Queue: one event for one arming, when fewer than the limit are left.
func TestSharedQueueLimit(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	for i := range 8 {
		p.recv(uint64(i), to[0].sge(i*100, 100))
	}
	limit := func(n uint32) {
		t.Helper()
		if err := p.s.Modify(&n, nil); err != nil {
			t.Fatal(err)
		}
	}
	message := func() int {
		t.Helper()
		from[0].post(wr(1, ring.OpSend, from[0].sge(0, 10)))
		w.settle()
		n := 0
		for _, e := range w.hosts[1].ev {
			if e.Type == EventSRQLimit {
				n++
				if e.SRQ != p.s {
					t.Error("the event is of another queue")
				}
			}
		}
		w.hosts[1].ev = nil
		return n
	}
	limit(6)
	got := []int{message(), message(), message(), message()} // 7, 6, 5, 4 are left
	if fmt.Sprint(got) != "[0 0 1 0]" {
		t.Errorf("events %v", got)
	}
	if a := p.s.Query(); a.Limit != 0 || a.MaxWR != 31 || a.MaxSGE != 4 {
		t.Errorf("attributes %+v", a)
	}
	limit(3)
	limit(0)
	if n := message() + message(); n != 0 {
		t.Errorf("%d events of a queue that is disarmed", n)
	}
	limit(2)
	if n := message(); n != 1 { // 1 is left
		t.Errorf("%d events after another arming", n)
	}
}

// 11.2, Modify Shared Receive Queue: resizing keeps what is posted, and refuses what would lose it.
func TestSharedQueueResize(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	for i := range 5 {
		p.recv(uint64(i), to[0].sge(i*100, 100))
	}
	to2 := func(entries uint32) (*ring.Queue, error) {
		_, g, err := w.hosts[1].n.SRQShape(SRQAttr{MaxWR: entries, MaxSGE: 4})
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, g.Size())
		q, err := ring.Format(buf, g)
		if err != nil {
			t.Fatal(err)
		}
		return ring.View(buf, g), p.s.Modify(nil, q)
	}
	_, err := to2(3)
	wantErrno(t, err, EINVAL)
	six := uint32(6)
	if err := p.s.Modify(&six, nil); err != nil {
		t.Fatal(err)
	}
	_, err = to2(3)
	wantErrno(t, err, EINVAL)
	many := uint32(32)
	wantErrno(t, p.s.Modify(&many, nil), EINVAL)
	if a := p.s.Query(); a.MaxWR != 31 || a.Limit != 6 {
		t.Fatalf("a refused command has changed the queue: %+v", a)
	}
	view, err := to2(63)
	if err != nil {
		t.Fatal(err)
	}
	view.SetPosition(5)
	p.rq = view
	p.recv(5, to[0].sge(500, 100))
	for i := range 6 {
		from[i%2].post(wr(uint64(i), ring.OpSend, from[0].sge(0, 10)))
		w.settle()
	}
	to[0].want(t, "0:success", "2:success", "4:success")
	to[1].want(t, "1:success", "3:success", "5:success")
}

// 11.2, Create and Destroy Shared Receive Queue: what is refused, and what is in use.
func TestSharedQueueLife(t *testing.T) {
	w := newWire(t, Config{Limits: Limits{MaxSRQ: 2, MaxSRQWR: 31}})
	h := w.hosts[0]
	for _, a := range []SRQAttr{{MaxWR: 0, MaxSGE: 1}, {MaxWR: 32, MaxSGE: 1}, {MaxWR: 8, MaxSGE: 33}} {
		_, _, err := h.n.SRQShape(a)
		wantErrno(t, err, EINVAL)
	}
	p := h.newPool(h.pd, SRQAttr{MaxWR: 16, MaxSGE: 1})
	_, err := h.n.CreateSRQ(h.pd, ringOf(t, 3, 64), SRQAttr{MaxWR: 16, MaxSGE: 1})
	wantErrno(t, err, EINVAL)
	_, err = h.n.CreateSRQ(nil, ringOf(t, 31, 64), SRQAttr{MaxWR: 16, MaxSGE: 1})
	wantErrno(t, err, EINVAL)
	e := h.newShared(RC, p)
	wantErrno(t, p.s.Destroy(), EBUSY)
	if a, i := e.q.Query(); a.Cap.MaxRecvWR != 0 || i.Cap.MaxRecvSGE != 0 {
		t.Errorf("a queue pair with a shared queue has %d receives of its own", a.Cap.MaxRecvWR)
	}
	h.newPool(h.pd, SRQAttr{MaxWR: 16, MaxSGE: 1})
	_, err = h.n.CreateSRQ(h.pd, ringOf(t, 31, 64), SRQAttr{MaxWR: 16, MaxSGE: 1})
	wantErrno(t, err, ENOMEM)
	if err := e.q.Destroy(); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, p.s.Destroy(), 0)
	wantErrno(t, p.s.Destroy(), ENOENT)
	one := uint32(1)
	wantErrno(t, p.s.Modify(&one, nil), ENOENT)
	i := qpInit(t, h.n, RC, h.pd, e.cq, e.cq, smallCap)
	i.SRQ = p.s
	_, err = h.n.CreateQP(i)
	wantErrno(t, err, EINVAL)
}

// 10.3.1.1: a reset lets go of what was taken and leaves the shared queue alone.
func TestResetOfAQueuePairWithSharedReceives(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	p.recv(1, to[0].sge(0, 65536))
	p.recv(2, to[0].sge(0, 65536))
	w.drop = func(f frame) bool { return f.op == roce.RCSendLast }
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 5000)))
	w.settle()
	w.drop = nil
	if err := w.hosts[1].n.Modify(w.now, to[0].q, &Attr{State: Reset}, AttrState); err != nil {
		t.Fatal(err)
	}
	from[1].post(wr(2, ring.OpSend, from[1].sge(0, 100)))
	w.settle()
	to[0].want(t)
	to[1].want(t, "2:success")
	if n := w.hosts[1].events(EventQPLastWQE); n != 0 {
		t.Errorf("%d last WQE events of a queue pair that was reset", n)
	}
}

// A program that truncates its queue, or writes nonsense into it, hurts its own queue pair only.
func TestSharedQueueOfNonsense(t *testing.T) {
	w, p, from, to := sharing(t, Config{}, nil)
	p.recv(1, to[0].sge(0, 100))
	b := p.rq.Bytes()[ring.HeaderSize:]
	b[28], b[29] = 0xff, 0xff // num_sge
	p.recv(2, to[0].sge(0, 100))
	from[0].post(wr(1, ring.OpSend, from[0].sge(0, 100)))
	w.run(second)
	to[0].want(t, "1:local QP operation error")
	from[1].post(wr(2, ring.OpSend, from[1].sge(0, 100)))
	w.run(second)
	to[1].want(t, "2:success")
}

// 9.8.2: an unreliable connection takes from the shared queue too. It cannot give back what a message that
// breaks off had taken: that completes with an error, and the queue pair goes on.
func TestSharedReceivesOfAnUnreliableConnection(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	p := w.hosts[1].newPool(w.hosts[1].pd, SRQAttr{MaxWR: 31, MaxSGE: 1})
	a, b := w.hosts[0].newEnd(UC, testCap, 63), w.hosts[1].newShared(UC, p)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	for i := range 3 {
		p.recv(uint64(i), b.sge(i*8192, 8192))
	}
	broken := 0
	w.drop = func(f frame) bool {
		if f.op == roce.UCSendLast {
			broken++
		}
		return f.op == roce.UCSendLast && broken == 1
	}
	for i := range 3 {
		a.post(wr(uint64(i), ring.OpSend, a.sge(i*8192, 3000)))
		w.run(second)
	}
	a.want(t, "0:success", "1:success", "2:success")
	b.want(t, "0:remote invalid request error", "1:success", "2:success")
	if b.q.State() != RTS || string(b.bytes(8192, 3000)) != string(a.bytes(8192, 3000)) {
		t.Errorf("the queue pair is in %v, or the message is not there", b.q.State())
	}
	a.post(wr(3, ring.OpSend, a.sge(0, 100))) // into an empty queue: lost
	w.run(second)
	p.recv(3, b.sge(0, 100))
	a.post(remote(wr(4, ring.OpWriteImm, a.sge(0, 100)), b, 1<<16))
	w.run(second)
	b.want(t, "3:success")
	if err := w.hosts[1].n.Modify(w.now, b.q, &Attr{State: Err}, AttrState); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if n := w.hosts[1].events(EventQPLastWQE); n != 1 {
		t.Errorf("%d last WQE events", n)
	}
}

// FuzzSharedQueue lets a program do what it likes with a shared receive queue, its indices and its elements,
// while messages come in and commands change it. The NIC touches no memory but that of the region, and
// completes no more receives than messages came.
func FuzzSharedQueue(f *testing.F) {
	f.Add([]byte{0, 0, 1, 5, 2, 9, 3, 77, 4, 2, 5, 1, 0, 3})
	f.Add([]byte{6, 255, 0, 1, 7, 3, 0, 2, 1, 1, 2, 200})
	f.Fuzz(func(t *testing.T, ops []byte) {
		w, p, from, to := sharing(t, Config{}, nil)
		w.quiet = true
		h := w.hosts[1]
		_ = h.mr.Dereg()
		var err error
		if h.mr, err = h.n.RegMR(h.pd, h.mem, memBase+4096, 4096, memBase+4096, allAccess); err != nil {
			t.Fatal(err)
		}
		before := string(h.mem.Mem)
		sent, received := 0, 0
		for ops = ops[:min(len(ops), 120)]; len(ops) >= 2; ops = ops[2:] {
			v := int(ops[1])
			b := p.rq.Bytes()
			switch ops[0] % 9 {
			case 0:
				if e := from[v%2]; e.q.State() == RTS && e.sq.Free() > 0 {
					e.post(wr(uint64(sent), ring.OpSend, e.sge(0, v)))
					sent++
				}
			case 1:
				if p.rq.Free() > 0 {
					p.recv(uint64(v), to[0].sge(4096+v*8, 1+v))
				}
			case 2:
				b[128+v%4] ^= byte(1 << (v >> 5)) // the producer index
			case 3:
				b[256+v%4] ^= byte(1 << (v >> 5)) // the consumer index
			case 4:
				b[ring.HeaderSize+v*7%(len(b)-ring.HeaderSize)] ^= byte(v | 1)
			case 5:
				limit := uint32(v % 40)
				_ = p.s.Modify(&limit, nil)
			case 6:
				_, g, err := h.n.SRQShape(SRQAttr{MaxWR: uint32(1 + v%70), MaxSGE: 4})
				if err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, g.Size())
				q, err := ring.Format(buf, g)
				if err != nil {
					t.Fatal(err)
				}
				if p.s.Modify(nil, q) == nil {
					p.rq = ring.View(buf, g)
					p.rq.SetPosition(p.rq.Produced())
				}
			case 7:
				_ = h.n.Modify(w.now, to[v%2].q, &Attr{State: Err}, AttrState)
			case 8:
				w.run(int64(v) * 1e5)
			}
			w.settle()
		}
		for _, e := range to {
			received += len(e.poll())
		}
		if received > sent {
			t.Fatalf("%d receives completed for %d messages", received, sent)
		}
		if m := string(h.mem.Mem); m[:4096] != before[:4096] || m[8192:] != before[8192:] {
			t.Fatal("memory outside the region has changed")
		}
		if h.events(EventQPLastWQE) > 2 {
			t.Fatal("more last WQE events than queue pairs")
		}
	})
}

package nic

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// xrcQueue is a shared receive queue of XRC with the program's views.
type xrcQueue struct {
	*end
	srq *SRQ
	mr  *MR // of its own protection domain
}

// xrcPair is an initiator at host 0, and a target at host 1 with two shared receive queues in different
// protection domains.
func xrcPair(t *testing.T, change func(a *Attr)) (w *wire, a *end, b *end, d *XRCD, queues [2]*xrcQueue) {
	t.Helper()
	w = newWire(t, Config{}, Config{})
	attr := defaultAttr()
	attr.AccessFlags = allAccess
	if change != nil {
		change(&attr)
	}
	h := w.hosts[1]
	d, err := h.n.AllocXRCD()
	if err != nil {
		t.Fatal(err)
	}
	for i := range queues {
		queues[i] = newXRCQueue(t, h, d)
	}
	a = w.hosts[0].newEnd(XRCINI, testCap, 1023)
	q, err := h.n.CreateQP(QPInit{Type: XRCTGT, XRCD: d})
	if err != nil {
		t.Fatal(err)
	}
	b = &end{h: h, q: q}
	a.to(RTS, attr, b)
	b.to(RTS, attr, a)
	return w, a, b, d, queues
}

func newXRCQueue(t *testing.T, h *host, d *XRCD) *xrcQueue {
	t.Helper()
	x := &xrcQueue{end: &end{h: h}}
	view := func(g ring.Geometry, err error) (*ring.Queue, *ring.Queue) {
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, g.Size())
		q, err := ring.Format(buf, g)
		if err != nil {
			t.Fatal(err)
		}
		return q, ring.View(buf, g)
	}
	nicCQ, cv := view(ring.GeometryFor(255, ring.CQESize))
	_, g, err := h.n.SRQShape(SRQAttr{MaxWR: 63, MaxSGE: 2})
	nicRQ, rq := view(g, err)
	x.cv, x.rq = cv, rq
	if x.cq, err = h.n.CreateCQ(nicCQ); err != nil {
		t.Fatal(err)
	}
	pd := mustPD(t, h.n)
	if x.mr, err = h.n.RegMR(pd, h.mem, memBase, 1<<20, memBase, allAccess); err != nil {
		t.Fatal(err)
	}
	if x.srq, err = h.n.CreateXRCSRQ(pd, d, x.cq, nicRQ, SRQAttr{MaxWR: 63, MaxSGE: 2}); err != nil {
		t.Fatal(err)
	}
	return x
}

// sge is a piece of memory by the queue's own key.
func (x *xrcQueue) piece(off, n int) ring.SGE {
	return ring.SGE{Addr: memBase + uint64(off), Length: uint32(n), LKey: x.mr.LKey()}
}

// to aims a request at the queue, and at offset off of memory.
func (x *xrcQueue) aimed(s *ring.SendWQE, off int) *ring.SendWQE {
	s.RemoteAddr, s.RKey, s.RemoteSRQ = memBase+uint64(off), x.mr.RKey(), x.srq.Num()
	return s
}

// Annex A14: every operation of RC, to one shared receive queue and the other in turn: each request names it behind the
// BTH, its receives and its protection domain count, its completion queue gets the completions.
func TestXRCOperations(t *testing.T) {
	w, a, b, _, queues := xrcPair(t, nil)
	for round := range 4 {
		x, other := queues[round&1], queues[1-round&1]
		for i, op := range []ring.SendOpcode{ring.OpSend, ring.OpSendImm, ring.OpWrite, ring.OpWriteImm} {
			id, off := uint64(10*round+i), 200_000+20_000*round+4000*i
			recv := op != ring.OpWrite
			if recv {
				x.recv(id, x.piece(off, 3500))
			}
			a.post(x.aimed(wr(id, op, a.sge(77*i, 3000)), off))
			w.run(second)
			a.want(t, fmt.Sprintf("%d:success", id))
			if recv {
				got := x.poll()
				if len(got) != 1 || got[0].WRID != id || got[0].Status != 0 || got[0].ByteLen != 3000 || got[0].QPN != b.q.Num() {
					t.Errorf("%v: completions %+v", op, got)
				}
			}
			x.want(t)
			other.want(t)
			if !bytes.Equal(a.bytes(77*i, 3000), b.bytes(off, 3000)) {
				t.Errorf("%v: data differ", op)
			}
		}
		a.post(x.aimed(wr(1, ring.OpRead, a.sge(500_000, 5000)), 300_000))
		add := x.aimed(wr(2, ring.OpFetchAdd, a.sge(600_000, 8)), 8*round)
		add.CompareAdd = 1
		a.post(add)
		w.run(second)
		a.want(t, "1:success", "2:success")
		if !bytes.Equal(a.bytes(500_000, 5000), b.bytes(300_000, 5000)) {
			t.Error("what was read differs")
		}
	}
	for _, f := range w.log {
		p := f.packet()
		if p.Info.Transport != roce.TransportXRC || p.Info.Request != (f.from == a.h) {
			t.Errorf("packet %v", f.op)
		}
		if n := p.XRCETH(); p.Info.Request && n.SRQ() != queues[0].srq.Num() && n.SRQ() != queues[1].srq.Num() {
			t.Errorf("packet %v is for %#x", f.op, n.SRQ())
		}
	}
}

// A14, 9.7.5: the reliability of RC: each packet lost once, each way, and no receive posted at first.
func TestXRCReliability(t *testing.T) {
	for lost := range 14 {
		w, a, b, _, queues := xrcPair(t, nil)
		w.drop = func(f frame) bool { return len(w.log) == lost+1 }
		a.post(queues[0].aimed(wr(1, ring.OpSend, a.sge(0, 3000)), 0), queues[1].aimed(wr(2, ring.OpSendImm, a.sge(3000, 3000)), 0),
			queues[1].aimed(wr(3, ring.OpRead, a.sge(500_000, 3000)), 400_000), queues[0].aimed(wr(4, ring.OpWriteImm, a.sge(6000, 3000)), 300_000))
		w.run(1e6)
		for i, x := range queues { // RNR NAKs until here
			x.recv(uint64(10+i), x.piece(200_000+10_000*i, 3000))
		}
		queues[0].recv(20)
		w.run(10 * second)
		a.want(t, "1:success", "2:success", "3:success", "4:success")
		queues[0].want(t, "10:success", "20:success")
		queues[1].want(t, "11:success")
		if !bytes.Equal(b.bytes(200_000, 3000), a.bytes(0, 3000)) || !bytes.Equal(b.bytes(210_000, 3000), a.bytes(3000, 3000)) ||
			!bytes.Equal(b.bytes(300_000, 3000), a.bytes(6000, 3000)) || !bytes.Equal(a.bytes(500_000, 3000), b.bytes(400_000, 3000)) {
			t.Errorf("packet %d: data differ", lost)
		}
	}
}

// A14: a number that is no queue's, or of another domain, is an invalid request; a key of another protection domain
// than the queue's is an access error.
func TestXRCErrors(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(s *ring.SendWQE, queues [2]*xrcQueue, stranger *xrcQueue)
	}{
		{"unknown", "1:remote invalid request error", func(s *ring.SendWQE, _ [2]*xrcQueue, _ *xrcQueue) { s.RemoteSRQ ^= 1 }},
		{"domain", "1:remote invalid request error", func(s *ring.SendWQE, _ [2]*xrcQueue, x *xrcQueue) { s.RemoteSRQ = x.srq.Num() }},
		{"key", "1:remote access error", func(s *ring.SendWQE, q [2]*xrcQueue, _ *xrcQueue) { s.RKey = q[1].mr.RKey() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b, _, queues := xrcPair(t, nil)
			d, err := b.h.n.AllocXRCD()
			if err != nil {
				t.Fatal(err)
			}
			s := queues[0].aimed(wr(1, ring.OpWrite, a.sge(0, 100)), 0)
			c.spoil(s, queues, newXRCQueue(t, b.h, d))
			a.post(s)
			w.run(second)
			a.want(t, c.want)
			if b.q.State() != Err {
				t.Errorf("state %v", b.q.State())
			}
		})
	}
	// All packets of a message are for one queue.
	w, a, b, _, queues := xrcPair(t, nil)
	queues[0].recv(1, queues[0].piece(0, 3000))
	to := func(x *xrcQueue) func(*roce.OpInfo, []byte) {
		return func(i *roce.OpInfo, p []byte) { i.XRCETH(p).Encode(&roce.XRCETHFields{SRQ: x.srq.Num()}) }
	}
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.XRCSendFirst, 100, 1024, to(queues[0])))
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.XRCSendLast, 101, 8, to(queues[1])))
	w.run(1e6)
	queues[0].want(t, "1:work request flushed error")
	if b.q.State() != Err {
		t.Errorf("state %v", b.q.State())
	}
}

// What was taken from a queue completes in that queue's completion queue, whatever becomes of the queue pair in
// the same batch of packets.
func TestXRCFlushGoesWhereItBelongs(t *testing.T) {
	w, a, b, _, queues := xrcPair(t, nil)
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
	a.post(queues[0].aimed(wr(0, ring.OpWrite, a.sge(0, 100)), 0))
	w.run(second) // until the initiator knows that it need not count receives
	a.want(t, "0:success")
	queues[0].recv(1, queues[0].piece(49_995, 100))
	queues[1].recv(2, queues[1].piece(0, 100))
	a.post(queues[0].aimed(wr(1, ring.OpSend, a.sge(0, 100)), 0), queues[1].aimed(wr(2, ring.OpSend, a.sge(0, 100)), 0))
	w.run(second)
	queues[0].want(t, "1:local protection error")
	queues[1].want(t, "2:work request flushed error")
	a.want(t, "1:remote operation error", "2:work request flushed error")
}

// A14, 10.2.9: who uses what, and what goes with it.
func TestXRCObjects(t *testing.T) {
	w, a, b, d, queues := xrcPair(t, nil)
	wantErrno(t, d.Dealloc(), EBUSY)
	wantErrno(t, queues[0].cq.Destroy(), EBUSY)
	wantErrno(t, queues[0].srq.pd.Dealloc(), EBUSY)
	// A queue that is destroyed in the middle of a message.
	queues[0].recv(1, queues[0].piece(0, 3000))
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.XRCSendFirst, 100, 1024, func(i *roce.OpInfo, p []byte) {
		i.XRCETH(p).Encode(&roce.XRCETHFields{SRQ: queues[0].srq.Num()})
	}))
	w.settle()
	wantErrno(t, queues[0].srq.Destroy(), 0)
	wantErrno(t, queues[0].cq.Destroy(), 0)
	w.run(second)
	if b.q.State() != Err {
		t.Errorf("state %v", b.q.State())
	}
	wantErrno(t, queues[1].srq.Destroy(), 0)
	wantErrno(t, d.Dealloc(), EBUSY)
	wantErrno(t, b.q.Destroy(), 0)
	wantErrno(t, d.Dealloc(), 0)
	n := b.h.n
	for _, i := range []QPInit{{Type: XRCTGT}, {Type: XRCTGT, XRCD: d}, {Type: RC, XRCD: d}, {Type: XRCINI, SRQ: queues[1].srq}} {
		_, err := n.CreateQP(i)
		wantErrno(t, err, EINVAL)
	}
}

// Whatever a peer sends to a target: no panic, and no more completions than receives.
func TestXRCRandomPackets(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		w, a, b, _, queues := xrcPair(t, nil)
		for i, x := range queues {
			x.recv(uint64(i), x.piece(0, 2000))
		}
		psn := roce.PSN(100)
		for range 20 {
			op := roce.XRCSendFirst + roce.Opcode(rng.IntN(0x18))
			if op.Info() == nil {
				continue
			}
			b.h.inject(b.pathFrom(a), b.fromPeer(op, psn, pickSize(rng), func(i *roce.OpInfo, p []byte) {
				if h := i.XRCETH(p); h != nil {
					h.Encode(&roce.XRCETHFields{SRQ: queues[rng.IntN(2)].srq.Num() ^ uint32(rng.IntN(20)/19)})
				}
				if h := i.RETH(p); h != nil {
					h.Encode(&roce.RETHFields{VA: memBase, RKey: queues[rng.IntN(2)].mr.RKey(), Length: uint32(pickSize(rng))})
				}
			}))
			psn = psn.Add(rng.IntN(8) / 6)
			if rng.IntN(3) == 0 {
				w.settle()
			}
		}
		w.run(50e6)
		for _, x := range queues {
			if n := len(x.poll()); n > 1 {
				t.Fatalf("%d completions for one receive", n)
			}
		}
	}
}

func pickSize(rng *rand.Rand) int { return []int{0, 8, 1024, 1024, 1024, 1025}[rng.IntN(6)] }

// 9.7.5.1: a READ for one queue is answered again while a message for the other is under way: without that answer the
// initiator does not go on.
func TestXRCReadAgainWithinAMessage(t *testing.T) {
	w, a, b, _, queues := xrcPair(t, nil)
	queues[1].recv(1, queues[1].piece(0, 3000))
	to := func(x *xrcQueue, length uint32) func(*roce.OpInfo, []byte) {
		return func(i *roce.OpInfo, p []byte) {
			i.XRCETH(p).Encode(&roce.XRCETHFields{SRQ: x.srq.Num()})
			if h := i.RETH(p); h != nil {
				h.Encode(&roce.RETHFields{VA: memBase, RKey: x.mr.RKey(), Length: length})
			}
		}
	}
	read := b.fromPeer(roce.XRCReadRequest, 100, 0, to(queues[0], 8))
	b.h.inject(b.pathFrom(a), read)
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.XRCSendFirst, 101, 1024, to(queues[1], 0)))
	w.settle()
	b.h.inject(b.pathFrom(a), read)
	w.settle()
	if n := w.countOp(roce.XRCReadResponseOnly); n != 2 {
		t.Errorf("%d responses, want 2", n)
	}
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.XRCSendLast, 102, 8, to(queues[1], 0)))
	w.run(1e6)
	queues[1].want(t, "1:success")
}

// 9.7.5.1: a message whose acknowledgement was lost is acknowledged again, also when its shared receive queue has been
// destroyed since: it has arrived.
func TestXRCLostAcknowledgementOfAQueueThatIsGone(t *testing.T) {
	w, a, _, _, queues := xrcPair(t, nil)
	x := queues[0]
	x.recv(1, x.piece(0, 100))
	w.drop = func(f frame) bool { return f.op == roce.XRCAck }
	a.post(x.aimed(wr(1, ring.OpSend, a.sge(0, 100)), 0))
	w.settle()
	x.want(t, "1:success")
	if err := x.srq.Destroy(); err != nil {
		t.Fatal(err)
	}
	w.drop = nil
	w.run(10 * second)
	a.want(t, "1:success")
}

// Annex A14: neither half of XRC has a receive queue that would have to be looked at in the error state.
func TestXRCInErrorTakesNoTime(t *testing.T) {
	w, a, b, _, _ := xrcPair(t, nil)
	for _, e := range []*end{a, b} {
		if err := e.h.n.Modify(w.now, e.q, &Attr{State: Err}, AttrState); err != nil {
			t.Fatal(err)
		}
		if at := e.h.n.NextTimer(); at != 0 {
			t.Errorf("%v wants the time at %d", e.q, at)
		}
	}
}

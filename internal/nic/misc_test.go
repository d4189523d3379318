package nic

import (
	"bytes"
	"fmt"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Requests that are wrong by themselves fail with the local status that 11.6.2 names, behind
// everything before them, and flush what follows.
func TestLocalErrors(t *testing.T) {
	inline := func(op ring.SendOpcode, n int) func(a, b *end) *ring.SendWQE {
		return func(a, b *end) *ring.SendWQE {
			s := remote(wr(2, op), b, 0)
			s.Flags |= ring.SendInline
			s.InlineLen = n
			return s
		}
	}
	for _, c := range []struct {
		name string
		req  func(a, b *end) *ring.SendWQE
		want string
	}{
		{"unknown opcode", func(a, b *end) *ring.SendWQE { return wr(2, 77, a.sge(0, 8)) }, "local QP operation error"},
		{"opcode not offered", func(a, b *end) *ring.SendWQE { return wr(2, ring.OpReadInv) }, "local QP operation error"},
		{"inline READ", inline(ring.OpRead, 8), "local QP operation error"},
		{"wrong key", func(a, b *end) *ring.SendWQE {
			s := wr(2, ring.OpSend, a.sge(0, 8))
			s.SGE[0].LKey ^= 3
			return s
		}, "local protection error"},
		{"beyond the region", func(a, b *end) *ring.SendWQE { return wr(2, ring.OpSend, a.sge(1<<20-4, 8)) }, "local protection error"},
		{"second entry", func(a, b *end) *ring.SendWQE { return wr(2, ring.OpSend, a.sge(0, 8), a.sge(1<<20, 1)) }, "local protection error"},
		{"atomic of 4 bytes", func(a, b *end) *ring.SendWQE { return remote(wr(2, ring.OpFetchAdd, a.sge(0, 4)), b, 0) }, "local length error"},
		{"too long", func(a, b *end) *ring.SendWQE {
			return wr(2, ring.OpSend, ring.SGE{Addr: memBase, Length: 1 << 30, LKey: a.h.mr.LKey()}, a.sge(0, 1))
		}, "local length error"},
		{"too long by far", func(a, b *end) *ring.SendWQE {
			big := ring.SGE{Addr: memBase, Length: 0xffffffff, LKey: a.h.mr.LKey()}
			return wr(2, ring.OpSend, big, big, big, a.sge(0, 3))
		}, "local length error"},
		{"READ into a read-only region", func(a, b *end) *ring.SendWQE {
			mr, err := a.h.n.RegMR(a.h.pd, a.h.mem, memBase, 4096, memBase, 0)
			if err != nil {
				a.h.w.t.Fatalf("%v", err)
			}
			s := remote(wr(2, ring.OpRead, a.sge(0, 8)), b, 0)
			s.SGE[0].LKey = mr.LKey()
			return s
		}, "local protection error"},
		{"region of another protection domain", func(a, b *end) *ring.SendWQE {
			mr, err := a.h.n.RegMR(mustPD(a.h.w.t, a.h.n), a.h.mem, memBase, 4096, memBase, allAccess)
			if err != nil {
				a.h.w.t.Fatalf("%v", err)
			}
			s := wr(2, ring.OpSend, a.sge(0, 8))
			s.SGE[0].LKey = mr.LKey()
			return s
		}, "local protection error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			a.post(remote(wr(1, ring.OpWrite, a.sge(0, 5000)), b, 0), c.req(a, b), remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
			w.run(second)
			a.want(t, "1:success", "2:"+c.want, "3:work request flushed error")
			if a.q.State() != Err {
				t.Errorf("state %v", a.q.State())
			}
		})
	}
}

func TestNoReadsAsInitiator(t *testing.T) {
	w, a, b := connected(t, Config{}, func(at *Attr) { at.MaxRDAtomic = 0 })
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:local QP operation error")
}

func TestInline(t *testing.T) {
	for _, n := range []int{0, 1, 64, 512} {
		w, a, b := connected(t, Config{}, nil)
		b.recv(9, b.sge(1000, 512))
		s, x := remote(wr(1, ring.OpWrite), b, 0), wr(2, ring.OpSend)
		for _, r := range []*ring.SendWQE{s, x} {
			r.Flags |= ring.SendInline
			r.InlineLen = n
			for i := range n {
				r.Inline[i] = byte(i + 1)
			}
		}
		a.post(s, x)
		w.run(second)
		a.want(t, "1:success", "2:success")
		b.want(t, "9:success")
		if !bytes.Equal(b.bytes(0, n), s.Inline[:n]) || !bytes.Equal(b.bytes(1000, n), s.Inline[:n]) {
			t.Errorf("%d bytes inline differ", n)
		}
	}
}

// 11.4.1.1: a request with 32 pieces on both sides, of lengths that fit no packet, zero among them.
func TestScatterGather32(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	var from, to []ring.SGE
	var flat []byte
	for i := range 32 {
		n := (i * 37) % 301
		from = append(from, a.sge(i*1000, n))
		flat = append(flat, a.bytes(i*1000, n)...)
		to = append(to, b.sge(i*2000, 333-n))
	}
	b.recv(9, to...)
	a.post(wr(1, ring.OpSend, from...), remote(wr(2, ring.OpWrite, from...), b, 200000))
	w.run(second)
	a.want(t, "1:success", "2:success")
	b.want(t, "9:success")
	var got []byte
	for _, s := range to {
		got = append(got, b.bytes(int(s.Addr-memBase), int(s.Length))...)
	}
	if !bytes.Equal(got[:len(flat)], flat) || !bytes.Equal(b.bytes(200000, len(flat)), flat) {
		t.Error("data differ")
	}
	// And back, scattered.
	for i := range from {
		clear(a.bytes(i*1000, 1000))
	}
	a.post(remote(wr(3, ring.OpRead, from...), b, 200000))
	w.run(second)
	a.want(t, "3:success")
	got = got[:0]
	for _, s := range from {
		got = append(got, a.bytes(int(s.Addr-memBase), int(s.Length))...)
	}
	if !bytes.Equal(got, flat) {
		t.Error("READ data differ")
	}
}

// 11.4.2.2: a queue armed for solicited completions tells of those alone.
func TestSolicited(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	for i := range 4 {
		b.recv(uint64(i), b.sge(0, 3000))
	}
	b.cq.Arm(true)
	a.post(wr(1, ring.OpSend, a.sge(0, 3000)))
	w.run(1e6)
	if n := b.h.events(EventCompletion); n != 0 {
		t.Fatalf("%d events without a solicited completion", n)
	}
	s := wr(2, ring.OpSend, a.sge(0, 3000))
	s.Flags |= ring.SendSolicited
	a.post(s, wr(3, ring.OpSend, a.sge(0, 3000)))
	w.run(1e6)
	if n := b.h.events(EventCompletion); n != 1 {
		t.Errorf("%d events", n)
	}
	b.cq.Arm(true)
	s = remote(wr(4, ring.OpWriteImm, a.sge(0, 3000)), b, 0)
	s.Flags |= ring.SendSolicited
	a.post(s)
	w.run(1e6)
	if n := b.h.events(EventCompletion); n != 2 {
		t.Errorf("%d events after a WRITE with immediate", n)
	}
	// A plain WRITE with the flag completes nothing at the responder; the SE bit is not for it.
	s = remote(wr(5, ring.OpWrite, a.sge(0, 8)), b, 0)
	s.Flags |= ring.SendSolicited
	a.post(s)
	w.run(1e6)
	if f := w.log[len(w.log)-2]; roce.BTH(f.data).Solicited() {
		t.Errorf("%v carries the SE bit", f.op)
	}
}

// 11.6.3: the first packet in RTR raises communication established, once.
func TestCommunicationEstablished(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
	a.to(RTS, defaultAttr(), b)
	b.to(RTR, defaultAttr(), a)
	b.recv(1, b.sge(0, 8))
	a.post(wr(1, ring.OpSend, a.sge(0, 8)), remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.run(second)
	a.want(t, "1:success", "2:success")
	b.want(t, "1:success")
	if n := b.h.events(EventCommEst); n != 1 {
		t.Errorf("%d events", n)
	}
	// What b posted in RTR goes out when it gets to RTS.
	b.post(remote(wr(3, ring.OpWrite, b.sge(0, 8)), a, 0))
	w.run(second)
	b.want(t)
	at := defaultAttr()
	at.State = RTS
	if err := b.h.n.Modify(w.now, b.q, &at, AttrState|transitionOf(RC, RTR, RTS).required); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	b.want(t, "3:success")
}

// 10.3.1.7: in the error state everything is flushed, in order, on both queues, and so is what is
// posted from then on: at the doorbell, and for receives within 100 ms.
func TestFlush(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	w.drop = func(f frame) bool { return true }
	for i := range 5 {
		a.recv(uint64(10+i), a.sge(0, 8))
		a.post(remote(wr(uint64(i), ring.OpWrite, a.sge(0, 60000)), b, 0))
	}
	w.settle()
	at := Attr{State: Err}
	if err := a.h.n.Modify(w.now, a.q, &at, AttrState); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprintf("%d:work request flushed error", i))
	}
	for i := range 5 {
		want = append(want, fmt.Sprintf("%d:work request flushed error", 10+i))
	}
	a.want(t, want...)
	a.post(remote(wr(20, ring.OpWrite, a.sge(0, 8)), b, 0), wr(21, 99))
	a.want(t, "20:work request flushed error", "21:work request flushed error")
	w.run(2 * second)
	a.recv(30, a.sge(0, 8))
	start := w.now
	for a.cv.Pending() == 0 && w.now-start < 101e6 {
		w.run(1e6)
	}
	a.want(t, "30:work request flushed error")
	a.recv(31, a.sge(0, 8)) // it is looked at often for a while
	w.run(3e6)
	a.want(t, "31:work request flushed error")
	// Nothing is sent or taken any more.
	w.log = nil
	w.drop = nil
	b.post(remote(wr(1, ring.OpWrite, b.sge(0, 8)), a, 0))
	w.run(second / 10)
	if w.count(func(f frame) bool { return f.from == a.h }) != 0 {
		t.Error("a queue pair in error has sent something")
	}
}

// 10.3.1.5, 11.6.3: in SQD what has begun completes, nothing else begins, and an event tells.
func TestSendQueueDrain(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	hold := true
	w.drop = func(f frame) bool { return hold && f.from == b.h }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.settle()
	at := Attr{State: SQD, EnSQDAsyncNotify: 1}
	if err := a.h.n.Modify(w.now, a.q, &at, AttrState|AttrEnSQDAsyncNotify); err != nil {
		t.Fatal(err)
	}
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.settle()
	if n := a.h.events(EventSQDrained); n != 0 {
		t.Fatalf("drained with a request outstanding")
	}
	hold = false
	w.run(second)
	a.want(t, "1:success")
	if n := a.h.events(EventSQDrained); n != 1 {
		t.Errorf("%d events", n)
	}
	at = Attr{State: RTS}
	if err := a.h.n.Modify(w.now, a.q, &at, AttrState); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	a.want(t, "2:success")
}

// A queue pair that is destroyed, reset or put into error between Receive and MemoryDone is left
// alone by what was under way.
func TestChangesUnderWay(t *testing.T) {
	for name, change := range map[string]func(e *end) error{
		"destroy": func(e *end) error { return e.q.Destroy() },
		"reset":   func(e *end) error { return e.h.n.Modify(e.h.w.now, e.q, &Attr{State: Reset}, AttrState) },
		"error":   func(e *end) error { return e.h.n.Modify(e.h.w.now, e.q, &Attr{State: Err}, AttrState) },
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b := connected(t, Config{}, nil)
			b.recv(1, b.sge(0, 8))
			a.post(wr(1, ring.OpSend, a.sge(0, 8)), remote(wr(2, ring.OpRead, a.sge(0, 8)), b, 0), remote(wr(3, ring.OpFetchAdd, a.sge(0, 8)), b, 0))
			a.h.transmit()
			b.h.n.Receive(w.now, b.h.rx)
			b.h.n.Memory().Scatter()
			if err := change(b); err != nil {
				t.Fatal(err)
			}
			b.h.n.MemoryDone(w.now)
			b.h.rx = nil
			w.settle()
			if w.count(func(f frame) bool { return f.from == b.h }) != 0 {
				t.Error("something was answered")
			}
			if got := b.poll(); name == "error" {
				if len(got) != 1 || got[0].Status != ring.StatusWRFlushErr {
					t.Errorf("%+v", got)
				}
			} else if len(got) != 0 {
				t.Errorf("%+v", got)
			}
			w.run(second)
			if got := a.poll(); len(got) != 3 || got[0].Status != ring.StatusRetryExcErr {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A queue pair can be used again after a reset.
func TestReuseAfterReset(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	for round := range 3 {
		w.drop = func(f frame) bool { return f.op == roce.RCWriteLast }
		b.recv(1, b.sge(0, 8))
		a.recv(1, a.sge(0, 8))
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 30000)), b, 0), remote(wr(2, ring.OpRead, a.sge(0, 30000)), b, 0))
		w.settle()
		w.drop = nil
		for _, e := range []*end{a, b} {
			if err := e.h.n.Modify(w.now, e.q, &Attr{State: Reset}, AttrState); err != nil {
				t.Fatal(err)
			}
			e.poll()
		}
		at := defaultAttr()
		at.RQPSN, at.SQPSN = uint32(round*1000), uint32(round*1000)
		a.to(RTS, at, b)
		b.to(RTS, at, a)
		b.recv(7, b.sge(0, 8))
		a.post(wr(1, ring.OpSend, a.sge(0, 8)), remote(wr(2, ring.OpRead, a.sge(0, 3000)), b, 0))
		w.run(second)
		a.want(t, "1:success", "2:success")
		b.want(t, "7:success")
	}
}

// 9.6.1: packets of another partition, from or for another address, of another transport, to a
// queue pair that is not there or not ready, are dropped without a trace.
func TestForeignPacketsAreDropped(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	good := func() []byte {
		return b.fromPeer(roce.RCWriteOnly, 100, 8, reth(memBase, b.h.mr.RKey(), 8))
	}
	before := bytes.Clone(b.bytes(0, 8))
	path := b.pathFrom(a)
	other, self := path, path
	other.Src = b.h.addr
	self.Dst = a.h.addr
	partition, ud, qpn, version := good(), b.fromPeer(roce.UDSendOnly, 100, 8, nil), good(), good()
	roce.BTH(partition).SetPKey(0x8001)
	roce.BTH(qpn).SetDestQP(b.q.Num() ^ 1)
	version[1] |= 3
	b.h.inject(other, good())
	b.h.inject(self, good())
	for _, p := range [][]byte{partition, ud, qpn, version, good()[:20], {}} {
		b.h.inject(path, p)
	}
	w.settle()
	if len(w.log) != 0 || !bytes.Equal(before, b.bytes(0, 8)) || b.q.State() != RTS {
		t.Errorf("answered, executed, or in state %v", b.q.State())
	}
	if s := b.h.n.Stats(); s.BadPKey != 1 || s.BadPackets != 7 {
		t.Errorf("%+v", s)
	}
	// A limited member of the same partition is fine, as this port is a full one (10.9.3).
	p := good()
	roce.BTH(p).SetPKey(0x7fff)
	b.h.inject(path, p)
	w.settle()
	if bytes.Equal(before, b.bytes(0, 8)) {
		t.Error("a limited member's packet was not taken")
	}
}

// Bytes in flight to a peer stay below the limit, whatever number of queue pairs sends there, so
// that its socket is not overrun.
func TestPeerWindowIsShared(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	var as, bs []*end
	for range 20 {
		a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
		at := defaultAttr()
		at.PathMTU = 5
		a.to(RTS, at, b)
		b.to(RTS, at, a)
		as, bs = append(as, a), append(bs, b)
	}
	for i, a := range as {
		for k := range 4 {
			op := ring.OpWrite
			if k&1 == 1 {
				op = ring.OpRead
			}
			a.post(remote(wr(uint64(k), op, a.sge(i*32768, 60000)), bs[i], i*32768))
		}
	}
	most := 0
	for range 100000 {
		moved := false
		for _, h := range w.hosts {
			bytes := 0
			for _, p := range h.rx {
				bytes += len(p.Data) + 512
			}
			most = max(most, bytes)
			moved = h.deliver() || moved
			moved = h.transmit() || moved
		}
		for k := 0; k < 8; k++ { // several batches before the receiver gets its turn
			moved = w.hosts[0].transmit() || moved
		}
		if !moved {
			break
		}
		w.now += 1000
	}
	for i, a := range as {
		if got := a.poll(); len(got) != 4 || got[3].Status != ring.StatusSuccess {
			t.Errorf("queue pair %d: %+v", i, got)
		}
	}
	if most > 212992 {
		t.Errorf("%d bytes in flight", most)
	}
	if s := w.hosts[0].n.Stats(); s.RetransmittedPackets != 0 {
		t.Errorf("%+v", s)
	}
}

// 11.2, Deregister Memory Region: one that goes while its request is in flight fails it with the next packet that needs it.
func TestDeregisteredInFlight(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	w.drop = func(f frame) bool { return true }
	mr, err := a.h.n.RegMR(a.h.pd, a.h.mem, memBase, 1<<20, memBase, allAccess)
	if err != nil {
		t.Fatal(err)
	}
	s := remote(wr(1, ring.OpWrite, a.sge(0, 3000)), b, 0)
	s.SGE[0].LKey = mr.LKey()
	a.post(s, remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.settle()
	_ = mr.Dereg()
	w.drop = nil
	w.run(second)
	a.want(t, "1:local protection error", "2:work request flushed error")
}

// 11.4.1.2, 9.4.1: receives are used in the order of posting, and a SEND fills the buffers of one, not of the next.
func TestReceiveOrder(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	var want []string
	for i := range 20 {
		b.recv(uint64(i), b.sge(i*100, 100))
		a.post(wr(uint64(i), ring.OpSend, a.sge(i*100, i)))
		want = append(want, fmt.Sprintf("%d:success", i))
	}
	w.run(second)
	a.want(t, want...)
	b.want(t, want...)
	for i := range 20 {
		if !bytes.Equal(a.bytes(i*100, i), b.bytes(i*100, i)) {
			t.Errorf("message %d differs", i)
		}
	}
	if b.rq.Free() != b.rq.Capacity() {
		t.Error("receive slots are not free again")
	}
}

// A queue pair may be connected to one of its own NIC, and to itself.
func TestSameNIC(t *testing.T) {
	w := newWire(t, Config{})
	a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[0].newEnd(RC, testCap, 63)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	self := w.hosts[0].newEnd(RC, testCap, 63)
	self.to(RTS, defaultAttr(), self)
	b.recv(1, b.sge(100000, 3000))
	self.recv(1, b.sge(200000, 3000))
	a.post(wr(1, ring.OpSend, a.sge(0, 3000)), remote(wr(2, ring.OpRead, a.sge(300000, 3000)), b, 0))
	self.post(wr(3, ring.OpSend, a.sge(0, 3000)))
	w.run(second)
	a.want(t, "1:success", "2:success")
	b.want(t, "1:success")
	if got := self.poll(); len(got) != 2 {
		t.Errorf("%+v", got)
	}
	for _, at := range []int{100000, 200000, 300000} {
		if !bytes.Equal(a.bytes(0, 3000), a.bytes(at, 3000)) {
			t.Errorf("data at %d differ", at)
		}
	}
}

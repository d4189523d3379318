package nic

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// unreliable are two hosts with one UC connection.
func unreliable(t fatalTB, cfg Config) (*wire, *end, *end) {
	t.Helper()
	w := newWire(t, cfg, cfg)
	a, b := w.hosts[0].newEnd(UC, testCap, 1023), w.hosts[1].newEnd(UC, testCap, 1023)
	a.to(RTS, defaultAttr(), b)
	b.to(RTS, defaultAttr(), a)
	return w, a, b
}

// 9.8.2, 9.8.3: each operation of an unreliable connection, of one packet and of several, moves its data
// with packets of its own opcodes; nothing is acknowledged.
func TestUCOperations(t *testing.T) {
	for _, c := range []struct {
		op    ring.SendOpcode
		wc    ring.WCOpcode
		recv  bool
		flags ring.WCFlags
		ops   []roce.Opcode // of 2,500 bytes at 1,024 each, then of 8 bytes
	}{
		{ring.OpSend, ring.WCRecv, true, 0, []roce.Opcode{roce.UCSendFirst, roce.UCSendMiddle, roce.UCSendLast, roce.UCSendOnly}},
		{ring.OpSendImm, ring.WCRecv, true, ring.WCWithImm, []roce.Opcode{roce.UCSendFirst, roce.UCSendMiddle, roce.UCSendLastImm, roce.UCSendOnlyImm}},
		{ring.OpWrite, 0, false, 0, []roce.Opcode{roce.UCWriteFirst, roce.UCWriteMiddle, roce.UCWriteLast, roce.UCWriteOnly}},
		{ring.OpWriteImm, ring.WCRecvImm, true, ring.WCWithImm, []roce.Opcode{roce.UCWriteFirst, roce.UCWriteMiddle, roce.UCWriteLastImm, roce.UCWriteOnlyImm}},
	} {
		t.Run(fmt.Sprint(c.op), func(t *testing.T) {
			w, a, b := unreliable(t, Config{})
			for i, n := range []int{2500, 8} {
				off := 10_000 + 5000*i
				if c.recv {
					b.recv(uint64(i), b.sge(off, 3000))
				}
				s := remote(wr(uint64(i), c.op, a.sge(77, n)), b, off)
				s.Imm = 0x01020304
				a.post(s)
				w.run(1e6)
				a.want(t, fmt.Sprintf("%d:success", i))
				if !bytes.Equal(a.bytes(77, n), b.bytes(off, n)) {
					t.Errorf("%d bytes: data differ", n)
				}
				got := b.poll()
				if !c.recv {
					if len(got) != 0 {
						t.Errorf("completions %+v", got)
					}
					continue
				}
				if len(got) != 1 || got[0].WRID != uint64(i) || got[0].Status != 0 || got[0].Opcode != c.wc ||
					got[0].ByteLen != uint32(n) || got[0].Flags != c.flags || c.flags != 0 && got[0].Imm != 0x01020304 {
					t.Errorf("%d bytes: completions %+v", n, got)
				}
			}
			var ops []roce.Opcode
			for k, f := range w.log {
				ops = append(ops, f.op)
				if f.from != a.h || roce.BTH(f.data).AckReq() || f.psn != roce.PSN(100+k) {
					t.Errorf("packet %v, PSN %v", f.op, f.psn)
				}
			}
			if !slices.Equal(ops, c.ops) {
				t.Errorf("packets %v, want %v", ops, c.ops)
			}
		})
	}
}

// 9.8.2.2: whichever packet of a message is lost, the message is dropped silently, the receive is kept for
// the next one, and both queue pairs go on.
func TestUCLossOfEachPacket(t *testing.T) {
	for _, op := range []ring.SendOpcode{ring.OpSend, ring.OpWriteImm} {
		for lost := range 4 {
			w, a, b := unreliable(t, Config{})
			w.drop = func(f frame) bool { return f.psn == roce.PSN(100+3+lost) }
			for i := range 3 {
				b.recv(uint64(10+i), b.sge(i*5000, 4000))
				a.post(remote(wr(uint64(i), op, a.sge(20_000+i*4000, 3000)), b, 40_000+i*4000))
			}
			w.run(second)
			a.want(t, "0:success", "1:success", "2:success")
			b.want(t, "10:success", "11:success")
			third, at := 2, 5000
			if lost == 3 { // the first packet of the third message
				third = 1
			}
			if op == ring.OpWriteImm {
				at = 40_000 + third*4000
			}
			if !bytes.Equal(a.bytes(20_000+third*4000, 3000), b.bytes(at, 3000)) {
				t.Errorf("%v, packet %d: the other message differs", op, lost)
			}
			if b.q.State() != RTS || w.count(func(f frame) bool { return f.from == b.h }) != 0 {
				t.Errorf("%v, packet %d: state %v, answers %d", op, lost, b.q.State(), len(w.log))
			}
			if b.h.n.Stats().UCDropped == 0 {
				t.Errorf("%v, packet %d: nothing is counted as dropped", op, lost)
			}
		}
	}
}

// 9.8.2.2: a middle or last packet without its first, a first in the middle of a message, a packet that
// is too short for its place: what is left of the message is dropped, and the next first counts.
func TestUCOpcodeSequence(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	b.recv(1, b.sge(0, 4000))
	b.recv(2, b.sge(5000, 4000))
	psn := roce.PSN(100)
	in := func(op roce.Opcode, n int) {
		b.h.inject(b.pathFrom(a), b.fromPeer(op, psn, n, nil))
		psn = psn.Add(1)
	}
	in(roce.UCSendMiddle, 1024)
	in(roce.UCSendLast, 10)
	in(roce.UCSendFirst, 1024)
	in(roce.UCSendFirst, 1024) // the last one has no end
	in(roce.UCSendLast, 8)     // 1: 1,032 bytes
	in(roce.UCSendFirst, 1000) // too short
	in(roce.UCSendLast, 8)
	in(roce.UCSendFirst, 1024)
	in(roce.UCWriteLast, 8)
	in(roce.UCSendLast, 8)
	in(roce.UCSendOnly, 9) // 2
	w.run(1e6)
	got := b.poll()
	if len(got) != 2 || got[0].WRID != 1 || got[0].ByteLen != 1032 || got[1].WRID != 2 || got[1].ByteLen != 9 {
		t.Errorf("completions %+v", got)
	}
	if b.q.State() != RTS {
		t.Errorf("state %v", b.q.State())
	}
}

// 9.9.3, fault class D: what RC answers with a NAK is dropped: no receive, a receive that is too small, a
// key that does not allow it, a WRITE longer or shorter than its RETH. The receive is still there.
func TestUCClassD(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	a.post(wr(1, ring.OpSend, a.sge(0, 100))) // no receive
	w.run(1e6)
	b.recv(1, b.sge(0, 1500))
	a.post(wr(2, ring.OpSend, a.sge(0, 2000))) // too long, as its second packet shows
	bad := remote(wr(3, ring.OpWriteImm, a.sge(0, 2000)), b, 10_000)
	bad.RKey ^= 0x55
	a.post(bad)
	end := remote(wr(4, ring.OpWriteImm, a.sge(0, 2000)), b, 1<<20-1999)
	a.post(end)
	w.run(1e6)
	for _, n := range []uint32{8, 4000} { // 1,024 + 100 bytes
		b.h.inject(b.pathFrom(a), b.fromPeer(roce.UCWriteFirst, 200, 1024, func(i *roce.OpInfo, p []byte) {
			i.RETH(p).Encode(&roce.RETHFields{VA: memBase + 20_000, RKey: b.h.mr.RKey(), Length: n})
		}))
		b.h.inject(b.pathFrom(a), b.fromPeer(roce.UCWriteLastImm, 201, 100, nil))
	}
	w.run(1e6)
	b.want(t)
	a.post(wr(5, ring.OpSend, a.sge(0, 1500)))
	w.run(1e6)
	b.want(t, "1:success")
	a.want(t, "1:success", "2:success", "3:success", "4:success", "5:success")
	if b.q.State() != RTS || len(b.h.ev) != 0 {
		t.Errorf("state %v, events %+v", b.q.State(), b.h.ev)
	}
}

// 9.9.3, fault class A: a receive whose own buffers are no good fails, and the queue pair with it.
func TestUCReceiveBufferFault(t *testing.T) {
	for _, kind := range []string{"key", "hole", "hole in the second packet"} {
		w, a, b := unreliable(t, Config{})
		b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
		bad := b.sge(49_995, 2000)
		switch kind {
		case "key":
			bad = b.sge(0, 2000)
			bad.LKey ^= 1
		case "hole in the second packet":
			bad = b.sge(48_500, 3000)
		}
		b.recv(1, b.sge(0, 2000))
		b.recv(2, bad)
		b.recv(3, b.sge(0, 2000))
		a.post(wr(1, ring.OpSend, a.sge(0, 2000)), wr(2, ring.OpSend, a.sge(0, 2000)), wr(3, ring.OpSend, a.sge(0, 2000)))
		w.run(1e6)
		b.want(t, "1:success", "2:local protection error", "3:work request flushed error")
		a.want(t, "1:success", "2:success", "3:success")
	}
}

// A WRITE that the program's memory does not take is dropped; messages behind it that were received
// together with it are lost with it at most, their receives are not.
func TestUCWriteLandsInAHole(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
	for i := range 4 {
		b.recv(uint64(i), b.sge(i*3000, 3000))
	}
	a.post(wr(0, ring.OpSend, a.sge(0, 2000)), remote(wr(1, ring.OpWriteImm, a.sge(0, 2000)), b, 49_000),
		wr(2, ring.OpSend, a.sge(100, 2000)))
	w.run(1e6)
	b.want(t, "0:success")
	a.post(wr(3, ring.OpSend, a.sge(200, 2000)), remote(wr(4, ring.OpWrite, a.sge(0, 2000)), b, 30_000))
	w.run(1e6)
	b.want(t, "1:success")
	if !bytes.Equal(b.bytes(3000, 2000), a.bytes(200, 2000)) || !bytes.Equal(b.bytes(30_000, 2000), a.bytes(0, 2000)) {
		t.Errorf("data differ")
	}
	if b.q.State() != RTS {
		t.Errorf("state %v", b.q.State())
	}
}

// 10.3.1.6: a send that fails takes its queue pair to SQE: what is behind it is flushed, the receive queue
// goes on, and a modify to RTS revives the send queue. The peer takes up with the next message.
func TestUCSendQueueError(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spoil      func(a, b *end, s *ring.SendWQE)
	}{
		{"operation", "2:local QP operation error", func(a, b *end, s *ring.SendWQE) { s.Opcode = ring.OpRead }},
		{"key", "2:local protection error", func(a, b *end, s *ring.SendWQE) { s.SGE[0].LKey ^= 1 }},
		{"hole", "2:local protection error", func(a, b *end, s *ring.SendWQE) { s.SGE[0] = a.sge(47_000, 4000) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, a, b := unreliable(t, Config{})
			a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
			for i := range 6 {
				b.recv(uint64(10+i), b.sge(100_000, 4000))
			}
			a.recv(30, a.sge(0, 4000))
			bad := wr(2, ring.OpSend, a.sge(0, 4000))
			c.spoil(a, b, bad)
			a.post(wr(1, ring.OpSend, a.sge(0, 3000)), bad, wr(3, ring.OpSend, a.sge(0, 3000)))
			w.run(1e6)
			a.post(wr(4, ring.OpSend, a.sge(0, 100)))
			w.run(1e6)
			if a.q.State() != SQE {
				t.Fatalf("state %v", a.q.State())
			}
			a.want(t, "1:success", c.want, "3:work request flushed error", "4:work request flushed error")
			b.post(wr(40, ring.OpSend, b.sge(0, 3000)))
			w.run(1e6)
			a.want(t, "30:success")
			if err := a.h.n.Modify(w.now, a.q, &Attr{State: RTS, CurState: SQE}, AttrState|AttrCurState); err != nil {
				t.Fatal(err)
			}
			a.post(wr(5, ring.OpSend, a.sge(7, 3000)))
			w.run(1e6)
			a.want(t, "5:success")
			b.want(t, "10:success", "40:success", "11:success")
			if !bytes.Equal(a.bytes(7, 3000), b.bytes(100_000, 3000)) {
				t.Errorf("data differ")
			}
		})
	}
}

// 10.3.1.5: in SQD what has begun is sent, nothing else is begun, and the queue pair goes on in RTS. An
// error while draining leads to SQE: the receive queue goes on.
func TestUnacknowledgedSendQueueDrain(t *testing.T) {
	w, a, b := unreliable(t, Config{Policy: Policy{Pace: PacePolicy{BytesPerSecond: 1e6, Burst: 1}}})
	b.recv(1, b.sge(0, 40_000))
	b.recv(2, b.sge(0, 100))
	a.post(wr(1, ring.OpSend, a.sge(0, 40_000)), wr(2, ring.OpSend, a.sge(0, 100)))
	w.run(20e6) // the pace lets less than the first message pass
	if err := a.h.n.Modify(w.now, a.q, &Attr{State: SQD, EnSQDAsyncNotify: 1}, AttrState|AttrEnSQDAsyncNotify); err != nil {
		t.Fatal(err)
	}
	if a.h.events(EventSQDrained) != 0 || len(a.poll()) != 0 {
		t.Fatal("drained at once")
	}
	wantErrno(t, a.h.n.Modify(w.now, a.q, &Attr{State: RTS}, AttrState), EINVAL)
	w.run(second)
	a.want(t, "1:success")
	b.want(t, "1:success")
	if a.h.events(EventSQDrained) != 1 {
		t.Errorf("%d events", a.h.events(EventSQDrained))
	}
	if err := a.h.n.Modify(w.now, a.q, &Attr{State: RTS}, AttrState); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	a.want(t, "2:success")
	b.want(t, "2:success")

	a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 39_000, Len: 10}}
	a.post(wr(3, ring.OpSend, a.sge(0, 40_000)), wr(4, ring.OpSend, a.sge(0, 100)))
	w.run(20e6)
	if err := a.h.n.Modify(w.now, a.q, &Attr{State: SQD}, AttrState); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	a.want(t, "3:local protection error", "4:work request flushed error")
	if a.q.State() != SQE {
		t.Errorf("state %v", a.q.State())
	}
}

// The unreliable connections to one address share its pace, evenly, and send no burst that its socket does
// not hold.
func TestUCPace(t *testing.T) {
	const rate, burst, pairs, size = 100e6, 64 << 10, 5, 9000
	w := newWire(t, Config{Policy: Policy{Pace: PacePolicy{BytesPerSecond: rate, Burst: burst}}}, Config{})
	var from []*end
	for range pairs {
		a, b := w.hosts[0].newEnd(UC, testCap, 1023), w.hosts[1].newEnd(UC, testCap, 1023)
		a.to(RTS, defaultAttr(), b)
		b.to(RTS, defaultAttr(), a)
		for i := range 50 {
			a.post(remote(wr(uint64(i), ring.OpWrite, a.sge(0, size)), b, 0))
		}
		from = append(from, a)
	}
	start := w.now
	w.run(10e6)
	sent, cost := make(map[uint32]int), 0
	for _, f := range w.log {
		p := f.packet()
		cost += len(p.Payload) + 512
		sent[p.BTH.DestQP()]++
		if most := burst + paceChunk + int(float64(f.at-start+1000)*rate/1e9); cost > most {
			t.Fatalf("%d bytes after %d ns, %d at most", cost, f.at-start, most)
		}
	}
	if least := int(0.009 * rate); cost < least {
		t.Errorf("%d bytes in 10 ms, want %d at least", cost, least)
	}
	low, high := 1<<30, 0
	for _, n := range sent {
		low, high = min(low, n), max(high, n)
	}
	if len(sent) != pairs || high-low > 40 {
		t.Errorf("packets of each: %v", sent)
	}
	w.run(second)
	for _, a := range from {
		if got := a.poll(); len(got) != 50 {
			t.Errorf("%d completions", len(got))
		}
	}
}

// 9.6.1: packets of another transport are not for the queue pair.
func TestUCTakesOnlyItsTransport(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	b.recv(1, b.sge(0, 100))
	b.h.inject(b.pathFrom(a), b.fromPeer(roce.RCSendOnly, 100, 8, nil))
	w.run(1e6)
	b.want(t)
	if b.h.n.Stats().BadPackets != 1 {
		t.Errorf("%+v", b.h.n.Stats())
	}
}

// A WRITE that memory does not take voids what came behind it, a receive that is no good among that: the
// receive is found to be no good again by the next message, and the queue pair does not stay deaf.
func TestUCBadReceiveBehindALostWrite(t *testing.T) {
	w, a, b := unreliable(t, Config{})
	b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
	bad := b.sge(0, 3000)
	bad.LKey ^= 1
	b.recv(1, bad)
	b.recv(2, b.sge(0, 3000))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 2000)), b, 49_000), wr(2, ring.OpSend, a.sge(0, 100)))
	w.run(1e6)
	a.post(wr(3, ring.OpSend, a.sge(0, 100)))
	w.run(1e6)
	b.want(t, "1:local protection error", "2:work request flushed error")
	if b.q.State() != Err {
		t.Errorf("state %v", b.q.State())
	}
}

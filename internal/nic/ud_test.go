package nic

import (
	"bytes"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/ring"
	"rnic/internal/roce"
)

// datagrams are two UD queue pairs, and how to send from a to b.
func datagrams(t *testing.T) (w *wire, a, b *end, send func(id uint64, n int) *ring.SendWQE) {
	t.Helper()
	w = newWire(t, Config{MTU: 1024}, Config{MTU: 1024})
	a, b = w.hosts[0].newEnd(UD, testCap, 63), w.hosts[1].newEnd(UD, testCap, 63)
	a.to(RTS, defaultAttr(), nil)
	b.to(RTS, defaultAttr(), nil)
	ah, err := a.h.n.CreateAH(a.h.pd, AHAttr{DGID: roce.GIDFromAddr(b.h.addr), IsGlobal: true, Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w, a, b, func(id uint64, n int) *ring.SendWQE {
		s := wr(id, ring.OpSend, a.sge(0, n))
		s.AHNum, s.RemoteQPN, s.RemoteQKey = ah.Num(), b.q.Num(), 0x11111111
		return s
	}
}

// 9.8.3, A17.4.5.2: a datagram arrives behind 40 bytes for the IP header, which tell its addresses, and says who sent it.
func TestUDDatagram(t *testing.T) {
	w, a, b, send := datagrams(t)
	for i, n := range []int{0, 1, 100, 1024} {
		b.recv(uint64(i), b.sge(0, 20), b.sge(20, 20+n))
		s := send(uint64(i), n)
		s.Opcode, s.Imm = ring.OpSendImm, 0x01020304
		a.post(s)
		w.run(1e6)
		got := append(a.poll(), b.poll()...)
		if len(got) != 2 || got[0].Status != 0 || got[1].ByteLen != uint32(40+n) || got[1].SrcQP != a.q.Num() ||
			got[1].Flags != ring.WCGRH|ring.WCWithImm || got[1].Imm != 0x01020304 {
			t.Fatalf("%d bytes: completions %+v", n, got)
		}
		if !bytes.Equal(a.bytes(0, n), b.bytes(40, n)) {
			t.Errorf("%d bytes: data differ", n)
		}
		if got[1].SL != 0xa && a.h.addr.Is4() || got[1].SL != 0x9 && a.h.addr.Is6() {
			t.Errorf("a datagram from %v is said to be of packet type %#x", a.h.addr, got[1].SL)
		}
		if p, ok := roce.GRH(b.bytes(0, 40)).Path(); !ok || p.Src != a.h.addr || p.Dst != b.h.addr {
			t.Errorf("GRH area says %+v", p)
		}
	}
}

// A provider older than numbers of address handles puts the address vector into each request (rdma-core before 39): every
// datagram goes where its own says. One that says nothing sensible is a local QP operation error (9.9.2).
func TestUDAddressVector(t *testing.T) {
	w, a, b, send := datagrams(t)
	good := ring.Vector{Port: 1, DGID: roce.GIDFromAddr(b.h.addr), HopLimit: 9, TrafficClass: 0x60}
	own := ring.Vector{Port: 1, DGID: roce.GIDFromAddr(a.h.addr)}
	other := a.h.newEnd(UD, testCap, 63)
	other.to(RTS, defaultAttr(), nil)
	for i := range 4 {
		b.recv(uint64(i), b.sge(0, 200))
		other.recv(uint64(i), other.sge(0, 200))
	}
	for i := range uint64(8) { // in turns to both
		s := send(i, 100)
		s.AHNum = 0
		if s.SetVector(&good); i%2 == 1 {
			s.SetVector(&own)
			s.RemoteQPN = other.q.Num()
		}
		a.post(s)
	}
	w.run(1e6)
	if got, at, there := a.poll(), b.poll(), other.poll(); len(got) != 8 || len(at) != 4 || len(there) != 4 {
		t.Fatalf("%d sent, %d and %d received; want 8, 4, 4", len(got), len(at), len(there))
	}
	if p, ok := roce.GRH(b.bytes(0, 40)).Path(); !ok || p.Dst != b.h.addr || p.TTL != 9 || p.TOS&^3 != 0x60 {
		t.Errorf("GRH area says %+v", p)
	}
	for name, spoil := range map[string]func(v *ring.Vector){
		"port": func(v *ring.Vector) { v.Port = 2 }, "source": func(v *ring.Vector) { v.SGIDIndex = 200 }, "destination": func(v *ring.Vector) { v.DGID = [16]byte{} },
	} {
		c := a.h.newEnd(UD, testCap, 63)
		c.to(RTS, defaultAttr(), nil)
		v := good
		spoil(&v)
		s := wr(7, ring.OpSend, c.sge(0, 10))
		s.RemoteQPN, s.RemoteQKey = b.q.Num(), 0x11111111
		s.SetVector(&v)
		c.post(s)
		w.run(1e6)
		if got := c.poll(); len(got) != 1 || got[0].Status != ring.StatusLocQPOpErr {
			t.Errorf("bad %s: completions %+v", name, got)
		}
	}
}

// 10.2.5, 9.8.3: a wrong Q_Key, no receive, too small a buffer: dropped; the queue pair stays in RTS,
// the receive stays, and the next message arrives.
func TestUDDrops(t *testing.T) {
	w, a, b, send := datagrams(t)
	s := send(1, 100)
	s.RemoteQKey = 0x22222222
	b.recv(1, b.sge(0, 139))
	a.post(s)            // Q_Key
	a.post(send(2, 100)) // 140 bytes do not fit
	w.run(1e6)
	a.want(t, "1:success", "2:success")
	b.want(t)
	if st := b.h.n.Stats(); st.BadQKey != 1 || st.UDDropped != 1 || b.q.State() != RTS {
		t.Errorf("%+v, state %v", st, b.q.State())
	}
	a.post(send(3, 99), send(4, 99)) // one receive
	w.run(1e6)
	b.want(t, "1:success")
	if st := b.h.n.Stats(); st.UDDropped != 2 {
		t.Errorf("%+v", st)
	}
}

// 11.6.3: communication is established by the first packet that is for the queue pair: one with a wrong
// Q_Key, which anybody may send, is not.
func TestUDCommunicationEstablished(t *testing.T) {
	w, a, b, send := datagrams(t)
	reset, at := Attr{State: Reset}, defaultAttr()
	if err := b.h.n.Modify(w.now, b.q, &reset, AttrState); err != nil {
		t.Fatal(err)
	}
	b.to(RTR, at, nil)
	s := send(1, 8)
	s.RemoteQKey = 0x22222222
	a.post(s)
	w.run(1e6)
	if n := b.h.events(EventCommEst); n != 0 {
		t.Errorf("%d events for a wrong Q_Key", n)
	}
	a.post(send(2, 8), send(3, 8))
	w.run(1e6)
	if n := b.h.events(EventCommEst); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

// 10.2.5: a Q_Key with the high bit set stands for the queue pair's own.
func TestUDControlledQKey(t *testing.T) {
	w, a, b, send := datagrams(t)
	s := send(1, 8)
	s.RemoteQKey = 0x80000000
	b.recv(1, b.sge(0, 100))
	a.post(s)
	w.run(1e6)
	b.want(t, "1:success")
}

// A datagram larger than the MTU, an unknown address handle, a WRITE, a wrong key: errors in order,
// behind what was good.
func TestUDLocalErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *ring.SendWQE)
		want   string
	}{
		"too long":       {func(s *ring.SendWQE) { s.SGE[0].Length = 1025 }, "local length error"},
		"address handle": {func(s *ring.SendWQE) { s.AHNum += 1000 }, "local QP operation error"},
		"no handle":      {func(s *ring.SendWQE) { s.AHNum = 0 }, "local QP operation error"},
		"write":          {func(s *ring.SendWQE) { s.Opcode = ring.OpWrite }, "local QP operation error"},
		"key":            {func(s *ring.SendWQE) { s.SGE[0].LKey ^= 1 }, "local protection error"},
		"page":           {func(s *ring.SendWQE) { s.SGE[0].Addr += 50000 }, "local protection error"},
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b, send := datagrams(t)
			a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
			b.recv(1, b.sge(0, 1100))
			b.recv(2, b.sge(0, 1100))
			bad := send(2, 100)
			c.change(bad)
			a.post(send(1, 100), bad, send(3, 100))
			w.run(1e6)
			a.want(t, "1:success", "2:"+c.want, "3:work request flushed error")
			b.want(t, "1:success")
		})
	}
}

// 10.3.1.6: a send that fails takes an unreliable queue pair to SQE: sends are flushed, also those posted
// then, and receives go on; from there it can be brought back to RTS.
func TestUDSendQueueError(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s *ring.SendWQE)
		want  string
	}{
		"when it is fetched":   {func(s *ring.SendWQE) { s.SGE[0].LKey ^= 1 }, "2:local protection error"},
		"when memory is read":  {func(s *ring.SendWQE) { s.SGE[0].Addr += 50000 }, "2:local protection error"},
		"when it is addressed": {func(s *ring.SendWQE) { s.AHNum += 1000 }, "2:local QP operation error"},
	} {
		t.Run(name, func(t *testing.T) {
			w, a, b, send := datagrams(t)
			a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
			bad := send(2, 100)
			c.spoil(bad)
			a.recv(21, a.sge(1000, 200))
			a.recv(22, a.sge(1000, 200))
			a.post(send(1, 100), bad, send(3, 100))
			w.run(1e6)
			a.post(send(4, 100))
			w.run(1e6)
			if q := a.q.State(); q != SQE {
				t.Fatalf("state %v", q)
			}
			a.want(t, "1:success", c.want, "3:work request flushed error", "4:work request flushed error")
			// Receives go on.
			a.h.inject(a.pathFrom(b), a.fromPeer(roce.UDSendOnly, 5, 8, func(i *roce.OpInfo, p []byte) {
				i.DETH(p).Encode(&roce.DETHFields{QKey: 0x11111111, SrcQP: 77})
			}))
			w.run(1e6)
			a.want(t, "21:success")
			if err := a.h.n.Modify(w.now, a.q, &Attr{State: RTS, CurState: SQE}, AttrState|AttrCurState); err != nil {
				t.Fatal(err)
			}
			b.recv(1, b.sge(0, 1100))
			a.post(send(5, 100))
			w.run(1e6)
			a.want(t, "5:success")
			b.want(t, "1:success")
		})
	}
}

// A receive buffer that is no good fails its receive.
func TestUDReceiveBufferFault(t *testing.T) {
	for _, key := range []bool{true, false} {
		w, a, b, send := datagrams(t)
		b.h.mem.Holes = []hostmem.Range{{Addr: memBase + 50000, Len: 10}}
		bad := b.sge(49990, 200)
		if key {
			bad = b.sge(0, 200)
			bad.LKey ^= 1
		}
		b.recv(1, b.sge(0, 200))
		b.recv(2, bad)
		b.recv(3, b.sge(0, 200))
		a.post(send(1, 8), send(2, 8), send(3, 8))
		w.run(1e6)
		b.want(t, "1:success", "2:local protection error", "3:work request flushed error")
	}
}

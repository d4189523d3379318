package nic

import (
	"bytes"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// dropOnce loses the first packet that match says.
func dropOnce(match func(f frame) bool) func(f frame) bool {
	done := false
	return func(f frame) bool {
		if done || !match(f) {
			return false
		}
		done = true
		return true
	}
}

func nothingKept(t *testing.T, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		if n := e.h.n.transport.keptInUse; n != 0 {
			t.Errorf("%d packets are kept at the end", n)
		}
	}
}

// Of what go-back-N (9.7.5.1) sends again, selective repeat sends the lost packet alone.
func TestOnlyTheLostPacketIsSentAgain(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = dropOnce(func(f frame) bool { return f.op == roce.RCWriteMiddle && f.psn == 105 })
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20000)), b, 0), wr(2, ring.OpSend, a.sge(0, 3000)))
	b.recv(9, b.sge(40000, 3000))
	w.run(second)
	a.want(t, "1:success", "2:success")
	b.want(t, "9:success")
	if !bytes.Equal(a.bytes(0, 20000), b.bytes(0, 20000)) || !bytes.Equal(a.bytes(0, 3000), b.bytes(40000, 3000)) {
		t.Error("data differ")
	}
	if s := a.h.n.Stats(); s.RetransmittedPackets != 1 || s.Timeouts != 0 {
		t.Errorf("%d packets sent again", s.RetransmittedPackets)
	}
	nothingKept(t, a, b)
}

// A lost response is asked for again alone: a duplicate READ request for a part of the first (9.7.5.1).
func TestOnlyTheLostResponseIsAskedForAgain(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = dropOnce(func(f frame) bool { return f.op == roce.RCReadResponseMiddle && f.psn == 104 })
	add := remote(wr(2, ring.OpFetchAdd, a.sge(30000, 8)), b, 50000)
	add.CompareAdd = 1
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 20000)), b, 0), add)
	w.run(second)
	a.want(t, "1:success", "2:success")
	if !bytes.Equal(a.bytes(0, 20000), b.bytes(0, 20000)) {
		t.Error("data differ")
	}
	if n := w.count(func(f frame) bool { return f.from == b.h && f.psn == 104 }); n != 2 {
		t.Errorf("the lost response was sent %d times", n)
	}
	if n := w.count(func(f frame) bool { return f.from == b.h && f.psn == 106 }); n != 1 {
		t.Errorf("a response that was not lost was sent %d times", n)
	}
	nothingKept(t, a, b)
}

// A receive that is missing behind a gap is answered as ever (9.7.5.2.8), and what was kept is given back with the queue pair.
func TestSelectiveRepeatAndRNR(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = dropOnce(func(f frame) bool { return f.op == roce.RCWriteMiddle && f.psn == 103 })
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 9000)), b, 0), wr(2, ring.OpSend, a.sge(0, 3000)), remote(wr(3, ring.OpWrite, a.sge(0, 5000)), b, 20000))
	w.run(3e6)
	b.recv(9, b.sge(40000, 3000))
	w.run(second)
	a.want(t, "1:success", "2:success", "3:success")
	b.want(t, "9:success")
	if !bytes.Equal(a.bytes(0, 5000), b.bytes(20000, 5000)) {
		t.Error("data differ")
	}
	nothingKept(t, a, b)
}

func TestKeptPacketsGoWithTheQueuePair(t *testing.T) {
	for name, end := range map[string]func(e *end) error{
		"destroyed": func(e *end) error { return e.q.Destroy() },
		"reset":     func(e *end) error { return e.h.n.Modify(e.h.w.now, e.q, &Attr{State: Reset}, AttrState) },
		"error":     func(e *end) error { return e.h.n.Modify(e.h.w.now, e.q, &Attr{State: Err}, AttrState) },
	} {
		w, a, b := connectedSelectively(t, Config{}, nil)
		w.drop = func(f frame) bool { return f.op == roce.RCWriteFirst }
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20000)), b, 0))
		w.run(1e5)
		if b.h.n.transport.keptInUse == 0 {
			t.Fatal("nothing is kept: nothing is tested")
		}
		if err := end(b); err != nil {
			t.Fatal(err)
		}
		b.h.n.MemoryDone(w.now)
		if n := b.h.n.transport.keptInUse; n != 0 {
			t.Errorf("%s: %d packets are still kept", name, n)
		}
	}
}

// A peer that lies about what it has gets nothing more, and completes nothing that it has not acknowledged.
func TestLyingSelectiveAck(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20000)), b, 0), remote(wr(2, ring.OpRead, a.sge(0, 20000)), b, 0))
	w.run(1e5)
	info := roce.SelectiveAck.Info()
	for _, psn := range []int{-2000, -1, 0, 1, 5, 30, 126, 127, 128, 1 << 23} {
		for _, have := range [][2]uint64{{^uint64(0), ^uint64(0)}, {0, 1 << 62}, {1, 0}, {0xaaaaaaaaaaaaaaaa, 0x5555555555555555}} {
			pkt := make([]byte, info.HeaderLen)
			roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: roce.SelectiveAck, PKey: 0xffff, DestQP: a.q.Num(), PSN: roce.PSN(100).Add(psn)})
			info.AETH(pkt).Encode(&roce.AETHFields{Syndrome: roce.NAKSequence})
			info.SACK(pkt).Encode(have)
			path := a.q.path
			path.Src, path.Dst = path.Dst, path.Src
			a.h.rx = append(a.h.rx, RxPacket{Path: path, Data: pkt})
			a.h.deliver()
			w.run(1e5)
		}
	}
	for _, c := range a.poll() {
		if c.WRID == 2 && c.Status == ring.StatusSuccess {
			t.Error("a READ has completed of which nothing has come")
		}
	}
}

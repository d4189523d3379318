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

// dropOnce takes the first packet that matches out of the wire.
func dropOnce(match func(f frame) bool) func(f frame) bool {
	gone := false
	return func(f frame) bool {
		if gone || !match(f) {
			return false
		}
		gone = true
		return true
	}
}

func is(op roce.Opcode, psn roce.PSN) func(f frame) bool {
	return func(f frame) bool { return f.op == op && f.psn == psn }
}

// Of a message that loses one packet in its middle, that packet is sent again and no other. The peer says so with its own opcode
// of the manufacturer's range (9.2.1), whose PSN is that of the missing packet, as of a NAK (9.7.5.1.1).
func TestOnlyTheMissingPacketComesAgain(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = dropOnce(is(roce.RCWriteMiddle, 105))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20*1024)), b, 100_000))
	w.run(second)
	a.want(t, "1:success")
	if !bytes.Equal(a.bytes(0, 20*1024), b.bytes(100_000, 20*1024)) {
		t.Error("the data differ")
	}
	for psn := roce.PSN(100); psn < 120; psn++ {
		want := 1
		if psn == 105 {
			want = 2
		}
		if n := w.count(func(f frame) bool { return f.from == a.h && f.psn == psn }); n != want {
			t.Errorf("the packet with PSN %d was sent %d times, want %d", psn, n, want)
		}
	}
	if w.count(is(roce.SelectiveAck, 105)) == 0 {
		t.Error("the peer did not say what it lacks")
	}
	if n := a.h.n.Stats().Timeouts; n != 0 {
		t.Errorf("%d expiries of the local ACK timer", n)
	}
}

// 9.7.5.1: of a READ that loses one packet of its response, that part is asked for again, as a READ request within the
// first, and what came behind it is not.
func TestOnlyTheMissingResponseComesAgain(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = dropOnce(is(roce.RCReadResponseMiddle, 104))
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 12*1024)), b, 100_000))
	w.run(second)
	a.want(t, "1:success")
	if !bytes.Equal(a.bytes(0, 12*1024), b.bytes(100_000, 12*1024)) {
		t.Error("the data differ")
	}
	var lengths []uint32
	for _, f := range w.log {
		if p := f.packet(); f.op == roce.RCReadRequest && f.psn > 100 {
			lengths = append(lengths, p.RETH().Length())
		}
	}
	if fmt.Sprint(lengths) != "[1024]" {
		t.Errorf("bytes asked for again: %v, want one packet's", lengths)
	}
	if n := w.count(func(f frame) bool { return f.from == b.h && f.psn > 104 && f.psn < 112 }); n != 7 {
		t.Errorf("%d packets of response came behind the lost one, want each once: 7", n)
	}
}

// Whoever has not agreed is told by a NAK alone (9.7.5.1.1), and drops a packet of an opcode that it does not know (9.6.1.1.3).
func TestStandardPeersNeverSeeIt(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	w.drop = dropOnce(is(roce.RCWriteMiddle, 105))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20*1024)), b, 100_000))
	w.run(second)
	a.want(t, "1:success")
	if w.countOp(roce.SelectiveAck) != 0 {
		t.Error("a peer that did not agree was told of selective repeat")
	}
	w.drop = func(frame) bool { return true }
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 20*1024)), b, 100_000))
	w.settle()
	before := *a.h.n.Stats()
	a.h.inject(a.pathFrom(b), a.fromPeer(roce.SelectiveAck, 125, 0, func(i *roce.OpInfo, p []byte) { i.SACK(p).Encode([2]uint64{7, 0}) }))
	w.settle()
	if s := a.h.n.Stats(); s.NAKsRecvd != before.NAKsRecvd || s.RetransmittedPackets != before.RetransmittedPackets || a.cv.Pending() != 0 {
		t.Error("a queue pair that did not agree listens to a selective acknowledgement")
	}
}

// It is agreed on before a queue pair talks, for reliable connections; RESET ends it.
func TestSelectiveRepeatIsSetBeforeTheConnection(t *testing.T) {
	n := objectsNIC(Config{})
	for _, typ := range []QPType{UC, UD, XRCINI, XRCTGT} {
		wantErrno(t, someQP(t, n, typ).SetSelective(true), EINVAL)
	}
	q := someQP(t, n, RC)
	wantErrno(t, q.SetSelective(true), 0)
	bring(t, q, RTR)
	wantErrno(t, q.SetSelective(false), EINVAL)
	if !q.Selective() {
		t.Error("a refused change took place")
	}
	a := goodAttr(Reset)
	if err := n.Modify(1, q, &a, AttrState); err != nil || q.Selective() {
		t.Errorf("after RESET: %v, selective %v", err, q.Selective())
	}
}

// 9.7.5.2.8: a SEND without a receive, behind a gap, is refused by an RNR NAK in its turn and comes again; what was kept
// behind it completes after it.
func TestNotReadyBehindAGap(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	a.q.req.limited = false // as if the peer did not tell of its receives (9.7.7.2): it sends without any
	w.drop = dropOnce(is(roce.RCWriteOnly, 100))
	clear(b.bytes(120_000, 64))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 100_000), wr(2, ring.OpSend, a.sge(0, 3000)), remote(wr(3, ring.OpWrite, a.sge(0, 64)), b, 120_000))
	w.settle()
	if !bytes.Equal(b.bytes(120_000, 64), make([]byte, 64)) {
		t.Error("the WRITE behind a SEND that was refused is there")
	}
	b.recv(7, b.sge(110_000, 3000))
	w.run(second)
	a.want(t, "1:success", "2:success", "3:success")
	b.want(t, "7:success")
	if !bytes.Equal(a.bytes(0, 3000), b.bytes(110_000, 3000)) {
		t.Error("the data differ")
	}
	if a.h.n.Stats().RNRNAKsReceived == 0 {
		t.Error("no RNR NAK: the test tests nothing")
	}
}

// 9.7.4.1.4, 9.9.2: nothing is executed behind a request that the responder refuses for good, though it was kept, and the buffers are
// given back.
func TestNothingBehindAnErrorIsExecuted(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	bad := remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 110_000)
	bad.RKey++
	w.drop = dropOnce(is(roce.RCWriteOnly, 100))
	before := bytes.Clone(b.bytes(120_000, 8))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 100_000), bad, remote(wr(3, ring.OpWrite, a.sge(64, 8)), b, 120_000))
	w.run(second)
	a.want(t, "1:success", fmt.Sprintf("2:%v", ring.StatusRemAccessErr), fmt.Sprintf("3:%v", ring.StatusWRFlushErr))
	if !bytes.Equal(b.bytes(120_000, 8), before) {
		t.Error("a WRITE behind the error was executed")
	}
	for _, h := range w.hosts {
		h.wantNothingKept(t)
	}
}

// A response that comes late, after sending went back before its request, is kept, but counts for the windows
// only when it is acknowledged: else these would fill up for ever.
func TestLateResponsesLeaveTheWindowsRight(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = func(f frame) bool { return f.from == b.h }
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 8*1024)), b, 100_000))
	w.settle()
	a.q.goBack(w.now, NoteTimeout)
	for _, f := range w.log {
		if f.from == b.h && f.psn >= 103 {
			a.h.inject(a.pathFrom(b), f.data)
		}
	}
	a.h.deliver()
	w.drop = nil
	w.run(second)
	a.want(t, "1:success")
	if !bytes.Equal(a.bytes(0, 8*1024), b.bytes(100_000, 8*1024)) {
		t.Error("the data differ")
	}
	if q, p := a.q.req.window.inFlight, a.q.req.peer.window.inFlight; q != 0 || p != 0 {
		t.Errorf("%d bytes of the queue pair and %d of the peer count as in flight, and none are", q, p)
	}
}

func (h *host) wantNothingKept(t *testing.T) {
	t.Helper()
	h.n.MemoryDone(h.w.now)
	if n := h.n.transport.keptInUse; n != 0 {
		t.Errorf("%d packets are kept for nobody", n)
	}
}

// A peer that sends packets behind gaps and never fills them gets no more memory than the limit, with any number of
// queue pairs; all of it comes back when these end, however they do. 9.7.5.1: what finds no room is as lost.
func TestKeptPacketsAreBounded(t *testing.T) {
	w := newWire(t, Config{}, Config{})
	var ends []*end
	for range 20 {
		_, _, b := func() (*wire, *end, *end) {
			return connectEnds(t, w, w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63), nil, true)
		}()
		ends = append(ends, b)
	}
	h := w.hosts[1]
	for _, e := range ends {
		for ahead := range 2 * span {
			e.h.inject(roce.Path{Src: w.hosts[0].addr, Dst: h.addr, SrcPort: 50000, TTL: 64},
				e.fromPeer(roce.RCWriteOnly, roce.PSN(101+ahead), 8, reth(memBase, h.mr.RKey(), 8)))
		}
		w.settle()
	}
	if n := h.n.transport.keptInUse; n != maxKept {
		t.Errorf("%d packets are kept, want the limit %d", n, maxKept)
	}
	for i, e := range ends {
		switch i % 3 {
		case 0:
			_ = e.q.Destroy()
		default:
			at := goodAttr([]State{0, Err, Reset}[i%3])
			if err := h.n.Modify(w.now, e.q, &at, AttrState); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.settle()
	h.wantNothingKept(t)
}

// What selective acknowledgements say of packets that were never sent, or say twice, gets nothing sent and nothing completed.
func TestSelectiveAcknowledgementsThatLie(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	w.drop = func(f frame) bool { return f.from == a.h }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 4*1024)), b, 100_000))
	w.settle()
	for _, psn := range []roce.PSN{99, 103, 104, 105, 300, 0, roce.PSNMask} {
		for range 3 {
			a.h.inject(a.pathFrom(b), a.fromPeer(roce.SelectiveAck, psn, 0, func(i *roce.OpInfo, p []byte) {
				i.AETH(p).Encode(&roce.AETHFields{Syndrome: roce.NAKSequence})
				i.SACK(p).Encode([2]uint64{^uint64(0), ^uint64(0)})
			}))
		}
	}
	w.settle()
	if n := a.cv.Pending(); n > 1 {
		t.Errorf("%d completions", n)
	}
	if n := w.count(func(f frame) bool { return f.from == a.h }); n > 4+4 {
		t.Errorf("%d packets were sent for a message of 4", n)
	}
	if n := a.q.req.window.inFlight; n > 4*(1024+512) {
		t.Errorf("%d bytes count as in flight", n)
	}
}

// Whatever a peer that has agreed sends: no panic, nothing outside the regions changes, no completion too many.
func FuzzSelective(f *testing.F) {
	rng := rand.New(rand.NewPCG(11, 12))
	for range 20 {
		f.Add(selectiveInput(rng, 400))
	}
	f.Fuzz(func(t *testing.T, data []byte) { selectivePacketsAreHarmless(t, data) })
}

// selectiveInput is random, and often a selective acknowledgement or ahead of its turn.
func selectiveInput(rng *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	for i := 3; i < n; i += 60 {
		if rng.IntN(2) == 0 {
			b[i] = byte(roce.SelectiveAck)
		}
	}
	return b
}

func TestRandomSelectivePacketsAreHarmless(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for range 60 {
		selectivePacketsAreHarmless(t, selectiveInput(rng, rng.IntN(3000)))
	}
}

func selectivePacketsAreHarmless(t *testing.T, data []byte) {
	w, a, b, check := guarded(t)
	a.q.sel.on, b.q.sel.on = true, true
	a.q.sel.forgetPeer(a.q.req.una)
	b.q.sel.forgetPeer(b.q.req.una)
	for _, in := range inputs(data, a, b) {
		from := a
		if in.to == a {
			from = b
		}
		in.to.h.inject(in.to.pathFrom(from), in.pkt)
		if len(in.pkt)&4 != 0 {
			w.settle()
		}
	}
	w.run(50e6)
	check()
	for _, e := range []*end{a, b} {
		if n := e.h.n.transport.keptInUse; n > 2*span {
			t.Fatalf("%d packets are kept", n)
		}
	}
}

// No allocation where packets are lost, kept and sent again.
func TestSelectiveRepeatAllocatesNothing(t *testing.T) {
	w, x, y := connectedSelectively(t, Config{}, func(a *Attr) { a.PathMTU = 5 })
	w.quiet = true
	sent := 0
	w.drop = func(frame) bool { sent++; return sent%13 == 0 }
	for _, s := range []*ring.SendWQE{remote(wr(1, ring.OpWrite, x.sge(0, 65536)), y, 0), remote(wr(2, ring.OpRead, x.sge(0, 65536)), y, 0)} {
		one := func() {
			x.sq.StoreSend(x.sq.Position(), s, false)
			_ = x.sq.Publish()
			x.h.n.Doorbell(w.now, x.q)
			w.run(second)
			x.poll()
		}
		for range 200 {
			one()
		}
		before := x.h.n.Stats().RetransmittedPackets
		if n := testing.AllocsPerRun(100, one); n > 1 { // poll makes a slice of the one completion
			t.Errorf("opcode %d: %v allocations", s.Opcode, n)
		}
		if x.h.n.Stats().RetransmittedPackets == before {
			t.Error("nothing was sent again: the test tests nothing")
		}
	}
}

// Post to completion of one WRITE of 64 KiB of which every 13th packet is lost.
func BenchmarkSelectiveWrite64K(b *testing.B) {
	w, x, y := connectedSelectively(b, Config{}, func(a *Attr) { a.PathMTU = 5 })
	w.quiet = true
	sent := 0
	w.drop = func(frame) bool { sent++; return sent%13 == 0 }
	s := remote(wr(1, ring.OpWrite, x.sge(0, 65536)), y, 0)
	b.SetBytes(65536)
	b.ReportAllocs()
	for b.Loop() {
		x.sq.StoreSend(x.sq.Position(), s, false)
		_ = x.sq.Publish()
		x.h.n.Doorbell(w.now, x.q)
		w.run(second)
		var c ring.CQE
		for x.cv.Pending() > 0 {
			x.cv.LoadCQE(x.cv.Position(), &c)
			_ = x.cv.Consume()
		}
	}
}

// The memory of a packet that is to be sent again is gone: its connection fails. What the peer had of the packets behind it counted as
// landed already, and does not a second time: that would be others' part of the window that they share.
func TestFailedRepairLeavesOthersTheirWindow(t *testing.T) {
	w, a, b := connectedSelectively(t, Config{}, nil)
	_, c, d := connectEnds(t, w, w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023), nil, false)
	lost := dropOnce(is(roce.RCWriteMiddle, 105))
	w.drop = func(f frame) bool {
		switch {
		case f.from == a.h && roce.BTH(f.data).DestQP() == d.q.Num():
			return true // it stays in flight
		case f.from == a.h && lost(f):
			a.h.mem.Holes = []hostmem.Range{{Addr: memBase + 5*1024, Len: 1024}}
			return true
		}
		return false
	}
	c.post(remote(wr(1, ring.OpWrite, c.sge(100_000, 50*1024)), d, 200_000))
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20*1024)), b, 100_000))
	w.settle()
	a.want(t, "1:"+ring.StatusLocProtErr.String())
	if got, want := c.q.req.peer.window.inFlight, c.q.req.window.inFlight; got != want || want < 50*1024 {
		t.Errorf("%d bytes are in flight to the peer, and %d of the one queue pair that is left", got, want)
	}
}

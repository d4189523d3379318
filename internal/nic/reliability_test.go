package nic

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// 9.7.5.2.8: without a receive the responder answers RNR NAK, and the requester waits for at least
// the responder's timer before it sends again; rnr_retry 7 tries for ever.
func TestRNRTimer(t *testing.T) {
	for _, code := range []uint8{0, 1, 12, 20, 31} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			w, a, b := connected(t, Config{}, func(at *Attr) { at.MinRNRTimer = code })
			a.post(wr(1, ring.OpSend, a.sge(0, 3000)))
			timer := roce.RNRTimerNanos(code)
			w.run(12*timer + 1e6)
			b.recv(9, b.sge(0, 3000))
			w.run(timer + 1e6)
			a.want(t, "1:success")
			b.want(t, "9:success")
			var tries []int64
			for _, f := range w.log {
				if f.op == roce.RCSendFirst {
					tries = append(tries, f.at)
				}
			}
			if len(tries) < 10 {
				t.Errorf("%d tries", len(tries))
			}
			for i := 1; i < len(tries); i++ {
				if gap := tries[i] - tries[i-1]; gap < timer {
					t.Errorf("try %d came after %d ns, before the timer of %d", i, gap, timer)
				}
			}
			if s := w.syndromes(b.h); s[0] != roce.RNRSyndrome(code) {
				t.Errorf("first answer %x", s[0])
			}
			if n := a.h.n.Stats(); n.Timeouts != 0 || n.RNRNAKsReceived != uint64(len(tries)-1) {
				t.Errorf("%+v", n)
			}
		})
	}
}

// rnr_retry n: n tries more, then the RNR retry counter is exceeded.
func TestRNRRetryExhaustion(t *testing.T) {
	for _, retries := range []uint8{0, 1, 6} {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.RNRRetry = retries })
		b.recv(9, b.sge(0, 100))
		a.post(wr(1, ring.OpSend, a.sge(0, 100)), wr(2, ring.OpSend, a.sge(0, 100)), wr(3, ring.OpWrite))
		w.run(second)
		a.want(t, "1:success", "2:RNR retry counter exceeded", "3:work request flushed error")
		if n := w.count(func(f frame) bool { return f.op == roce.RCSendOnly && f.psn == 101 }); n != int(retries)+1 {
			t.Errorf("rnr_retry %d: %d tries", retries, n)
		}
	}
}

// A WRITE with immediate uses a receive with its last packet: that packet alone is refused.
func TestRNROfWriteWithImmediate(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWriteImm, a.sge(0, 3000)), b, 0))
	w.run(2e6)
	b.recv(5)
	w.run(second)
	a.want(t, "1:success")
	b.want(t, "5:success")
	if n := w.countOp(roce.RCWriteFirst); n != 1 {
		t.Errorf("the first packet was sent %d times", n)
	}
	if !bytes.Equal(a.bytes(0, 3000), b.bytes(0, 3000)) {
		t.Error("data differ")
	}
}

// 9.7.6.1.3, 9.9.2.1.1: a peer that is silent: retry_cnt tries after the first, one each time-out,
// then the transport retry counter is exceeded. Without early resends nothing else is sent.
func TestRetryExhaustion(t *testing.T) {
	for _, retries := range []uint8{0, 1, 7} {
		w, a, b := connected(t, Config{Policy: Policy{NoEarlyResend: true}}, func(at *Attr) { at.RetryCnt = retries })
		w.drop = func(f frame) bool { return true }
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 10)), b, 0), wr(2, ring.OpSend))
		start := w.now
		timeout := roce.TimeoutNanos(14)
		w.run(int64(retries+1)*timeout - 1e6)
		a.want(t)
		w.run(2e6)
		a.want(t, "1:transport retry counter exceeded", "2:work request flushed error")
		if n := w.countOp(roce.RCWriteOnly); n != int(retries)+1 {
			t.Errorf("retry_cnt %d: sent %d times", retries, n)
		}
		if s := a.h.n.Stats(); s.Timeouts != uint64(retries)+1 || s.EarlyResends != 0 {
			t.Errorf("%+v", s)
		}
		_ = start
	}
}

// Early resends cost no retry: with them a silent peer is given up at the same time.
func TestEarlyResendsCostNoRetry(t *testing.T) {
	w, a, b := connected(t, Config{}, func(at *Attr) { at.RetryCnt = 1 })
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 10)), b, 0))
	timeout := roce.TimeoutNanos(14)
	w.run(2*timeout - 1e6)
	a.want(t)
	w.run(2e6)
	a.want(t, "1:transport retry counter exceeded")
	if s := a.h.n.Stats(); s.EarlyResends < 4 || s.Timeouts != 2 {
		t.Errorf("%+v", s)
	}
}

// Timeout 0 is none: nothing is given up, ever.
func TestTimeoutZeroWaitsForEver(t *testing.T) {
	w, a, b := connected(t, Config{Policy: Policy{NoEarlyResend: true}}, func(at *Attr) { at.Timeout = 0 })
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 10)), b, 0))
	w.run(1000 * second)
	a.want(t)
	if n := w.countOp(roce.RCWriteOnly); n != 1 {
		t.Errorf("sent %d times", n)
	}
}

// Each packet that can be lost, one at a time, of each operation: noticed without a time-out.
func TestLossOfEachPacket(t *testing.T) {
	for lost := range 14 {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.Timeout = 20 })
		b.recv(9, b.sge(100000, 3000))
		i := -1
		w.drop = func(f frame) bool { i++; return i == lost }
		add := remote(wr(4, ring.OpFetchAdd, a.sge(60000, 8)), b, 4096)
		clear(b.bytes(4096, 8))
		add.CompareAdd = 5
		a.post(wr(1, ring.OpSend, a.sge(0, 3000)), remote(wr(2, ring.OpWrite, a.sge(3000, 3000)), b, 200000),
			remote(wr(3, ring.OpRead, a.sge(50000, 3000)), b, 300000), add)
		w.run(100e6)
		a.want(t, "1:success", "2:success", "3:success", "4:success")
		b.want(t, "9:success")
		if s := a.h.n.Stats(); s.Timeouts != 0 {
			t.Errorf("packet %d lost: %d time-outs", lost, s.Timeouts)
		}
		if word(b.bytes(4096, 8)) != 5 {
			t.Errorf("packet %d lost: the sum is %d", lost, word(b.bytes(4096, 8)))
		}
		if !bytes.Equal(a.bytes(50000, 3000), b.bytes(300000, 3000)) || !bytes.Equal(b.bytes(100000, 3000), a.bytes(0, 3000)) {
			t.Errorf("packet %d lost: data differ", lost)
		}
	}
}

// 9.7.5.1: one NAK for each gap.
func TestOneNAKForEachGap(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	lost := false
	w.drop = func(f frame) bool {
		if f.psn == 103 && !lost && f.from == a.h {
			lost = true
			return true
		}
		return false
	}
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 20000)), b, 0))
	w.run(second)
	a.want(t, "1:success")
	naks := 0
	for _, s := range w.syndromes(b.h) {
		if s == roce.NAKSequence {
			naks++
		}
	}
	if naks != 1 {
		t.Errorf("%d sequence NAKs for one gap", naks)
	}
	if !bytes.Equal(a.bytes(0, 20000), b.bytes(0, 20000)) {
		t.Error("data differ")
	}
}

// PSNs count modulo 2^24 (9.7.2): everything goes on over the end.
func TestPSNWrap(t *testing.T) {
	for back := range 12 {
		w, a, b := connected(t, Config{}, func(at *Attr) {
			at.SQPSN = uint32(0x1000000 - back)
			at.RQPSN = at.SQPSN
		})
		b.recv(8, b.sge(300000, 5000))
		add := remote(wr(4, ring.OpFetchAdd, a.sge(60000, 8)), b, 4096)
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 3000)), b, 0), remote(wr(2, ring.OpRead, a.sge(50000, 3000)), b, 100000),
			wr(3, ring.OpSend, a.sge(0, 3000)), add)
		w.run(second)
		a.want(t, "1:success", "2:success", "3:success", "4:success")
		if n := a.h.n.Stats().RetransmittedPackets; n != 0 {
			t.Errorf("first PSN 2^24-%d: %d packets sent again", back, n)
		}
	}
}

// 9.7.5.1: a duplicate SEND or WRITE is acknowledged again and not executed; a duplicate READ is
// executed again; a duplicate atomic is answered from the saved result.
func TestDuplicates(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	b.recv(5, b.sge(0, 100))
	b.recv(6, b.sge(100, 100))
	clear(b.bytes(4096, 8))
	add := remote(wr(4, ring.OpFetchAdd, a.sge(60000, 8)), b, 4096)
	add.CompareAdd = 3
	a.post(wr(1, ring.OpSend, a.sge(0, 100)), remote(wr(2, ring.OpWrite, a.sge(0, 100)), b, 8192),
		remote(wr(3, ring.OpRead, a.sge(50000, 3000)), b, 100000), add)
	w.run(second)
	a.want(t, "1:success", "2:success", "3:success", "4:success")
	b.want(t, "5:success")
	sent := slices.Clone(w.log)
	copy(b.bytes(8192, 100), bytes.Repeat([]byte{9}, 100))
	b.bytes(100000, 1)[0] ^= 0xff
	answer := func(op roce.Opcode) []frame {
		w.log = w.log[:0]
		for _, f := range sent {
			if f.from == a.h && f.op == op {
				b.h.inject(b.pathFrom(a), f.data)
			}
		}
		w.settle()
		return slices.Clone(w.log)
	}
	for _, op := range []roce.Opcode{roce.RCSendOnly, roce.RCWriteOnly} {
		got := answer(op)
		if p := got[0].packet(); len(got) != 1 || got[0].op != roce.RCAck || got[0].psn != 105 || p.AETH().Syndrome().Kind() != roce.SyndromeACK {
			t.Errorf("duplicate %v answered by %+v", op, got)
		}
	}
	if b.bytes(8192, 1)[0] != 9 {
		t.Error("a duplicate WRITE was executed")
	}
	b.want(t)
	got := answer(roce.RCReadRequest)
	if len(got) != 3 || got[0].psn != 102 || got[2].psn != 104 {
		t.Fatalf("duplicate READ answered by %d packets", len(got))
	}
	if p := got[0].packet(); p.Payload[0] != b.bytes(100000, 1)[0] {
		t.Error("a duplicate READ was not executed again")
	}
	for range 3 {
		got = answer(roce.RCFetchAdd)
		if p := got[0].packet(); len(got) != 1 || got[0].op != roce.RCAtomicAck || p.AtomicAckETH().Orig() != 0 || got[0].psn != 105 {
			t.Errorf("duplicate atomic answered by %+v", got)
		}
	}
	if word(b.bytes(4096, 8)) != 3 {
		t.Errorf("the word is %d: atomics happen once", word(b.bytes(4096, 8)))
	}
	// Duplicate answers do nothing to the requester.
	for _, f := range sent {
		if f.from == b.h {
			a.h.inject(a.pathFrom(b), f.data)
		}
	}
	w.settle()
	a.want(t)
	// A duplicate READ is checked again.
	_ = b.h.mr.Dereg()
	got = answer(roce.RCReadRequest)
	if p := got[len(got)-1].packet(); got[len(got)-1].psn != 102 || p.AETH().Syndrome() != roce.NAKRemoteAccess {
		t.Errorf("duplicate READ of a region that is gone: %+v", got)
	}
}

// 9.7.5.1: an ACK beyond a READ whose response did not come is a NAK of that READ.
func TestImpliedNAK(t *testing.T) {
	for _, lost := range []roce.Opcode{roce.RCReadResponseFirst, roce.RCReadResponseMiddle, roce.RCReadResponseLast, roce.RCAtomicAck} {
		w, a, b := connected(t, Config{Policy: Policy{NoEarlyResend: true}}, nil)
		dropped := false
		w.drop = func(f frame) bool {
			if f.op == lost && !dropped {
				dropped = true
				return true
			}
			return false
		}
		clear(b.bytes(4096, 8))
		add := remote(wr(2, ring.OpFetchAdd, a.sge(60000, 8)), b, 4096)
		add.CompareAdd = 1
		a.post(remote(wr(1, ring.OpRead, a.sge(50000, 5000)), b, 100000), add, remote(wr(3, ring.OpWrite, a.sge(0, 8)), b, 0))
		w.settle()
		a.want(t, "1:success", "2:success", "3:success")
		if a.h.n.Stats().Timeouts != 0 || word(b.bytes(4096, 8)) != 1 || !bytes.Equal(a.bytes(50000, 5000), b.bytes(100000, 5000)) {
			t.Errorf("%v lost: %+v", lost, a.h.n.Stats())
		}
	}
}

// 9.7.5.1: one ACK acknowledges everything before it.
func TestCoalescedACK(t *testing.T) {
	w, a, b := connected(t, Config{Policy: Policy{NoEarlyResend: true}}, nil)
	w.drop = func(f frame) bool { return f.from == b.h }
	for i := range 5 {
		a.post(remote(wr(uint64(i), ring.OpWrite, a.sge(0, 1500)), b, 0))
	}
	w.settle()
	a.want(t)
	a.h.inject(a.pathFrom(b), a.fromPeer(roce.RCAck, 107, 0, nil))
	w.settle()
	a.want(t, "0:success", "1:success", "2:success", "3:success")
	// An ACK of what was never sent is a ghost.
	a.h.inject(a.pathFrom(b), a.fromPeer(roce.RCAck, 200, 0, nil))
	a.h.inject(a.pathFrom(b), a.fromPeer(roce.RCAck, 99, 0, nil))
	w.settle()
	a.want(t)
	a.h.inject(a.pathFrom(b), a.fromPeer(roce.RCAck, 109, 0, nil))
	w.settle()
	a.want(t, "4:success")
}

// max_rd_atomic bounds the READs and atomics outstanding (9.4.4, 11.2.5.2).
func TestMaxRDAtomic(t *testing.T) {
	for _, most := range []uint8{1, 2, 4} {
		w, a, b := connected(t, Config{}, func(at *Attr) { at.MaxRDAtomic, at.MaxDestRDAtomic = most, most })
		hold := true
		w.drop = func(f frame) bool { return hold && f.from == b.h }
		var want []string
		for i := range 6 {
			op, n := ring.OpRead, 5000
			if i&1 == 1 {
				op, n = ring.OpFetchAdd, 8
			}
			a.post(remote(wr(uint64(i), op, a.sge(i*8192, n)), b, 4096))
			want = append(want, fmt.Sprintf("%d:success", i))
		}
		w.settle()
		if n := len(w.log) - w.count(func(f frame) bool { return f.from == b.h }); n != int(most) {
			t.Errorf("max_rd_atomic %d: %d requests sent without an answer", most, n)
		}
		hold = false
		w.run(second)
		a.want(t, want...)
	}
}

// 10.8.3.3: a request with the fence waits for all READs and atomics before it.
func TestFence(t *testing.T) {
	for _, fence := range []bool{true, false} {
		w, a, b := connected(t, Config{}, nil)
		hold := true
		w.drop = func(f frame) bool { return hold && f.from == b.h }
		s := remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0)
		if fence {
			s.Flags |= ring.SendFence
		}
		a.post(remote(wr(1, ring.OpRead, a.sge(50000, 5000)), b, 100000), s)
		w.settle()
		if n := w.countOp(roce.RCWriteOnly); (n == 0) != fence {
			t.Errorf("fence %v: the WRITE was sent %d times before the READ was answered", fence, n)
		}
		hold = false
		w.run(second)
		a.want(t, "1:success", "2:success")
	}
}

// The program may rewrite its slot as soon as the request has been fetched.
func TestSlotRewrittenInFlight(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	w.drop = func(f frame) bool { return true }
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 3000)), b, 0))
	w.settle()
	for i := range a.sq.Bytes()[ring.HeaderSize:] {
		a.sq.Bytes()[ring.HeaderSize+i] = 0xff
	}
	w.drop = nil
	w.run(second)
	a.want(t, "1:success")
	if !bytes.Equal(a.bytes(0, 3000), b.bytes(0, 3000)) {
		t.Error("data differ")
	}
}

// Requests without a completion complete silently, and their slots are free again.
func TestUnsignalled(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	for range 1000 {
		s := remote(wr(1, ring.OpWrite, a.sge(0, 2000)), b, 0)
		s.Flags = 0
		a.post(s)
		if a.sq.Free() < 2 {
			w.settle()
		}
	}
	a.post(remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0))
	w.settle()
	a.want(t, "2:success")
	if a.sq.Free() != a.sq.Capacity() {
		t.Errorf("%d of %d slots are free", a.sq.Free(), a.sq.Capacity())
	}
}

// 9.7.7.2: without credits a requester sends one packet and waits for news; it does not run into
// RNR NAKs with all it has.
func TestCredits(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	for i := range 3 {
		b.recv(uint64(i), b.sge(i*100, 100))
	}
	for i := range 10 {
		a.post(wr(uint64(i), ring.OpSend, a.sge(i*100, 100)))
	}
	w.settle()
	if n := w.count(func(f frame) bool { return f.op == roce.RCSendOnly }); n != 4 {
		t.Errorf("%d SENDs for 3 receives, want 4: one beyond to learn of credits", n)
	}
	for i := range 7 {
		b.recv(uint64(3+i), b.sge(i*100, 100))
	}
	w.run(second)
	if got := a.poll(); len(got) != 10 {
		t.Errorf("%d completions", len(got))
	}
	if n := a.h.n.Stats().RNRNAKsReceived; n != 1 {
		t.Errorf("%d RNR NAKs", n)
	}
}

// A pause of the machine stretches the estimate of the round trip, or has a driver come too late for
// every deadline at once: neither makes a loss wait for the local ACK timer.
func TestPausesCauseNoTimeout(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	s := remote(wr(1, ring.OpWrite, a.sge(0, 8)), b, 0)
	for range 3 {
		a.post(s)
		a.h.transmit()
		w.now += 60e6
		w.settle()
	}
	a.poll()
	lost := false
	drop := func(f frame) bool {
		was := lost
		lost = true
		return !was
	}
	w.drop = drop
	a.post(s)
	w.run(second)
	a.want(t, "1:success")
	if n := a.h.n.Stats(); n.Timeouts != 0 {
		t.Errorf("after a long round trip: %d time-outs", n.Timeouts)
	}
	lost = false
	a.post(s)
	a.h.transmit()
	w.now += 80e6
	w.run(second)
	a.want(t, "1:success")
	if n := a.h.n.Stats(); n.Timeouts != 0 {
		t.Errorf("after a late driver: %d time-outs", n.Timeouts)
	}
}

// 9.7.5.1, 11.2.5.2: the responder remembers the latest max_dest_rd_atomic READs and atomics, after that
// number has been raised too.
func TestDuplicatesAfterMoreReadsAreAllowed(t *testing.T) {
	w, a, b := connected(t, Config{}, func(at *Attr) { at.MaxRDAtomic, at.MaxDestRDAtomic = 2, 2 })
	read := func(psn int) int {
		w.log = w.log[:0]
		b.h.inject(b.pathFrom(a), b.fromPeer(roce.RCReadRequest, roce.PSN(psn), 0, reth(memBase, b.h.mr.RKey(), 8)))
		w.settle()
		return w.countOp(roce.RCReadResponseOnly)
	}
	for psn := range 3 {
		read(100 + psn)
	}
	for _, s := range []struct {
		a    Attr
		mask AttrMask
	}{{Attr{State: SQD}, AttrState}, {Attr{State: SQD, MaxDestRDAtomic: 4}, AttrState | AttrMaxDestRDAtomic}, {Attr{State: RTS}, AttrState}} {
		if err := b.h.n.Modify(w.now, b.q, &s.a, s.mask); err != nil {
			t.Fatal(err)
		}
	}
	for psn := 103; psn < 115; psn++ {
		read(psn)
		for again := max(101, psn-3); again <= psn; again++ {
			if n := read(again); n != 1 {
				t.Errorf("READ %d asked for again behind %d: %d answers", again, psn, n)
			}
		}
	}
}

// A READ is sent again for no reason, its answer arrives, the requester says so in a message, and the
// responder's program deregisters the region while the second answer is still to be sent: no error.
func TestDeregisteredBehindARepeatedRead(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpRead, a.sge(0, 60_000)), b, 0))
	w.settle()
	a.want(t, "1:success")
	for _, f := range slices.Clone(w.log) {
		if f.op == roce.RCReadRequest {
			b.h.inject(b.pathFrom(a), f.data)
		}
	}
	b.recv(2, b.sge(0, 8))
	a.post(wr(3, ring.OpSend, a.sge(0, 8)))
	a.h.transmit()
	b.h.deliver()
	b.want(t, "2:success")
	if err := b.h.mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	a.want(t, "3:success")
	if b.q.State() != RTS || b.h.events(EventQPAccessErr) != 0 {
		t.Errorf("state %v", b.q.State())
	}
}

// 9.7.5.1: a duplicate is of the latest request with its PSN, not of one that had it when the PSNs went round before.
func TestDuplicateAtomicAfterAWholeRoundOfPSNs(t *testing.T) {
	w, a, b := connected(t, Config{}, func(at *Attr) { at.MaxRDAtomic, at.MaxDestRDAtomic = 2, 2 })
	add := func(id uint64, off int) *ring.SendWQE {
		r := remote(wr(id, ring.OpFetchAdd, a.sge(off, 8)), b, 0)
		r.CompareAdd = 1
		return r
	}
	copy(b.bytes(0, 8), make([]byte, 8))
	a.post(add(1, 0))
	w.run(second)
	a.want(t, "1:success")
	// 2^24 packets later.
	r, s := &a.q.req, &b.q.resp
	r.una, r.nxt, r.max, r.end = r.una.Add(-1), r.nxt.Add(-1), r.max.Add(-1), r.end.Add(-1)
	s.expected, s.committed, s.acked = s.expected.Add(-1), s.committed.Add(-1), s.acked.Add(-1)
	lost := 0
	w.drop = func(f frame) bool {
		if f.op == roce.RCAtomicAck {
			lost++
		}
		return f.op == roce.RCAtomicAck && lost <= 2
	}
	a.post(add(2, 8))
	w.settle()
	a.post(add(3, 16))
	w.run(20 * second)
	a.want(t, "2:success", "3:success")
	if got := [2]byte{a.bytes(8, 8)[0], a.bytes(16, 8)[0]}; got != [2]byte{1, 2} {
		t.Errorf("the atomics answer %v, want 1 and 2", got)
	}
}

// 9.7.5.2.8: an RNR NAK that comes when the wait that an earlier one asked for is over, but has not been acted upon yet, is waited for as well.
func TestRNRNAKBehindALateTimer(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(wr(1, ring.OpSend, a.sge(0, 100)))
	w.settle()
	timer := roce.RNRTimerNanos(defaultAttr().MinRNRTimer)
	w.now += timer + 1000
	nak := a.fromPeer(roce.RCAck, 100, 0, func(i *roce.OpInfo, p []byte) {
		i.AETH(p).Encode(&roce.AETHFields{Syndrome: roce.RNRSyndrome(defaultAttr().MinRNRTimer)})
	})
	a.h.inject(a.pathFrom(b), nak)
	w.run(timer / 2)
	if n := w.countOp(roce.RCSendOnly); n != 1 {
		t.Errorf("sent %d times before the time that the second NAK asks for has passed", n)
	}
	w.run(timer)
	if n := w.countOp(roce.RCSendOnly); n != 2 {
		t.Errorf("sent %d times", n)
	}
}

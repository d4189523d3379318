package reported

import (
	"errors"
	"testing"
	"time"

	"rnic/verbs"
)

// The port goes down in the middle of a transfer: an event, then completion 12 when the retries are used up, all else is flushed, and the
// queue pair can be destroyed.
func TestPortGoesDownInMidTransfer(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{Timeout: 8, RetryCount: 3}) // about 1 ms, four tries
	a.post(a.write(1, b, 0, 64))
	a.want(1, nil)
	for id := uint64(2); id < 34; id++ {
		a.post(a.write(id, b, 0, regionSize))
	}
	plant(t, a.Ctx.Device(), "down=1h")
	select {
	case e := <-a.Ctx.Events():
		if e.Type != verbs.EventPortError {
			t.Errorf("event %v", e.Type)
		}
	case <-time.After(patient):
		t.Fatal("no port event")
	}
	failed := false
	for id := uint64(2); id < 34; id++ {
		wc := a.Next()
		err := wc.Err()
		switch {
		case wc.ID != id:
			t.Fatalf("completion of request %d, want %d", wc.ID, id)
		case err == nil && !failed:
		case !failed && errors.Is(err, verbs.ErrRetryExceeded):
			failed = true
		case !failed || !errors.Is(err, verbs.ErrFlushed):
			t.Fatalf("request %d: %v", id, err)
		}
	}
	if !failed {
		t.Error("all requests have succeeded with the port down")
	}
	if err := a.QP.Close(); err != nil {
		t.Error(err)
	}
}

// A receiver that answers every other message with RNR slows the sender down and loses nothing; the NAKs are counted on both sides.
func TestSenderIntoAReceiverThatIsNotReady(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{RNRTimer: 1}) // 10 us
	const n = 300
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := range uint64(n) {
			if id%2 == 0 {
				time.Sleep(200 * time.Microsecond) // late
			}
			if _, err := b.QP.PostRecv(&verbs.RecvWR{ID: id, SGE: b.MR.Slice(0, 64)}); err != nil {
				t.Error(err)
				return
			}
			b.want(id, nil)
		}
	}()
	for id := range uint64(n) {
		a.post(&verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: a.MR.Slice(0, 64)})
		a.want(id, nil)
	}
	<-done
	sa, sb := a.Ctx.Device().Stats(), b.Ctx.Device().Stats()
	// One that is decided on before the last has left takes its place.
	if sb.RNRNAKsSent == 0 || sa.RNRNAKsReceived == 0 || sa.RNRNAKsReceived > sb.RNRNAKsSent {
		t.Errorf("%d RNR NAKs sent, %d received", sb.RNRNAKsSent, sa.RNRNAKsReceived)
	}
}

// The receiver posts late, with the timer of 0.64 ms and rnr_retry 7: success.
func TestReceiveThatIsPostedLate(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{RNRTimer: 12, RNRRetry: 7})
	a.post(&verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.Signaled, SGE: a.MR.Slice(0, 64)})
	until(t, "no RNR NAK", func() bool { return b.Ctx.Device().Stats().RNRNAKsSent >= 3 })
	b.recv(2, 64)
	a.want(1, nil)
	b.want(2, nil)
}

// A pair between which nothing passes: completion 12 after the retries, and as many expiries of the timer as tries.
func TestBlackHoledPair(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{Timeout: 8, RetryCount: 2})
	plant(t, a.Ctx.Device(), "both:blackhole=1h,peer="+b.Ctx.Device().GIDs()[0].GID.Addr().String())
	a.post(a.write(1, b, 0, 64))
	a.want(1, verbs.ErrRetryExceeded)
	if s := a.Ctx.Device().Stats(); s.Timeouts != 3 {
		t.Errorf("the timer has expired %d times, with 2 retries", s.Timeouts)
	}
}

// One queue pair is blocked; others of the same NICs flow, and it goes on when the block is gone.
func TestOneBlockedQueuePairHoldsUpNoOther(t *testing.T) {
	da, db := nic(t, nil), nic(t, nil)
	var as, bs [4]*end
	for i := range as {
		as[i], bs[i] = newEnd(t, da, verbs.QPConfig{}), newEnd(t, db, verbs.QPConfig{})
		connect(as[i], bs[i], verbs.ConnectOptions{Timeout: 16})
	}
	id := plant(t, da, "both:drop=100%,qp="+hex(as[0].QP.Num()))
	as[0].post(as[0].write(7, bs[0], 0, 5000))
	for round := range uint64(200) {
		for i := 1; i < len(as); i++ {
			as[i].post(as[i].write(round, bs[i], 0, 20_000))
		}
		for i := 1; i < len(as); i++ {
			as[i].want(round, nil)
		}
	}
	as[0].none()
	if err := da.Unwrap().ClearFault(id); err != nil {
		t.Fatal(err)
	}
	as[0].want(7, nil)
}

func hex(n uint32) string {
	const digits = "0123456789abcdef"
	out := []byte("0x000000")
	for i := range 6 {
		out[7-i] = digits[n>>(4*i)&15]
	}
	return string(out)
}

// Losses, duplicates, other orders, wrong bits and marks, by rate: every byte arrives, and the counters show each of them; the same seed
// gives the same decisions (internal/fault: TestSameSeedSameDecisions).
func TestEachFaultShowsInCounters(t *testing.T) {
	a, b := pair(t, verbs.ConnectOptions{})
	plant(t, a.Ctx.Device(), "drop=5%,dup=5%,reorder=5%,corrupt=5%,ecn=5%,seed=11")
	for id := range uint64(100) {
		for i := range a.MR.Bytes() {
			a.MR.Bytes()[i] = byte(i) ^ byte(id)
		}
		a.post(a.write(id, b, 0, 20_000))
		a.want(id, nil)
		if string(a.MR.Bytes()[:20_000]) != string(b.MR.Bytes()[:20_000]) {
			t.Fatal("other bytes have arrived")
		}
	}
	c, _ := a.Ctx.Device().Unwrap().Injected()
	if c.Dropped == 0 || c.Duplicated == 0 || c.Reordered == 0 || c.Corrupted == 0 || c.Marked == 0 {
		t.Errorf("%+v", c)
	}
	if net, _ := b.Ctx.Device().Unwrap().LinkStats(); net.BadICRC < c.Corrupted { // those that were duplicated come twice
		t.Errorf("%d packets had a bit wrong, %d a bad ICRC", c.Corrupted, net.BadICRC)
	}
}

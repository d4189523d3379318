package nic

import (
	"bytes"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

func dcqcnConfig(p DCQCNPolicy) Config {
	return Config{Policy: Policy{Congestion: CongestionDCQCN, DCQCN: p}}
}

// mark has the network mark what arrives at h, as RFC 3168 lets it do with packets that are ECN capable.
func (h *host) mark(t *testing.T) {
	t.Helper()
	for i := range h.rx {
		if h.rx[i].Path.TOS&ecnMask != ecnCapable {
			t.Fatalf("packet %x is not ECN capable: TOS %#x", h.rx[i].Data[:12], h.rx[i].Path.TOS)
		}
		h.rx[i].Path.TOS |= ecnCE
	}
}

// A17.9.3: the notification goes to the queue pair that sent the marked packet, with BECN, PSN 0 and 16 bytes of
// zeros; paper, 3.1: one in 50 us at most.
func TestCongestionNotification(t *testing.T) {
	w, a, b := connected(t, dcqcnConfig(DCQCNPolicy{}), nil)
	want := make([]byte, 28)
	roce.BTH(want).Encode(&roce.BTHFields{Opcode: roce.CNP, BECN: true, PKey: 0xffff, DestQP: a.q.Num()})
	send := func() {
		a.post(remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 5000))
		a.h.transmit()
		b.h.mark(t)
		b.h.deliver()
		b.h.transmit()
		a.h.deliver()
		a.poll()
	}
	start := w.now
	for range 5 {
		send()
		w.now += 9_000
	}
	if n := w.countOp(roce.CNP); n != 1 {
		t.Fatalf("%d notifications within %d ns, want 1", n, w.now-start)
	}
	w.now = start + 50_000
	send()
	if n := w.countOp(roce.CNP); n != 2 {
		t.Errorf("%d notifications after 50 us, want 2", n)
	}
	for _, f := range w.log {
		if f.op == roce.CNP && (!bytes.Equal(f.data, want) || f.from != b.h) {
			t.Errorf("notification %x, want %x", f.data, want)
		}
	}
	if s := b.h.n.Stats(); s.ECNMarked != 6 || s.CNPsSent != 2 {
		t.Errorf("receiver %+v", s)
	}
	if s := a.h.n.Stats(); s.CNPsReceived != 2 || s.BadPackets != 0 {
		t.Errorf("sender %+v", s)
	}
	if r := a.q.SendRate(); r >= 5e9 {
		t.Errorf("the sender goes on at %d bytes a second", r)
	}
	if r := b.q.SendRate(); r != 5e9 {
		t.Errorf("the receiver slows down to %d bytes a second", r)
	}
}

// A notification from elsewhere than the peer changes nothing.
func TestForgedNotification(t *testing.T) {
	w, a, b := connected(t, dcqcnConfig(DCQCNPolicy{}), nil)
	pkt := make([]byte, 28)
	roce.BTH(pkt).Encode(&roce.BTHFields{Opcode: roce.CNP, BECN: true, PKey: 0xffff, DestQP: a.q.Num()})
	path := a.pathFrom(b)
	path.Src = path.Src.Next()
	a.h.inject(path, pkt)
	w.settle()
	if r := a.q.SendRate(); r != 5e9 || a.h.n.Stats().BadPackets != 1 {
		t.Errorf("rate %d, %+v", r, a.h.n.Stats())
	}
}

// The default policy has no rate, does not make packets ECN capable, tells peers of congestion nevertheless, and takes
// a notification for a loss.
func TestNotificationWithoutRate(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 100)), b, 5000))
	a.h.transmit()
	if tos := b.h.rx[0].Path.TOS; tos != 0 {
		t.Errorf("TOS %#x", tos)
	}
	b.h.rx[0].Path.TOS = ecnCE
	before := a.q.req.window.limit
	w.now += 1e6
	b.h.deliver()
	b.h.transmit()
	a.h.deliver()
	if w.countOp(roce.CNP) != 1 || a.q.SendRate() != 0 || a.q.req.window.limit >= before {
		t.Errorf("%d notifications, rate %d, window %d of %d", w.countOp(roce.CNP), a.q.SendRate(), a.q.req.window.limit, before)
	}
}

// The rate machine of section 3.2 (figure 7) of the paper, with numbers that can be followed by hand.
func TestDCQCNRateMachine(t *testing.T) {
	d := &dcqcn{p: DCQCNPolicy{LineRate: 1 << 30, MinRate: 1 << 20, GainLog2: 8, AlphaTimerNanos: 55_000, RateTimerNanos: 55_000,
		ByteCounter: 1 << 40, FastRecovery: 5, Additive: 1 << 20, Hyper: 1 << 24, Burst: 1, CNPIntervalNanos: 50_000}}
	var r rate
	now := int64(1000)
	d.start(&r, now)
	near := func(what string, got, want uint64) {
		t.Helper()
		if diff := int64(got) - int64(want); diff > 1<<10 || diff < -1<<10 {
			t.Fatalf("%s: %d, want %d", what, got, want)
		}
	}
	near("at first", r.current, 1<<30)
	d.notified(&r, now) // alpha 1: half
	near("after the first notification", r.current, 1<<29)
	near("its target", r.target, 1<<30)
	want := uint64(1 << 29)
	for i := range 4 { // fast recovery: half of the way, the target stays
		now += 55_000
		d.advance(&r, now)
		want = (want + 1<<30) / 2
		near("fast recovery", r.current, want)
		near("its target", r.target, 1<<30)
		if r.timers != uint32(i+1) {
			t.Fatalf("%d expiries", r.timers)
		}
	}
	// alpha has decayed four times: (1-g)^4.
	if got := float64(r.alpha) / alphaOne; got < 0.9844 || got > 0.9845 {
		t.Errorf("alpha %v, want %v", got, 0.98446)
	}
	for range 3 { // down
		d.notified(&r, now)
	}
	low, target := r.current, r.target
	if low > want/7 || target > want/3 || r.timers != 0 {
		t.Fatalf("three notifications leave %d of %d, target %d", low, want, target)
	}
	now += 4 * 55_000
	d.advance(&r, now)
	near("target after fast recovery", r.target, target)
	for i := range 6 { // the timer alone: additive
		now += 55_000
		d.advance(&r, now)
		near("additive increase", r.target, target+uint64(i+1)<<20)
	}
	r.counts = 9 // the byte counter has expired as often: hyper increase, by more each time
	target = r.target
	now += 55_000
	d.advance(&r, now) // 11 expiries of the timer
	near("hyper increase", r.target, target+4<<24)
	now += 1e9
	d.advance(&r, now)
	near("in the end", r.current, 1<<30)

	for range 1000 { // it never stops altogether
		d.notified(&r, now)
	}
	near("the least", r.current, 1<<20)
}

// Packets leave at the rate: by the timer, each when its turn has come, within one burst.
func TestDCQCNPacesWhatIsSent(t *testing.T) {
	const line = 100_000_000
	for _, op := range []ring.SendOpcode{ring.OpWrite, ring.OpRead} {
		w, a, b := connected(t, dcqcnConfig(DCQCNPolicy{LineRate: line, Burst: 4096}), nil)
		const n = 400_000
		a.post(remote(wr(1, op, a.sge(0, n)), b, n))
		sender := a.h
		if op == ring.OpRead {
			sender = b.h // its responses are the data
		}
		start := w.now
		w.run(second)
		a.want(t, "1:success")
		sent, last := 0, int64(0)
		for _, f := range w.log {
			if p := f.packet(); f.from == sender && len(p.Payload) > 0 {
				sent += len(f.data) + outerBytes
				last = f.at
				if most := 4096 + 2*1200 + int((f.at-start)*line/second); sent > most {
					t.Fatalf("%v: %d bytes within %d ns, at most %d are due", op, sent, f.at-start, most)
				}
			}
		}
		if took := last - start; took > int64(sent)*second/line*11/10 {
			t.Errorf("%v: %d bytes took %d ns at %d bytes a second", op, sent, took, line)
		}
		if s := sender.n.Stats(); s.RetransmittedPackets != 0 || s.Timeouts != 0 {
			t.Errorf("%v: %+v", op, s)
		}
	}
}

// 9.7.5.2, 9.9.3: responses that the rate holds back, and the NAK behind them, leave at that rate too when the NAK has
// taken the queue pair to the error state, whether its receives are its own or shared.
func TestPacedResponsesBeforeANAK(t *testing.T) {
	cfg := dcqcnConfig(DCQCNPolicy{LineRate: 10_000_000, Burst: 2048})
	for _, shared := range []bool{false, true} {
		var w *wire
		var a, b *end
		if shared {
			wire, _, from, to := sharing(t, cfg, nil)
			w, a, b = wire, from[0], to[0]
		} else {
			w, a, b = connected(t, cfg, nil)
		}
		bad := remote(wr(2, ring.OpWrite, a.sge(0, 8)), b, 0)
		bad.RKey ^= 1
		a.post(remote(wr(1, ring.OpRead, a.sge(0, 12_000)), b, 20_000), bad)
		w.run(5e6) // 12,000 bytes take 1.2 ms
		if b.q.State() != Err {
			t.Fatalf("shared %v: state %v", shared, b.q.State())
		}
		a.want(t, "1:success", "2:remote access error")
	}
}

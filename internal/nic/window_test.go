package nic

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rnic/internal/ring"
)

// What is in flight is counted exactly: whatever is lost, fails, or is reset in the midst of it, the
// others go on, and at the end nothing is in flight and no peer is left.
func TestNothingStaysInFlight(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			cfg := Config{Policy: Policy{Window: WindowPolicy{QPMin: 4096, QPMax: 32768, PeerMin: 8192, PeerMax: 40960}}}
			w := newWire(t, cfg, cfg)
			w.drop = func(frame) bool { return rng.IntN(25) == 0 }
			var as, bs []*end
			for range 8 {
				a, b := w.hosts[0].newEnd(RC, testCap, 255), w.hosts[1].newEnd(RC, testCap, 255)
				at := defaultAttr()
				at.RetryCnt, at.Timeout = 7, 18
				a.to(RTS, at, b)
				b.to(RTS, at, a)
				as, bs = append(as, a), append(bs, b)
			}
			ops := []ring.SendOpcode{ring.OpWrite, ring.OpRead, ring.OpSend, ring.OpFetchAdd, ring.OpWriteImm}
			ended := make([]bool, len(as))
			for range 30 {
				for i, a := range as {
					for range rng.IntN(3) {
						op, n := ops[rng.IntN(len(ops))], rng.IntN(50000)
						if op == ring.OpFetchAdd {
							n = 8
						}
						if bs[i].rq.Free() > 0 && a.sq.Free() > 1 && !ended[i] {
							bs[i].recv(1, bs[i].sge(0, 50000))
							a.post(remote(wr(1, op, a.sge(0, n)), bs[i], 0))
						}
					}
				}
				for range rng.IntN(6) {
					for _, h := range w.hosts {
						h.transmit()
						h.deliver()
					}
					w.now += 20_000
				}
				for _, h := range w.hosts {
					if next := h.n.NextTimer(); next != 0 && next <= w.now {
						h.n.Expire(w.now)
					}
				}
				if i := rng.IntN(40); i < len(as) {
					if to := []State{Err, Reset}[rng.IntN(2)]; !ended[i] {
						ended[i] = true
						if err := as[i].h.n.Modify(w.now, as[i].q, &Attr{State: to}, AttrState); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			w.drop = nil
			w.run(20 * second)
			for i, a := range as {
				if !ended[i] && a.q.req.head != a.q.req.tail || a.q.State() == RTS && a.sq.Free() != a.sq.Capacity() {
					t.Errorf("queue pair %d does not go on: %+v", i, a.q.req)
				}
				for _, c := range a.poll() {
					if c.Status != ring.StatusSuccess && !ended[i] {
						t.Errorf("queue pair %d: completion %s", i, completion(c))
					}
				}
				if a.q.req.window.inFlight != 0 {
					t.Errorf("queue pair %d: %d bytes in flight", i, a.q.req.window.inFlight)
				}
			}
			for _, h := range w.hosts {
				for key, p := range h.n.transport.peers {
					if p.window.inFlight != 0 || p.waiting.head != nil || p.turn != nil {
						t.Errorf("peer %v: %d bytes in flight, waiting %v, turn %v", key, p.window.inFlight, p.waiting.head, p.turn)
					}
				}
			}
			for i := range as {
				_, _ = as[i].q.Destroy(), bs[i].q.Destroy()
			}
			for _, h := range w.hosts {
				if tr := &h.n.transport; len(tr.peers) != 0 || len(tr.timers.q) != 0 || tr.active.head != nil || tr.acks.head != nil {
					t.Errorf("%d peers, %d timers are left", len(tr.peers), len(tr.timers.q))
				}
			}
		})
	}
}

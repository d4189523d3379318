package nic

import (
	"math/rand/v2"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// goodput is how many bytes of 64 KiB WRITEs or READs complete in a time of 60 ms over a link of 2
// GB/s and 30 us each way that loses packets at random. Time is simulated.
func goodput(t *testing.T, op ring.SendOpcode, loss float64, ends int, selective bool) (done int, stats Stats) {
	const (
		latency  = 30e3
		perByte  = 0.5
		duration = 60e6
		depth    = 16
	)
	w := newWire(t, Config{}, Config{})
	w.quiet = true
	rng := rand.New(rand.NewPCG(1, uint64(loss*1e6)))
	var as []*end
	var reqs []*ring.SendWQE
	for range ends {
		a, b := w.hosts[0].newEnd(RC, testCap, 63), w.hosts[1].newEnd(RC, testCap, 63)
		for _, e := range []*end{a, b} {
			if err := e.q.SetSelective(selective); err != nil {
				t.Fatal(err)
			}
		}
		at := defaultAttr()
		at.PathMTU, at.RetryCnt = 5, 7
		a.to(RTS, at, b)
		b.to(RTS, at, a)
		s := remote(wr(1, op, a.sge(0, 65536)), b, 0)
		for range depth {
			a.post(s)
		}
		as, reqs = append(as, a), append(reqs, s)
	}
	type flight struct {
		at   int64
		path roce.Path
		data []byte
	}
	var wires [2][]flight // by destination
	var free [2]int64
	for end := w.now + duration; w.now < end; {
		for i, h := range w.hosts {
			for len(wires[i]) > 0 && wires[i][0].at <= w.now {
				h.rx = append(h.rx, RxPacket{Path: wires[i][0].path, Data: wires[i][0].data})
				wires[i] = wires[i][1:]
			}
			h.deliver()
			if next := h.n.NextTimer(); next != 0 && next <= w.now {
				h.n.Expire(w.now)
			}
		}
		for k, a := range as {
			for _, c := range a.poll() {
				if c.Status != ring.StatusSuccess {
					t.Fatalf("completion %s", completion(c))
				}
				done += 65536
				a.post(reqs[k])
			}
		}
		for i, h := range w.hosts {
			for !h.n.Idle() {
				h.tx.Reset()
				h.n.Transmit(w.now, h.tx)
				h.tx.Gather.Gather()
				h.n.GatherDone(w.now, h.tx)
				for _, p := range h.tx.Packets {
					free[1-i] = max(free[1-i], w.now) + int64(perByte*float64(len(p.Data)))
					if rng.Float64() >= loss {
						data := append([]byte(nil), p.Data[:len(p.Data)-roce.ICRCSize]...)
						wires[1-i] = append(wires[1-i], flight{free[1-i] + latency, *p.Path, data})
					}
				}
			}
		}
		next := end
		for i, h := range w.hosts {
			if len(wires[i]) > 0 {
				next = min(next, wires[i][0].at)
			}
			if n := h.n.NextTimer(); n != 0 {
				next = min(next, n)
			}
		}
		w.now = max(w.now, next)
	}
	return done, *w.hosts[0].n.Stats()
}

// At one packet lost in a hundred each way, at least 30% of the lossless rate is left, and no local
// ACK timer expires.
func TestGoodputUnderLoss(t *testing.T) {
	for name, op := range map[string]ring.SendOpcode{"write": ring.OpWrite, "read": ring.OpRead} {
		for _, ends := range []int{1, 4} {
			whole, _ := goodput(t, op, 0, ends, false)
			lossy, s := goodput(t, op, 0.01, ends, false)
			if ends == 1 {
				repeated, sel := goodput(t, op, 0.01, ends, true)
				t.Logf("%s, selective repeat: %.0f MB/s with; %d early resends, %d packets sent again of %d",
					name, float64(repeated)/60e3, sel.EarlyResends, sel.RetransmittedPackets, sel.TxPackets)
				if op == ring.OpWrite && repeated*4 < whole*3 {
					t.Errorf("%s: %d of %d bytes are left with selective repeat: the window does not go on over what the peer has", name, repeated, whole)
				}
				if repeated <= lossy || sel.Timeouts != 0 {
					t.Errorf("%s: %d bytes with selective repeat, %d without; %d time-outs", name, repeated, lossy, sel.Timeouts)
				}
			}
			t.Logf("%s, %d queue pairs: %.0f MB/s without loss, %.0f MB/s with; %d early resends, %d packets sent again of %d",
				name, ends, float64(whole)/60e3, float64(lossy)/60e3, s.EarlyResends, s.RetransmittedPackets, s.TxPackets)
			if lossy*10 < whole*3 {
				t.Errorf("%s, %d queue pairs: %d of %d bytes are left", name, ends, lossy, whole)
			}
			if s.Timeouts != 0 {
				t.Errorf("%s, %d queue pairs: %d time-outs", name, ends, s.Timeouts)
			}
		}
	}
}

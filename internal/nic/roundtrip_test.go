package nic

import (
	"fmt"
	"testing"

	"rnic/internal/ring"
)

// slowly runs WRITEs of the sizes, so many at a time, over a link that loses nothing and takes latency
// nanoseconds each way, and returns the requester's counters.
func slowly(t *testing.T, latency int64, timeout uint8, depth int, sizes ...int) *Stats {
	t.Helper()
	w, a, b := connected(t, Config{}, func(at *Attr) { at.Timeout = timeout })
	type flight struct {
		at   int64
		to   *end
		from *end
		data []byte
	}
	var line []flight
	w.drop = func(f frame) bool {
		to, from := b, a
		if f.from == b.h {
			to, from = a, b
		}
		line = append(line, flight{f.at + latency, to, from, f.data})
		return true
	}
	posted, done := 0, 0
	for done < len(sizes) {
		for ; posted < len(sizes) && posted-done < depth; posted++ {
			a.post(remote(wr(1, ring.OpWrite, a.sge(0, sizes[posted])), b, 0))
		}
		w.settle()
		next := int64(0)
		for _, h := range w.hosts {
			next = earlier(next, h.n.NextTimer())
		}
		if len(line) > 0 {
			next = earlier(next, line[0].at)
		}
		w.now = max(w.now, next)
		for len(line) > 0 && line[0].at <= w.now {
			line[0].to.h.inject(line[0].to.pathFrom(line[0].from), line[0].data)
			line = line[1:]
		}
		w.settle()
		for _, h := range w.hosts {
			h.n.Expire(w.now)
		}
		for _, c := range a.poll() {
			if c.Status != ring.StatusSuccess {
				t.Fatalf("completion %s", completion(c))
			}
			done++
		}
	}
	return a.h.n.Stats()
}

// A peer that is merely slow, an emulated machine for instance, is no peer that loses: as long as no
// round trip has been measured nothing is known, and no packet is sent twice.
func TestSlowPeerIsNoLoss(t *testing.T) {
	for _, size := range []int{8, 60_000} {
		sizes := make([]int, 40)
		for i := range sizes {
			sizes[i] = size
		}
		for _, latency := range []int64{200e3, 1e6, 3e6, 7e6} {
			for _, depth := range []int{1, 8} {
				t.Run(fmt.Sprint(size, latency, depth), func(t *testing.T) {
					if s := slowly(t, latency, 14, depth, sizes...); s.RetransmittedPackets != 0 || s.Timeouts != 0 {
						t.Errorf("%d packets sent again, %d early resends, %d time-outs", s.RetransmittedPackets, s.EarlyResends, s.Timeouts)
					}
				})
			}
		}
	}
}

// RFC 6298, section 5 (Karn): a round trip longer than the first guess is not measured as long as each packet
// is sent again, so the longer wait stays until one has been.
func TestGuessGrowsUntilARoundTripIsMeasured(t *testing.T) {
	for _, size := range []int{8, 60_000} {
		sizes := make([]int, 60)
		for i := range sizes {
			sizes[i] = size
		}
		for _, latency := range []int64{15e6, 35e6} {
			for _, depth := range []int{1, 8} {
				t.Run(fmt.Sprint(size, latency, depth), func(t *testing.T) {
					s := slowly(t, latency, 19, depth, sizes...)
					if s.EarlyResends > 5 || s.RetransmittedPackets > 5 {
						t.Errorf("%d packets sent again, %d early resends", s.RetransmittedPackets, s.EarlyResends)
					}
				})
			}
		}
	}
}

// 9.7.6.1.3: the local ACK timeout may be as short as 8 us, which is far below what a program that is a
// responder needs: the connection works all the same.
func TestShortestAckTimeout(t *testing.T) {
	for _, code := range []uint8{1, 4, 9} {
		if s := slowly(t, 300e3, code, 4, 8, 3000, 60_000, 8); s.Timeouts != 0 {
			t.Errorf("code %d: %d time-outs", code, s.Timeouts)
		}
	}
}

package nic

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// Under random loss, half the time with duplicates and reordering too, every request completes once, in order, with its data right, atomics happen
// once, and no local ACK timer expires: early resends notice what no NAK tells.
func TestRandomLossKeepsEveryByte(t *testing.T) {
	for seed := range uint64(18) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			connect := connected
			if seed >= 12 {
				connect = connectedSelectively
			}
			w, a, b := connect(t, Config{}, func(at *Attr) { at.SQPSN, at.RQPSN, at.RetryCnt, at.Timeout = 0xfffff0, 0xfffff0, 7, 18 })
			rate := 0.02 + rng.Float64()/8
			w.drop = func(f frame) bool { return rng.Float64() < rate }
			if seed&1 == 1 {
				w.mangle = func(pkts []RxPacket) []RxPacket {
					out := slices.Clone(pkts)
					for i := range pkts {
						if rng.IntN(20) == 0 {
							out = append(out, pkts[i]) // a late duplicate
						}
						if rng.IntN(20) == 0 {
							k := rng.IntN(len(out))
							out[i], out[k] = out[k], out[i]
						}
					}
					return out
				}
			}
			sum := uint64(0)
			for round := range 12 {
				var reqs []*ring.SendWQE
				type check struct{ x, y []byte }
				var checks []check
				var olds []uint64
				for i := range 8 {
					size := rng.IntN(30000)
					at := i * 32768
					id := uint64(round*8 + i)
					switch rng.IntN(5) {
					case 0:
						b.recv(id, b.sge(at, size))
						reqs = append(reqs, wr(id, ring.OpSend, a.sge(at, size)))
						checks = append(checks, check{a.bytes(at, size), b.bytes(at, size)})
					case 1:
						reqs = append(reqs, remote(wr(id, ring.OpRead, a.sge(at, size)), b, at))
						checks = append(checks, check{a.bytes(at, size), b.bytes(at, size)})
					case 2:
						s := remote(wr(id, ring.OpFetchAdd, a.sge(at, 8)), b, 900000)
						s.CompareAdd = uint64(id + 1)
						olds = append(olds, sum)
						sum += id + 1
						reqs = append(reqs, s)
						if len(olds) == 1 && round == 0 {
							clear(b.bytes(900000, 8))
						}
						want := make([]byte, 8)
						putHost64(want, olds[len(olds)-1])
						checks = append(checks, check{a.bytes(at, 8), want})
					default:
						reqs = append(reqs, remote(wr(id, ring.OpWrite, a.sge(at, size)), b, at))
						checks = append(checks, check{a.bytes(at, size), b.bytes(at, size)})
					}
					for k := range a.bytes(at, size) {
						a.bytes(at, size)[k] = byte(rng.Uint32())
					}
					if round == 0 && sum == 0 {
						clear(b.bytes(900000, 8))
					}
				}
				a.post(reqs...)
				w.run(20 * second)
				got := a.poll()
				if len(got) != 8 {
					t.Fatalf("round %d: %d completions", round, len(got))
				}
				for i, c := range got {
					if c.Status != ring.StatusSuccess || c.WRID != uint64(round*8+i) {
						t.Fatalf("round %d: completion %d is %s", round, i, completion(c))
					}
				}
				for i, c := range checks {
					if !bytes.Equal(c.x, c.y) {
						t.Fatalf("round %d: request %d: data differ", round, i)
					}
				}
				w.log = w.log[:0]
			}
			if n := a.h.n.Stats().Timeouts; n != 0 {
				t.Errorf("%d expiries of the local ACK timer", n)
			}
			if s := a.h.n.Stats(); s.RetransmittedPackets == 0 {
				t.Error("nothing was lost: the test tests nothing")
			}
		})
	}
}

func TestFirstFrameLost(t *testing.T) {
	w, a, b := connected(t, Config{}, nil)
	first := true
	w.drop = func(f frame) bool {
		was := first
		first = false
		return was
	}
	a.post(remote(wr(1, ring.OpWrite, a.sge(0, 5000)), b, 0))
	w.run(second)
	a.want(t, "1:success")
	if n := w.syndromes(b.h); len(n) != 2 || n[0] != roce.NAKSequence {
		t.Errorf("syndromes %x, want a sequence error and an ACK", n)
	}
}

// 9.7.5.1, 9.4.4: a responder remembers the latest max_dest_rd_atomic READs and atomics. What is sent again
// is a part of one of these or the same, however windows have changed meanwhile, and no more than
// max_rd_atomic are outstanding.
func TestReadsSentAgainAreRemembered(t *testing.T) {
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 3))
		most := 1 + rng.IntN(4)
		w, a, b := connected(t, Config{}, func(at *Attr) {
			at.MaxRDAtomic, at.MaxDestRDAtomic, at.Timeout, at.RetryCnt = uint8(most), uint8(most), 18, 7
			at.SQPSN, at.RQPSN = 0xffffc0, 0xffffc0
		})
		type span struct{ psn, end roce.PSN }
		var sent []span // READs and atomics, each once
		behind := roce.PSN(0xffffc0)
		w.drop = func(f frame) bool {
			if f.from == a.h {
				p, s := f.packet(), span{f.psn, f.psn.Add(1)}
				if f.op == roce.RCReadRequest {
					s.end = f.psn.Add(int(a.q.packetsOf(p.RETH().Length())))
				}
				asks := f.op == roce.RCReadRequest || f.op == roce.RCFetchAdd
				switch {
				case !f.psn.Before(behind):
					behind = s.end
					if asks {
						sent = append(sent, s)
					}
				case asks:
					known := false
					for _, k := range sent[max(0, len(sent)-most):] {
						known = known || !s.psn.Before(k.psn) && !s.end.After(k.end)
					}
					if !known {
						t.Errorf("seed %d: %v of [%x, %x) is sent again, the latest %d are %x", seed, f.op, s.psn, s.end, most, sent[max(0, len(sent)-most):])
					}
				}
			}
			return rng.IntN(20) == 0
		}
		var want []string
		for i := range 24 {
			op, n := []ring.SendOpcode{ring.OpRead, ring.OpRead, ring.OpFetchAdd, ring.OpWrite}[rng.IntN(4)], rng.IntN(200_000)
			if op == ring.OpFetchAdd {
				n = 8
			}
			a.post(remote(wr(uint64(i), op, a.sge(0, n)), b, 0))
			want = append(want, fmt.Sprintf("%d:success", i))
		}
		w.run(30 * second)
		a.want(t, want...)
	}
}

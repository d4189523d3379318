package nic

import (
	"math/rand/v2"
	"testing"

	"rnic/internal/hostmem"
	"rnic/internal/roce"
)

// 10.2.9, 11.6.3: whatever arrives, in whatever batches, and however the queue pair ends, each receive that was
// posted completes once, in order, or is still in the shared queue.
func TestEveryReceiveHasOneOwner(t *testing.T) {
	for seed := range uint64(150) {
		shared := seed%2 == 0
		rng := rand.New(rand.NewPCG(seed, 2))
		w := newWire(t, Config{}, Config{})
		h := w.hosts[1]
		h.mem.Holes = []hostmem.Range{{Addr: memBase + 50_000, Len: 10}}
		p := h.newPool(h.pd, SRQAttr{MaxWR: 63, MaxSGE: 2})
		typ := []QPType{RC, UC, UD}[seed%3]
		from, to := w.hosts[0].newEnd(typ, testCap, 15), h.newShared(typ, p)
		if !shared {
			to = h.newEnd(typ, testCap, 1023)
		}
		attr := defaultAttr()
		attr.MaxDestRDAtomic = 16
		from.to(RTS, attr, to)
		to.to(RTS, attr, from)
		posted := uint64(0)
		psn := roce.PSN(100)
		for range 60 {
			if to.rq.Free() > 0 && rng.IntN(3) > 0 {
				g := to.sge([]int{0, 49_000, 60_000}[rng.IntN(3)], 3000)
				if rng.IntN(40) == 0 {
					g.LKey ^= 1
				}
				to.recv(posted, g)
				posted++
			}
			h.inject(to.pathFrom(from), to.fromPeer(randomOpcode(rng, typ), psn, pickSize(rng), func(i *roce.OpInfo, b []byte) {
				if x := i.RETH(b); x != nil {
					x.Encode(&roce.RETHFields{VA: memBase + []uint64{0, 49_500}[min(1, rng.IntN(20)/19)], RKey: h.mr.RKey(), Length: 1032})
				}
				if x := i.DETH(b); x != nil {
					x.Encode(&roce.DETHFields{QKey: 0x11111111, SrcQP: 5})
				}
			}))
			if rng.IntN(10) > 0 || typ == RC {
				psn = psn.Add(1)
			}
			if typ == RC && rng.IntN(4) == 0 {
				h.deliver()
				psn = to.q.resp.expected
			} else if rng.IntN(4) == 0 {
				h.deliver()
			}
		}
		h.deliver()
		if err := h.n.Modify(w.now, to.q, &Attr{State: Err}, AttrState); err != nil {
			t.Fatal(err)
		}
		w.run(second)
		got := to.poll()
		for i, c := range got {
			if c.WRID != uint64(i) {
				t.Fatalf("seed %d, type %d: completion %d is of receive %d: %+v", seed, typ, i, c.WRID, got)
			}
		}
		if n := uint64(len(got)) + uint64(p.s.ring.Pending()); n != posted {
			t.Fatalf("seed %d, type %d: %d receives posted, %d completed, %d left", seed, typ, posted, len(got), p.s.ring.Pending())
		}
	}
}

func randomOpcode(rng *rand.Rand, typ QPType) roce.Opcode {
	if typ == UD {
		return roce.UDSendOnly
	}
	all := []roce.Opcode{roce.RCSendOnly, roce.RCSendFirst, roce.RCSendLast, roce.RCWriteOnlyImm, roce.RCSendMiddle, roce.RCWriteFirst, roce.RCWriteLastImm}
	op := all[rng.IntN(len(all))]
	if typ == RC && rng.IntN(4) > 0 {
		op = roce.RCSendOnly
	}
	if typ == UC {
		op += roce.UCSendFirst
	}
	return op
}

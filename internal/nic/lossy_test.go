package nic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rnic/internal/ring"
	"rnic/internal/roce"
)

// badLinks are the kinds of links that the tests of lossy runs have.
var badLinks = []struct {
	name           string
	drop           float64
	burst, reorder int // packets lost in a row; of packets that arrive together, one in so many is displaced, and another comes twice
}{{"1%", 0.01, 1, 0}, {"5%", 0.05, 1, 0}, {"bursts", 0.01, 6, 0}, {"reorder", 0.01, 1, 8}}

// spoil makes the wire a bad link. While *off is set it is a good one.
func (w *wire) spoil(kind int, off *bool) {
	l := badLinks[kind]
	rng := rand.New(rand.NewPCG(uint64(kind), 77))
	left := 0
	w.drop = func(frame) bool {
		if left == 0 && rng.Float64() < l.drop {
			left = l.burst
		}
		if left > 0 {
			left--
			return !*off
		}
		return false
	}
	if l.reorder == 0 {
		return
	}
	w.mangle = func(pkts []RxPacket) []RxPacket {
		out := slices.Clone(pkts)
		for i := range pkts {
			if *off {
				break
			}
			if rng.IntN(l.reorder) == 0 {
				k := rng.IntN(len(out))
				out[i], out[k] = out[k], out[i]
			}
			if rng.IntN(l.reorder) == 0 {
				out = append(out, pkts[i])
			}
		}
		return out
	}
}

// Every operation of RC, with binds and local invalidates in between, over every bad link and both ways to send again: each request
// completes once, in order (9.7.5, 10.8.3.2), with its bytes where they belong; atomics happen once (9.4.5).
func TestEveryOperationUnderLoss(t *testing.T) {
	for kind := range badLinks {
		for _, selective := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/selective=%v", badLinks[kind].name, selective), func(t *testing.T) {
				w := newWire(t, Config{}, Config{})
				w, a, b := connectEnds(t, w, w.hosts[0].newEnd(RC, testCap, 1023), w.hosts[1].newEnd(RC, testCap, 1023),
					func(at *Attr) {
						mayFlush(at)
						at.SQPSN, at.RQPSN, at.RetryCnt, at.Timeout = 0xffffc0, 0xffffc0, 7, 18
					}, selective)
				w.spoil(kind, new(bool))
				l := &lossyRun{t: t, w: w, a: a, b: b, region: flushable(t, b), bound: bindable(t, b, 0), window: newWindow(t, b, MWType2)}
				clear(b.bytes(900_000, 16))
				for round := range 25 {
					l.round(uint64(round))
				}
				if a.h.n.Stats().RetransmittedPackets == 0 {
					t.Error("nothing was sent again: the test tests nothing")
				}
				if n := a.h.n.Stats().Timeouts; n != 0 && badLinks[kind].burst == 1 {
					t.Errorf("%d expiries of the local ACK timer", n)
				}
				for _, h := range w.hosts {
					h.wantNothingKept(t)
				}
				if n := a.q.req.window.inFlight; n != 0 {
					t.Errorf("%d bytes count as in flight at the end", n)
				}
			})
		}
	}
}

type lossyRun struct {
	t             *testing.T
	w             *wire
	a, b          *end
	region, bound *MR
	window        testWindow
	sum           uint64 // what the FETCH & ADDs have added
}

const lossySize = 7000 // bytes of a message: seven packets

// round has b bind its window, a do every operation, and the window invalidated, by a or by b in turn.
func (l *lossyRun) round(n uint64) {
	a, b := l.a, l.b
	b.post(l.window.bind(1, l.bound, 500_000, 10_000, windowAccess))
	l.w.run(20 * second)
	b.want(l.t, "1:success")
	key, byPeer := l.window.mw.RKey(), n&1 == 0
	for i := range 7 * 8192 / 8 {
		binary.LittleEndian.PutUint64(a.bytes(8*i, 8), n<<32|uint64(i))
	}
	reqs := []*ring.SendWQE{
		wr(0, ring.OpSend, a.sge(0, lossySize)),
		wr(1, ring.OpSendImm, a.sge(8192, lossySize)),
		through(wr(2, ring.OpWrite, a.sge(2*8192, lossySize)), key, memBase+500_000),
		remote(wr(3, ring.OpWriteImm, a.sge(3*8192, lossySize)), b, 600_000),
		remote(wr(4, ring.OpRead, a.sge(4*8192, lossySize)), b, 700_000),
		remote(wr(5, ring.OpCompareSwap, a.sge(300_000, 8)), b, 900_000),
		remote(wr(6, ring.OpFetchAdd, a.sge(300_008, 8)), b, 900_008),
		atomicWrite(7, fmt.Sprintf("%08d", n), b, 900_016),
		flushOf(8, l.region.RKey(), memBase+600_000, lossySize, roce.PlaceGlobal, 0),
		wr(9, ring.OpSend, a.sge(6*8192, lossySize)),
	}
	reqs[5].CompareAdd, reqs[5].Swap = n, n+1 // each round finds what the one before has left
	reqs[6].CompareAdd = n + 1
	if byPeer {
		reqs[9] = invalidate(9, ring.OpSendInv, key, a.sge(6*8192, lossySize))
	}
	b.recv(0, b.sge(0, lossySize))
	b.recv(1, b.sge(8192, lossySize))
	b.recv(3)
	b.recv(9, b.sge(6*8192, lossySize))
	a.post(reqs...)
	l.w.run(60 * second)
	a.want(l.t, "0:success", "1:success", "2:success", "3:success", "4:success", "5:success", "6:success", "7:success", "8:success", "9:success")
	b.want(l.t, "0:success", "1:success", "3:success", "9:success")
	if !byPeer {
		b.post(invalidate(2, ring.OpLocalInv, key))
		l.w.run(second)
		b.want(l.t, "2:success")
	}
	if l.window.mw.bound() {
		l.t.Errorf("round %d: the window is still bound", n)
	}
	l.checkBytes(n)
	l.w.log = l.w.log[:0]
	if l.t.Failed() {
		l.t.FailNow()
	}
}

func (l *lossyRun) checkBytes(n uint64) {
	a, b := l.a, l.b
	for _, c := range []struct {
		what      string
		got, want []byte
	}{
		{"SEND", b.bytes(0, lossySize), a.bytes(0, lossySize)},
		{"SEND with immediate", b.bytes(8192, lossySize), a.bytes(8192, lossySize)},
		{"WRITE", b.bytes(500_000, lossySize), a.bytes(2*8192, lossySize)},
		{"WRITE with immediate", b.bytes(600_000, lossySize), a.bytes(3*8192, lossySize)},
		{"READ", a.bytes(4*8192, lossySize), b.bytes(700_000, lossySize)},
		{"the last SEND", b.bytes(6*8192, lossySize), a.bytes(6*8192, lossySize)},
		{"ATOMIC WRITE", b.bytes(900_016, 8), fmt.Appendf(nil, "%08d", n)},
		{"COMPARE & SWAP", a.bytes(300_000, 8), binary.LittleEndian.AppendUint64(nil, n)},
		{"FETCH & ADD", a.bytes(300_008, 8), binary.LittleEndian.AppendUint64(nil, l.sum)},
	} {
		if !bytes.Equal(c.got, c.want) {
			l.t.Errorf("round %d: %s: %x..., want %x...", n, c.what, c.got[:8], c.want[:8])
		}
	}
	l.sum += n + 1
}

// Annex A14: XRC over the bad links: both sides end clean, with every byte.
func TestXRCUnderLoss(t *testing.T) {
	for kind := range badLinks {
		t.Run(badLinks[kind].name, func(t *testing.T) {
			w, a, b, _, queues := xrcPair(t, func(at *Attr) { at.RetryCnt, at.Timeout = 7, 18 })
			w.spoil(kind, new(bool))
			clear(b.bytes(900_000, 8))
			for round := range 25 {
				x := queues[round&1]
				x.recv(0, x.piece(0, lossySize))
				x.recv(1)
				add := x.aimed(wr(3, ring.OpFetchAdd, a.sge(300_000, 8)), 900_000)
				add.CompareAdd = 3
				binary.LittleEndian.PutUint64(a.bytes(100_000, 8), uint64(round))
				a.post(x.aimed(wr(0, ring.OpSend, a.sge(100_000, lossySize)), 0), x.aimed(wr(1, ring.OpWriteImm, a.sge(100_000, lossySize)), 600_000),
					x.aimed(wr(2, ring.OpRead, a.sge(200_000, lossySize)), 700_000), add)
				w.run(60 * second)
				a.want(t, "0:success", "1:success", "2:success", "3:success")
				x.want(t, "0:success", "1:success")
				if !bytes.Equal(b.bytes(0, lossySize), a.bytes(100_000, lossySize)) || !bytes.Equal(b.bytes(600_000, lossySize), a.bytes(100_000, lossySize)) ||
					!bytes.Equal(a.bytes(200_000, lossySize), b.bytes(700_000, lossySize)) || binary.LittleEndian.Uint64(a.bytes(300_000, 8)) != uint64(3*round) {
					t.Fatalf("round %d: the data differ", round)
				}
			}
		})
	}
}

// 9.8.2.2, 9.8.3: over bad links UC and UD lose messages, and no more than that: every send completes, what arrives is
// whole, and once nothing is lost any more the next message arrives.
func TestUnreliableUnderLoss(t *testing.T) {
	for kind := range badLinks {
		for _, typ := range []QPType{UC, UD} {
			t.Run(fmt.Sprintf("%s/%v", badLinks[kind].name, typ), func(t *testing.T) {
				w, a, b := unreliable(t, Config{})
				off, size := false, 3000
				send := func(id uint64, n int) *ring.SendWQE { return wr(id, ring.OpSend, a.sge(0, n)) }
				if typ == UD {
					size = 1000
					w, a, b, send = datagrams(t)
				}
				w.spoil(kind, &off)
				arrived := 0
				for round := range 120 {
					off = round == 119
					if b.rq.Free() > 0 {
						b.recv(uint64(round), b.sge(0, 4096))
					}
					for i := range size {
						a.bytes(0, size)[i] = byte(round)
					}
					a.post(send(uint64(round), size))
					w.run(1e6)
					a.want(t, fmt.Sprintf("%d:success", round))
					got := b.poll()
					for _, c := range got {
						arrived++
						head := int(c.ByteLen) - size
						if c.Status != ring.StatusSuccess || head < 0 || !bytes.Equal(b.bytes(head, size), a.bytes(0, size)) {
							t.Fatalf("round %d: completion %s of %d bytes, or its bytes differ", round, completion(c), c.ByteLen)
						}
					}
					if off && len(got) == 0 {
						t.Error("the last message, of which nothing was lost, did not arrive")
					}
				}
				if arrived < 60 {
					t.Errorf("%d of 120 messages arrived", arrived)
				}
			})
		}
	}
}

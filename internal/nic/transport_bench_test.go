package nic

import (
	"fmt"
	"testing"

	"rnic/internal/ring"
)

// cycle posts one request, runs until nothing moves and takes the completion.
func cycle(w *wire, a *end, s *ring.SendWQE) {
	a.sq.StoreSend(a.sq.Position(), s, false)
	_ = a.sq.Publish()
	a.h.n.Doorbell(w.now, a.q)
	w.settleQuick()
	var c ring.CQE
	for a.cv.Pending() > 0 {
		a.cv.LoadCQE(a.cv.Position(), &c)
		_ = a.cv.Consume()
		if c.Status != ring.StatusSuccess {
			w.t.Fatalf("completion %s", completion(c))
		}
	}
}

func (w *wire) settleQuick() {
	for moved := true; moved; w.now += 1000 {
		moved = false
		for _, h := range w.hosts {
			moved = h.deliver() || moved
			moved = h.transmit() || moved
		}
	}
}

func benchmarkWrite(b *testing.B, size int) {
	w, x, y := connected(b, Config{}, func(a *Attr) { a.PathMTU = 5 })
	w.quiet = true
	s := remote(wr(1, ring.OpWrite, x.sge(0, size)), y, 0)
	for range 100 {
		cycle(w, x, s)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		cycle(w, x, s)
	}
}

// Post to completion of one WRITE between two NICs, with the copies of memory, without a link.
func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{8, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchmarkWrite(b, size) })
	}
}

func BenchmarkRead64K(b *testing.B) {
	w, x, y := connected(b, Config{}, func(a *Attr) { a.PathMTU = 5 })
	w.quiet = true
	s := remote(wr(1, ring.OpRead, x.sge(0, 65536)), y, 0)
	cycle(w, x, s)
	b.SetBytes(65536)
	b.ReportAllocs()
	for b.Loop() {
		cycle(w, x, s)
	}
}

// No allocation per packet or message, in any direction.
func TestDataPathAllocatesNothing(t *testing.T) {
	w, x, y := connected(t, Config{}, func(a *Attr) { a.PathMTU = 5 })
	w.quiet = true
	for _, s := range []*ring.SendWQE{
		remote(wr(1, ring.OpWrite, x.sge(0, 65536)), y, 0),
		remote(wr(2, ring.OpRead, x.sge(0, 65536)), y, 0),
		remote(wr(3, ring.OpFetchAdd, x.sge(0, 8)), y, 0),
		wr(4, ring.OpSend, x.sge(0, 65536)),
	} {
		one := func() {
			if s.Opcode == ring.OpSend {
				y.recv(1, y.sge(0, 65536))
			}
			cycle(w, x, s)
			var c ring.CQE
			for y.cv.Pending() > 0 {
				y.cv.LoadCQE(y.cv.Position(), &c)
				_ = y.cv.Consume()
			}
		}
		for range 100 {
			one()
		}
		if n := testing.AllocsPerRun(100, one); n != 0 {
			t.Errorf("opcode %d: %v allocations", s.Opcode, n)
		}
	}
}

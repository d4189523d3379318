package udp

import (
	"net/netip"
	"testing"

	"rnic/internal/link"
	"rnic/internal/roce"
)

// benchmark sends a batch and receives it on one thread.
func benchmark(b *testing.B, ca, cb Config, lengths []int) {
	ownAddrA, ownAddrB := ownLoopback()
	ca.Addrs, cb.Addrs = []netip.Addr{ownAddrA}, []netip.Addr{ownAddrB}
	la, lb := open(b, ca), open(b, cb)
	pkts := batch(roce.Path{Src: ownAddrA, Dst: ownAddrB}, 1, lengths...)
	in := make([]link.Packet, 64)
	total := 0
	for _, n := range lengths {
		total += n
	}
	b.SetBytes(int64(total))
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if n, err := la.Send(pkts); n != len(pkts) || err != nil {
			b.Fatal(n, err)
		}
		for got := 0; got < len(pkts); {
			n, err := lb.Recv(in)
			if err != nil {
				b.Fatal(err)
			}
			got += n
		}
	}
}

func BenchmarkBatch64K(b *testing.B) {
	benchmark(b, Config{}, Config{}, repeat(16, 4116))
}

func BenchmarkBatch60K(b *testing.B) {
	benchmark(b, Config{}, Config{}, repeat(15, 4116))
}

func BenchmarkBatch64KNoGRO(b *testing.B) {
	benchmark(b, Config{}, Config{NoGRO: true}, repeat(16, 4116))
}

func BenchmarkBatch64KNoSegment(b *testing.B) {
	benchmark(b, Config{NoSegment: true}, Config{}, repeat(16, 4116))
}

func BenchmarkSmall(b *testing.B) {
	benchmark(b, Config{}, Config{}, repeat(1, 40))
}

// No allocation for a packet, sent or received, whichever calls are used.
func TestNoAllocation(t *testing.T) {
	a, c := ownLoopback()
	for _, cfg := range []Config{{}, {NoSegment: true, NoGRO: true, NoMmsg: true}} {
		ca, cc := cfg, cfg
		ca.Addrs, cc.Addrs = []netip.Addr{a}, []netip.Addr{c}
		la, lb := open(t, ca), open(t, cc)
		pkts := batch(roce.Path{Src: a, Dst: c, TOS: 2, TTL: 7}, 1, repeat(10, 1040)...)
		pkts[3].Corrupt = 800
		in := make([]link.Packet, 16)
		round := func() {
			if _, err := la.Send(pkts); err != nil {
				t.Fatal(err)
			}
			for got := 0; got < 9; {
				n, err := lb.Recv(in)
				if err != nil {
					t.Fatal(err)
				}
				got += n
			}
		}
		round()
		if n := testing.AllocsPerRun(50, round); n != 0 {
			t.Errorf("%+v: %v allocations in a batch", cfg, n)
		}
		la.Close()
		lb.Close()
	}
}

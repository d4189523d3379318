package roce

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// benchSizes are BTH to pad: a WRITE of 8 bytes, one of 1 KiB, one of 4 KiB.
var benchSizes = []int{36, 1052, 4124}

func benchPackets(b *testing.B, run func(b *testing.B, pkt []byte, p *Path)) {
	for _, n := range benchSizes {
		for name, p := range map[string]*Path{"IPv4": &path4, "IPv6": &path6} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				pkt := testPacket(rand.New(rand.NewPCG(9, 9)), n)
				PutICRC(p, 0, pkt)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				run(b, pkt, p)
			})
		}
	}
}

func BenchmarkPutICRC(b *testing.B) {
	benchPackets(b, func(b *testing.B, pkt []byte, p *Path) {
		for b.Loop() {
			PutICRC(p, 3, pkt)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for name, ident := range map[string]uint16{"ident=0": 0, "recover": 0x21ff} {
		b.Run(name, func(b *testing.B) {
			benchPackets(b, func(b *testing.B, pkt []byte, p *Path) {
				PutICRC(p, ident, pkt)
				for b.Loop() {
					if _, ok := Verify(p, pkt); !ok {
						b.Fatal("not accepted")
					}
				}
			})
		})
	}
}

func BenchmarkVerifyIdent(b *testing.B) {
	benchPackets(b, func(b *testing.B, pkt []byte, p *Path) {
		for b.Loop() {
			VerifyIdent(p, 0, pkt)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pkt := testPacket(rand.New(rand.NewPCG(9, 9)), n)[:n]
			b.ReportAllocs()
			var p Packet
			for b.Loop() {
				if Decode(pkt, &p) != nil {
					b.Fatal("not decoded")
				}
			}
		})
	}
}

// TestHotPathAllocatesNothing: what runs for every packet leaves no garbage.
func TestHotPathAllocatesNothing(t *testing.T) {
	for _, p := range []*Path{&path4, &path6} {
		for _, n := range benchSizes {
			pkt := testPacket(rand.New(rand.NewPCG(9, 9)), n)
			PutICRC(p, 0x21ff, pkt)
			Verify(p, pkt) // the first of its length makes the table
			var dec Packet
			var grh [GRHSize]byte
			allocs := testing.AllocsPerRun(100, func() {
				PutICRC(p, 0x21ff, pkt)
				Verify(p, pkt)
				VerifyIdent(p, 0x21ff, pkt)
				_ = Decode(pkt[:n], &dec)
				GRH(grh[:]).EncodePath(p, 0, n)
				GIDFromAddr(p.Src).Addr()
			})
			if allocs != 0 {
				t.Errorf("%d bytes along %v: %v allocations", n, p.Src, allocs)
			}
		}
	}
}

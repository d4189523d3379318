package roce

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
)

var (
	path4 = Path{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.77"), SrcPort: 49441, TOS: 2, TTL: 64}
	path6 = Path{Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8:5::77"), SrcPort: 50001, TOS: 2, TTL: 3}
)

// testPacket is an RC packet of n bytes from the BTH to the pad, and room for the ICRC.
func testPacket(rng *rand.Rand, n int) []byte {
	pkt := make([]byte, n+ICRCSize)
	for i := range pkt {
		pkt[i] = byte(rng.Uint32())
	}
	BTH(pkt).Encode(&BTHFields{Opcode: RCSendOnly, PKey: 0xffff, DestQP: 0x11, PSN: 0x1000})
	return pkt
}

// slowICRC is the definition of annex A17 word for word: masked headers in one buffer.
func slowICRC(p *Path, ident uint16, pkt []byte) uint32 {
	buf := AppendHeaders(bytes.Repeat([]byte{0xff}, 8), p, ident, len(pkt))
	ip := buf[8:]
	if p.IsIPv4() {
		ip[1], ip[8], ip[10], ip[11] = 0xff, 0xff, 0xff, 0xff
	} else {
		ip[0], ip[1], ip[2], ip[3], ip[7] = 0x6f, 0xff, 0xff, 0xff, 0xff
	}
	buf[len(buf)-2], buf[len(buf)-1] = 0xff, 0xff
	at := len(buf)
	buf = append(buf, pkt...)
	buf[at+4] = 0xff
	return crc32.ChecksumIEEE(buf)
}

// TestICRCMatchesDefinition compares with the definition at every length up to 300 bytes and some
// of the longest, over IPv4 and IPv6.
func TestICRCMatchesDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lengths := []int{1000, 1023, 1024, 1036, 4096, 4108, 4124, MaxPacketSize - ICRCSize}
	for n := BTHSize; n < 300; n++ {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		pkt := testPacket(rng, n)[:n]
		for _, p := range []*Path{&path4, &path6} {
			ident := uint16(rng.Uint32())
			if got, want := ICRC(p, ident, pkt), slowICRC(p, ident, pkt); got != want {
				t.Fatalf("%d bytes along %v: ICRC %08x, want %08x", n, *p, got, want)
			}
		}
	}
}

// TestICRCMasks checks which fields a router may change: the ICRC stays right when these change,
// and only then (annex A17).
func TestICRCMasks(t *testing.T) {
	for _, base := range []Path{path4, path6} {
		pkt := testPacket(rand.New(rand.NewPCG(3, 4)), 64)
		PutICRC(&base, 7, pkt)
		changed := base
		changed.TOS, changed.TTL = ^base.TOS, base.TTL-1
		if !VerifyIdent(&changed, 7, pkt) {
			t.Errorf("%v: traffic class and hop limit are not masked", base.Src)
		}
		marked := bytes.Clone(pkt)
		BTH(marked).SetFECN(true)
		BTH(marked).SetBECN(true)
		if !VerifyIdent(&base, 7, marked) {
			t.Errorf("%v: congestion bits of the BTH are not masked", base.Src)
		}
		for name, change := range map[string]func(*Path){
			"source":      func(p *Path) { p.Src = p.Src.Next() },
			"destination": func(p *Path) { p.Dst = p.Dst.Next() },
			"source port": func(p *Path) { p.SrcPort++ },
		} {
			other := base
			change(&other)
			if VerifyIdent(&other, 7, pkt) {
				t.Errorf("%v: a changed %s is accepted", base.Src, name)
			}
		}
		if got := VerifyIdent(&base, 8, pkt); got != !base.IsIPv4() {
			t.Errorf("%v: VerifyIdent with another identification = %v", base.Src, got)
		}
	}
}

// TestVerifyRecoversEveryIdent checks that the identification of a packet comes back, for all
// 65,536 of them at one length and for some at every length.
func TestVerifyRecoversEveryIdent(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	check := func(pkt []byte, ident uint16) {
		PutICRC(&path4, ident, pkt)
		if got, ok := Verify(&path4, pkt); !ok || got != ident {
			t.Fatalf("%d bytes: Verify = %#x, %v, want %#x, true", len(pkt), got, ok, ident)
		}
	}
	pkt := testPacket(rng, 1036)
	for ident := range 1 << 16 {
		check(pkt, uint16(ident))
	}
	longest := testPacket(rng, MaxPacketSize-ICRCSize)
	for n := BTHSize + ICRCSize; n <= MaxPacketSize; n += 4 {
		check(longest[:n], 1)
		check(longest[:n], uint16(rng.Uint32()))
	}
}

// TestVerifyConcurrent makes the tables of many lengths from several goroutines at once.
func TestVerifyConcurrent(t *testing.T) {
	for i := range unshifts {
		unshifts[i].Store(nil)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			pkt := testPacket(rand.New(rand.NewPCG(7, uint64(g))), 512)
			for n := BTHSize + ICRCSize; n <= 512; n += 4 {
				PutICRC(&path4, 0x1234, pkt[:n])
				if ident, ok := Verify(&path4, pkt[:n]); !ok || ident != 0x1234 {
					t.Errorf("%d bytes: Verify = %#x, %v", n, ident, ok)
				}
			}
		})
	}
	wg.Wait()
}

// corrupt changes at least one bit of pkt that the ICRC covers, and none that it does not: single
// bits, a burst, or a run of random bytes.
func corrupt(rng *rand.Rand, pkt []byte) {
	orig := bytes.Clone(pkt)
	for bytes.Equal(orig, pkt) {
		switch rng.IntN(3) {
		case 0:
			for range 1 + rng.IntN(8) {
				pkt[rng.IntN(len(pkt))] ^= 1 << rng.IntN(8)
			}
		case 1:
			at := rng.IntN(len(pkt) - 3)
			burst := binary.LittleEndian.Uint32(pkt[at:]) ^ rng.Uint32()
			binary.LittleEndian.PutUint32(pkt[at:], burst)
		case 2:
			at := rng.IntN(len(pkt))
			for i := range pkt[at:min(len(pkt), at+1+rng.IntN(64))] {
				pkt[at+i] = byte(rng.Uint32())
			}
		}
		pkt[bthECN] = orig[bthECN]
	}
}

// TestRandomCorruptions: of 100,000 corrupt packets none is accepted when the identification is
// known, and at most 8 when it is not; 2^16 of 2^32 differences look like another identification,
// so 1.5 are expected.
func TestRandomCorruptions(t *testing.T) {
	rng := rand.New(rand.NewPCG(20, 4791))
	known, unknown := 0, 0
	sizes := []int{16, 28, 36, 60, 64, 124, 268, 1036, 1052}
	packets := make([][]byte, len(sizes))
	idents := make([]uint16, len(sizes))
	for i, n := range sizes {
		packets[i], idents[i] = testPacket(rng, n), uint16(rng.Uint32())
		PutICRC(&path4, idents[i], packets[i])
	}
	buf := make([]byte, MaxPacketSize)
	for i := range 100_000 {
		k := i % len(packets)
		pkt := buf[:copy(buf, packets[k])]
		corrupt(rng, pkt)
		if VerifyIdent(&path4, idents[k], pkt) {
			known++
		}
		if _, ok := Verify(&path4, pkt); ok {
			unknown++
		}
	}
	if known != 0 || unknown > 8 {
		t.Errorf("accepted %d with known identification, want 0; %d without, want at most 8", known, unknown)
	}
	t.Logf("accepted: %d with known identification, %d without", known, unknown)
}

// TestSingleBitErrors: a single flipped bit is noticed wherever it is, although the identification
// is unknown. Whether one looks like an identification depends only on its distance from it, so
// the longest packet stands for all.
func TestSingleBitErrors(t *testing.T) {
	pkt := testPacket(rand.New(rand.NewPCG(1, 1)), MaxPacketSize-ICRCSize)
	PutICRC(&path4, 0x21ff, pkt)
	for i := range pkt {
		for bit := byte(1); bit != 0; bit <<= 1 {
			pkt[i] ^= bit
			if ident, ok := Verify(&path4, pkt); ok != (i == bthECN) {
				t.Errorf("byte %d, bit %#x: Verify = %#x, %v", i, bit, ident, ok)
			}
			pkt[i] ^= bit
		}
	}
}

// TestCorruptIPv6: over IPv6 the unknown identification costs nothing.
func TestCorruptIPv6(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	good := testPacket(rng, 124)
	PutICRC(&path6, 0, good)
	for range 20_000 {
		pkt := bytes.Clone(good)
		corrupt(rng, pkt)
		if _, ok := Verify(&path6, pkt); ok {
			t.Fatalf("accepted corrupt packet %x", pkt)
		}
	}
}

// TestVerifyRefuses: what cannot be a packet is refused, whatever its last bytes are.
func TestVerifyRefuses(t *testing.T) {
	mapped := Path{Src: netip.MustParseAddr("::ffff:192.0.2.1"), Dst: path6.Dst}
	mixed := Path{Src: path4.Src, Dst: path6.Dst}
	good := testPacket(rand.New(rand.NewPCG(8, 8)), 64)
	for _, c := range []struct {
		name string
		path Path
		pkt  []byte
	}{
		{"nothing", path4, nil},
		{"shorter than BTH and ICRC", path4, good[:BTHSize+ICRCSize-4]},
		{"no multiple of four", path4, good[:63]},
		{"too long", path4, make([]byte, MaxPacketSize+4)},
		{"no addresses", Path{}, good},
		{"mapped source", mapped, good},
		{"mixed families", mixed, good},
	} {
		if c.path.Valid() && len(c.pkt) >= BTHSize+ICRCSize {
			PutICRC(&c.path, 0, c.pkt)
		}
		if _, ok := Verify(&c.path, c.pkt); ok {
			t.Errorf("%s: Verify accepts it", c.name)
		}
		if VerifyIdent(&c.path, 0, c.pkt) {
			t.Errorf("%s: VerifyIdent accepts it", c.name)
		}
	}
}

// FuzzVerify: never panics on any bytes; what PutICRC wrote is accepted.
func FuzzVerify(f *testing.F) {
	for _, fr := range allFrames(f) {
		f.Add(fr.pkt, fr.ident, fr.path.IsIPv4())
	}
	f.Fuzz(func(t *testing.T, pkt []byte, ident uint16, v4 bool) {
		p := &path6
		if v4 {
			p = &path4
		}
		Verify(p, pkt)
		VerifyIdent(p, ident, pkt)
		if !verifiable(p, pkt) {
			return
		}
		pkt = bytes.Clone(pkt)
		PutICRC(p, ident, pkt)
		if !v4 {
			ident = 0
		}
		if got, ok := Verify(p, pkt); !ok || got != ident {
			t.Errorf("Verify = %#x, %v, want %#x, true", got, ok, ident)
		}
	})
}

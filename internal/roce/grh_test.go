package roce

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"
)

func decodeGRH(b []byte) GRHFields     { return GRH(b).Fields() }
func encodeGRH(b []byte, f *GRHFields) { GRH(b).Encode(f) }

func TestGRHLayout(t *testing.T) {
	wire, _ := hex.DecodeString("6ab12345" + "00301140" + "20010db8000000000000000000000001" + "20010db8000500000000000000000077")
	checkHeader(t, wire, GRHFields{
		TrafficClass: 0xab, FlowLabel: 0x12345, PayLen: 0x30, NextHeader: 17, HopLimit: 64,
		SGID: GIDFromAddr(netip.MustParseAddr("2001:db8::1")), DGID: GIDFromAddr(netip.MustParseAddr("2001:db8:5::77")),
	}, decodeGRH, encodeGRH)
}

// TestGRHHoldsIPHeader: the area in front of a datagram holds what the captured packet's IP header
// said, over IPv4 in its last 20 bytes.
func TestGRHHoldsIPHeader(t *testing.T) {
	for _, f := range readFrames(t, "frames.pcap") {
		area := GRH(bytes.Repeat([]byte{0xff}, GRHSize))
		area.EncodePath(&f.path, f.ident, len(f.data()))
		want := f.ip[:len(f.ip)-UDPHeaderSize]
		if f.path.IsIPv4() {
			want = append(make([]byte, 20), want...)
		}
		if !bytes.Equal(area, want) {
			t.Errorf("frame %d: area\n%x, want\n%x", f.number, []byte(area), want)
		}
		path := f.path
		path.SrcPort = 0
		if got, ok := area.Path(); !ok || got != path {
			t.Errorf("frame %d: Path = %+v, %v, want %+v", f.number, got, ok, path)
		}
	}
	area := make(GRH, GRHSize)
	if _, ok := area.Path(); ok {
		t.Error("an empty area has a path")
	}
	area.EncodePath(&path4, 0, 64)
	area[GRHSize-1]++
	if p, ok := area.Path(); ok {
		t.Errorf("an IPv4 header with a wrong checksum has a path: %v", p)
	}
}

func FuzzGRH(f *testing.F) {
	for _, fr := range allFrames(f) {
		area := make(GRH, GRHSize)
		area.EncodePath(&fr.path, fr.ident, len(fr.data()))
		f.Add([]byte(area))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		if len(wire) < GRHSize {
			return
		}
		fields := decodeGRH(wire)
		again := make(GRH, GRHSize)
		again.Encode(&fields)
		if back := again.Fields(); back != fields {
			t.Errorf("%x decodes to\n%+v, encoded again to\n%+v", wire, fields, back)
		}
		path, ok := GRH(wire).Path()
		if !ok || !path.Valid() {
			return
		}
		again.EncodePath(&path, 0, 64)
		if back, ok := again.Path(); !ok || back != path {
			t.Errorf("path %+v comes back as %+v, %v", path, back, ok)
		}
	})
}

package roce

import (
	"bytes"
	"testing"
)

// checkHeader checks that fields encode to exactly wire, leaving nothing of what was there, and
// that they decode back from it.
func checkHeader[F comparable](t *testing.T, wire []byte, fields F, decode func([]byte) F, encode func([]byte, *F)) {
	t.Helper()
	got := bytes.Repeat([]byte{0xff}, len(wire))
	encode(got, &fields)
	if !bytes.Equal(got, wire) {
		t.Errorf("%+v encodes to\n%x, want\n%x", fields, got, wire)
	}
	if back := decode(wire); back != fields {
		t.Errorf("%x decodes to\n%+v, want\n%+v", wire, back, fields)
	}
}

// FuzzHeaders takes the same bytes for each of the headers in turn, starting from those in the captures: whatever was decoded
// encodes to a header that decodes to the same.
func FuzzHeaders(f *testing.F) {
	for _, fr := range allFrames(f) {
		var p Packet
		if Decode(fr.data(), &p) != nil {
			continue
		}
		for _, h := range [][]byte{p.BTH, p.DETH(), p.RETH(), p.AETH(), p.AtomicETH(), p.AtomicAckETH(), p.ImmDt(), p.IETH(), p.FETH(), p.XRCETH(), p.SACK()} {
			if h != nil {
				f.Add(bytes.Clone(h))
			}
		}
	}
	f.Add([]byte{0x80, 0, 0, 0, 0, 0, 0, 1, 0x80, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, wire []byte) {
		decodesAgain(t, wire, BTHSize, decodeBTH, encodeBTH)
		decodesAgain(t, wire, DETHSize, decodeDETH, encodeDETH)
		decodesAgain(t, wire, RETHSize, decodeRETH, encodeRETH)
		decodesAgain(t, wire, AETHSize, decodeAETH, encodeAETH)
		decodesAgain(t, wire, AtomicETHSize, decodeAtomicETH, encodeAtomicETH)
		decodesAgain(t, wire, AtomicAckETHSize, decodeAtomicAckETH, encodeAtomicAckETH)
		decodesAgain(t, wire, ImmDtSize, decodeImmDt, encodeImmDt)
		decodesAgain(t, wire, IETHSize, decodeIETH, encodeIETH)
		decodesAgain(t, wire, FETHSize, decodeFETH, encodeFETH)
		decodesAgain(t, wire, XRCETHSize, decodeXRCETH, encodeXRCETH)
		decodesAgain(t, wire, SACKSize, decodeSACK, encodeSACK)
	})
}

func decodesAgain[F comparable](t *testing.T, wire []byte, size int, decode func([]byte) F, encode func([]byte, *F)) {
	if len(wire) < size {
		return
	}
	fields := decode(wire)
	again := bytes.Repeat([]byte{0xff}, size)
	encode(again, &fields)
	if back := decode(again); back != fields {
		t.Errorf("%x decodes to\n%+v, encoded again to\n%+v", wire, fields, back)
	}
}

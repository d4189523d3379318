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

// fuzzHeader fuzzes one header, starting from those that pick finds in the captures: whatever was
// decoded encodes to a header that decodes to the same.
func fuzzHeader[F comparable](f *testing.F, size int, pick func(*Packet) []byte, decode func([]byte) F, encode func([]byte, *F)) {
	for _, fr := range allFrames(f) {
		var p Packet
		if Decode(fr.data(), &p) == nil {
			if h := pick(&p); h != nil {
				f.Add(bytes.Clone(h))
			}
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		if len(wire) < size {
			return
		}
		fields := decode(wire)
		again := bytes.Repeat([]byte{0xff}, size)
		encode(again, &fields)
		if back := decode(again); back != fields {
			t.Errorf("%x decodes to\n%+v, encoded again to\n%+v", wire, fields, back)
		}
	})
}

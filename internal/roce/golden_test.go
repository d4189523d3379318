package roce

import (
	"bytes"
	"testing"
)

// TestCapturesRoundTrip checks every RoCE packet of the captures: it verifies with its own
// identification and without, it decodes, and its Fields encode to the same bytes.
func TestCapturesRoundTrip(t *testing.T) {
	for _, c := range captures {
		t.Run(c.name, func(t *testing.T) {
			frames := readFrames(t, c.name)
			if len(frames) < c.frames {
				t.Fatalf("%d RoCE frames, want at least %d", len(frames), c.frames)
			}
			for i := range frames {
				checkFrame(t, &frames[i])
			}
		})
	}
}

func checkFrame(t *testing.T, f *frame) {
	t.Helper()
	if !VerifyIdent(&f.path, f.ident, f.pkt) {
		t.Errorf("frame %d: wrong ICRC with identification %#x", f.number, f.ident)
	}
	if ident, ok := Verify(&f.path, f.pkt); !ok || ident != f.ident {
		t.Errorf("frame %d: Verify = %#x, %v, want %#x, true", f.number, ident, ok, f.ident)
	}
	var p Packet
	if err := Decode(f.data(), &p); err != nil {
		t.Errorf("frame %d: %v", f.number, err)
		return
	}
	got := reencode(&p)
	room := append(got, 0xee, 0xee, 0xee, 0xee)
	PutICRC(&f.path, f.ident, room)
	if !bytes.Equal(room, f.pkt) {
		t.Errorf("frame %d: encodes to\n%x\nwas\n%x", f.number, room, f.pkt)
	}
	// Soft-RoCE sends UDP checksum 0, as AppendHeaders does.
	if h := AppendHeaders(nil, &f.path, f.ident, len(f.data())); !bytes.Equal(h, f.ip) {
		t.Errorf("frame %d: headers\n%x\nwas\n%x", f.number, h, f.ip)
	}
}

// reencode builds a packet from nothing but the Fields of p and its payload. The bytes start as
// ones: what no header writes would show.
func reencode(p *Packet) []byte {
	bth := p.BTH.Fields()
	out := bytes.Repeat([]byte{0xff}, p.Info.HeaderLen)
	if p.Info.Kind == KindCNP {
		copy(out[BTHSize:], p.Data[BTHSize:])
	}
	BTH(out).Encode(&bth)
	if h := p.DETH(); h != nil {
		f := h.Fields()
		p.Info.DETH(out).Encode(&f)
	}
	if h := p.RETH(); h != nil {
		f := h.Fields()
		p.Info.RETH(out).Encode(&f)
	}
	if h := p.AtomicETH(); h != nil {
		f := h.Fields()
		p.Info.AtomicETH(out).Encode(&f)
	}
	if h := p.AETH(); h != nil {
		f := h.Fields()
		p.Info.AETH(out).Encode(&f)
	}
	if h := p.AtomicAckETH(); h != nil {
		f := h.Fields()
		p.Info.AtomicAckETH(out).Encode(&f)
	}
	if h := p.ImmDt(); h != nil {
		f := h.Fields()
		p.Info.ImmDt(out).Encode(&f)
	}
	if h := p.IETH(); h != nil {
		f := h.Fields()
		p.Info.IETH(out).Encode(&f)
	}
	out = append(out, p.Payload...)
	return append(out, make([]byte, bth.PadCount)...)
}

package roce

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
)

// TestDecodeRefuses checks every reason for which a packet is dropped before it means anything
// (9.6), and that the Packet keeps what it had.
func TestDecodeRefuses(t *testing.T) {
	build := func(f BTHFields, n int) []byte {
		pkt := bytes.Repeat([]byte{0xa5}, n)
		BTH(pkt).Encode(&f)
		return pkt
	}
	for _, c := range []struct {
		name string
		pkt  []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"eleven bytes", bytes.Repeat([]byte{0}, 11), ErrShort},
		{"version 1", build(BTHFields{Opcode: RCSendOnly, TVer: 1}, 16), ErrVersion},
		{"undefined opcode", build(BTHFields{Opcode: 0x15}, 16), ErrOpcode},
		{"manufacturer's opcode", build(BTHFields{Opcode: 0xc1}, 16), ErrOpcode},
		{"WRITE without its RETH", build(BTHFields{Opcode: RCWriteOnly}, 24), ErrShort},
		{"atomic cut short", build(BTHFields{Opcode: RCFetchAdd}, 36), ErrShort},
		{"odd length", build(BTHFields{Opcode: RCSendOnly}, 13), ErrAlign},
		{"one byte of payload, no pad", build(BTHFields{Opcode: UDSendOnly}, 21), ErrAlign},
		{"ACK with payload", build(BTHFields{Opcode: RCAck}, 20), ErrLong},
		{"READ request with payload", build(BTHFields{Opcode: RCReadRequest}, 32), ErrLong},
		{"more than the largest MTU", build(BTHFields{Opcode: RCSendOnly}, BTHSize+MaxPayload+4), ErrLong},
		{"pad without payload", build(BTHFields{Opcode: RCSendOnly, PadCount: 1}, 12), ErrPad},
		{"ACK with pad", build(BTHFields{Opcode: RCAck, PadCount: 3}, 16), ErrPad},
		{"CNP without its reserved bytes", build(BTHFields{Opcode: CNP}, 24), ErrShort},
	} {
		before := Packet{Payload: []byte("before")}
		p := before
		if err := Decode(c.pkt, &p); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if p.Data != nil || p.BTH != nil || p.Info != nil || string(p.Payload) != "before" {
			t.Errorf("%s: the Packet was changed", c.name)
		}
	}
}

// TestDecodePayload checks where payload and pad end, for every length up to the MTU's (9.2.2).
func TestDecodePayload(t *testing.T) {
	body := testPacket(rand.New(rand.NewPCG(1, 1)), MaxPayload)[:MaxPayload]
	for n := 0; n <= MaxPayload; n++ {
		pad := PadCount(n)
		if pad > 3 || (n+int(pad))%4 != 0 {
			t.Fatalf("PadCount(%d) = %d", n, pad)
		}
		pkt := make([]byte, BTHSize, BTHSize+MaxPayload)
		BTH(pkt).Encode(&BTHFields{Opcode: UCSendOnly, PadCount: pad})
		pkt = append(pkt, body[:n]...)
		pkt = append(pkt, make([]byte, pad)...)
		var p Packet
		if err := Decode(pkt, &p); err != nil {
			t.Fatalf("%d bytes of payload: %v", n, err)
		}
		if !bytes.Equal(p.Payload, body[:n]) {
			t.Fatalf("%d bytes of payload: another payload comes out", n)
		}
	}
}

// TestDecodeEveryOpcode: a packet of only the headers decodes for each opcode, the headers lie
// one behind the other without a gap, and no slice reaches beyond its header.
func TestDecodeEveryOpcode(t *testing.T) {
	for op := range 256 {
		info := Opcode(op).Info()
		if info == nil {
			continue
		}
		pkt := make([]byte, info.HeaderLen+8)[:info.HeaderLen]
		BTH(pkt).SetOpcode(Opcode(op))
		var p Packet
		if err := Decode(pkt, &p); err != nil {
			t.Errorf("%s: %v", info.Name, err)
			continue
		}
		size := BTHSize
		for _, h := range [][]byte{p.XRCETH(), p.DETH(), p.FETH(), p.RETH(), p.AtomicETH(), p.AETH(), p.AtomicAckETH(), p.ImmDt(), p.IETH(), p.SACK()} {
			if h == nil {
				continue
			}
			if cap(h) != len(h) || &h[0] != &pkt[size] {
				t.Errorf("%s: a header of %d bytes with room for %d does not start at %d", info.Name, len(h), cap(h), size)
			}
			size += len(h)
		}
		if info.Kind == KindCNP {
			size += 16 // reserved, annex A17.9
		}
		if size != info.HeaderLen || len(p.Payload) != 0 {
			t.Errorf("%s: headers of %d bytes, payload of %d, HeaderLen %d", info.Name, size, len(p.Payload), info.HeaderLen)
		}
	}
}

// FuzzDecode: no bytes make Decode or a header's methods panic, and what was decoded encodes to
// a packet that decodes to the same fields and payload.
func FuzzDecode(f *testing.F) {
	for _, fr := range allFrames(f) {
		f.Add(fr.data())
	}
	cnp := make([]byte, BTHSize+cnpReserved)
	BTH(cnp).Encode(&BTHFields{Opcode: CNP, BECN: true, PKey: 0xffff, DestQP: 0x11})
	f.Add(cnp)
	f.Fuzz(func(t *testing.T, pkt []byte) {
		var p, q Packet
		if Decode(pkt, &p) != nil {
			return
		}
		again := reencode(&p)
		if err := Decode(again, &q); err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if p.BTH.Fields() != q.BTH.Fields() || !bytes.Equal(p.Payload, q.Payload) || len(again) != len(pkt) {
			t.Errorf("%x\nencoded again is\n%x", pkt, again)
		}
		if third := reencode(&q); !bytes.Equal(again, third) {
			t.Errorf("encoded twice:\n%x\nthrice:\n%x", again, third)
		}
	})
}

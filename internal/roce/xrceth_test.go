package roce

import (
	"strings"
	"testing"
)

func decodeXRCETH(b []byte) XRCETHFields     { return XRCETH(b).Fields() }
func encodeXRCETH(b []byte, f *XRCETHFields) { XRCETH(b).Encode(f) }

// TestXRCETHLayout checks the bytes of the header (annex A14): 8 reserved bits, then the number.
func TestXRCETHLayout(t *testing.T) {
	checkHeader(t, []byte{0, 0x12, 0x34, 0x56}, XRCETHFields{SRQ: 0x123456}, decodeXRCETH, encodeXRCETH)
	if got := (XRCETH{0xff, 0, 0, 7}).SRQ(); got != 7 {
		t.Errorf("reserved bits count: %#x", got)
	}
}

// Annex A14: XRC has RC's operations of 9.2.1 under its own transport. Requests carry an XRCETH right behind the
// BTH, everything else is where RC has it, four bytes later; responses are as RC's.
func TestXRCOpcodesAreRCs(t *testing.T) {
	n := 0
	for op := XRCSendFirst; op <= XRCSendOnlyInv; op++ {
		x, rc := op.Info(), (op &^ XRCSendFirst).Info()
		if (x == nil) != (rc == nil) {
			t.Errorf("%v and %v: one is defined, the other is not", op, op&^XRCSendFirst)
		}
		if x == nil {
			continue
		}
		n++
		extra := 0
		if rc.Request {
			extra = XRCETHSize
		}
		if x.Name != "X"+rc.Name || x.Kind != rc.Kind || x.HeaderLen != rc.HeaderLen+extra || x.HasXRCETH != rc.Request {
			t.Errorf("%+v does not go with %+v", x, rc)
		}
		pkt := make([]byte, x.HeaderLen)
		if rc.Request {
			x.XRCETH(pkt).Encode(&XRCETHFields{SRQ: 0xffffff})
			if pkt[12] != 0 || pkt[13] != 0xff || pkt[15] != 0xff {
				t.Errorf("%v: the header is not behind the BTH", op)
			}
		} else if x.XRCETH(pkt) != nil {
			t.Errorf("%v: a response with an XRCETH", op)
		}
		for _, h := range [][2][]byte{{x.RETH(pkt), rc.RETH(pkt)}, {x.AETH(pkt), rc.AETH(pkt)}, {x.AtomicETH(pkt), rc.AtomicETH(pkt)},
			{x.AtomicAckETH(pkt), rc.AtomicAckETH(pkt)}, {x.ImmDt(pkt), rc.ImmDt(pkt)}, {x.IETH(pkt), rc.IETH(pkt)}} {
			if (h[0] == nil) != (h[1] == nil) || h[0] != nil && cap(pkt)-len(h[0]) < extra {
				t.Errorf("%v: headers %x, RC has %x", op, h[0], h[1])
			}
		}
	}
	if n != 23 {
		t.Errorf("%d opcodes, want 23", n)
	}
}

// A packet as it is on the wire, from the layouts of 9.2, 9.3 and A14: XRC RDMA WRITE Only with 5 bytes.
func TestXRCPacket(t *testing.T) {
	want := []byte{0xaa, 0x30, 0xff, 0xff, 0, 0x65, 0x43, 0x21, 0x80, 0x00, 0x00, 0x07, // BTH: pad 3, ACK requested
		0, 0x00, 0x01, 0x02, // XRCETH
		1, 2, 3, 4, 5, 6, 7, 8, 0xca, 0xfe, 0, 1, 0, 0, 0, 5, // RETH
		'h', 'e', 'l', 'l', 'o', 0, 0, 0}
	got := make([]byte, len(want))
	i := XRCWriteOnly.Info()
	BTH(got).Encode(&BTHFields{Opcode: XRCWriteOnly, PadCount: 3, PKey: 0xffff, DestQP: 0x654321, AckReq: true, PSN: 7})
	i.XRCETH(got).Encode(&XRCETHFields{SRQ: 0x102})
	i.RETH(got).Encode(&RETHFields{VA: 0x0102030405060708, RKey: 0xcafe0001, Length: 5})
	copy(got[i.HeaderLen:], "hello")
	if string(got) != string(want) {
		t.Errorf("encoded\n%x, want\n%x", got, want)
	}
	var p Packet
	if err := Decode(want, &p); err != nil || p.XRCETH().SRQ() != 0x102 || p.RETH().RKey() != 0xcafe0001 || string(p.Payload) != "hello" {
		t.Errorf("decoded %+v, %v", p, err)
	}
	if !strings.HasPrefix(p.Info.Name, "XRC_") {
		t.Errorf("name %s", p.Info.Name)
	}
}

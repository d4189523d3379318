package roce

import "testing"

func decodeBTH(b []byte) BTHFields     { return BTH(b).Fields() }
func encodeBTH(b []byte, f *BTHFields) { BTH(b).Encode(f) }

// TestBTHLayout checks the bits of the base transport header (9.2), one field at a time and all.
func TestBTHLayout(t *testing.T) {
	for _, c := range []struct {
		wire   []byte
		fields BTHFields
	}{
		{[]byte{0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{Opcode: RCSendOnlyInv}},
		{[]byte{0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{Solicited: true}},
		{[]byte{0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{MigReq: true}},
		{[]byte{0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{PadCount: 3}},
		{[]byte{0, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{TVer: 15}},
		{[]byte{0, 0, 0x80, 0x01, 0, 0, 0, 0, 0, 0, 0, 0}, BTHFields{PKey: 0x8001}},
		{[]byte{0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0}, BTHFields{FECN: true}},
		{[]byte{0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0}, BTHFields{BECN: true}},
		{[]byte{0, 0, 0, 0, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0}, BTHFields{DestQP: 0xabcdef}},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0}, BTHFields{AckReq: true}},
		{[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34, 0x56}, BTHFields{PSN: 0x123456}},
		{
			[]byte{0x65, 0xf1, 0xff, 0xfe, 0xc0, 0x00, 0x00, 0x01, 0x80, 0xff, 0xff, 0xff},
			BTHFields{
				Opcode: UDSendOnlyImm, Solicited: true, MigReq: true, PadCount: 3, TVer: 1, PKey: 0xfffe,
				FECN: true, BECN: true, DestQP: 1, AckReq: true, PSN: 0xffffff,
			},
		},
	} {
		checkHeader(t, c.wire, c.fields, decodeBTH, encodeBTH)
	}
}

// TestBTHEncodeCuts: values beyond their field do not reach its neighbours.
func TestBTHEncodeCuts(t *testing.T) {
	wire := make([]byte, BTHSize)
	BTH(wire).Encode(&BTHFields{PadCount: 0xff, TVer: 0xff, DestQP: 0xff000001, PSN: 0xff000002})
	want := BTHFields{PadCount: 3, TVer: 15, DestQP: 1, PSN: 2}
	if got := decodeBTH(wire); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestBTHSetters: a setter changes its own field, on and off, and no other.
func TestBTHSetters(t *testing.T) {
	full := BTHFields{
		Opcode: 0xff, Solicited: true, MigReq: true, PadCount: 3, TVer: 15, PKey: 0xffff,
		FECN: true, BECN: true, DestQP: 0xffffff, AckReq: true, PSN: 0xffffff,
	}
	for name, c := range map[string]struct {
		set    func(BTH, bool)
		change func(*BTHFields, BTHFields)
	}{
		"Opcode":    {func(b BTH, on bool) { b.SetOpcode(pick(on, Opcode(0xff))) }, func(f *BTHFields, v BTHFields) { f.Opcode = v.Opcode }},
		"Solicited": {BTH.SetSolicited, func(f *BTHFields, v BTHFields) { f.Solicited = v.Solicited }},
		"MigReq":    {BTH.SetMigReq, func(f *BTHFields, v BTHFields) { f.MigReq = v.MigReq }},
		"PadCount":  {func(b BTH, on bool) { b.SetPadCount(pick(on, uint8(3))) }, func(f *BTHFields, v BTHFields) { f.PadCount = v.PadCount }},
		"PKey":      {func(b BTH, on bool) { b.SetPKey(pick(on, uint16(0xffff))) }, func(f *BTHFields, v BTHFields) { f.PKey = v.PKey }},
		"FECN":      {BTH.SetFECN, func(f *BTHFields, v BTHFields) { f.FECN = v.FECN }},
		"BECN":      {BTH.SetBECN, func(f *BTHFields, v BTHFields) { f.BECN = v.BECN }},
		"DestQP":    {func(b BTH, on bool) { b.SetDestQP(pick(on, uint32(0xffffff))) }, func(f *BTHFields, v BTHFields) { f.DestQP = v.DestQP }},
		"AckReq":    {BTH.SetAckReq, func(f *BTHFields, v BTHFields) { f.AckReq = v.AckReq }},
		"PSN":       {func(b BTH, on bool) { b.SetPSN(pick(on, PSN(0xffffff))) }, func(f *BTHFields, v BTHFields) { f.PSN = v.PSN }},
	} {
		wire := make(BTH, BTHSize)
		c.set(wire, true)
		want := BTHFields{}
		c.change(&want, full)
		if got := wire.Fields(); got != want {
			t.Errorf("Set%s on: %+v, want %+v", name, got, want)
		}
		wire.Encode(&full)
		c.set(wire, false)
		want = full
		c.change(&want, BTHFields{})
		if got := wire.Fields(); got != want {
			t.Errorf("Set%s off: %+v, want %+v", name, got, want)
		}
	}
}

// pick returns v if on, else zero.
func pick[T any](on bool, v T) T {
	if on {
		return v
	}
	var zero T
	return zero
}

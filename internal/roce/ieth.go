package roce

import "encoding/binary"

// IETHSize is the size of the invalidate extended transport header in bytes.
const IETHSize = 4

// IETH is the invalidate extended transport header (9.3): which key SEND WITH INVALIDATE
// invalidates at the receiver. Its methods need IETHSize bytes.
type IETH []byte

// IETHFields are the fields of an IETH.
type IETHFields struct {
	RKey uint32
}

// RKey returns the key to invalidate.
func (h IETH) RKey() uint32 { return binary.BigEndian.Uint32(h) }

// Fields returns all fields.
func (h IETH) Fields() IETHFields { return IETHFields{RKey: h.RKey()} }

// Encode writes all fields.
func (h IETH) Encode(f *IETHFields) { binary.BigEndian.PutUint32(h, f.RKey) }

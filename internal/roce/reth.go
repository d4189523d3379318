package roce

import "encoding/binary"

// RETHSize is the size of an RDMA extended transport header in bytes.
const RETHSize = 16

// RETH is an RDMA extended transport header (9.3): which remote memory a WRITE or READ means.
// Its methods need RETHSize bytes.
type RETH []byte

// RETHFields are the fields of a RETH.
type RETHFields struct {
	VA     uint64 // virtual address in the region of RKey
	RKey   uint32
	Length uint32 // bytes of the whole message, at most 2^31
}

// VA returns the virtual address.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// Length returns the bytes of the whole message. It is the peer's claim: check it.
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// Fields returns all fields.
func (h RETH) Fields() RETHFields {
	return RETHFields{VA: h.VA(), RKey: h.RKey(), Length: h.Length()}
}

// Encode writes all fields.
func (h RETH) Encode(f *RETHFields) {
	_ = h[RETHSize-1]
	binary.BigEndian.PutUint64(h, f.VA)
	binary.BigEndian.PutUint32(h[8:], f.RKey)
	binary.BigEndian.PutUint32(h[12:], f.Length)
}

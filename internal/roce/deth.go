package roce

import "encoding/binary"

// DETHSize is the size of a datagram extended transport header in bytes.
const DETHSize = 8

// DETH is a datagram extended transport header (9.3.2). Its methods need DETHSize bytes.
type DETH []byte

// DETHFields are the fields of a DETH.
type DETHFields struct {
	QKey  uint32
	SrcQP uint32 // source queue pair, 24 bits
}

// QKey returns the queue key.
func (h DETH) QKey() uint32 { return binary.BigEndian.Uint32(h) }

// SrcQP returns the number of the queue pair that sent the datagram.
func (h DETH) SrcQP() uint32 { return be24(h[5:]) }

// Fields returns all fields.
func (h DETH) Fields() DETHFields { return DETHFields{QKey: h.QKey(), SrcQP: h.SrcQP()} }

// Encode writes all fields.
func (h DETH) Encode(f *DETHFields) {
	_ = h[DETHSize-1]
	binary.BigEndian.PutUint32(h, f.QKey)
	h[4] = 0
	putBE24(h[5:], f.SrcQP)
}

package roce

import "encoding/binary"

// Sizes of the headers of atomic operations in bytes.
const (
	AtomicETHSize    = 28
	AtomicAckETHSize = 8
)

// AtomicETH is an atomic extended transport header (9.3), of COMPARE&SWAP and FETCH&ADD. Its
// methods need AtomicETHSize bytes.
type AtomicETH []byte

// AtomicETHFields are the fields of an AtomicETH.
type AtomicETHFields struct {
	VA      uint64 // virtual address, a multiple of 8
	RKey    uint32
	SwapAdd uint64 // the value to store, or to add
	Compare uint64 // the value to compare with; unused by FETCH&ADD
}

// VA returns the virtual address.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// SwapAdd returns the value to store or to add.
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare returns the value to compare with.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// Fields returns all fields.
func (h AtomicETH) Fields() AtomicETHFields {
	return AtomicETHFields{VA: h.VA(), RKey: h.RKey(), SwapAdd: h.SwapAdd(), Compare: h.Compare()}
}

// Encode writes all fields.
func (h AtomicETH) Encode(f *AtomicETHFields) {
	_ = h[AtomicETHSize-1]
	binary.BigEndian.PutUint64(h, f.VA)
	binary.BigEndian.PutUint32(h[8:], f.RKey)
	binary.BigEndian.PutUint64(h[12:], f.SwapAdd)
	binary.BigEndian.PutUint64(h[20:], f.Compare)
}

// AtomicAckETH carries the value from before an atomic operation. Its methods need
// AtomicAckETHSize bytes.
type AtomicAckETH []byte

// AtomicAckETHFields are the fields of an AtomicAckETH.
type AtomicAckETHFields struct {
	Orig uint64 // the value from before
}

// Orig returns the value from before the operation.
func (h AtomicAckETH) Orig() uint64 { return binary.BigEndian.Uint64(h) }

// Fields returns all fields.
func (h AtomicAckETH) Fields() AtomicAckETHFields { return AtomicAckETHFields{Orig: h.Orig()} }

// Encode writes all fields.
func (h AtomicAckETH) Encode(f *AtomicAckETHFields) { binary.BigEndian.PutUint64(h, f.Orig) }

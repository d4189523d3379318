package roce

import "encoding/binary"

// FETHSize is the size of the FLUSH extended transport header in bytes.
const FETHSize = 4

// FETH is the FLUSH extended transport header (annex A19): where the data written before must have
// got to, and which data. The RETH behind it names the memory. Its methods need FETHSize bytes.
type FETH []byte

// Placement is where FLUSH has data placed: a set of bits.
type Placement uint8

// Placement types (annex A19; enum ib_flush_type).
const (
	PlaceGlobal     Placement = 1 << 0 // visible to everything on the machine
	PlacePersistent Placement = 1 << 1 // kept through a loss of power
)

// Selectivity is which data FLUSH means.
type Selectivity uint8

// Selectivity levels (annex A19; enum ib_flush_level).
const (
	SelectRange  Selectivity = 0 // the bytes that the RETH names
	SelectRegion Selectivity = 1 // the whole memory region of the key
)

// FETHFields are the fields of a FETH. Reserved bits are sent as zero and ignored when received.
type FETHFields struct {
	Placement   Placement   // 4 bits
	Selectivity Selectivity // 2 bits
}

// Placement returns the placement type.
func (h FETH) Placement() Placement { return Placement(h[3] & 0x0f) }

// Selectivity returns the selectivity level.
func (h FETH) Selectivity() Selectivity { return Selectivity(h[3] >> 4 & 3) }

// Fields returns all fields.
func (h FETH) Fields() FETHFields {
	return FETHFields{Placement: h.Placement(), Selectivity: h.Selectivity()}
}

// Encode writes all fields; bits of a value beyond its field are dropped.
func (h FETH) Encode(f *FETHFields) {
	binary.BigEndian.PutUint32(h, uint32(f.Placement&0x0f)|uint32(f.Selectivity&3)<<4)
}

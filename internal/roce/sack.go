package roce

import "encoding/binary"

// SelectiveAck is an opcode of the manufacturer's range (9.2.1): the acknowledgement of selective repeat, which only
// NICs of this kind that have agreed on it send each other. Its PSN is that of the first request packet that is
// missing, its AETH that of a NAK for it, and its SACK says which packets behind it are there.
const SelectiveAck Opcode = 0xc0

// SelectiveSpan is how many PSNs, from the missing one on, a SelectiveAck tells of.
const SelectiveSpan = 128

// SACKSize is the size of a SACK in bytes.
const SACKSize = 16

// SACK is the map of a SelectiveAck: two words of 64 bits, big-endian. Bit i of the first word (bit 0 is the lowest) stands
// for the PSN 1+i behind that of the packet, bit i of the second for that 65+i behind it. The last bit is 0.
type SACK []byte

// Encode writes the map.
func (h SACK) Encode(have [2]uint64) {
	binary.BigEndian.PutUint64(h, have[0])
	binary.BigEndian.PutUint64(h[8:], have[1])
}

// Map reads the map. The bit that stands for nothing is 0.
func (h SACK) Map() [2]uint64 {
	return [2]uint64{binary.BigEndian.Uint64(h), binary.BigEndian.Uint64(h[8:]) &^ (1 << 63)}
}

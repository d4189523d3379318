package roce

import "testing"

// The layout of the map, and the bit that stands for nothing.
func TestSACKLayout(t *testing.T) {
	b := make([]byte, SACKSize)
	SACK(b).Encode([2]uint64{1, 1<<62 | 2})
	if b[7] != 1 || b[8] != 0x40 || b[15] != 2 {
		t.Errorf("% x", b)
	}
	b[8] |= 0x80
	if have := SACK(b).Map(); have != [2]uint64{1, 1<<62 | 2} {
		t.Errorf("%#x", have)
	}
}

func decodeSACK(b []byte) [2]uint64     { return SACK(b).Map() }
func encodeSACK(b []byte, f *[2]uint64) { SACK(b).Encode(*f) }

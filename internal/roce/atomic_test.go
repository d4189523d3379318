package roce

import "testing"

func decodeAtomicETH(b []byte) AtomicETHFields     { return AtomicETH(b).Fields() }
func encodeAtomicETH(b []byte, f *AtomicETHFields) { AtomicETH(b).Encode(f) }

// TestAtomicETHLayout checks the bytes of the header (9.3).
func TestAtomicETHLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28}, AtomicETHFields{VA: 0x0102030405060708, RKey: 0x090a0b0c, SwapAdd: 0x0d0e0f1011121314, Compare: 0x15161718191a1b1c}, decodeAtomicETH, encodeAtomicETH)
}

func decodeAtomicAckETH(b []byte) AtomicAckETHFields     { return AtomicAckETH(b).Fields() }
func encodeAtomicAckETH(b []byte, f *AtomicAckETHFields) { AtomicAckETH(b).Encode(f) }

// TestAtomicAckETHLayout checks the bytes of the header (9.3).
func TestAtomicAckETHLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, AtomicAckETHFields{Orig: 0x0102030405060708}, decodeAtomicAckETH, encodeAtomicAckETH)
}

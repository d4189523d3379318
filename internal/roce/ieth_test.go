package roce

import "testing"

func decodeIETH(b []byte) IETHFields     { return IETH(b).Fields() }
func encodeIETH(b []byte, f *IETHFields) { IETH(b).Encode(f) }

// TestIETHLayout checks the bytes of the header (9.3).
func TestIETHLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4}, IETHFields{RKey: 0x01020304}, decodeIETH, encodeIETH)
}

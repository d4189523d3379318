package roce

import "testing"

func decodeRETH(b []byte) RETHFields     { return RETH(b).Fields() }
func encodeRETH(b []byte, f *RETHFields) { RETH(b).Encode(f) }

// TestRETHLayout checks the bytes of the header (9.3).
func TestRETHLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, RETHFields{VA: 0x0102030405060708, RKey: 0x090a0b0c, Length: 0x0d0e0f10}, decodeRETH, encodeRETH)
}

package roce

import "testing"

func decodeDETH(b []byte) DETHFields     { return DETH(b).Fields() }
func encodeDETH(b []byte, f *DETHFields) { DETH(b).Encode(f) }

// TestDETHLayout checks the bytes of the header (9.3.2).
func TestDETHLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4, 0, 6, 7, 8}, DETHFields{QKey: 0x01020304, SrcQP: 0x060708}, decodeDETH, encodeDETH)
}

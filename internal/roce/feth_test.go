package roce

import "testing"

func decodeFETH(b []byte) FETHFields     { return FETH(b).Fields() }
func encodeFETH(b []byte, f *FETHFields) { FETH(b).Encode(f) }

// TestFETHLayout checks the bytes of the header (annex A19): placement in bits 3 to 0, selectivity in
// bits 5 and 4 of one big-endian word.
func TestFETHLayout(t *testing.T) {
	checkHeader(t, []byte{0, 0, 0, 0x13}, FETHFields{Placement: PlaceGlobal | PlacePersistent, Selectivity: SelectRegion}, decodeFETH, encodeFETH)
	checkHeader(t, []byte{0, 0, 0, 0x02}, FETHFields{Placement: PlacePersistent}, decodeFETH, encodeFETH)
}

package roce

import "testing"

func decodeImmDt(b []byte) ImmDtFields     { return ImmDt(b).Fields() }
func encodeImmDt(b []byte, f *ImmDtFields) { ImmDt(b).Encode(f) }

// TestImmDtLayout checks the bytes of the header (9.3).
func TestImmDtLayout(t *testing.T) {
	checkHeader(t, []byte{1, 2, 3, 4}, ImmDtFields{Imm: 0x01020304}, decodeImmDt, encodeImmDt)
}

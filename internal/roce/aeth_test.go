package roce

import "testing"

func decodeAETH(b []byte) AETHFields     { return AETH(b).Fields() }
func encodeAETH(b []byte, f *AETHFields) { AETH(b).Encode(f) }

// TestAETHLayout checks the bytes of the header (9.3).
func TestAETHLayout(t *testing.T) {
	checkHeader(t, []byte{0x62, 0xab, 0xcd, 0xef}, AETHFields{Syndrome: NAKRemoteAccess, MSN: 0xabcdef}, decodeAETH, encodeAETH)
}

// TestSyndrome checks what a syndrome means (9.7.5, with the values that Soft-RoCE sends).
func TestSyndrome(t *testing.T) {
	for _, c := range []struct {
		made, wire Syndrome
		kind       SyndromeKind
		value      uint8
	}{
		{ACKSyndrome(CreditsUnlimited), 0x1f, SyndromeACK, 31},
		{ACKSyndrome(0xff), 0x1f, SyndromeACK, 31},
		{RNRSyndrome(12), 0x2c, SyndromeRNRNAK, 12},
		{RNRSyndrome(0xff), 0x3f, SyndromeRNRNAK, 31},
		{0x40, 0x40, SyndromeReserved, 0},
		{NAKSequence, 0x60, SyndromeNAK, 0},
		{NAKInvalidRequest, 0x61, SyndromeNAK, 1},
		{NAKRemoteAccess, 0x62, SyndromeNAK, 2},
		{NAKRemoteOperational, 0x63, SyndromeNAK, 3},
		{NAKInvalidRDRequest, 0x64, SyndromeNAK, 4},
		{0x8c | 0x20, 0xac, SyndromeRNRNAK, 12}, // bit 7 is ignored
	} {
		if c.made != c.wire || c.wire.Kind() != c.kind || c.wire.Value() != c.value {
			t.Errorf("syndrome %#x: made %#x, kind %d, value %d, want kind %d, value %d",
				c.wire, c.made, c.wire.Kind(), c.wire.Value(), c.kind, c.value)
		}
	}
}

// TestCredits checks the credit encoding (9.7.7.2): its ends, that each code means itself, and
// that a number between two codes is never announced as more than it is.
func TestCredits(t *testing.T) {
	for code, want := range map[uint8]int{0: 0, 1: 1, 4: 4, 5: 6, 11: 48, 15: 192, 21: 1536, 30: 32768} {
		if n, limited := Credits(code); n != want || !limited {
			t.Errorf("Credits(%d) = %d, %v, want %d, true", code, n, limited, want)
		}
	}
	if _, limited := Credits(31); limited {
		t.Error("Credits(31) limits")
	}
	for code := range uint8(31) {
		n, _ := Credits(code)
		if got := CreditCode(n); got != code {
			t.Errorf("CreditCode(%d) = %d, want %d", n, got, code)
		}
	}
	for n := range 70_000 {
		if got, _ := Credits(CreditCode(n)); got > n {
			t.Fatalf("CreditCode(%d) announces %d", n, got)
		}
	}
	if got := CreditCode(-1); got != 0 {
		t.Errorf("CreditCode(-1) = %d, want 0", got)
	}
}

package roce

import "testing"

// TestRNRTimer checks the ends and the odd first entry of the table in 9.7.5.2.8, and that from
// code 1 on a higher code waits longer.
func TestRNRTimer(t *testing.T) {
	for code, want := range map[uint8]int64{0: 655_360_000, 1: 10_000, 12: 640_000, 14: 1_280_000, 31: 491_520_000, 32 + 1: 10_000} {
		if got := RNRTimerNanos(code); got != want {
			t.Errorf("RNRTimerNanos(%d) = %d, want %d", code, got, want)
		}
	}
	for code := uint8(2); code < 32; code++ {
		if RNRTimerNanos(code) <= RNRTimerNanos(code-1) {
			t.Errorf("RNRTimerNanos(%d) is not above that of %d", code, code-1)
		}
		// The table goes in two interleaved rows, each doubling.
		if code >= 4 && RNRTimerNanos(code) != 2*RNRTimerNanos(code-2) {
			t.Errorf("RNRTimerNanos(%d) is not twice that of %d", code, code-2)
		}
	}
}

// TestTimeout checks 4.096 us * 2^code (9.7.6.1.3), and 0 for none.
func TestTimeout(t *testing.T) {
	for code, want := range map[uint8]int64{0: 0, 1: 8192, 14: 67_108_864, 31: 8_796_093_022_208, 32: 0} {
		if got := TimeoutNanos(code); got != want {
			t.Errorf("TimeoutNanos(%d) = %d, want %d", code, got, want)
		}
	}
}

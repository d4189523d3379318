package roce

import "testing"

// TestMTU checks the codes of enum ibv_mtu, and that nothing else is one.
func TestMTU(t *testing.T) {
	for code, want := range []int{0, 256, 512, 1024, 2048, 4096, 0, 0} {
		if got := MTUBytes(uint8(code)); got != want {
			t.Errorf("MTUBytes(%d) = %d, want %d", code, got, want)
		}
		if want != 0 && MTUCode(want) != uint8(code) {
			t.Errorf("MTUCode(%d) = %d, want %d", want, MTUCode(want), code)
		}
	}
	for _, bytes := range []int{-1, 0, 255, 1500, 8192} {
		if got := MTUCode(bytes); got != 0 {
			t.Errorf("MTUCode(%d) = %d, want 0", bytes, got)
		}
	}
}

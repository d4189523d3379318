package roce

import "testing"

// TestPSN checks arithmetic modulo 2^24 (9.7) around zero and around half the space.
func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 1, 1}, {0xffffff, 1, 0}, {0, -1, 0xffffff}, {0xfffffe, 5, 3}, {3, -5, 0xfffffe},
		{5, 1 << 24, 5}, {5, 1<<24 - 1, 4}, {0x800000, 0x800000, 0},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("%#x.Add(%d) = %#x, want %#x", c.p, c.n, got, c.want)
		}
	}
	for _, c := range []struct {
		a, b PSN
		want int32
	}{
		{1, 0, 1}, {0, 1, -1}, {0, 0xffffff, 1}, {0xffffff, 0, -1}, {7, 7, 0},
		{0x7fffff, 0, 1<<23 - 1}, {0x800000, 0, -1 << 23}, {0x800001, 0, 1 - 1<<23}, {3, 0xfffffe, 5},
	} {
		if got := Diff(c.a, c.b); got != c.want {
			t.Errorf("Diff(%#x, %#x) = %d, want %d", c.a, c.b, got, c.want)
		}
		if got := c.a.After(c.b); got != (c.want > 0) {
			t.Errorf("%#x.After(%#x) = %v", c.a, c.b, got)
		}
		if got := c.a.Before(c.b); got != (c.want < 0) {
			t.Errorf("%#x.Before(%#x) = %v", c.a, c.b, got)
		}
	}
}

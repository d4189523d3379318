package link

import "testing"

func TestContiguous(t *testing.T) {
	arena := make([]byte, 64)
	other := make([]byte, 64)
	cases := []struct {
		name string
		a, b []byte
		want bool
	}{
		{"back to back", arena[:16], arena[16:32], true},
		{"gap", arena[:16], arena[17:32], false},
		{"overlap", arena[:16], arena[15:32], false},
		{"backwards", arena[16:32], arena[:16], false},
		{"other array", arena[:16], other[16:32], false},
		{"capacity cut off: not provably one array", arena[:16:16], arena[16:32], false},
		{"empty", arena[:16], arena[16:16], false},
		{"end of array", arena[:64], other[:1], false},
	}
	for _, c := range cases {
		if got := Contiguous(c.a, c.b); got != c.want {
			t.Errorf("%s: Contiguous = %v, want %v", c.name, got, c.want)
		}
	}
}

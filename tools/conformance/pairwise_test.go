package main

import "testing"

// Each legal pair of values of two factors is in a combination, and all combinations are legal.
func TestAllPairsAreThere(t *testing.T) {
	f := factors()
	combinations := allPairs(f, legal)
	for _, c := range combinations {
		for i := range c {
			if c[i] < 0 || c[i] >= len(f[i].values) {
				t.Fatalf("combination %v: factor %s has no value", c, f[i].name)
			}
		}
		if !legal(f, c) {
			t.Errorf("combination %v is not legal", c)
		}
	}
	// By brute force, without what allPairs goes by: a pair is possible if some full combination has it.
	covered := func(f1, v1, f2, v2 int) bool {
		for _, c := range combinations {
			if c[f1] == v1 && c[f2] == v2 {
				return true
			}
		}
		return false
	}
	for f1 := range f {
		for f2 := f1 + 1; f2 < len(f); f2++ {
			for v1 := range f[f1].values {
				for v2 := range f[f2].values {
					c := blank(len(f))
					c[f1], c[f2] = v1, v2
					if full := complete(f, legal, c); full != nil && !covered(f1, v1, f2, v2) {
						t.Errorf("%s=%s with %s=%s is possible, as %v, and in no combination", f[f1].name, f[f1].values[v1], f[f2].name, f[f2].values[v2], full)
					}
				}
			}
		}
	}
	if len(combinations) > 400 {
		t.Errorf("%d combinations: too many", len(combinations))
	}
	t.Logf("%d combinations", len(combinations))
}

// Three factors of three values need nine combinations at least; a greedy choice takes a few more.
func TestAllPairsAreFew(t *testing.T) {
	f := []factor{{"a", []string{"1", "2", "3"}}, {"b", []string{"1", "2", "3"}}, {"c", []string{"1", "2", "3"}}}
	if n := len(allPairs(f, func([]factor, []int) bool { return true })); n < 9 || n > 12 {
		t.Errorf("%d combinations of three factors with three values", n)
	}
}

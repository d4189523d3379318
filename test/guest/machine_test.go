package guest

import "testing"

// The status of a script is found whatever a program that it has left behind writes afterwards, as servers do that are killed.
func TestStatusOfAScript(t *testing.T) {
	for _, c := range []struct {
		out, text string
		status    int
		found     bool
	}{
		{"a\n\n@exit 0\n", "a\n", 0, true},
		{"a without an end of line\n@exit 1\n", "a without an end of line", 1, true},
		{"\n@exit 143\n", "", 143, true},
		{"a\n\n@exit 1\nserver: interrupted\n", "a\nserver: interrupted\n", 1, true},
		{"a\n\n@exit 1\nserver: ", "a\nserver: ", 1, true},
		{"a\n@exit 1", "a\n@exit 1", 0, false},
		{"echo @exit 1\n", "echo @exit 1\n", 0, false},
		{"", "", 0, false},
	} {
		text, status, found := cutStatus([]byte(c.out))
		if string(text) != c.text || status != c.status || found != c.found {
			t.Errorf("%q: %q, %d, %v", c.out, text, status, found)
		}
	}
}

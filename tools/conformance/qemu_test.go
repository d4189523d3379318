package main

import (
	"strings"
	"testing"
)

// A guest that was moved goes on with the next number, and with nothing else.
func TestOneCount(t *testing.T) {
	for name, test := range map[string]struct{ before, after, want string }{
		"it goes on":           {"[    0.5] PCI\r\nround 0\r\nround 1\r\nround 2\r\n", "round 3\r\nround 4\r\nround 5\r\nround", ""},
		"a line is cut":        {"round 0\nround 1\nround 2\nrou", "nd 3\nround 4\nround 5\nround 6\n", ""},
		"a round is lost":      {"round 0\nround 1\nround 2\n", "round 4\nround 5\nround 6\n", `"round 4" in place of round 3`},
		"a round is repeated":  {"round 0\nround 1\nround 2\n", "round 2\nround 3\nround 4\n", `"round 2" in place of round 3`},
		"it boots again":       {"round 0\nround 1\nround 2\n", "round 0\nround 1\nround 2\n", `"round 0" in place of round 3`},
		"memory is wrong":      {"round 0\nround 1\nround 2\n", "round 3\nround 4\nround 5\nmemory is wrong: round 6, word 7 is 0x8\n", "memory is wrong"},
		"it stands still":      {"round 0\nround 1\nround 2\n", "round 3\n", "1 rounds only when it had been moved"},
		"it was not ready":     {"", "round 0\nround 1\nround 2\n", "0 rounds only when it was moved"},
		"the beginning is not": {"round 1\nround 2\nround 3\n", "round 4\nround 5\nround 6\n", "did not begin"},
	} {
		err := oneCount(test.before, test.after)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

package interop

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Ids are used once, and the choice for every change is of cases that there are.
func TestCases(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range All() {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
		if c.server == "" || c.client == "" || c.check == nil {
			t.Errorf("%s runs or checks nothing", c.ID)
		}
	}
	for _, id := range short {
		if !seen[id] {
			t.Errorf("short: there is no case %s", id)
		}
	}
}

// The covering choice has of each program, in each direction, with and without -R and loss, both MTUs and both IP versions; and
// of each program every size.
func TestCovering(t *testing.T) {
	kind := func(c *Case) string {
		return strings.Join([]string{c.family, map[bool]string{true: "Go"}[c.Go], c.Direction(), map[bool]string{true: "-R"}[c.CM], map[bool]string{true: "loss"}[c.Loss]}, " ")
	}
	values := func(cases []Case) map[string]bool {
		has := map[string]bool{}
		for i := range cases {
			c := &cases[i]
			has[kind(c)+" "+c.ip()] = true
			has[kind(c)+" "+map[int]string{1024: "1024", 4096: "4096"}[c.MTU]] = true
			has[strings.TrimSuffix(c.Row, " -R")] = true
		}
		return has
	}
	got := values(Covering())
	for want := range values(All()) {
		if !got[want] {
			t.Errorf("no case of %s", want)
		}
	}
}

// What programs write in spite of an exit status of 0 is looked at.
func TestChecks(t *testing.T) {
	row := " 1048576    5                8.45               4.90   \t\t   0.000005\n"
	for _, test := range []struct {
		name           string
		check          func(server, client string) error
		server, client string
		good           bool
	}{
		{"figures", measured, "", "#bytes\n" + row, true},
		{"no figures", measured, "", "#bytes\n", false},
		{"complaint", measured, "Completion with error at server\n", row, false},
		{"exchanges", exchanged(5), "5 iters in 0.1 seconds\n", "10 bytes\n5 iters in 0.1 seconds\n", true},
		{"exchanges missing", exchanged(5), "4 iters in 0.1 seconds\n", "5 iters in 0.1 seconds\n", false},
		{"wrong data", exchanged(5), "5 iters in 0.1 seconds\ninvalid data in page 3\n", "5 iters in 0.1 seconds\n", false},
		{"pings", pinged(2), "", "ping data: a\nping data: b\n", true},
		{"a ping missing", pinged(2), "", "ping data: a\n", false},
		{"operations", verified(1), "active send 1 bytes: ok\n", "passive send 1 bytes: ok\n", true},
		{"a wrong operation", verified(1), "active send 1 bytes: WRONG, no\n", "passive send 1 bytes: ok\n", false},
	} {
		if err := test.check(test.server, test.client); (err == nil) != test.good {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// The section replaces the one before it, is appended where there is none, and shows what failed and what needed another try.
func TestDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(path, []byte("# Title\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := Result{ID: "a/good", Row: "ib_write_bw -s 1", Direction: (&Case{ToGuest: true}).Direction(), Pass: true, Tries: 2, First: "a | b"}
	bad := Result{ID: "a/bad", Row: "ib_write_bw -s 1", Direction: (&Case{}).Direction(), Loss: true, Reason: "x | y", Tries: 3}
	var texts []string
	for _, results := range [][]Result{{good}, {good, bad}} {
		r := &Report{Kernels: []Kernel{{Version: "6.1", Results: results}}}
		if err := r.WriteInto(path); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	for i, want := range [][]string{
		{"# Title\n\n" + Begin, "| `ib_write_bw -s 1` | 1 of 1 | | | |\n", "| `a/good` | a \\| b |\n"},
		{"# Title\n\n" + Begin, "| `ib_write_bw -s 1` | 1 of 1 | | | **0 of 1** |\n", "| `a/bad` | x \\| y |\n"},
	} {
		for _, w := range want {
			if strings.Count(texts[i], w) != 1 {
				t.Errorf("document %d lacks %q:\n%s", i, w, texts[i])
			}
		}
	}
	if slices.Contains(strings.Split(texts[0], "\n"), "| failed | how |") {
		t.Error("nothing failed")
	}
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const passed = `fuzz: elapsed: 0s, gathering baseline coverage: 24/24 completed, now fuzzing with 1 workers
fuzz: elapsed: 3s, execs: 902 (301/sec), new interesting: 17 (total: 41)
fuzz: elapsed: 10m0s, execs: 317678 (0/sec), new interesting: 547 (total: 1092)
PASS
`

const failed = `fuzz: elapsed: 2m28s, execs: 102609 (362/sec), new interesting: 521 (total: 545)
--- FAIL: FuzzCore (147.70s)
    --- FAIL: FuzzCore (0.00s)
        core_world_test.go:440: it never completes

    Failing input written to testdata/fuzz/FuzzCore/623e76670005a152
FAIL
`

func TestRead(t *testing.T) {
	at := target{pkg: "internal/nic", name: "FuzzCore"}
	if r := read(at, passed); r.elapsed != 10*time.Minute || r.executions != 317678 || r.grown != 547 || r.corpus != 1092 || r.finding != "" {
		t.Errorf("%+v", r)
	}
	if r := read(at, failed); r.finding != "testdata/fuzz/FuzzCore/623e76670005a152" || r.executions != 102609 {
		t.Errorf("%+v", r)
	}
	if r := read(at, "fuzz: elapsed: 10s, execs: 1 (0/sec), new interesting: 0 (total: 4)\n--- FAIL: FuzzCore (10.07s)\n    context deadline exceeded\nFAIL\n"); r.finding != "" {
		t.Errorf("that the time was over is taken for a finding: %+v", r)
	}
	if r := read(at, "--- FAIL: FuzzCore (0.00s)\n    --- FAIL: FuzzCore/seed#3\nFAIL\n"); r.finding == "" {
		t.Error("a seed that fails is no finding")
	}
}

// What was run replaces its own rows; the rest of the document stays.
func TestTable(t *testing.T) {
	name := filepath.Join(t.TempDir(), "security.md")
	doc := "before\n" + begin + head + "| `a.FuzzA` | 1 | 2 | 3 | none |\n| `b.FuzzB` | 4 | 5 | 6 | none |\n" + end + "behind\n"
	if err := os.WriteFile(name, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	b, c := target{pkg: "b", name: "FuzzB"}, target{pkg: "c", name: "FuzzC"}
	if err := rewrite(name, []result{{target: b, elapsed: 600 * time.Second, executions: 7, corpus: 8}, {target: c, finding: "x"}}); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(name)
	want := "before\n" + begin + head + "| `a.FuzzA` | 1 | 2 | 3 | none |\n| `b.FuzzB` | 600 | 7 | 8 | none |\n| `c.FuzzC` | 0 | 0 | 0 | x |\n" + end + "behind\n"
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

// The five of whole cores are there, and have their rows in docs/security.md; no row there is of a fuzzer that is gone.
func TestDocument(t *testing.T) {
	all, err := find("../..")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for _, name := range core {
		if !slices.ContainsFunc(all, func(t target) bool { return t.String() == name && t.core }) {
			t.Errorf("there is no fuzzer %s", name)
		}
		if !strings.Contains(doc, "| `"+name+"` |") {
			t.Errorf("%s has no row: run make fuzz FUZZ=-core", name)
		}
	}
	_, table, _ := strings.Cut(doc, begin)
	table, _, _ = strings.Cut(table, end)
	for line := range strings.Lines(table) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`")
		if ok && strings.HasPrefix(line, "| `") && !slices.ContainsFunc(all, func(t target) bool { return t.String() == name }) {
			t.Errorf("%s has a row, but is gone: take it out", name)
		}
	}
}

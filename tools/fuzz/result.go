package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A result is what came of a run.
type result struct {
	target
	elapsed    time.Duration
	executions int
	grown      int    // inputs that covered more than those before
	corpus     int    // inputs at last
	finding    string // "": none
	output     string // all that it wrote, if there is a finding
}

var (
	progress = regexp.MustCompile(`fuzz: elapsed: (\S+), execs: (\d+) \(\d+/sec\), new interesting: (\d+) \(total: (\d+)\)`)
	failure  = regexp.MustCompile(`Failing input written to (\S+)`)
)

// read takes the output of a fuzzer apart (go doc testing, "Fuzzing"): the last line of progress counts.
func read(t target, output string) result {
	r := result{target: t}
	if all := progress.FindAllStringSubmatch(output, -1); len(all) > 0 {
		m := all[len(all)-1]
		r.elapsed, _ = time.ParseDuration(m[1])
		r.executions, _ = strconv.Atoi(m[2])
		r.grown, _ = strconv.Atoi(m[3])
		r.corpus, _ = strconv.Atoi(m[4])
	}
	if m := failure.FindStringSubmatch(output); m != nil {
		r.finding = m[1]
	} else if strings.Contains(output, "--- FAIL") && !endedLate(output) {
		r.finding = "a seed fails"
	}
	return r
}

// endedLate tells whether a fuzzer failed only because its time was over while a worker was busy, as happens on a loaded
// machine (golang.org/issue/56238).
func endedLate(output string) bool {
	return strings.Contains(output, "\n    context deadline exceeded\n") && failure.FindString(output) == ""
}

// String is what is printed.
func (r result) String() string {
	s := fmt.Sprintf("%-40s %6.0f s  %9d executions  %5d new of %5d inputs", r.target, r.elapsed.Seconds(), r.executions, r.grown, r.corpus)
	if r.finding != "" {
		s += "  FINDING: " + r.finding + "\n" + r.output
	}
	return s
}

// row is a line of the document's table.
func (r result) row() string {
	finding := "none"
	if r.finding != "" {
		finding = r.finding
	}
	return fmt.Sprintf("| `%s` | %.0f | %d | %d | %s |\n", r.target, r.elapsed.Seconds(), r.executions, r.corpus, finding)
}

const (
	begin = "<!-- begin of what make fuzz writes -->\n"
	end   = "<!-- end of what make fuzz writes -->\n"
	head  = "| fuzzer | seconds | executions | inputs | findings |\n|---|---|---|---|---|\n"
)

// rewrite puts rows into a document's table: those of the same fuzzers are replaced, all others stay.
func rewrite(name string, results []result) error {
	doc, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	from, to := bytes.Index(doc, []byte(begin)), bytes.Index(doc, []byte(end))
	if from < 0 || to < from {
		return fmt.Errorf("writing the table: %s has no place for it, which begins with %q", name, strings.TrimSpace(begin))
	}
	from += len(begin)
	table := merge(string(doc[from:to]), results)
	return os.WriteFile(name, []byte(string(doc[:from])+table+string(doc[to:])), 0o644)
}

func merge(table string, results []result) string {
	fresh := map[string]string{}
	for _, r := range results {
		fresh[r.target.String()] = r.row()
	}
	out := head
	for line := range strings.Lines(table) {
		name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "`")
		if !ok || !strings.HasPrefix(line, "| `") {
			continue
		}
		if row := fresh[name]; row != "" {
			line = row
			delete(fresh, name)
		}
		out += line
	}
	for _, r := range results {
		out += fresh[r.target.String()]
	}
	return out
}

// Command testsum runs "go test" with the given arguments and prints one line
// a package, every skipped test with its reason, and last what the failed
// tests wrote.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is one line of "go test -json" (go doc test2json, and go help buildjson).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// summary is what has been seen so far.
type summary struct {
	out     io.Writer
	verbose bool
	outputs map[string]*strings.Builder // by package and test; test "" is the package's own
	skips   []string
	failed  []string // keys of outputs, in order
}

func main() {
	args := os.Args[1:]
	s := &summary{out: os.Stdout, outputs: map[string]*strings.Builder{}}
	for _, arg := range args {
		s.verbose = s.verbose || arg == "-v"
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum:", err)
		os.Exit(1)
	}
	s.read(stdout)
	err = cmd.Wait()
	s.finish()
	if err != nil || len(s.failed) > 0 {
		os.Exit(1)
	}
}

// read takes in events until the end.
func (s *summary) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(s.out, lines.Text())
			continue
		}
		s.take(&e)
	}
}

func (s *summary) take(e *event) {
	if e.ImportPath != "" {
		// Of a test binary as "package [package.test]".
		e.Package, _, _ = strings.Cut(e.ImportPath, " ")
	}
	key := strings.TrimSpace(e.Package + " " + e.Test)
	switch e.Action {
	case "output", "build-output":
		if s.outputs[key] == nil {
			s.outputs[key] = &strings.Builder{}
		}
		s.outputs[key].WriteString(e.Output)
	case "skip":
		if e.Test != "" {
			s.skips = append(s.skips, key+": "+s.reason(key))
		}
	case "pass":
		if e.Test == "" {
			fmt.Fprintf(s.out, "ok    %-32s %6.1f s\n", e.Package, e.Elapsed)
		} else if s.verbose {
			fmt.Fprintf(s.out, "ok      %-60s %6.1f s\n", e.Test, e.Elapsed)
		}
	case "fail", "build-fail":
		if e.Test == "" {
			fmt.Fprintf(s.out, "FAIL  %-32s %6.1f s\n", e.Package, e.Elapsed)
			s.failed = append(s.failed, s.unfinished(e.Package)...)
		}
		s.failed = append(s.failed, key)
		return
	}
	if e.Action == "pass" || e.Action == "skip" {
		delete(s.outputs, key)
	}
}

// unfinished returns the tests of a package that have neither passed nor
// failed: those that were running when the process died.
func (s *summary) unfinished(pkg string) []string {
	var keys []string
	for key := range s.outputs {
		if strings.HasPrefix(key, pkg+" ") && !slices.Contains(s.failed, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// reason returns what a skipped test wrote, without the frame that go test adds.
func (s *summary) reason(key string) string {
	var words []string
	if output := s.outputs[key]; output != nil {
		for line := range strings.Lines(output.String()) {
			line = strings.TrimSpace(line)
			if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
				words = append(words, line)
			}
		}
	}
	if words == nil {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func (s *summary) finish() {
	for _, skip := range s.skips {
		fmt.Fprintln(s.out, "left out:", skip)
	}
	for _, key := range s.failed {
		if output := s.outputs[key]; output != nil {
			fmt.Fprintf(s.out, "\n---- %s\n%s", key, output)
		}
	}
}

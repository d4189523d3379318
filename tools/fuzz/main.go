// Command fuzz runs the fuzzers of this repository, some at a time, each for a time, and prints for each what came of it. With -o it writes
// the table into a document, in the place of what it has written there before. Corpora that grow stay in the build cache; what fails is put
// into the package's testdata, where go test runs it again.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// A target is one fuzzer.
type target struct {
	pkg  string // its directory, from the root: "internal/nic"
	name string // "FuzzCore"
	core bool   // of a whole core, of those that make test runs
}

func (t target) String() string { return t.pkg + "." + t.name }

// core are the fuzzers of whole cores: of the wire, of programs' commands, of management datagrams, of queues.
var core = []string{"internal/nic.FuzzCore", "internal/nic.FuzzRings", "internal/uverbs.FuzzSequences", "internal/ucm.FuzzCommands", "internal/ibcm.FuzzMADs"}

var (
	forTime  = flag.Duration("time", 10*time.Minute, "how long each runs")
	parallel = flag.Int("n", 2, "how many run at a time")
	only     = flag.String("run", "", "run only those whose name, such as internal/nic.FuzzCore, this expression matches")
	cores    = flag.Bool("core", false, "run only the five of whole cores")
	list     = flag.Bool("list", false, "list them, and run none")
	fresh    = flag.Bool("fresh", false, "begin with the seeds alone, and keep nothing: a corpus that has grown takes a short run's time")
	document = flag.String("o", "", "write the table into this document")
)

func main() {
	flag.Parse()
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	expression, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	all, err := find(".")
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(t target) bool { return !expression.MatchString(t.String()) || *cores && !t.core })
	if *list || len(all) == 0 {
		for _, t := range all {
			fmt.Fprintln(out, t)
		}
		return nil
	}
	dir, err := os.MkdirTemp("", "rnic-fuzz")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	results, err := runAll(out, all, dir)
	if err != nil {
		return err
	}
	if *document != "" {
		if err := rewrite(*document, results); err != nil {
			return err
		}
	}
	for _, r := range results {
		if r.finding != "" {
			return fmt.Errorf("there are findings: run go test in their packages")
		}
	}
	return nil
}

var fuzzer = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)

// find lists the fuzzers below a directory, those of whole cores first.
func find(root string) (all []target, err error) {
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range fuzzer.FindAllSubmatch(b, -1) {
			pkg, _ := filepath.Rel(root, filepath.Dir(path))
			t := target{pkg: filepath.ToSlash(pkg), name: string(m[1])}
			t.core = slices.Contains(core, t.String())
			all = append(all, t)
		}
		return nil
	})
	slices.SortFunc(all, func(a, b target) int {
		if a.core != b.core {
			if a.core {
				return -1
			}
			return 1
		}
		return strings.Compare(a.String(), b.String())
	})
	return all, err
}

// runAll builds each package's fuzzers once, and runs them.
func runAll(out io.Writer, all []target, dir string) ([]result, error) {
	binaries := map[string]string{}
	for _, t := range all {
		if binaries[t.pkg] != "" {
			continue
		}
		binary := filepath.Join(dir, strings.ReplaceAll(t.pkg, "/", "-"))
		binaries[t.pkg] = binary
		build := exec.Command("go", "test", "-c", "-fuzz=.", "-o", binary, "./"+t.pkg)
		if b, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the fuzzers of %s: %w\n%s", t.pkg, err, b)
		}
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return nil, fmt.Errorf("asking for the build cache: %w", err)
	}
	corpus := filepath.Join(strings.TrimSpace(string(cache)), "rnic-fuzz")
	if *fresh {
		corpus = filepath.Join(dir, "corpus")
	}
	results := make([]result, len(all))
	var mu sync.Mutex
	var running sync.WaitGroup
	slots := make(chan struct{}, max(1, *parallel))
	for i, t := range all {
		slots <- struct{}{}
		running.Go(func() {
			results[i] = fuzz(t, binaries[t.pkg], filepath.Join(corpus, t.pkg))
			mu.Lock()
			fmt.Fprintln(out, results[i])
			mu.Unlock()
			<-slots
		})
	}
	running.Wait()
	return results, nil
}

// fuzz runs one. Inputs that cover more are not made smaller for long: that would take most of the time.
func fuzz(t target, binary, corpus string) result {
	cmd := exec.Command(binary, "-test.run=^$", "-test.fuzz=^"+t.name+"$", "-test.fuzztime="+forTime.String(), "-test.fuzzminimizetime=50x",
		"-test.parallel=1", "-test.fuzzcachedir="+corpus)
	cmd.Dir = filepath.FromSlash(t.pkg)
	b, err := cmd.CombinedOutput()
	r := read(t, string(b))
	if err != nil && r.finding == "" && !endedLate(string(b)) {
		r.finding = "it ended with " + err.Error()
	}
	if r.finding != "" {
		r.output = string(b)
	}
	return r
}

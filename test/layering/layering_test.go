// Package layering checks what may import what. The table is that of
// ARCHITECTURE.md: change both, or neither.
package layering

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "rnic"
	root   = "../.."
)

// mayImport says which packages of this module each one may import. A package
// below one of these counts as that one (internal/link/udp as internal/link),
// and may always import its own. Tests may import anything.
var mayImport = map[string][]string{
	"verbs":            append([]string{"internal/device", "internal/ring", "internal/dma"}, vocabulary...),
	"cm":               {"verbs", "internal/cma", "internal/ibcm", "internal/nic", "internal/roce"},
	"internal/roce":    {},
	"internal/ring":    {},
	"internal/hostmem": {},
	"internal/nic":     {"internal/roce", "internal/ring", "internal/hostmem"},
	"internal/ibcm":    {"internal/roce"},
	"internal/fault":   {"internal/roce"},
	"internal/sim": {"internal/nic", "internal/ibcm", "internal/roce", "internal/ring", "internal/hostmem",
		"internal/fault"},
	"internal/shm":  {},
	"internal/dma":  {"internal/hostmem", "internal/shm"},
	"internal/link": {"internal/roce", "internal/fault"},
	"internal/engine": {"internal/nic", "internal/roce", "internal/ring", "internal/hostmem", "internal/dma",
		"internal/shm", "internal/link"},
	"internal/netdev": {},
	"internal/device": {"internal/nic", "internal/ibcm", "internal/ring", "internal/hostmem", "internal/dma",
		"internal/shm", "internal/engine", "internal/link", "internal/fault", "internal/netdev", "internal/roce"},
	"internal/sandbox":   {"internal/shm"},
	"internal/join":      {"internal/sandbox", "internal/dma", "internal/hostmem", "internal/shm"},
	"internal/rdmanl":    {},
	"internal/pipewatch": {},
	"internal/doctor":    {"internal/netdev", "internal/roce"},
	"internal/control":   {},
	"internal/explain":   {"internal/roce"},
	"internal/uverbs": append([]string{"internal/device", "internal/sandbox", "internal/ring", "internal/dma",
		"internal/shm", "internal/rdmanl", "internal/pipewatch"}, vocabulary...),
	"internal/cma": {"verbs", "internal/device", "internal/ibcm", "internal/nic", "internal/roce"},
	"internal/ucm": {"internal/cma", "internal/ibcm", "internal/device", "internal/sandbox", "internal/pipewatch", "internal/nic", "internal/roce"},
}

// vocabulary is what front ends need to speak of a device's objects: attributes, states, addresses, and
// the memory that they register. They drive none of it: that is the device's.
var vocabulary = []string{"internal/nic", "internal/roce", "internal/hostmem"}

// unlayered packages may import everything, and no layer may import them.
// internal/perf is a part of cmd/rnic.
var unlayered = []string{"cmd", "internal/perf", "internal/testnet", "internal/fuzzscript", "test", "tools", "examples"}

// pure packages are state machines: what they do follows from what they are
// given, so that one seed replays one run. They know no clock, no system, no
// other goroutine and no randomness but what they are handed.
var pure = []string{"internal/nic", "internal/ibcm", "internal/roce", "internal/ring", "internal/hostmem",
	"internal/fault", "internal/rdmanl", "internal/explain"}

// impure are the imports that pure packages must not have; a "/..." covers everything below.
var impure = []string{"net", "net/http/...", "os/...", "os", "sync", "syscall", "runtime", "runtime/...", "context",
	"crypto/rand", "golang.org/x/sys/...", "io/ioutil", "log", "log/..."}

// timeAllowed is what pure packages may use of package time: lengths of time, not the clock.
var timeAllowed = []string{"Duration", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour",
	"ParseDuration"}

// randAllowed is what pure packages may use of math/rand and math/rand/v2: generators that they seed.
var randAllowed = []string{"New", "NewPCG", "NewChaCha8", "NewSource", "NewZipf", "Rand", "PCG", "ChaCha8", "Source",
	"Source64", "Zipf"}

// source is one parsed Go file.
type source struct {
	name string // path from the root
	dir  string // path from the root of the package's directory
	file *ast.File
	test bool
}

func sources(t *testing.T) []source {
	t.Helper()
	var list []source
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			if name != root && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata" || base == "build") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		list = append(list, source{rel, path.Dir(rel), file, strings.HasSuffix(base, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 10 {
		t.Fatalf("found only %d Go files below %s", len(list), root)
	}
	return list
}

// layer returns the table's entry that a directory belongs to, or "" for the unlayered ones.
func layer(dir string) (name string, known bool) {
	for d := dir; d != "."; d = path.Dir(d) {
		if slices.Contains(unlayered, d) {
			return "", true
		}
		if _, ok := mayImport[d]; ok {
			return d, true
		}
	}
	return "", false
}

// imports calls f with every import of a file: its path and the name that the file knows it by.
func imports(file *ast.File, f func(importPath, name string)) {
	for _, spec := range file.Imports {
		importPath, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(importPath)
		if name == "v2" {
			name = path.Base(path.Dir(importPath))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		f(importPath, name)
	}
}

// TestImports checks the table.
func TestImports(t *testing.T) {
	for _, src := range sources(t) {
		from, known := layer(src.dir)
		if !known {
			t.Errorf("%s: package %s is not in the table: add it to the table here and to ARCHITECTURE.md", src.name, src.dir)
			continue
		}
		if src.test || from == "" {
			continue
		}
		imports(src.file, func(importPath, _ string) {
			dir, ours := strings.CutPrefix(importPath, module+"/")
			if !ours {
				return
			}
			if to, _ := layer(dir); to != from && !slices.Contains(mayImport[from], to) {
				t.Errorf("%s: %s may not import %s; it may import %v", src.name, from, dir, mayImport[from])
			}
		})
	}
}

// TestPurity checks that the pure packages cannot reach anything but what they are given.
func TestPurity(t *testing.T) {
	for _, src := range sources(t) {
		from, _ := layer(src.dir)
		if src.test || !slices.Contains(pure, from) {
			continue
		}
		for _, complaint := range impurities(src.name, src.file) {
			t.Error(complaint)
		}
	}
}

func impurities(name string, file *ast.File) []string {
	var complaints []string
	complain := func(format string, args ...any) {
		complaints = append(complaints, name+": "+fmt.Sprintf(format, args...))
	}
	restricted := map[string][]string{} // name of a package in this file: what may be used of it
	imports(file, func(importPath, as string) {
		switch {
		case slices.ContainsFunc(impure, func(p string) bool { return covers(p, importPath) }):
			complain("a pure package may not import %s", importPath)
		case importPath == "unsafe" && !strings.HasSuffix(name, "_unsafe.go"):
			complain("unsafe belongs in a file that ends in _unsafe.go")
		case importPath == "time":
			restricted[as] = timeAllowed
		case importPath == "math/rand", importPath == "math/rand/v2":
			restricted[as] = randAllowed
		}
		if as == "." {
			complain("imports %s into its own names", importPath)
		}
	})
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.GoStmt:
			complain("a pure package may not start goroutines")
		case *ast.SelectorExpr:
			x, ok := node.X.(*ast.Ident)
			if !ok {
				return true
			}
			if allowed, ok := restricted[x.Name]; ok && !slices.Contains(allowed, node.Sel.Name) {
				complain("a pure package may not use %s.%s", x.Name, node.Sel.Name)
			}
		}
		return true
	})
	return complaints
}

// covers reports whether a pattern of impure covers an import.
func covers(pattern, importPath string) bool {
	if prefix, below := strings.CutSuffix(pattern, "..."); below {
		return strings.HasPrefix(importPath, prefix)
	}
	return pattern == importPath
}

// TestPurityFinds checks that the check of purity itself finds each kind of impurity.
func TestPurityFinds(t *testing.T) {
	for _, test := range []struct {
		body string
		want int
	}{
		{`import "time"; var d = 3 * time.Millisecond; var e time.Duration`, 0},
		{`import "time"; var now = time.Now()`, 1},
		{`import clock "time"; var now = clock.Since`, 1},
		{`import "math/rand/v2"; var r = rand.New(rand.NewPCG(1, 2)).Uint64()`, 0},
		{`import "math/rand/v2"; var r = rand.Uint64()`, 1},
		{`import "net/netip"; import "sync/atomic"`, 0},
		{`import "net"; import "os"; import "sync"; import "syscall"; import "golang.org/x/sys/unix"`, 5},
		{`import . "os/exec"`, 2},
		{`import "unsafe"`, 1},
		{`func f() { go f() }`, 1},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; "+test.body, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := impurities("x.go", file); len(got) != test.want {
			t.Errorf("%s: complaints %q, want %d", test.body, got, test.want)
		}
	}
}

// TestRepositoryStandsAlone checks that no file refers to places which a
// clone of the repository does not have.
func TestRepositoryStandsAlone(t *testing.T) {
	// Spelt so that this file does not contain them.
	places := [][]byte{[]byte("/wo" + "rk/"), []byte("../sha" + "red")}
	out, err := exec.Command("git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("git ls-files: %v: only a clone knows which files belong to the repository", err)
	}
	for name := range strings.SplitSeq(strings.Trim(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue // deleted in the working tree, or a symbolic link to nothing
		}
		for _, place := range places {
			if i := bytes.Index(data, place); i >= 0 {
				line := 1 + bytes.Count(data[:i], []byte("\n"))
				t.Errorf("%s:%d refers to %s, which is not part of the repository", name, line, place)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(root, ".github")); err == nil {
		t.Error("there is a directory .github; what it would do belongs in .ci and the Makefile")
	}
}

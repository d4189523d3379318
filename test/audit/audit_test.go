// Package audit holds the Go API to its promise: every verb, operation and event has an example that runs, a scenario of
// the simulator, and a test of the protocol that cites its clause. The rows are in table_test.go.
package audit

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"rnic/internal/sim"
)

const root = "../.."

// directory is a directory's parsed Go files.
type directory struct {
	fset  *token.FileSet
	files []*ast.File
}

// parse parses the files of a directory that keep wants.
func parse(t *testing.T, dir string, keep func(name string) bool) (d directory) {
	t.Helper()
	d.fset = token.NewFileSet()
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || !keep(e.Name()) {
			continue
		}
		f, err := parser.ParseFile(d.fset, filepath.Join(root, dir, e.Name()), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		d.files = append(d.files, f)
	}
	return d
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// functions are a directory's functions, methods as "receiver.name".
func (d directory) functions() map[string]*ast.FuncDecl {
	all := map[string]*ast.FuncDecl{}
	for _, f := range d.files {
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				all[declared(fn)] = fn
			}
		}
	}
	return all
}

// declared is a function's name, "T.Name" for a method of T or *T.
func declared(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	typ := fn.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// text is all comments of a function: in front of it and within.
func (d directory) text(fn *ast.FuncDecl) string {
	var b strings.Builder
	if fn.Doc != nil {
		b.WriteString(fn.Doc.Text())
	}
	for _, f := range d.files {
		if fn.Pos() < f.FileStart || fn.Pos() >= f.FileEnd {
			continue
		}
		for _, c := range f.Comments {
			if c.Pos() > fn.Body.Pos() && c.End() < fn.Body.End() {
				b.WriteString(c.Text())
			}
		}
	}
	return b.String()
}

// mentions tells whether a function's body has a name.
func mentions(fn *ast.FuncDecl, name string) (found bool) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return !found
	})
	return found
}

// api is the package verbs, type-checked as far as its own declarations go: what it imports is left out.
type api struct{ pkg *types.Package }

// Import is of types.Importer: package verbs, and empty packages for all others.
func (a api) Import(name string) (*types.Package, error) {
	if a.pkg != nil && name == "rnic/verbs" {
		return a.pkg, nil
	}
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// check type-checks files, with a as what they import, and returns which objects their names stand for. What cannot
// be known without the imports is left out.
func (a api) check(d directory, name string) (*types.Package, *types.Info) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	cfg := types.Config{Importer: a, Error: func(error) {}}
	pkg, _ := cfg.Check(name, d.fset, d.files, info) // there are errors: of what was left out
	return pkg, info
}

// verbName is what the table calls an object of package verbs, "" if it is none of its verbs.
func verbName(o types.Object) string {
	if o == nil || o.Pkg() == nil || o.Pkg().Name() != "verbs" || !o.Exported() {
		return ""
	}
	switch o := o.(type) {
	case *types.Const:
		if strings.HasPrefix(o.Name(), "Op") || strings.HasPrefix(o.Name(), "Event") {
			return o.Name()
		}
	case *types.Func:
		recv := o.Signature().Recv()
		if recv == nil {
			return o.Name()
		}
		typ := recv.Type()
		if p, ok := typ.(*types.Pointer); ok {
			typ = p.Elem()
		}
		if n, ok := typ.(*types.Named); ok && n.Obj().Exported() {
			return n.Obj().Name() + "." + o.Name()
		}
	}
	return ""
}

// verbsOf are the verbs, operations and events that package verbs exports.
func verbsOf(pkg *types.Package) map[string]bool {
	all := map[string]bool{}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		all[verbName(o)] = true
		if t, ok := o.(*types.TypeName); ok && !t.IsAlias() {
			if n, ok := t.Type().(*types.Named); ok {
				for m := range n.Methods() {
					all[verbName(m)] = true
				}
			}
		}
	}
	delete(all, "")
	return all
}

// uses are the verbs that each function of the examples uses, itself or by the helpers that it calls.
func uses(d directory, info *types.Info) map[string]map[string]bool {
	fns := d.functions()
	direct, calls := map[string]map[string]bool{}, map[string]map[string]bool{}
	named := map[string][]string{} // functions by the name without the receiver
	for name, fn := range fns {
		named[fn.Name.Name] = append(named[fn.Name.Name], name)
	}
	for name, fn := range fns {
		direct[name], calls[name] = map[string]bool{}, map[string]bool{}
		ast.Inspect(fn, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if v := verbName(info.Uses[id]); v != "" {
					direct[name][v] = true
				}
				for _, callee := range named[id.Name] {
					calls[name][callee] = true
				}
			}
			return true
		})
	}
	for again := true; again; {
		again = false
		for name := range fns {
			for callee := range calls[name] {
				before := len(direct[name])
				maps.Copy(direct[name], direct[callee])
				again = again || len(direct[name]) > before
			}
		}
	}
	return direct
}

// clause is what counts as a citation: a section of volume 1 or of an annex, a compliance statement, or a header.
var clause = regexp.MustCompile(`\b(9|1[0-7])\.\d+(\.\d+)*\b|\bA1\d(\.\d+)*\b|\b[Co](A?\d+)-\d+|\b(rdma|infiniband)/[a-z_]+\.h\b`)

// verbs is package verbs.
func verbs(t *testing.T) *types.Package {
	t.Helper()
	pkg, _ := api{}.check(parse(t, "verbs", func(n string) bool { return !isTest(n) }), "rnic/verbs")
	return pkg
}

func TestEveryVerbIsExemplifiedSimulatedAndTested(t *testing.T) {
	pkg := verbs(t)
	all := verbsOf(pkg)
	if len(all) < 95 {
		t.Fatalf("only %d verbs, operations and events are found", len(all))
	}
	a := newAuditor(t, pkg)
	seen := map[string]bool{}
	for _, r := range table {
		switch {
		case !all[r.verb]:
			t.Errorf("%s has a row, and package verbs has no such verb, operation or event", r.verb)
		case seen[r.verb]:
			t.Errorf("%s has two rows", r.verb)
		default:
			a.check(r)
		}
		seen[r.verb] = true
	}
	for _, c := range a.complaints {
		t.Error(c)
	}
	for _, v := range slices.Sorted(maps.Keys(all)) {
		if !seen[v] {
			t.Errorf("%s has no row: name its example, its scenario in the simulator, and the test that cites its clause", v)
		}
	}
}

// auditor checks rows.
type auditor struct {
	t          *testing.T
	complaints []string

	examples map[string]*doc.Example
	used     map[string]map[string]bool // by examples
	sim      map[string]*ast.FuncDecl
	clean    *ast.FuncDecl // the simulator's test of what all seeds together must have met
	opNames  []string
	coverage string
	tests    map[string]directory // of each package
	docs     string               // the reference
}

func (a *auditor) complain(format string, args ...any) {
	a.complaints = append(a.complaints, fmt.Sprintf(format, args...))
}

// check checks a row.
func (a *auditor) check(r row) {
	a.example(r)
	a.scenario(r)
	a.protocol(r)
	a.reference(r)
}

func newAuditor(t *testing.T, pkg *types.Package) *auditor {
	t.Helper()
	a := &auditor{t: t, examples: map[string]*doc.Example{}, tests: map[string]directory{}}
	examples := parse(t, "verbs", func(n string) bool { return strings.HasPrefix(n, "example_") })
	for _, e := range doc.Examples(examples.files...) {
		a.examples["Example"+e.Name] = e
	}
	_, info := api{pkg}.check(examples, "rnic/verbs_test")
	a.used = uses(examples, info)
	a.sim = parse(t, "internal/sim", func(n string) bool { return !isTest(n) }).functions()
	a.clean = parse(t, "internal/sim", isTest).functions()["TestCleanSeeds"]
	if a.clean == nil {
		t.Fatal("internal/sim has no TestCleanSeeds, which says what the seeds must meet")
	}
	a.opNames = slices.Collect(maps.Values(sim.OpNames))
	var none sim.Coverage
	var report strings.Builder
	none.Report(&report)
	a.coverage = report.String()
	text, err := os.ReadFile(filepath.Join(root, "docs/verbs.md"))
	if err != nil {
		t.Fatal(err)
	}
	a.docs = string(text)
	return a
}

func (a *auditor) example(r row) {
	if why, none := strings.CutPrefix(r.example, "none: "); none && why != "" {
		return
	}
	switch e := a.examples[r.example]; {
	case e == nil:
		a.complain("%s: there is no %s in verbs/example_*_test.go", r.verb, r.example)
	case e.Output == "" && !e.EmptyOutput:
		a.complain("%s: %s has no output that is compared, so it does not run", r.verb, r.example)
	case !a.used[r.example][r.verb]:
		a.complain("%s: %s does not use it", r.verb, r.example)
	}
}

// scenario checks what the row names of the simulator; see row.
func (a *auditor) scenario(r row) {
	kind, name, _ := strings.Cut(r.scenario, ": ")
	switch kind {
	case "none":
		if name == "" {
			a.complain("%s: no scenario, and no reason", r.verb)
		}
	case "posts":
		if !slices.Contains(a.opNames, name) {
			a.complain("%s: the simulator's programs post no %q; they post %q", r.verb, name, a.opNames)
		}
	case "meets":
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `  +`).MatchString(a.coverage) {
			a.complain("%s: the simulator's coverage has no operation %q", r.verb, name)
		}
	case "counts":
		if !mentions(a.clean, name) {
			a.complain("%s: the simulator's TestCleanSeeds does not ask for %s", r.verb, name)
		}
	default:
		fn := a.sim[kind]
		if fn == nil {
			a.complain("%s: internal/sim has no %s", r.verb, kind)
		} else if !mentions(fn, name) {
			a.complain("%s: %s of internal/sim does not use %s", r.verb, kind, name)
		}
	}
}

// protocol checks that the row's test exists, and that its comments cite the row's clause.
func (a *auditor) protocol(r row) {
	if why, none := strings.CutPrefix(r.test, "none: "); none && why != "" {
		return
	}
	dir, name, _ := strings.Cut(r.test, ":")
	d, ok := a.tests[dir]
	if !ok {
		d = parse(a.t, dir, isTest)
		a.tests[dir] = d
	}
	fn := d.functions()[name]
	if fn == nil || !strings.HasPrefix(name, "Test") {
		a.complain("%s: %s has no test %q", r.verb, dir, name)
		return
	}
	if !clause.MatchString(r.clause) {
		a.complain("%s: %q is neither a section or compliance statement nor a header", r.verb, r.clause)
	}
	// Comments break their lines anywhere.
	if text := strings.Join(strings.Fields(d.text(fn)), " "); !cites(text, r.clause) {
		a.complain("%s: %s does not cite %s; its comments: %s", r.verb, name, r.clause, text)
	}
}

// reference checks that docs/verbs.md says something of the verb, by the name in its row.
func (a *auditor) reference(r row) {
	if r.example != commands && !regexp.MustCompile(`\b`+regexp.QuoteMeta(r.verb)+`\b`).MatchString(a.docs) {
		a.complain("%s: docs/verbs.md does not have it", r.verb)
	}
}

// cites tells whether a text has a clause, and not as the beginning of a longer number.
func cites(text, clause string) bool {
	return regexp.MustCompile(`(^|[^\d.])` + regexp.QuoteMeta(clause) + `($|[^\d.]|\.($|\D))`).MatchString(text)
}

// The audit finds what is missing: each of these rows has one thing that is wrong.
func TestAuditFinds(t *testing.T) {
	a := newAuditor(t, verbs(t))
	good := row{"QP.PostSend", "ExampleQP_PostSend", "world.post: StoreSend", core + "TestEveryOperationMovesItsData", "11.4.1.1"}
	for what, change := range map[string]func(r *row){
		"no such example":                  func(r *row) { r.example = "ExampleQP_PostSent" },
		"an example of something else":     func(r *row) { r.example = "ExampleContext_AllocPD" },
		"no example":                       func(r *row) { r.example = "" },
		"a scenario that is not there":     func(r *row) { r.scenario = "world.posts: StoreSend" },
		"a scenario of something else":     func(r *row) { r.scenario = "world.post: StoreRecv" },
		"an operation that nobody posts":   func(r *row) { r.scenario = "posts: sent" },
		"an operation that nothing meets":  func(r *row) { r.scenario = "meets: RC SEN" },
		"a counter that nobody asks for":   func(r *row) { r.scenario = "counts: Runt" },
		"no reason for no scenario":        func(r *row) { r.scenario = "none: " },
		"no scenario":                      func(r *row) { r.scenario = "" },
		"no such test":                     func(r *row) { r.test += "2" },
		"a function that is no test":       func(r *row) { r.test = core + "newWire" },
		"a clause that the test lacks":     func(r *row) { r.clause = "11.4.1" },
		"a clause that is none":            func(r *row) { r.clause = "posted" },
		"a verb that the reference lacks":  func(r *row) { r.verb, r.example = "QP.PostSent", "none: for this test" },
		"an example without a verb's name": func(r *row) { r.verb = "QP.PostRecv2" },
	} {
		r := good
		change(&r)
		a.complaints = nil
		if a.check(r); len(a.complaints) == 0 {
			t.Errorf("%s: no complaint", what)
		}
	}
	a.complaints = nil
	if a.check(good); len(a.complaints) > 0 {
		t.Errorf("a good row: %v", a.complaints)
	}
	for text, want := range map[string]bool{"9.4.1: a message": true, "see 9.4.1.": true, "9.4.1.1: another": false, "19.4.1": false, "9.4": false} {
		if cites(text, "9.4.1") != want {
			t.Errorf("cites(%q, 9.4.1) is %v", text, !want)
		}
	}
	for text, want := range map[string]bool{"11.2.5.2": true, "A19.4.2": true, "C10-72": true, "o10-37.2.30": true, "oA19-14": true,
		"rdma/ib_user_verbs.h": true, "it is so": false, "2.5 seconds": false, "verbs.h": false} {
		if clause.MatchString(text) != want {
			t.Errorf("%q is a clause: %v", text, !want)
		}
	}
}

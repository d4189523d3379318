package verbs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// parseFiles parses the package's files whose names keep says.
func parseFiles(t *testing.T, keep func(name string) bool) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !keep(name) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// exported are the functions, methods and constants that programs get, by name.
func exported(files []*ast.File) map[string]bool {
	names := map[string]bool{}
	for _, f := range files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ast.IsExported(strings.TrimPrefix(receiver(d), "*")) {
					names[d.Name.Name] = d.Name.IsExported()
				}
			case *ast.GenDecl:
				if d.Tok != token.CONST {
					continue
				}
				for _, s := range d.Specs {
					for _, id := range s.(*ast.ValueSpec).Names {
						names[id.Name] = id.IsExported() && (strings.HasPrefix(id.Name, "Op") || strings.HasPrefix(id.Name, "Event"))
					}
				}
			}
		}
	}
	maps.DeleteFunc(names, func(_ string, is bool) bool { return !is })
	return names
}

func receiver(d *ast.FuncDecl) string {
	switch x := d.Recv.List[0].Type.(type) {
	case *ast.StarExpr:
		if id, ok := x.X.(*ast.Ident); ok {
			return id.Name
		}
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// withoutExample need none: they are of other commands of the module, or say no more than their names.
var withoutExample = []string{"Wrap", "Unwrap", "RegSpace", "Error", "Err", "String"}

// Every verb has an example that runs: each exported function, method, operation and event is used in one.
func TestEveryVerbHasAnExample(t *testing.T) {
	used := map[string]bool{}
	for _, f := range parseFiles(t, func(n string) bool { return strings.HasPrefix(n, "example_") }) {
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				used[s.Sel.Name] = true
			}
			return true
		})
	}
	all := exported(parseFiles(t, func(n string) bool { return !strings.HasSuffix(n, "_test.go") }))
	if len(all) < 60 {
		t.Fatalf("only %d exported names are found", len(all))
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if !used[name] && !slices.Contains(withoutExample, name) {
			t.Errorf("%s is in no example", name)
		}
	}
}

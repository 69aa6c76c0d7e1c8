package daemon

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// TestRoutes: a call that is defined is one that the server answers.
func TestRoutes(t *testing.T) {
	defined, routed := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"calls.go", "streams.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				return true
			}
			switch x := v.Values[0].(type) {
			case *ast.CallExpr:
				defined[v.Names[0].Name] = true
			case *ast.UnaryExpr:
				defined[v.Names[0].Name] = x.Op == token.AND
			case *ast.CompositeLit:
				for _, e := range x.Elts {
					if id, ok := e.(*ast.Ident); ok && v.Names[0].Name == "routes" {
						routed[id.Name] = true
					}
				}
			}
			return false
		})
	}
	if a, b := slices.Sorted(maps.Keys(defined)), slices.Sorted(maps.Keys(routed)); len(b) == 0 || !slices.Equal(a, b) {
		t.Errorf("defined %q\nrouted %q", a, b)
	}
}

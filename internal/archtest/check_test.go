package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// rules are what check holds a repository to. Packages are named by their folder.
type rules struct {
	module string // path of the module
	// imports: package → packages of ours that it may import; "*": every one. What lies in its own folder internal
	// is part of it: it may import that, and that may import only each other.
	imports    map[string][]string
	tests      map[string][]string // what its test files may import besides; key "": those of every package
	importers  map[string][]string // import path of others, with what lies below it → the only packages whose program imports it
	exceptions []exception

	functionLines, parameters, fileLines, files int
}

// exception lets one place break one rule.
type exception struct {
	rule, place string // as in the violation
	reason      string
}

// violation is one broken rule. The place is "folder", "folder/file.go" or "folder/file.go:function".
type violation struct{ rule, place, message string }

func (v violation) String() string { return v.place + ": " + v.rule + ": " + v.message }

// pkg is one folder's Go files.
type pkg struct {
	folder string
	files  map[string]*ast.File
}

// check parses every Go file of a repository, whatever system and tags it is for, and returns what breaks the rules:
// also an exception that nothing needs any more.
func check(repo fs.FS, r rules) ([]violation, error) {
	fset := token.NewFileSet()
	packages, err := parseAll(repo, fset)
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("no Go files")
	}
	c := checker{rules: r, fset: fset}
	for _, p := range packages {
		c.pkg(p)
	}
	for folder := range r.imports {
		if !slices.ContainsFunc(packages, func(p pkg) bool { return p.folder == folder }) {
			c.report("imports", folder, "is in the table but does not exist")
		}
	}
	return c.withoutExceptions(), nil
}

// parseAll leaves out what the go command leaves out: testdata, vendor, hidden folders and other modules.
func parseAll(repo fs.FS, fset *token.FileSet) ([]pkg, error) {
	var packages []pkg
	err := fs.WalkDir(repo, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			_, err := fs.Stat(repo, path.Join(name, "go.mod"))
			hidden := name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata" || base == "vendor")
			if hidden || name != "." && err == nil {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		data, err := fs.ReadFile(repo, name)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if ignored(f) {
			return nil
		}
		folder := path.Dir(name)
		i := slices.IndexFunc(packages, func(p pkg) bool { return p.folder == folder })
		if i < 0 {
			i = len(packages)
			packages = append(packages, pkg{folder: folder, files: map[string]*ast.File{}})
		}
		packages[i].files[name] = f
		return nil
	})
	return packages, err
}

// ignored says whether a file belongs to no build: a generator that is run by hand.
func ignored(f *ast.File) bool {
	return slices.ContainsFunc(f.Comments, func(g *ast.CommentGroup) bool {
		return g.Pos() < f.Package && slices.ContainsFunc(g.List, func(c *ast.Comment) bool { return c.Text == "//go:build ignore" })
	})
}

type checker struct {
	rules
	fset  *token.FileSet
	found []violation
}

func (c *checker) report(rule, place, format string, args ...any) {
	c.found = append(c.found, violation{rule, place, fmt.Sprintf(format, args...)})
}

// withoutExceptions sorts, and takes out what is excepted.
func (c *checker) withoutExceptions() []violation {
	var kept []violation
	used := make([]bool, len(c.exceptions))
	for _, v := range c.found {
		i := slices.IndexFunc(c.exceptions, func(e exception) bool { return e.rule == v.rule && e.place == v.place })
		if i < 0 {
			kept = append(kept, v)
			continue
		}
		used[i] = true
	}
	for i, e := range c.exceptions {
		if !used[i] {
			kept = append(kept, violation{"exception", e.place, "is not needed any more for " + e.rule})
		} else if e.reason == "" {
			kept = append(kept, violation{"exception", e.place, "has no reason"})
		}
	}
	slices.SortFunc(kept, func(a, b violation) int { return strings.Compare(a.String(), b.String()) })
	return kept
}

func (c *checker) pkg(p pkg) {
	programs, documented, testsDocumented := 0, false, false
	allowed, known := c.allowed(p.folder)
	if !known {
		c.report("imports", p.folder, "is not in the table of what may import what")
	}
	for name, f := range p.files {
		test := strings.HasSuffix(name, "_test.go")
		if known {
			c.fileImports(p.folder, name, f, allowed, test)
		}
		if test {
			testsDocumented = testsDocumented || f.Doc.Text() != ""
			continue
		}
		if !strings.HasSuffix(name, "_other.go") { // only says what systems without sandboxes answer
			programs++
		}
		documented = documented || f.Doc.Text() != ""
		c.file(name, f)
	}
	if !documented && (programs > 0 || !testsDocumented) {
		c.report("comment", p.folder, "has no package comment")
	}
	if programs > c.files {
		c.report("files", p.folder, "has %d files besides tests, more than %d", programs, c.files)
	}
}

// allowed returns what a package may import; a trailing slash stands for all below.
func (c *checker) allowed(folder string) (list []string, known bool) {
	if list, known = c.imports[folder]; known {
		return append(slices.Clone(list), folder+"/internal/"), true
	}
	parent, _, ok := strings.Cut(folder, "/internal/")
	_, known = c.imports[parent]
	return []string{parent + "/internal/"}, ok && known
}

func (c *checker) fileImports(folder, name string, f *ast.File, allowed []string, test bool) {
	may := func(target string) bool {
		return slices.ContainsFunc(allowed, func(a string) bool {
			return a == "*" || a == target || strings.HasSuffix(a, "/") && strings.HasPrefix(target, a)
		})
	}
	if test {
		allowed = slices.Concat(allowed, c.tests[""], c.tests[folder], []string{folder})
	}
	for _, spec := range f.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			c.report("imports", name, "%v", err)
			continue
		}
		if ours, ok := strings.CutPrefix(target, c.module+"/"); ok {
			if !may(ours) {
				c.report("imports", name, "%s may not import %s", folder, ours)
			}
			continue
		}
		for other, only := range c.importers {
			if !test && (target == other || strings.HasPrefix(target, other+"/")) && !slices.Contains(only, folder) {
				c.report("importers", name, "only %s may import %s", strings.Join(only, ", "), target)
			}
		}
	}
}

// file looks at the sizes in one file, and for sleeping.
func (c *checker) file(name string, f *ast.File) {
	if n := c.fset.Position(f.FileEnd).Line; n > c.fileLines {
		c.report("lines", name, "has %d lines, more than %d", n, c.fileLines)
	}
	for _, d := range f.Decls {
		place := name
		if fn, ok := d.(*ast.FuncDecl); ok {
			place = name + ":" + fn.Name.Name
			c.function(place, fn, fn.Type)
		}
		ast.Inspect(d, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncLit:
				c.function(place, n, n.Type)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && n.Sel.Name == "Sleep" && x.Name == importName(f, "time") {
					c.report("sleep", place, "sleeps where an event could be waited for")
				}
			}
			return true
		})
	}
}

// importName returns what a file calls an imported package; empty: it does not import it.
func importName(f *ast.File, target string) string {
	for _, spec := range f.Imports {
		if spec.Path.Value != strconv.Quote(target) {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(target)
	}
	return ""
}

func (c *checker) function(place string, n ast.Node, t *ast.FuncType) {
	if lines := c.fset.Position(n.End()).Line - c.fset.Position(n.Pos()).Line + 1; lines > c.functionLines {
		c.report("function", place, "has %d lines, more than %d", lines, c.functionLines)
	}
	if t.Params.NumFields() > c.parameters {
		c.report("parameters", place, "has %d parameters, more than %d", t.Params.NumFields(), c.parameters)
	}
}

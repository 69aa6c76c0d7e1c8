// Package gitleakstest compares the gate secrets with gitleaks as a library: both look at the same files, and find the same
// rules at the same lines.
package gitleakstest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/secrets"
	"github.com/zricethezav/gitleaks/v8/config"
	"github.com/zricethezav/gitleaks/v8/detect"
	"github.com/zricethezav/gitleaks/v8/sources"
)

type judge struct {
	library *detect.Detector
	gate    gates.Gate
}

func newJudge(t *testing.T) judge {
	t.Helper()
	library, err := detect.NewDetectorDefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	library.MaxDecodeDepth = 5         // as the command has it
	library.IgnoreGitleaksAllow = true // see TestOnPurpose
	gate, err := secrets.Gate(secrets.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return judge{library, gate}
}

// place is where something was found.
type place struct {
	rule string
	line int
}

func (j judge) expected(f file) map[place]bool {
	out := map[place]bool{}
	for _, found := range j.library.Detect(detect.Fragment(sources.Fragment{Raw: f.text, FilePath: f.path, StartLine: 1})) { //nolint:staticcheck // it goes in v9, and v8 takes nothing else
		p := place{found.RuleID, found.StartLine}
		if found.Line == "" && strings.HasPrefix(found.Match, "file detected") {
			p.line = 0 // by the file's name
		}
		out[p] = true
	}
	return out
}

// found is nil when there is more than a verdict lists.
func (j judge) found(t *testing.T, f file) map[place]bool {
	t.Helper()
	open := func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(f.text)), nil }
	v, err := j.gate.Check(t.Context(), &gates.Change{Open: open, Entries: []gates.Entry{{Path: f.path, Kind: gates.KindAdded, Type: gates.TypeFile}}})
	if err != nil {
		t.Fatal(err)
	}
	if v.Dropped > 0 {
		return nil
	}
	out := map[place]bool{}
	for _, found := range v.Findings {
		out[place{found.Rule, found.Line}] = true
	}
	return out
}

// compare returns how often each rule was found by the library.
func (j judge) compare(t *testing.T, f file) map[string]int {
	t.Helper()
	want, got := j.expected(f), j.found(t, f)
	hits := map[string]int{}
	if got == nil {
		half := len(f.text)/2 + strings.IndexByte(f.text[len(f.text)/2:], '\n')
		for _, text := range []string{f.text[:half], f.text[half:]} {
			for rule, n := range j.compare(t, file{f.path, text}) {
				hits[rule] += n
			}
		}
		return hits
	}
	for p := range want {
		hits[p.rule]++
		if !got[p] {
			t.Errorf("%s:%d: gitleaks finds %s, the gate does not", f.path, p.line, p.rule)
		}
	}
	for p := range got {
		if !want[p] && !j.leavesOut(f.path) {
			t.Errorf("%s:%d: the gate finds %s, gitleaks does not", f.path, p.line, p.rule)
		}
	}
	return hits
}

// leavesOut says whether gitleaks does not look at what has this path.
func (j judge) leavesOut(path string) bool {
	return slices.ContainsFunc(j.library.Config.Allowlists, func(a *config.Allowlist) bool { return a.PathAllowed(path) })
}

// TestOnPurpose has all differences that there may be. First what gitleaks lets pass because its user is trusted, and the gate
// does not, because who wrote the change is not; then what bounds the gate's work.
func TestOnPurpose(t *testing.T) {
	j := newJudge(t)
	j.library.IgnoreGitleaksAllow = false
	// Put together here, so that this file has no secret.
	key, pat, named := "AKIA"+"IMNOJVGFDXXXE4OA", "ghp_"+"x7Kq2mZ9vT4bN8sJ1wE6rY3uL5pC0dFhGaQo", "api_key = \""+"vJ3k9Qz7"+"Lw2mXc8TbR5n\""
	wide := make([]byte, 0, 100)
	for _, c := range []byte("\xff\xfek=" + key) {
		if wide = append(wide, c); c < 0x80 {
			wide = append(wide, 0)
		}
	}
	for _, c := range []struct {
		reason         string
		file           file
		gate, gitleaks string // the rules
	}{
		{"a comment cannot allow it", file{"a.go", "k := \"" + key + "\" // gitleaks:allow\n"}, "aws-access-token", ""},
		{"a folder cannot allow it", file{"node_modules/a/b.js", "k = '" + key + "'\n"}, "aws-access-token", ""},
		{"but what goes by a name is too often none there", file{"node_modules/a/b.js", named + "\n"}, "", ""},
		{"a folder of one rule cannot, either", file{"x/@octokit/auth-token/README.md", "token " + pat + "\n"}, "github-pat", ""},
		{"a word far away in a very long line cannot allow it", file{"a.js", "f('--mount=type=secret,');" + strings.Repeat("g(1);", 1000) + named + ";\n"}, "generic-api-key", ""},
		{"UTF-16 is read", file{"a.ps1", string(wide)}, "aws-access-token", ""},
		{"64 KiB are no key", file{"a.json", "{\"api_key\": \"" + strings.Repeat("vJ3k9Qz7Lw2mXc8TbR5n", 5000) + "\"}"}, "", "generic-api-key"},
		{"what is 12 KiB behind a command is none of it", file{"a.js", "'curl x';" + strings.Repeat("g(1);", 4000) + " -u 'admin:Lw2mXc8TbR5n' "}, "", "curl-auth-user"},
		{"a letter that only looks like that of a name is none", file{"a.js", "to\u212aen = \"vJ3k9Qz7" + "Lw2mXc8TbR5n\""}, "", "generic-api-key"},
	} {
		if got := rules(j.expected(c.file)); got != c.gitleaks {
			t.Errorf("%s: gitleaks finds %q", c.reason, got)
		}
		if got := rules(j.found(t, c.file)); got != c.gate {
			t.Errorf("%s: the gate finds %q", c.reason, got)
		}
	}
}

func rules(places map[place]bool) string {
	var out []string
	for p := range places {
		out = append(out, p.rule)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestCorpus: what is made from the rules.
func TestCorpus(t *testing.T) {
	j := newJudge(t)
	hits := map[string]int{}
	for _, f := range corpus(t, j, 2) {
		for rule, n := range j.compare(t, f) {
			hits[rule] += n
		}
	}
	j.compare(t, file{"keys/server.p12", "\x30\x82"})
	for id, r := range j.library.Config.Rules {
		if r.Regex != nil && hits[id] < 2 {
			t.Errorf("%s is found %d times: the corpus says nothing about it", id, hits[id])
		}
	}
}

// TestSoup: no order of what the rules have makes a difference.
func TestSoup(t *testing.T) {
	j, found := newJudge(t), 0
	for _, f := range soup(t, j, 60) {
		for _, n := range j.compare(t, f) {
			found += n
		}
	}
	if found < 200 {
		t.Errorf("%d secrets are no test", found)
	}
}

// TestExamples: what gitleaks itself has as secrets and as none, and is told with; every string of its rules' sources.
func TestExamples(t *testing.T) {
	j, found := newJudge(t), 0
	dir := module(t, "github.com/zricethezav/gitleaks/v8")
	found += j.tree(t, dir)
	sources, err := filepath.Glob(filepath.Join(dir, "cmd/generate/config/rules/*.go"))
	if err != nil || len(sources) < 100 {
		t.Fatal(err, len(sources))
	}
	for _, name := range sources {
		for _, s := range literals(t, name) {
			found += len(j.compare(t, file{"examples/" + filepath.Base(name) + ".txt", s}))
		}
	}
	if found < 500 {
		t.Errorf("%d secrets are no test", found)
	}
}

// TestHarmless: this repository, and modules of others.
func TestHarmless(t *testing.T) {
	j := newJudge(t)
	j.tree(t, "../../..")
	for _, name := range []string{"github.com/spf13/viper", "github.com/rs/zerolog", "github.com/Masterminds/sprig/v3"} {
		j.tree(t, module(t, name))
	}
}

// tree compares the files below a directory, and returns how much the library found in them.
func (j judge) tree(t *testing.T, dir string) (found int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", ".cache"}, d.Name()) {
			return fs.SkipDir
		}
		info, err := d.Info()
		const max = 200 << 10 // the library takes long for more
		if err != nil || !info.Mode().IsRegular() || info.Size() > max {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		path, err := filepath.Rel(dir, name)
		for _, n := range j.compare(t, file{path, string(data)}) {
			found += n
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func module(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func literals(t *testing.T, name string) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil && len(s) > 12 {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

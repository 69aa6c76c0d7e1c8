package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

// schema is that of OASIS, https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json, as it
// was published.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat() // uri, uri-reference, date-time
	s, err := c.Compile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func validate(s *jsonschema.Schema, text string) error {
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

func TestSARIF(t *testing.T) {
	text := write(t, "sarif", sample())
	var log sarifLog
	if err := errors.Join(validate(schema(t), text), json.Unmarshal([]byte(text), &log)); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	run := log.Runs[0]
	if log.Version != "2.1.0" || log.Schema != sarifSchema || len(run.Results) != 5 {
		t.Fatalf("%+v", run)
	}
	prints := map[string]bool{}
	for _, r := range run.Results {
		if rule := run.Tool.Driver.Rules[r.RuleIndex]; rule.ID != r.RuleID || rule.Short.Text == "" {
			t.Errorf("%s is rule %s", r.RuleID, rule.ID)
		}
		at := r.Locations[0].Physical
		u, err := url.Parse(at.Artifact.URI)
		if err != nil || u.IsAbs() || u.Host != "" || u.RawQuery != "" || u.Fragment != "" {
			t.Errorf("%q: %v", at.Artifact.URI, err)
		}
		if strings.Contains(r.Message.Text, "](") {
			t.Errorf("a link: %q", r.Message.Text)
		}
		prints[r.Fingerprints["caisson/v1"]] = true
		if r.RuleID == "paths/protected" && u.Path != ".envrc" && (u.Path != hostile || at.Region.StartLine != 7 || r.Level != "error") {
			t.Errorf("%+v %q", r, u.Path)
		}
		if r.RuleID == "size/binary" && (r.Level != "warning" || at.Artifact.URI != "a%20b.bin") {
			t.Errorf("%+v", r)
		}
		if approved := r.RuleID == "scope/outside"; (len(r.Suppressions) == 1) != approved {
			t.Errorf("%+v", r)
		}
	}
	if len(prints) != 5 || run.Bases["SRCROOT"].URI != "file:///work%20space/%C3%BC/" {
		t.Errorf("%v %+v", prints, run.Bases)
	}
	inv := run.Invocations[0]
	if inv.Successful || len(inv.Notifications) != 3 { // a step, a gate that could not look, what is not listed
		t.Errorf("%+v", inv)
	}
}

// TestSARIFIsCheckedByItsSchema: the check can turn red.
func TestSARIFIsCheckedByItsSchema(t *testing.T) {
	text, schema := write(t, "sarif", sample()), schema(t)
	for name, broken := range map[string]string{
		"level":    strings.Replace(text, `"level": "error"`, `"level": "awful"`, 1),
		"line":     strings.Replace(text, `"startLine": 7`, `"startLine": 0`, 1),
		"required": strings.Replace(text, `"executionSuccessful": false`, `"exitCode": 0`, 1),
		"unknown":  strings.Replace(text, `"ruleIndex"`, `"ruleIdx"`, 1),
		"uri":      strings.Replace(text, `"uri": "a%20b.bin"`, `"uri": "a b%zz.bin"`, 1),
	} {
		if text == broken {
			t.Errorf("%s: nothing was broken", name)
		} else if err := validate(schema, broken); err == nil {
			t.Errorf("%s: it is valid", name)
		}
	}
}

// Equal findings are told apart, and the same finding on another line is the same.
func TestFingerprints(t *testing.T) {
	of := func(line int) (list []string) {
		run := sarifRun{}
		for range 2 {
			list = append(list, run.fingerprint("g", &gates.Finding{Rule: "r", Path: "p", Line: line, Message: "m"}))
		}
		return list
	}
	a, b := of(1), of(9)
	if a[0] == a[1] || a[0] != b[0] || a[1] != b[1] {
		t.Error(a, b)
	}
}

func TestJUnit(t *testing.T) {
	text := write(t, "junit", sample())
	var doc junitSuites
	if err := xml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	status := map[string]string{}
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			name, _, _ := strings.Cut(c.Name, ":")
			how := "pass"
			switch {
			case c.Failure != nil:
				how = "failure"
			case c.Error != nil:
				how = "error"
			case c.Skipped != nil:
				how = "skipped"
			}
			status[s.Name+"/"+name] = how
		}
	}
	want := map[string]string{"steps/1": "pass", "steps/2": "failure", "steps/3": "skipped", "gates static/paths": "failure", "gates static/size": "pass",
		"gates static/secrets": "error", "gates static/scope": "pass", "gates static/links": "skipped", "gates static/lock": "pass"}
	for name, how := range want {
		if status[name] != how {
			t.Errorf("%s: %s, want %s", name, status[name], how)
		}
	}
	if doc.Tests != 9 || doc.Failures != 2 || doc.Errors != 1 || doc.Skipped != 2 || len(status) != len(want) {
		t.Errorf("%+v\n%v", doc, status)
	}
	// What ended the task otherwise is a case, too.
	s := sample()
	s.Task.Result.Steps, s.Task.Result.Gates, s.Checkpoint.Verdicts = nil, nil, nil
	s.Task.Result.Verdict, s.Task.Result.Cause = runner.VerdictRefused, "conflict"
	doc = junitSuites{}
	if err := xml.Unmarshal([]byte(write(t, "junit", s)), &doc); err != nil || doc.Tests != 1 || doc.Failures != 1 || doc.Suites[0].Name != "task" {
		t.Errorf("%v %+v", err, doc)
	}
}

// commands reads workflow commands as the runner does: a line that begins with :: is one.
func commands(t *testing.T, text string) (list []string) {
	t.Helper()
	rule := regexp.MustCompile(`^::(error|warning|notice) (?:file=([^,:]*),(?:line=([0-9]+),)?)?title=([^,:]*)::(.*)$`)
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		m := rule.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, "\r") || !utf8.ValidString(line) {
			t.Fatalf("no command of ours: %q", line)
		}
		list = append(list, m[1]+" "+m[2])
	}
	return list
}

func TestGitHub(t *testing.T) {
	text := write(t, "github", sample())
	list := commands(t, text)
	if len(list) != 8 || list[0] != "error " || list[1] != "error .envrc" || strings.Contains(text, "\x1b") || strings.Contains(text, "\x00") {
		t.Errorf("%q", list)
	}
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "::error::forged") {
			t.Error("a forged command")
		}
	}
}

// TestMarkdown: whatever names are, a row has its cells, and nothing is read into them.
func TestMarkdown(t *testing.T) {
	text := write(t, "markdown", sample())
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "| ---") {
			if n := strings.Count(line, "|"); n != 6+1 && n != 5+1 {
				t.Errorf("%d cells: %q", n-1, line)
			}
		}
		tags := regexp.MustCompile(`<[^>]*>`).FindAllString(line, -1)
		for _, tag := range tags {
			if tag != "<code>" && tag != "</code>" {
				t.Errorf("%q in %q", tag, line)
			}
		}
	}
	for _, bad := range []string{"@octocat", "](", "http:", "onerror=alert(1)>", "\x1b", "\x00", "`", "\r"} {
		if strings.Contains(text, bad) {
			t.Errorf("%q is in\n%s", bad, text)
		}
	}
	for _, good := range []string{"<code>.envrc</code>", "<code>paths/protected</code>", "<code>caisson gate run f&#64;01cp</code>", "size/binary"} {
		if !strings.Contains(text, good) {
			t.Errorf("%q is not in\n%s", good, text)
		}
	}
}

// The table of findings ends, and says what it leaves out.
func TestMarkdownIsBounded(t *testing.T) {
	s := sample()
	v := &s.Checkpoint.Verdicts[0]
	for range 10 * maxRows {
		v.Findings = append(v.Findings, gates.Finding{Rule: "r", Path: "p", Message: "m", Severity: gates.SeverityBlock})
	}
	text := write(t, "markdown", s)
	if !strings.Contains(text, "1807 more findings are not listed") || len(text) > 1<<20 {
		t.Errorf("%d bytes: %s", len(text), text[len(text)-300:])
	}
}

// FuzzEscapes: no text has a meaning in any format.
func FuzzEscapes(f *testing.F) {
	for _, s := range []string{hostile, "", "a.go", "www.evil.example", "GH-1", "::set-output name=x::y", "%25%0A", "]]>", "\u2028\u202e", "\ufffe\uffff", "&#64;"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		decoded, err := url.PathUnescape(uri(s))
		if err != nil || decoded != s || strings.Trim(uri(s), "-._~/%0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			t.Errorf("%q: %q %v", s, uri(s), err)
		}
		var b strings.Builder
		annotate(&b, annotation{level: "error", file: s, title: s, text: s, line: 1})
		commands(t, b.String())
		for _, text := range []string{code(s), prose(s)} {
			inner := strings.TrimSuffix(strings.TrimPrefix(text, "<code>"), "</code>")
			if i := strings.IndexAny(inner, "|`*<>[]\\~@!{}$\n\r\t\x00\x1b"); i >= 0 {
				t.Errorf("%q: %q", s, inner)
			}
			if rest := regexp.MustCompile(`&#[0-9]+;`).ReplaceAllString(inner, ""); strings.ContainsAny(rest, "&#") {
				t.Errorf("%q: %q", s, inner)
			}
		}
		var x bytes.Buffer
		if err := xml.NewEncoder(&x).Encode(junitCase{Name: s, Failure: &junitMessage{Message: s, Text: s}, Out: s}); err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(&x)
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%q: %v", s, err)
		}
	})
}

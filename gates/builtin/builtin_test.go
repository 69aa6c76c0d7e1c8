package builtin

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/gates/files"
)

// TestSelftest: every gate is red on its bad fixtures and green on its good ones.
func TestSelftest(t *testing.T) {
	for _, name := range Names() {
		if r, ok := Selftest(t.Context(), name); !ok || r.Gate != name || !r.OK() || len(r.Problems) > 0 {
			t.Errorf("%+v", r)
		}
	}
	if _, ok := Selftest(t.Context(), "nobody"); ok {
		t.Error("a gate that is none")
	}
}

type fake struct{ findings []gates.Finding }

func (fake) Name() string   { return "fake" }
func (fake) Digest() string { return "fake" }
func (f fake) Check(context.Context, *gates.Change) (gates.Verdict, error) {
	return gates.Verdict{Checked: 1, Findings: f.findings}, nil
}

// TestSelftestTurnsRed: a gate that accepts everything, one that refuses everything, and one without fixtures.
func TestSelftestTurnsRed(t *testing.T) {
	for _, g := range All() {
		fixtures, _ := g.fixtures()
		if r := prove(t.Context(), fake{}, fixtures); r.Good != "pass" || r.Bad != "pass" || r.OK() || len(r.Problems) == 0 {
			t.Errorf("%s: blind: %+v", g.Name, r)
		}
		angry := fake{[]gates.Finding{{Rule: "r", Severity: gates.SeverityBlock}}}
		if r := prove(t.Context(), angry, fixtures); r.Good != "fail" || r.Bad != "pass" || r.OK() {
			t.Errorf("%s: angry: %+v", g.Name, r)
		}
		for _, f := range fixtures {
			if f.Rule != "" && g.Rules != nil && !slices.ContainsFunc(g.Rules, func(r Rule) bool { return r.Name == f.Rule }) {
				t.Errorf("%s does not list its rule %s", g.Name, f.Rule)
			}
		}
	}
	if r := prove(t.Context(), fake{}, nil); r.OK() {
		t.Errorf("no fixtures: %+v", r)
	}
	r := Result{Good: "pass", Bad: "fail"}
	if r.commandLines(command.Config{Mode: command.ModeOff}); r.Good != "pass" || r.Bad != "pass" || len(r.Problems) < 3 {
		t.Errorf("command: %+v", r)
	}
}

func TestConfigure(t *testing.T) {
	c := Config{Settings: map[string]Settings{}}
	if gs, err := Configure(c); err != nil || len(gs) != 0 {
		t.Error(gs, err)
	}
	for _, name := range Names() {
		c.Settings[name] = Settings{Mode: gates.ModeBlock, Severity: gates.SeverityWarn, Timeout: 7}
	}
	c.Settings["lock"] = Settings{Mode: gates.ModeOff}
	gs, err := Configure(c)
	if err != nil || len(gs) != len(All()) {
		t.Fatal(gs, err)
	}
	if _, err := gates.New(gs, gates.Options{}); err != nil {
		t.Error(err)
	}
	for i, g := range All() {
		got := gs[i]
		if got.Gate.Name() != g.Name || got.Phase != gates.PhaseStatic || g.Name != "lock" && (got.Mode != gates.ModeBlock || got.Timeout != 7) || g.About == "" {
			t.Errorf("%+v", got)
		}
	}
	c.Scope = files.ScopeConfig{Forbidden: []string{"/x"}}
	if _, err := Configure(c); err == nil || !strings.Contains(err.Error(), "gate scope") {
		t.Error(err)
	}
	if err := c.Validate(); err == nil || (Config{}).Validate() != nil {
		t.Error(err)
	}
}

// TestDigests: another configuration is another digest, the mode is not part of it.
func TestDigests(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []Config{{}, {Scope: files.ScopeConfig{Task: []string{"a"}}}, {Size: files.SizeConfig{Files: 1}}, {Links: files.LinksConfig{Broken: gates.SeverityOff}}} {
		for _, g := range All() {
			gate, err := g.make(c)
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[gate.Digest()]; ok && other != g.Name {
				t.Errorf("%s and %s have one digest", other, g.Name)
			}
			seen[gate.Digest()] = g.Name
		}
	}
	if len(seen) != len(All())+3 {
		t.Errorf("%d digests", len(seen))
	}
}

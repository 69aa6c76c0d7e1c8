package gates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// fake is a gate that does what its function says.
type fake struct {
	name  string
	check func(context.Context, *Change) (Verdict, error)
}

func (f fake) Name() string   { return f.name }
func (f fake) Digest() string { return "digest of " + f.name }
func (f fake) Check(ctx context.Context, c *Change) (Verdict, error) {
	return f.check(ctx, c)
}

func answer(v Verdict, err error) func(context.Context, *Change) (Verdict, error) {
	return func(context.Context, *Change) (Verdict, error) { return v, err }
}

func TestRun(t *testing.T) {
	warn := Finding{Rule: "r", Severity: SeverityWarn}
	block := Finding{Rule: "r", Severity: SeverityBlock}
	hang := func(ctx context.Context, _ *Change) (Verdict, error) { <-ctx.Done(); return Verdict{Checked: 1}, nil }
	deaf := make(chan struct{})
	defer close(deaf)
	for _, c := range []struct {
		name    string
		mode    Mode
		check   func(context.Context, *Change) (Verdict, error)
		status  Status
		blocked bool
		reason  string
	}{
		{"good", ModeBlock, answer(Verdict{Checked: 1}, nil), Pass, false, ""},
		{"warning", ModeMandatory, answer(Verdict{Checked: 1, Findings: []Finding{warn}}, nil), Pass, false, ""},
		{"bad", ModeBlock, answer(Verdict{Checked: 1, Findings: []Finding{warn, block}}, nil), Fail, true, ""},
		{"unknown severity", ModeBlock, answer(Verdict{Checked: 1, Findings: []Finding{{Severity: "huh"}}}, nil), Fail, true, ""},
		{"bad, only warns", ModeWarn, answer(Verdict{Checked: 1, Findings: []Finding{block}}, nil), Fail, false, ""},
		{"off", ModeOff, answer(Verdict{Checked: 1, Findings: []Finding{block}}, nil), Skipped, false, ""},
		{"unknown mode", "", answer(Verdict{Checked: 1, Findings: []Finding{block}}, nil), Fail, true, ""},
		{"claims to pass", ModeBlock, answer(Verdict{Checked: 1, Status: Pass, Mode: ModeOff, Gate: "other", Findings: []Finding{block}}, nil), Fail, true, ""},
		{"claims to be off", ModeBlock, answer(Verdict{Status: Skipped}, nil), Error, true, "nothing"},
		{"error", ModeBlock, answer(Verdict{Checked: 1}, errors.New("tool missing")), Error, true, "tool missing"},
		{"nothing checked", ModeBlock, answer(Verdict{}, nil), Error, true, "nothing"},
		{"panic", ModeBlock, func(context.Context, *Change) (Verdict, error) { panic("oops") }, Error, true, "oops"},
		{"slow", ModeBlock, hang, Error, true, "out of time"},
		{"deaf", ModeBlock, func(context.Context, *Change) (Verdict, error) { <-deaf; return Verdict{Checked: 1}, nil }, Error, true, "out of time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := &Change{Entries: []Entry{{Path: "x"}}, Digest: "change"}
			vs := Run(t.Context(), []Configured{{Gate: fake{c.name, c.check}, Mode: c.mode, Timeout: 50 * time.Millisecond}}, change)
			v := vs[0]
			if v.Status != c.status || Blocked(vs) != c.blocked || !strings.Contains(v.Reason, c.reason) {
				t.Errorf("%+v, blocked %v", v, Blocked(vs))
			}
			if v.Gate != c.name || v.GateDigest != "digest of "+c.name || v.ChangeDigest != "change" || v.Mode != c.mode || v.Started.IsZero() {
				t.Errorf("evidence: %+v", v)
			}
		})
	}
}

func TestRunKeepsTheOrder(t *testing.T) {
	var gs []Configured
	for i := range 20 {
		gs = append(gs, Configured{Mode: ModeBlock, Gate: fake{fmt.Sprint(i), answer(Verdict{Checked: 1}, nil)}})
	}
	for i, v := range Run(t.Context(), gs, &Change{}) {
		if v.Gate != fmt.Sprint(i) || v.Status != Pass {
			t.Errorf("%d: %+v", i, v)
		}
	}
}

func TestRunFailsClosed(t *testing.T) {
	if !Blocked(nil) {
		t.Error("no gate was asked, and that is fine?")
	}
	if vs := Run(t.Context(), []Configured{{Mode: ModeBlock}}, &Change{}); !Blocked(vs) {
		t.Errorf("a gate that does not exist: %+v", vs)
	}
	g := []Configured{{Mode: ModeBlock, Gate: fake{"g", answer(Verdict{Checked: 1}, nil)}}}
	if vs := Run(t.Context(), g, nil); !Blocked(vs) {
		t.Errorf("no change: %+v", vs)
	}
	cause := errors.New("the user said stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if vs := Run(ctx, g, &Change{}); !Blocked(vs) || !strings.Contains(vs[0].Reason, "said stop") {
		t.Errorf("cancelled: %+v", vs)
	}
	off := []Verdict{{Mode: ModeOff, Status: Skipped}}
	if Blocked(off) || !Blocked(append(off, Verdict{Mode: ModeBlock, Status: Error})) {
		t.Error("one gate off, one in error")
	}
}

func TestPathsFixtures(t *testing.T) {
	blind := fake{"blind", answer(Verdict{Checked: 1}, nil)}
	angry := fake{"angry", answer(Verdict{Checked: 1, Findings: []Finding{{Rule: "r", Severity: SeverityBlock}}}, nil)}
	g, err := Paths(PathsConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range PathsFixtures() {
		if err := f.Prove(t.Context(), g); err != nil {
			t.Error(err)
		}
		if err := f.Prove(t.Context(), blind); (err == nil) != (f.Rule == "") {
			t.Errorf("%s: a gate that sees nothing: %v", f.Name, err)
		}
		if err := f.Prove(t.Context(), angry); err == nil {
			t.Errorf("%s: a gate that refuses everything passed", f.Name)
		}
	}
}

func TestWriteText(t *testing.T) {
	vs := []Verdict{
		{Gate: "paths", Status: Fail, Mode: ModeWarn, Dropped: 7, Findings: []Finding{
			{Rule: "executable", Path: "run.sh", Message: "becomes executable", Severity: SeverityInfo},
			{Rule: "link", Path: "a\x1b[2J\xff", Line: 3, Message: "leaves", Remedy: "make it relative", Severity: SeverityBlock},
		}},
		{Gate: "lock", Status: Pass, Mode: ModeBlock},
		{Gate: "tests", Status: Error, Mode: ModeBlock, Reason: "no report\r\ngate tests: pass", Remedy: "make one"},
		{Gate: "scope", Status: Fail, Mode: ModeMandatory, Findings: []Finding{
			{Rule: "protected", Path: "a", Message: "is protected", Severity: SeverityWarn},
			{Rule: "outside", Message: "\x1b]0;title\a\u202e", Severity: SeverityBlock},
		}},
	}
	var b bytes.Buffer
	if err := WriteText(&b, vs, 1); err != nil {
		t.Fatal(err)
	}
	want := `gate tests: error: "no report\r\ngate tests: pass"
  make one
gate scope: fail
  block the change: "\x1b]0;title\a\u202e" [outside]
  and 1 more
gate paths: fail (warns only)
  warn  "a\x1b[2J\xff":3: leaves [link]
        make it relative
  and 8 more
gate lock: pass
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	b.Reset()
	if err := WriteText(&b, vs[:1], 0); err != nil || !strings.Contains(b.String(), "  info  run.sh: becomes executable [executable]\n  and 7 more\n") {
		t.Errorf("%v: not all of\n%s", err, b.String())
	}
	vs = append(vs, Verdict{Gate: "size", Mode: ModeWarn, Status: Error, Reason: "too late\n"}, Verdict{Gate: "links", Mode: ModeWarn, Status: Pass})
	var warnings []string
	for i := range vs {
		if w := vs[i].Warning(); w != "" {
			warnings = append(warnings, w)
		}
	}
	if want := []string{`the gate paths would refuse: "a\x1b[2J\xff":3: leaves [link], and 8 more`, `the gate size would refuse: "too late\n"`}; !slices.Equal(warnings, want) {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
	if blocking := Blocking(vs); len(blocking) != 2 || blocking[0].Gate != "tests" || blocking[1].Gate != "scope" {
		t.Errorf("%+v block", blocking)
	}
}

func TestFindingJSON(t *testing.T) {
	b, err := json.Marshal([]Finding{{Rule: "r", Path: "ok", Severity: SeverityInfo}, {Rule: "r", Path: "a\xff", Severity: SeverityInfo}})
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"rule":"r","path":"ok","message":"","severity":"info"},{"rule":"r","path":"a` + "\\ufffd" + `","message":"","severity":"info","path_base64":"Yf8="}]`
	if string(b) != want {
		t.Errorf("%s", b)
	}
}

func TestParse(t *testing.T) {
	for _, m := range Modes() {
		if got, err := ParseMode(string(m)); err != nil || got != m {
			t.Error(m, got, err)
		}
	}
	for _, s := range severities {
		if got, err := ParseSeverity(string(s)); err != nil || got != s {
			t.Error(s, got, err)
		}
	}
	if _, err := ParseMode("Block"); err == nil {
		t.Error("a mode in another case")
	}
	if _, err := ParseSeverity(""); err == nil {
		t.Error("no severity")
	}
}

// TestApproved: an approval lets one failure of one change pass, and never a mandatory gate; a failure that stands blocks in
// every mode.
func TestApproved(t *testing.T) {
	two := Verdict{Checked: 1, Findings: []Finding{{Rule: "r", Path: "x", Severity: SeverityBlock}, {Rule: "r", Path: "y", Severity: SeverityBlock}}}
	one := Verdict{Checked: 1, Findings: two.Findings[:1]}
	ask := func(m Mode, v Verdict, digest string, approved func(*Verdict) bool) []Verdict {
		p, err := New([]Configured{{Gate: fake{"g", answer(v, nil)}, Mode: m}, {Gate: fake{"next", passes()}, Mode: ModeBlock, Needs: []string{"g"}}}, Options{Approved: approved})
		if err != nil {
			t.Fatal(err)
		}
		return p.Run(t.Context(), &Change{Digest: digest, Entries: []Entry{{Path: "x"}}})
	}
	first := ask(ModeBlock, one, "d", nil)
	if !Blocked(first) || !first[0].Failed() || first[1].Status != Skipped {
		t.Fatalf("%+v", first)
	}
	by := func(v *Verdict) bool { return v.CoveredBy(&first[0]) }
	for name, c := range map[string]struct {
		mode    Mode
		v       Verdict
		digest  string
		blocked bool
	}{
		"the same": {ModeBlock, one, "d", false}, "mandatory": {ModeMandatory, one, "d", true}, "an unknown mode": {"x", one, "d", true},
		"another change": {ModeBlock, one, "e", true}, "no change": {ModeBlock, one, "", true}, "more": {ModeBlock, two, "d", true},
		"an error": {ModeBlock, Verdict{}, "d", true},
	} {
		if vs := ask(c.mode, c.v, c.digest, by); Blocked(vs) != c.blocked || vs[0].Approved == c.blocked || (vs[1].Status == Pass) == c.blocked {
			t.Errorf("%s: %+v", name, vs)
		}
	}
	for _, m := range Modes() {
		if v := (Verdict{Gate: "g", Mode: m, Status: Skipped, Unresolved: "01"}); !Blocked([]Verdict{v}) || Objects(nil, []Verdict{v}) {
			t.Errorf("%s: a failure that stands", m)
		}
	}
	stands := Verdict{Gate: "g", Mode: ModeOff, Status: Skipped, ChangeDigest: "d", Unresolved: "01"}
	again, other, skipped := stands, stands, stands
	again.Approved, other.Unresolved, skipped.Unresolved = true, "02", ""
	if Blocked([]Verdict{again}) || !again.CoveredBy(&stands) || other.CoveredBy(&stands) || skipped.CoveredBy(&stands) || stands.CoveredBy(&skipped) {
		t.Error("the approval of a failure that stands is for that one")
	}
	if !Blocked([]Verdict{{Mode: ModeMandatory, Status: Fail, Approved: true}}) {
		t.Error("a mandatory gate was approved")
	}
}

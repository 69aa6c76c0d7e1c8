package report

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/uplink"
)

var update = flag.Bool("update", false, "write the golden files")

// hostile is a name that means something to every format.
const hostile = "a|b`<img src=x onerror=alert(1)>\n::error::forged\r%0A@octocat #1 [x](http://evil) **b** &amp; ]]> \x1b[31m\x00\xff../\"'"

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// sample is a task of which everything is hostile that it can choose.
func sample() *runner.TaskReport {
	verdicts := []gates.Verdict{
		{Gate: "paths", Mode: gates.ModeBlock, Status: gates.Fail, Severity: gates.SeverityBlock, Checked: 3, Duration: 2 * time.Millisecond, Findings: []gates.Finding{
			{Rule: "protected", Path: ".envrc", Message: "is protected", Remedy: "to promote it all the same: --allow-protected '.envrc'", Severity: gates.SeverityBlock},
			{Rule: "protected", Path: hostile, Line: 7, Message: hostile, Remedy: hostile, Severity: gates.SeverityBlock},
			{Rule: "watched", Path: "Makefile", Message: "is watched", Severity: gates.SeverityInfo}},
			Evidence: []gates.Evidence{{Kind: gates.EvidenceFile, File: &gates.File{Path: ".envrc", Size: 3, SHA256: strings.Repeat("ab", 32)}}}, Dropped: 2},
		{Gate: "size", Mode: gates.ModeWarn, Status: gates.Fail, Checked: 3, Findings: []gates.Finding{
			{Rule: "binary", Path: "a b.bin", Message: "is no text", Severity: gates.SeverityBlock}},
			Evidence: []gates.Evidence{gates.OfMeasurement(gates.Measurement{Name: "files", Value: 3, Limit: 2000})}},
		{Gate: "secrets", Mode: gates.ModeMandatory, Status: gates.Error, Checked: 1, Reason: "the gate ran out of time " + hostile, Remedy: "raise gates.secrets.timeout"},
		{Gate: "scope", Mode: gates.ModeBlock, Status: gates.Fail, Approved: true, Findings: []gates.Finding{{Rule: "outside", Path: "docs/x.md", Line: 1, Message: "is outside", Severity: gates.SeverityBlock}}},
		{Gate: "links", Mode: gates.ModeOff, Status: gates.Skipped},
		{Gate: "lock", Mode: gates.ModeBlock, Status: gates.Pass, Checked: 3},
	}
	then := append([]gates.Verdict(nil), verdicts...)
	then[5].Status = gates.Fail
	res := &runner.Result{TaskID: "01task", Feature: "f", State: runner.StateRejected, Verdict: runner.VerdictGate, Code: "gate", Cause: "a gate refuses the change: " + hostile,
		Remedy: "look at it", Checkpoint: "01cp", Gates: then, Profile: "default", ProfileDigest: "sha256:00", Created: start, Started: start, Ended: start.Add(time.Minute),
		Change: &runner.ChangeSummary{Added: 2, Modified: 1, Bytes: 30, Digest: "dd"},
		Judged: []runner.Judged{{Step: 1, Result: command.Result{Verdict: command.Deny, Findings: []command.Finding{{Rule: "remove-root", Verdict: command.Deny, Line: 1, Column: 4, Text: hostile, Message: "it removes a root directory", Safer: "name a directory"}}}}},
		Steps: []runner.StepResult{
			{N: 1, Args: []string{"sh", "-c", hostile}, State: "done", Verdict: runner.VerdictOK, Duration: 1500 * time.Millisecond,
				Network: &uplink.Use{Out: 10, In: 20, Destinations: []uplink.Destination{{To: "evil:80", Verdict: "refused"}, {To: "ok:443", Verdict: "allowed"}}}},
			{N: 2, Args: []string{"make"}, State: "failed", Verdict: runner.VerdictMemory, ExitCode: 137, Cause: "memory",
				Limit: &runner.LimitHit{Name: "memory", Limit: "512m", Peak: "512m", Hint: "raise it with --memory, or limits.memory in a profile"}},
			{N: 3, Args: []string{"true"}, State: "not_started"}},
		Promoted: &snapshot.PromoteReport{Kind: "apply", Added: 2}}
	return &runner.TaskReport{Feature: "f", FeatureID: "01f", Workspace: "/work space/ü",
		Task:       runner.TaskInfo{ID: "01task", Feature: "01f", State: runner.StateRejected, ProfileDigest: "sha256:00", Created: start, Result: res},
		Checkpoint: &runner.Checkpoint{ID: "01cp", Verdicts: verdicts}, Later: 2,
		Approvals: []runner.Approval{{At: start, Gate: "scope", Checkpoint: "01cp", By: "eve@octocat", Reason: hostile}}}
}

func write(t *testing.T, format string, r *runner.TaskReport) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, format, New(r, "v1.2.3", start)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGolden: what each format looks like, with names that are made to break it.
func TestGolden(t *testing.T) {
	for _, format := range Formats() {
		t.Run(format, func(t *testing.T) {
			got := write(t, format, sample())
			file := filepath.Join("testdata", format+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil || got != string(want) {
				t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, got, want)
			}
		})
	}
	if err := Write(&bytes.Buffer{}, "pdf", &Report{}); err == nil {
		t.Error("an unknown format is written")
	}
}

// TestAboutWhichState: the report says whose verdicts it has.
func TestAboutWhichState(t *testing.T) {
	now := New(sample(), "", start)
	if now.Checkpoint.ID != "01cp" || now.Checkpoint.Later != 2 || !strings.Contains(now.about(), "some have changed since") || !strings.Contains(now.about(), "2 checkpoints since") {
		t.Errorf("%+v %q", now.Checkpoint, now.about())
	}
	for _, g := range now.Gates {
		if want := g.Verdict.Gate == "lock"; (g.Then == gates.Fail) != want {
			t.Errorf("%+v", g)
		}
		if g.Verdict.Gate == "paths" && (!g.Blocks || g.Approve != "caisson approve 01task --gate paths --reason REASON" || g.Reproduce != "caisson gate run f@01cp") {
			t.Errorf("%+v", g)
		}
		if g.Verdict.Gate == "secrets" && (!g.Blocks || g.Approve != "") { // nobody passes by a mandatory gate
			t.Errorf("%+v", g)
		}
	}
	gone := sample()
	gone.Checkpoint = nil
	r := New(gone, "", start)
	if !r.Checkpoint.Gone || !strings.Contains(r.about(), "has gone") || len(r.Reproduce) != 0 || r.Gates[4].Then != "" {
		t.Errorf("%+v %q %q", r.Checkpoint, r.about(), r.Reproduce)
	}
	running := sample()
	running.Task.Result, running.Checkpoint, running.Approvals = nil, nil, nil
	running.Task.State, running.Task.Steps = runner.StateRunning, []runner.StepRecord{{N: 1, Args: []string{"make"}, State: "running"}}
	r = New(running, "", start)
	if r.Task.Verdict != "" || len(r.Steps) != 1 || r.Steps[0].State != "running" || len(r.Gates) != 0 || r.about() != "" {
		t.Errorf("%+v", r)
	}
	for _, format := range Formats() {
		if text := write(t, format, running); format != "github" && text == "" {
			t.Error(format, "writes nothing")
		}
	}
}

// TestJSON: the form says what it is, and paths keep their bytes.
func TestJSON(t *testing.T) {
	text := write(t, "json", sample())
	var back Report
	if err := json.Unmarshal([]byte(text), &back); err != nil {
		t.Fatal(err)
	}
	if strings.Count(text, "\n") != 1 || back.Format != Format || back.Version != Version || back.Gates[0].Verdict.Findings[1].Path != hostile {
		t.Errorf("%+v", back)
	}
	if ev := back.Gates[0].Verdict.Evidence; len(ev) != 1 || ev[0].File.Path != ".envrc" {
		t.Errorf("%+v", ev)
	}
}

// TestWhy: each kind of refusal, with what helps.
func TestWhy(t *testing.T) {
	s := sample()
	s.Refusals = []runner.RefusedRecord{{AuditRecord: runner.AuditRecord{TaskID: "01task", Event: runner.EventRefused},
		Refusal: runner.Refusal{What: runner.RefusedPromote, Code: "conflict", Cause: "changed", Remedy: "put it back", Conflicts: []snapshot.Conflict{{Path: "x", Reason: "changed"}}}},
		{AuditRecord: runner.AuditRecord{TaskID: "01task", Event: runner.EventRefused, Step: 1}, Refusal: runner.Refusal{What: runner.RefusedTask, Code: "command", Cause: "step 1", Remedy: "else",
			Findings: s.Task.Result.Judged[0].Findings}}}
	by := map[string][]Refusal{}
	for _, r := range Why(s) {
		by[r.Kind] = append(by[r.Kind], r)
		if r.Task != "01task" || r.Feature != "f" || r.Reason == "" || r.Remedy == "" && r.Kind != KindGate {
			t.Errorf("%+v", r)
		}
	}
	if l := by[KindLimit]; len(l) != 1 || l[0].Step != 2 || l[0].Flag != "--memory" || l[0].Limit != "512m" || l[0].Peak != "512m" {
		t.Errorf("%+v", l)
	}
	if g := by[KindGate]; len(g) != 3 || g[0].Path != ".envrc" || g[0].Approve == "" || g[2].Gate != "secrets" || g[2].Approve != "" || !strings.Contains(g[2].Reason, "out of time") {
		t.Errorf("%+v", g)
	}
	if c := by[KindCommand]; len(c) != 1 || c[0].Column != 4 || c[0].Remedy != "name a directory" {
		t.Errorf("%+v", c)
	}
	if c := by[KindConflict]; len(c) != 1 || c[0].Path != "x" || len(by) != 4 {
		t.Errorf("%+v", by)
	}
}

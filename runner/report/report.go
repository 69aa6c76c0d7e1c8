// Package report writes what there is to say of a task for those who were not there: people, programs, CI systems. The names
// and texts in it are the task's and the gates', so nothing in them may mean anything to what reads a format: each format has
// its own way to write a text that is only a text.
//
// A report is about one checkpoint, the state at the task's end. Gates may have been asked about it again since, and people may
// have approved what they said: the report has the verdicts as they are now, and says where they were others.
package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Format and Version say what the JSON form is. The version grows when a field goes or changes its meaning, not when one is
// added.
const (
	Format  = "caisson.report"
	Version = 1
)

// Report is the JSON form, from which all others are written.
type Report struct {
	Format     string                  `json:"format"`
	Version    int                     `json:"version"`
	Caisson    string                  `json:"caisson"` // version that wrote it
	Generated  time.Time               `json:"generated"`
	Task       Task                    `json:"task"`
	Steps      []runner.StepResult     `json:"steps"`
	Change     *runner.ChangeSummary   `json:"change,omitempty"`
	Checkpoint *Checkpoint             `json:"checkpoint,omitempty"`
	Gates      []Gate                  `json:"gates"`
	Judged     []runner.Judged         `json:"judged,omitempty"`    // steps that the gate command, in mode warn, would have refused
	Approvals  []runner.Approval       `json:"approvals,omitempty"` // of gates, by people
	Refused    []Refusal               `json:"refused"`             // what `why` says of the task
	Promoted   *snapshot.PromoteReport `json:"promoted,omitempty"`
	Reproduce  []string                `json:"reproduce,omitempty"` // commands that show the same again
}

// Task is the task itself. Of one that has not ended there is no verdict yet.
type Task struct {
	ID            string            `json:"id"`
	Feature       string            `json:"feature"` // its name
	FeatureID     string            `json:"feature_id"`
	Workspace     string            `json:"workspace"`
	State         runner.State      `json:"state"`
	Verdict       runner.Verdict    `json:"verdict,omitempty"`
	ExitCode      int               `json:"exit_code"` // of the last step that ran
	Signal        string            `json:"signal,omitempty"`
	Limit         *runner.LimitHit  `json:"limit,omitempty"`
	Code          string            `json:"code,omitempty"`
	Cause         string            `json:"cause,omitempty"`
	Remedy        string            `json:"remedy,omitempty"`
	Weaker        []runner.Weakness `json:"weaker,omitempty"`
	Usage         *runner.Usage     `json:"usage,omitempty"`
	Disk          *runner.DiskUsage `json:"disk,omitempty"`
	Truncated     bool              `json:"truncated,omitempty"` // the log does not hold all of the output
	Profile       string            `json:"profile,omitempty"`
	ProfileDigest string            `json:"profile_digest"`
	Created       time.Time         `json:"created"`
	Started       time.Time         `json:"started,omitzero"`
	Ended         time.Time         `json:"ended,omitzero"`
}

// Checkpoint is the state that the gates judged.
type Checkpoint struct {
	ID       string `json:"id"`
	Label    string `json:"label,omitempty"`
	LastGood bool   `json:"last_good,omitempty"`
	Promoted bool   `json:"promoted,omitempty"`
	Gone     bool   `json:"gone,omitempty"` // verdicts are those of the task's end
	Damaged  string `json:"damaged,omitempty"`
	Later    int    `json:"later,omitempty"` // checkpoints that the feature has had after it
}

// Gate is one gate's verdict on that state.
type Gate struct {
	Phase     gates.Phase   `json:"phase"`
	Verdict   gates.Verdict `json:"verdict"`
	Blocks    bool          `json:"blocks"`              // it forbids to promote
	Then      gates.Status  `json:"then,omitempty"`      // what it said at the task's end, when that was something else
	Reproduce string        `json:"reproduce,omitempty"` // the command that asks it again
	Approve   string        `json:"approve,omitempty"`   // the command that lets it pass all the same
}

// New makes a report; version is that of the program.
func New(t *runner.TaskReport, version string, now time.Time) *Report {
	r := &Report{Format: Format, Version: Version, Caisson: version, Generated: now.UTC(), Steps: []runner.StepResult{}, Gates: []Gate{},
		Task: Task{ID: t.Task.ID, Feature: t.Feature, FeatureID: t.FeatureID, Workspace: t.Workspace, State: t.Task.State,
			ProfileDigest: t.Task.ProfileDigest, Created: t.Task.Created},
		Approvals: t.Approvals}
	if res := t.Task.Result; res != nil {
		r.take(res)
	} else { // it runs, or nobody could say how it ended
		for _, st := range t.Task.Steps {
			r.Steps = append(r.Steps, runner.StepResult{N: st.N, Args: st.Args, State: st.State, Checkpoint: st.Checkpoint})
		}
	}
	r.at(t)
	r.Refused = Why(t)
	return r
}

// take fills what the task's result says.
func (r *Report) take(res *runner.Result) {
	k := &r.Task
	k.Verdict, k.ExitCode, k.Signal, k.Limit = res.Verdict, res.ExitCode, res.Signal, res.Limit
	k.Code, k.Cause, k.Remedy, k.Weaker = res.Code, res.Cause, res.Remedy, res.Weaker
	k.Usage, k.Disk, k.Truncated, k.Profile = &res.Usage, res.Disk, res.Truncated, res.Profile
	k.Started, k.Ended = res.Started, res.Ended
	r.Change, r.Judged, r.Promoted = res.Change, res.Judged, res.Promoted
	if res.Steps != nil {
		r.Steps = res.Steps
	}
}

// at fills what is known of the state at the task's end.
func (r *Report) at(t *runner.TaskReport) {
	var then []gates.Verdict
	id, now := "", Verdicts(t)
	if t.Task.Result != nil {
		then, id = t.Task.Result.Gates, t.Task.Result.Checkpoint
	}
	if c := t.Checkpoint; c != nil {
		id = c.ID
		r.Checkpoint = &Checkpoint{ID: id, Label: c.Label, LastGood: c.LastGood, Promoted: c.Promoted, Gone: c.Lost, Damaged: c.Damaged, Later: t.Later}
	} else if id != "" {
		r.Checkpoint = &Checkpoint{ID: id, Gone: true}
	}
	ref := t.Feature
	if r.Checkpoint != nil && !r.Checkpoint.Gone {
		ref += "@" + id
		r.Reproduce = []string{"caisson gate run " + ref, "caisson diff " + ref, "caisson logs " + t.Feature + " --task " + t.Task.ID}
	}
	for i := range now {
		g := gate(&now[i], then)
		if r.Reproduce != nil && now[i].Status != gates.Skipped {
			g.Reproduce = r.Reproduce[0]
		}
		if g.Blocks && now[i].Approvable() {
			g.Approve = fmt.Sprintf("caisson approve %s --gate %s --reason REASON", t.Task.ID, now[i].Gate)
		}
		r.Gates = append(r.Gates, g)
	}
	slices.SortStableFunc(r.Gates, func(a, b Gate) int { return phaseOrder(a.Phase) - phaseOrder(b.Phase) })
}

// gate is a verdict as it is now, beside those of the task's end.
func gate(v *gates.Verdict, then []gates.Verdict) Gate {
	g := Gate{Phase: gates.PhaseStatic, Verdict: *v, Blocks: len(gates.Blocking([]gates.Verdict{*v})) > 0}
	if info, ok := builtin.Find(v.Gate); ok {
		g.Phase = info.Phase
	}
	for i := range then {
		if then[i].Gate == v.Gate && then[i].Status != v.Status {
			g.Then = then[i].Status
		}
	}
	return g
}

func phaseOrder(p gates.Phase) int { return slices.Index(gates.Phases(), p) }

// formats are the ways to write a report.
var formats = map[string]func(w io.Writer, r *Report) error{
	"text": writeText, "json": writeJSON, "sarif": writeSARIF, "junit": writeJUnit, "markdown": writeMarkdown, "github": writeGitHub,
}

// Formats names the formats, the first is for people at a terminal.
func Formats() []string { return []string{"text", "json", "sarif", "junit", "markdown", "github"} }

// Write writes a report in one of the Formats.
func Write(w io.Writer, format string, r *Report) error {
	write, ok := formats[format]
	if !ok {
		return fmt.Errorf("unknown format %q; one of %s", format, strings.Join(Formats(), ", "))
	}
	return write(w, r)
}

// ended is the task's state in a word or two.
func (r *Report) ended() string {
	if r.Task.Verdict == "" || string(r.Task.Verdict) == string(r.Task.State) {
		return string(r.Task.State)
	}
	return fmt.Sprintf("%s (%s)", r.Task.State, r.Task.Verdict)
}

// about says of which state the verdicts are; "" when no gate was asked.
func (r *Report) about() string {
	c := r.Checkpoint
	switch {
	case c == nil && len(r.Gates) == 0:
		return ""
	case c == nil:
		return "the verdicts are those of the task's end; its state was not kept as a checkpoint"
	case c.Gone:
		return "the checkpoint " + c.ID + " has gone: the verdicts are those of the task's end"
	}
	text := "the verdicts are about the checkpoint " + c.ID
	if slices.ContainsFunc(r.Gates, func(g Gate) bool { return g.Then != "" }) {
		text += "; some have changed since the task's end"
	}
	switch {
	case c.Later == 1:
		text += "; the feature has had one checkpoint since"
	case c.Later > 1:
		text += fmt.Sprintf("; the feature has had %d checkpoints since", c.Later)
	}
	return text
}

// outcome says what a gate's verdict means for the change.
func (g *Gate) outcome() string {
	v := &g.Verdict
	switch {
	case g.Blocks:
		return string(v.Status) + ", blocks"
	case v.Approved:
		return string(v.Status) + ", approved"
	case v.Mode == gates.ModeWarn && v.Status != gates.Pass && v.Status != gates.Skipped:
		return string(v.Status) + ", warns only"
	}
	return string(v.Status)
}

// severity is how much a finding matters where the gate stands as it does: what does not block only warns.
func (g *Gate) severity(f *gates.Finding) gates.Severity {
	if f.Severity == gates.SeverityBlock && !g.Blocks {
		return gates.SeverityWarn
	}
	return f.Severity
}

// end says how a step ended, with the limit if it met one; "" of one that did not begin.
func end(s *runner.StepResult) string {
	switch {
	case s.Limit != nil:
		return fmt.Sprintf("%s: the limit is %s, the peak was %s", s.Limit.Name, s.Limit.Limit, s.Limit.Peak)
	case s.Verdict == runner.VerdictOK:
		return "exit 0"
	case s.Verdict == runner.VerdictSignalled:
		return s.Signal
	case s.Verdict == runner.VerdictNonzero:
		return fmt.Sprintf("exit %d", s.ExitCode)
	}
	return s.Cause
}

// promotion says how a change was handed over, and where it is.
func promotion(p *snapshot.PromoteReport) string {
	switch {
	case p.Branch != "":
		return fmt.Sprintf("%s %s (%s)", p.Kind, p.Branch, p.Commit)
	case p.PatchFile != "":
		return fmt.Sprintf("%s %s", p.Kind, p.PatchFile)
	}
	return string(p.Kind)
}

// network sums up what a step did with the network; "" for nothing.
func network(s *runner.StepResult) string {
	n := s.Network
	if n == nil || n.Out+n.In == 0 && len(n.Destinations) == 0 {
		return ""
	}
	var reached, refused int
	for _, d := range n.Destinations {
		if d.Verdict == "allowed" || d.Verdict == "cut" {
			reached++
		} else {
			refused++
		}
	}
	text := fmt.Sprintf("%d B out, %d B in, %d reached, %d refused or failed", n.Out, n.In, reached, refused)
	if n.More > 0 {
		text += fmt.Sprintf(", %d more", n.More)
	}
	return text
}

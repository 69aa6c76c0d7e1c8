package runner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// TaskReport is what there is to say of one task: what it left, and what has become of that since.
type TaskReport struct {
	Feature   string // its name
	FeatureID string
	Workspace string
	Task      TaskInfo

	Checkpoint *Checkpoint     // the state at its end, with the verdicts as they are now; nil: there is none, or it has gone
	Later      int             // how many checkpoints the feature has had after it
	Approvals  []Approval      // of that state, or of the task, oldest first
	Refusals   []RefusedRecord // of the task, oldest first
}

// EventRefused is the AuditRecord.Event of what was refused before it could begin.
const EventRefused = "refused"

// RefusedRecord is such a refusal as the log has it.
type RefusedRecord struct {
	AuditRecord
	Refusal  Refusal
	Verdicts []gates.Verdict // that refused a promotion, as they are now
}

// What a Refusal was asked for.
const (
	RefusedTask    = "task"
	RefusedPromote = "promote"
)

// Refusal is the Detail of an AuditRecord of EventRefused.
type Refusal struct {
	What       string              `json:"what"` // one of the Refused constants
	Code       string              `json:"code"`
	Cause      string              `json:"cause"`
	Remedy     string              `json:"remedy,omitempty"`
	Step       int                 `json:"step,omitempty"`       // of the command that was refused, from 1
	Findings   []command.Finding   `json:"findings,omitempty"`   // of the gate command, the worst first
	Evidence   []gates.Evidence    `json:"evidence,omitempty"`   // the text that it judged
	Conflicts  []snapshot.Conflict `json:"conflicts,omitempty"`  // the first maxConflicts
	More       int                 `json:"more,omitempty"`       // conflicts besides these
	Checkpoint string              `json:"checkpoint,omitempty"` // that was to be promoted
}

// maxConflicts is how many conflicts of a promotion the log lists.
const maxConflicts = 100

// passing are refusals that say nothing but: not now, or not like this.
var passing = []string{CodeUsage, CodeInvalidName, CodeBusy, CodeQueueFull, CodeNothingToDo, CodeNotFound, CodeAmbiguous, CodeCancelled, CodePlatform}

// noteRefusal records a refusal: d is completed from why, and r from d. What is none, or passes by itself, is not recorded.
func (s *Supervisor) noteRefusal(ctx context.Context, r AuditRecord, d Refusal, why error) error {
	e, ok := errors.AsType[*Error](why)
	if !ok || e.Exit != ExitRefused && e.Exit != ExitGate || slices.Contains(passing, e.Code) {
		return nil
	}
	clean := s.opt.Redact.Text
	d.Code, d.Cause, d.Remedy = e.Code, clean(e.Error()), clean(e.Remedy)
	if c, ok := errors.AsType[*judgedError](why); ok {
		d.Step, d.Findings, d.Evidence = c.step, slices.Clone(c.findings), []gates.Evidence{c.text}
		for i := range d.Findings {
			f := &d.Findings[i]
			f.Text, f.Message, f.Safer = clean(f.Text), clean(f.Message), clean(f.Safer)
		}
	}
	if c, ok := errors.AsType[*snapshot.ConflictError](why); ok {
		n := min(len(c.Conflicts), maxConflicts)
		d.Conflicts, d.More = c.Conflicts[:n], len(c.Conflicts)-n
	}
	r.Event, r.Step, r.To, r.Cause = EventRefused, d.Step, d.Code, d.Cause
	detail, err := json.Marshal(d)
	if err != nil {
		return err
	}
	r.Detail = detail
	return s.opt.Journal.Note(context.WithoutCancel(ctx), r)
}

// Refused records that a task was refused by whoever was about to ask for it in a feature ("": in none that there is). It gets
// an id all the same, under which Report's caller finds it.
func (s *Supervisor) Refused(ctx context.Context, feature string, why error) error {
	record := AuditRecord{TaskID: s.opt.NewID()}
	if feature != "" {
		if f, err := s.opt.Journal.Feature(ctx, feature); err == nil {
			record.FeatureID = f.ID
		}
	}
	return s.noteRefusal(ctx, record, Refusal{What: RefusedTask}, why)
}

// refusedTask records that a task was refused, and returns why.
func (s *Supervisor) refusedTask(ctx context.Context, r *Request, why error) error {
	return errors.Join(why, s.Refused(ctx, r.Feature, why))
}

// refusedPromotion records that a promotion outside of any task was refused, and returns why.
func (x *session) refusedPromotion(ctx context.Context, r *PromoteResult, why error) error {
	d := Refusal{What: RefusedPromote}
	if r != nil {
		d.Checkpoint = r.Checkpoint
	}
	return errors.Join(why, x.s.noteRefusal(ctx, AuditRecord{FeatureID: x.feature.ID}, d, why))
}

// Refusals lists what was refused before it could begin, of a feature or (featureID "") of all, oldest first.
func (s *Supervisor) Refusals(ctx context.Context, featureID string) ([]RefusedRecord, error) {
	list, err := s.refusals(ctx, featureID)
	return list, typed(err, "reading what was refused")
}

func (s *Supervisor) refusals(ctx context.Context, featureID string) (list []RefusedRecord, err error) {
	rows, err := s.opt.Journal.Audit(ctx, featureID)
	for _, row := range rows {
		if row.Event != EventRefused {
			continue
		}
		r := RefusedRecord{AuditRecord: row}
		if json.Unmarshal(row.Detail, &r.Refusal) != nil { // the row says most of it
			r.Refusal = Refusal{Code: row.To, Cause: row.Cause}
		}
		if r.Refusal.Code == CodeGate && r.Refusal.Checkpoint != "" {
			if c, err := s.opt.Journal.Checkpoint(ctx, row.FeatureID, r.Refusal.Checkpoint); err == nil {
				r.Verdicts = c.Verdicts
			}
		}
		list = append(list, r)
	}
	return list, err
}

// Report tells of a task: ref is its id, a unique beginning of it, or a feature, of which it is the newest. CodeNotFound.
func (s *Supervisor) Report(ctx context.Context, ref string) (*TaskReport, error) {
	f, t, err := s.reported(ctx, ref)
	if err != nil {
		return nil, typed(err, "looking for "+ref)
	}
	list, err := s.reports(ctx, &f, []TaskRecord{t})
	if err != nil {
		return nil, typed(err, "reading what became of "+ref)
	}
	return &list[0], nil
}

// Reports tells of every task of a feature, oldest first. CodeNotFound.
func (s *Supervisor) Reports(ctx context.Context, feature string) ([]TaskReport, error) {
	f, err := s.opt.Journal.Feature(ctx, feature)
	if err != nil {
		return nil, explain(err, "feature", feature)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	list, err := s.reports(ctx, &f, tasks)
	return list, typed(err, "reading what became of "+feature)
}

func (s *Supervisor) reports(ctx context.Context, f *FeatureRecord, tasks []TaskRecord) ([]TaskReport, error) {
	rows, err := s.opt.Journal.Checkpoints(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	approvals, err := s.opt.Journal.Approvals(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	refused, err := s.refusals(ctx, f.ID)
	list := make([]TaskReport, len(tasks))
	for i := range tasks {
		r := &list[i]
		*r = TaskReport{Feature: f.Name, FeatureID: f.ID, Workspace: f.Workspace, Task: s.taskInfo(&tasks[i])}
		r.find(rows)
		r.approve(approvals)
		r.Refusals = slices.DeleteFunc(slices.Clone(refused), func(x RefusedRecord) bool { return x.TaskID != r.Task.ID })
		r.Approvals = slices.DeleteFunc(slices.Clone(approvals), func(a Approval) bool {
			return a.TaskID != r.Task.ID && (r.Checkpoint == nil || a.Checkpoint != r.Checkpoint.ID)
		})
	}
	return list, err
}

// reported finds a task and its feature.
func (s *Supervisor) reported(ctx context.Context, ref string) (f FeatureRecord, t TaskRecord, err error) {
	f, ferr := s.opt.Journal.Feature(ctx, ref)
	if ferr != nil || f.Name != ref && f.ID != ref { // a beginning may be that of a task, too
		t, err = s.opt.Journal.Task(ctx, ref)
		if err == nil {
			f, err = s.opt.Journal.Feature(ctx, t.FeatureID)
			return f, t, err
		}
		if CodeOf(err) == CodeAmbiguous && ferr != nil {
			return f, t, err
		}
	}
	if ferr != nil {
		return f, t, explain(ferr, "task or feature", ref)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err == nil && len(tasks) == 0 {
		err = refuse(CodeNotFound, "run something in it: caisson run --feature "+f.Name, "the feature %s has had no task", f.Name)
	}
	if err != nil {
		return f, t, err
	}
	return f, tasks[len(tasks)-1], nil
}

// find fills what has become of the state that the task left. A checkpoint that is equal to another one may have that one's
// verdicts.
func (r *TaskReport) find(rows []CheckpointRecord) {
	at := func(id string) int {
		return slices.IndexFunc(rows, func(c CheckpointRecord) bool { return id != "" && c.ID == id })
	}
	i := at(r.Task.judged())
	if i < 0 {
		return
	}
	c := rows[i].Checkpoint
	c.Feature, c.FeatureID = r.Feature, r.FeatureID
	if k := at(c.AliasOf); len(c.Verdicts) == 0 && k >= 0 {
		c.Verdicts = rows[k].Verdicts
	}
	r.Checkpoint, r.Later = &c, len(rows)-1-i
}

// approve marks the verdicts that people have let pass since.
func (r *TaskReport) approve(approvals []Approval) {
	if r.Checkpoint == nil {
		return
	}
	r.Checkpoint.Verdicts = slices.Clone(r.Checkpoint.Verdicts) // others may have the same ones
	for i := range r.Checkpoint.Verdicts {
		v := &r.Checkpoint.Verdicts[i]
		v.Approved = v.Approved || v.Mode == gates.ModeBlock && v.Failed() && slices.ContainsFunc(approvals, func(a Approval) bool { return v.CoveredBy(&a.Verdict) })
	}
}

// judged is the checkpoint that a task's gates judged; "" when none is known. Results of versions that did not say so have it
// last.
func (t *TaskInfo) judged() string {
	switch {
	case t.Result == nil:
		return ""
	case t.Result.Checkpoint != "":
		return t.Result.Checkpoint
	case len(t.Result.Checkpoints) > 0:
		return t.Result.Checkpoints[len(t.Result.Checkpoints)-1].ID
	}
	return ""
}

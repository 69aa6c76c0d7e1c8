package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// maxReason bounds ApproveOptions.Reason, in bytes.
const maxReason = 4096

// ApproveOptions are who lets which gate's failure pass, and why.
type ApproveOptions struct {
	Gate   string
	Reason string // required
	UID    int    // of the person, on the host
	By     string // the name of that uid
}

// ApproveResult is what Approve recorded, and what came of it.
type ApproveResult struct {
	Approval
	Blocking []string `json:"blocking,omitempty"` // gates that still refuse the change
	Task     *Result  `json:"result,omitempty"`   // of the task that waited for this approval, and was the last one to
}

// Approve records that a person lets a gate's failure pass. ref is a task, whose newest judged checkpoint is meant, a feature,
// of which likewise, or FEATURE@CHECKPOINT. When a task waits for it and nothing else blocks any more, its change is promoted.
// CodeUsage when there is no reason or the gate is mandatory; CodeNothingToDo when it did not fail there, or does not block.
func (s *Supervisor) Approve(ctx context.Context, ref string, o ApproveOptions) (*ApproveResult, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	feature, pick, err := s.judgedAt(ctx, ref)
	if err != nil {
		return nil, typed(err, "looking for "+ref)
	}
	var r *ApproveResult
	err = s.use(ctx, feature, writing, func(x *session) (err error) {
		r, err = x.approve(ctx, pick, o)
		return err
	})
	return r, typed(err, "approving "+ref)
}

func (o *ApproveOptions) check() error {
	if _, known := builtin.Find(o.Gate); !known {
		return refuse(CodeUsage, "one of "+strings.Join(builtin.Names(), ", "), "there is no gate %q", o.Gate)
	}
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	switch {
	case strings.TrimSpace(o.Reason) == "":
		return refuse(CodeUsage, "say why with --reason TEXT", "an approval needs a reason")
	case len(o.Reason) > maxReason || !utf8.ValidString(o.Reason) || strings.ContainsFunc(o.Reason, control):
		return refuse(CodeUsage, "say it in a line or two", "a reason is text of at most %d bytes", maxReason)
	}
	return nil
}

// judgedAt is the feature that a reference is about, and what picks a checkpoint of it: the newest that was judged, with a task
// of that task.
func (s *Supervisor) judgedAt(ctx context.Context, ref string) (feature string, pick func(*CheckpointRecord) bool, err error) {
	judged := func(c *CheckpointRecord) bool {
		return slices.ContainsFunc(c.Verdicts, func(v gates.Verdict) bool { return v.Status != gates.Skipped || v.Unresolved != "" })
	}
	if strings.Contains(ref, "@") {
		r, err := ParseRef(ref)
		if err != nil {
			return "", nil, err
		}
		f, err := s.opt.Journal.Feature(ctx, r.Feature)
		if err != nil {
			return "", nil, explain(err, "feature", r.Feature)
		}
		c, err := s.opt.Journal.Checkpoint(ctx, f.ID, r.Checkpoint)
		return f.ID, func(o *CheckpointRecord) bool { return o.ID == c.ID }, explain(err, "checkpoint", ref)
	}
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err == nil {
		return f.ID, judged, nil
	}
	t, terr := s.taskOf(ctx, ref)
	if terr != nil {
		return "", nil, terr
	}
	return t.FeatureID, func(c *CheckpointRecord) bool { return c.TaskID == t.ID && judged(c) }, nil
}

func (x *session) approve(ctx context.Context, pick func(*CheckpointRecord) bool, o ApproveOptions) (*ApproveResult, error) {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return nil, err
	}
	slices.Reverse(rows)
	i := slices.IndexFunc(rows, func(c CheckpointRecord) bool { return pick(&c) })
	if i < 0 {
		return nil, refuse(CodeNothingToDo, "caisson gate run "+x.feature.Name, "no gate has judged this state of %s", x.feature.Name)
	}
	v, err := x.approvable(ctx, &rows[i], o.Gate)
	if err != nil {
		return nil, err
	}
	r := &ApproveResult{Approval: Approval{At: time.Now(), Feature: x.feature.ID, TaskID: rows[i].TaskID, Checkpoint: rows[i].ID, Gate: v.Gate,
		GateDigest: v.GateDigest, ChangeDigest: v.ChangeDigest, UID: o.UID, By: o.By, Reason: strings.TrimSpace(o.Reason), Verdict: *v}}
	if !x.approved(ctx)(v) { // said again, it may be to go on after a crash
		if err := x.s.opt.Journal.Approve(ctx, r.Approval); err != nil {
			return nil, err
		}
	}
	approved := x.approved(ctx)
	for _, other := range gates.Blocking(rows[i].Verdicts) {
		if other.Status != gates.Skipped && !approved(&other) { // who was skipped is asked once the others are approved
			r.Blocking = append(r.Blocking, other.Gate)
		}
	}
	if len(r.Blocking) > 0 {
		return r, nil
	}
	return r, x.goOn(ctx, &rows[i], r)
}

// approvable is the verdict of a gate at a checkpoint, if a person may let it pass.
func (x *session) approvable(ctx context.Context, c *CheckpointRecord, gate string) (*gates.Verdict, error) {
	at := x.feature.Name + "@" + c.ID
	i := slices.IndexFunc(c.Verdicts, func(v gates.Verdict) bool { return v.Gate == gate })
	if i < 0 {
		return nil, refuse(CodeNothingToDo, "", "the gate %s has not judged %s", gate, at)
	}
	v := &c.Verdicts[i]
	policy, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return nil, err
	}
	switch {
	case v.Mode == gates.ModeMandatory || policy.Gates.Mode(gate) == gates.ModeMandatory:
		return nil, refuse(CodeUsage, "correct what it found: caisson gate run "+x.feature.Name, "the gate %s is mandatory: nobody can let its failure pass", gate)
	case v.Unresolved != "":
		return v, x.mayPass(ctx, c.ID, v)
	case v.Mode != gates.ModeBlock:
		return nil, refuse(CodeNothingToDo, "", "the gate %s does not block: its mode is %s", gate, v.Mode)
	case v.Status != gates.Fail && v.Status != gates.Error:
		return nil, refuse(CodeNothingToDo, "", "the gate %s did not fail at %s: its answer is %s", gate, at, v.Status)
	}
	return v, nil
}

// mayPass refuses to let a failure pass that stands at a checkpoint, when its gate was mandatory.
func (x *session) mayPass(ctx context.Context, at string, v *gates.Verdict) error {
	failures, err := x.s.opt.Journal.Failures(ctx, at)
	for _, f := range failures {
		if f.Verdict.Gate == v.Gate && f.Verdict.Mode != gates.ModeBlock {
			return refuse(CodeUsage, "switch it on and correct what it finds, or go back: caisson rollback "+x.feature.Name,
				"the gate %s was mandatory when it failed at %s: nobody can let that pass", v.Gate, f.Checkpoint)
		}
	}
	return err
}

// approved says of verdicts whether somebody has let them pass in this feature.
func (x *session) approved(ctx context.Context) func(v *gates.Verdict) bool {
	list := sync.OnceValue(func() []Approval {
		list, err := x.s.opt.Journal.Approvals(ctx, x.feature.ID)
		if err != nil {
			return nil // then nobody has
		}
		return list
	})
	return func(v *gates.Verdict) bool {
		return slices.ContainsFunc(list(), func(a Approval) bool { return v.CoveredBy(&a.Verdict) })
	}
}

// approvals are those that let verdicts pass, the newest of each gate.
func (x *session) approvals(ctx context.Context, verdicts []gates.Verdict) (used []Approval, err error) {
	if !slices.ContainsFunc(verdicts, func(v gates.Verdict) bool { return v.Approved }) {
		return nil, nil
	}
	list, err := x.s.opt.Journal.Approvals(ctx, x.feature.ID)
	for i := range verdicts {
		for _, a := range slices.Backward(list) {
			if verdicts[i].Approved && verdicts[i].CoveredBy(&a.Verdict) {
				used = append(used, a)
				break
			}
		}
	}
	return used, err
}

// standing adds to verdicts the failures that stand though their gates do not block any more: to switch a gate off, or to have
// it only warn, resolves nothing.
func (x *session) standing(ctx context.Context, state *judged, verdicts []gates.Verdict) ([]gates.Verdict, error) {
	at := state.at
	if at == snapshot.Current {
		at = state.layers.Info().Head
	}
	failures, err := x.s.opt.Journal.Failures(ctx, at)
	if err != nil {
		return nil, err
	}
	approved := x.approved(ctx)
	for _, f := range failures {
		i := slices.IndexFunc(verdicts, func(v gates.Verdict) bool { return v.Gate == f.Verdict.Gate })
		switch {
		case i >= 0 && (verdicts[i].Status == gates.Pass || verdicts[i].Mode != gates.ModeOff && verdicts[i].Mode != gates.ModeWarn):
			continue // it has passed, or blocks by itself
		case f.Verdict.ChangeDigest == state.change.Digest && f.Verdict.Mode == gates.ModeBlock && approved(&f.Verdict):
			continue
		case i < 0:
			i = len(verdicts)
			verdicts = append(verdicts, gates.Verdict{Gate: f.Verdict.Gate, GateDigest: f.Verdict.GateDigest, ChangeDigest: state.change.Digest,
				Mode: gates.ModeOff, Status: gates.Skipped, Started: time.Now()})
		}
		v := &verdicts[i]
		v.Unresolved, v.UnresolvedMode = f.Checkpoint, f.Verdict.Mode
		v.Approved = f.Verdict.Mode == gates.ModeBlock && approved(v)
	}
	return verdicts, nil
}

// awaits reports whether what blocks a task's promotion can be approved, and is to be waited for.
func (t *task) awaits() bool {
	if t.req.Promote == PromoteNone || t.req.Remove || t.at == snapshot.Current || t.req.Profile.Gates.OnBlock != profiles.BlockWait {
		return false
	}
	failed := false
	for _, v := range gates.Blocking(t.res.Gates) {
		if v.Mode != gates.ModeBlock || v.Unresolved != "" {
			return false
		}
		failed = failed || v.Status != gates.Skipped // which is asked once the others are approved
	}
	return failed
}

// await has the task wait for a person.
func (t *task) await() {
	t.waits = true
	t.fail(VerdictGate, CodeApproval, "it waits for a person: "+blockedError(t.feature.Name, t.res.Gates).Cause, approveRemedy(t.res.TaskID, t.feature.Name, t.res.Gates))
}

// approveRemedy is what to type, once for each gate.
func approveRemedy(task, feature string, verdicts []gates.Verdict) string {
	var commands []string
	for _, v := range gates.Blocking(verdicts) {
		if v.Status != gates.Skipped {
			commands = append(commands, fmt.Sprintf("caisson approve %s --gate %s --reason TEXT", task, v.Gate))
		}
	}
	return strings.Join(append(commands, "or: caisson discard "+feature), "\n")
}

// goOn promotes what a task waits for at a checkpoint, if one does and its gates let it pass now.
func (x *session) goOn(ctx context.Context, c *CheckpointRecord, a *ApproveResult) error {
	waiting, err := x.waiting(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(waiting, func(w waiter) bool { return w.result.Checkpoint == c.ID })
	if i < 0 {
		return nil
	}
	w := &waiting[i]
	r, err := requestOf(&x.feature, &w.task, &ResumeOptions{})
	if err != nil {
		return err
	}
	change, err := x.layers.Change(ctx, snapshot.Base, c.ID)
	if err != nil {
		return err
	}
	res := w.result
	if res.Gates, err = x.validate(ctx, r.Profile, toHand(x.layers, c.ID, change, r.Promote), r.AllowProtected); err != nil {
		return err
	}
	if gates.Blocked(res.Gates) { // the workspace has changed, and a gate finds more
		for _, v := range gates.Blocking(res.Gates) {
			a.Blocking = append(a.Blocking, v.Gate)
		}
		return nil
	}
	if res.Approvals, err = x.approvals(ctx, res.Gates); err != nil {
		return err
	}
	begins, err := x.begins(change, c.ID, r.Promote, res.Gates, res.Approvals)
	if err != nil {
		return err
	}
	if err := w.move(ctx, x.s, Move{From: StateAwaitingApproval, To: StatePromoting, Cause: "approved", Detail: begins.Detail}); err != nil {
		return err
	}
	a.Task = res
	return x.handOver(context.WithoutCancel(ctx), w, r, change)
}

// handOver promotes for a task that has waited, and records its end; refused, it goes on waiting.
func (x *session) handOver(ctx context.Context, w *waiter, r *Request, change *snapshot.Change) error {
	res := w.result
	report, err := x.promote(ctx, change, promoteOptionsOf(r), res.Checkpoint)
	switch {
	case err == nil:
		err = x.s.opt.Journal.Note(ctx, x.promotion(res.TaskID, res.Checkpoint, how(r.Promote, report), res.Gates, res.Approvals))
	case CodeOf(err) == CodeNothingToDo: // all of it is ignored, for a commit
		err = nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Exit == ExitRefused && report == nil { // nothing has changed: it can be approved again
		row, d := AuditRecord{FeatureID: x.feature.ID, TaskID: res.TaskID}, Refusal{What: RefusedPromote, Checkpoint: res.Checkpoint}
		return errors.Join(err, x.s.noteRefusal(ctx, row, d, err), w.move(ctx, x.s, Move{From: StatePromoting, To: StateAwaitingApproval, Cause: e.Code}))
	}
	res.Promoted = report
	res.Verdict, res.Code, res.Cause, res.Remedy = VerdictOK, "", "", ""
	if err != nil {
		err = typed(err, "promoting "+x.feature.Name)
		e, _ := errors.AsType[*Error](err)
		res.Verdict, res.Code, res.Cause, res.Remedy = VerdictInternal, e.Code, e.Error(), e.Remedy
	}
	return errors.Join(err, w.move(ctx, x.s, Move{From: StatePromoting, To: endOf(res.Verdict), Cause: string(res.Verdict)}))
}

// waiter is a task that waits for a person, and what is recorded of it.
type waiter struct {
	task   TaskRecord
	result *Result
}

// move takes it on, with its result.
func (w *waiter) move(ctx context.Context, s *Supervisor, m Move) error {
	w.result.State = m.To
	if m.To.Ended() {
		w.result.Ended = time.Now()
	}
	text, err := s.hide(w.result)
	if err != nil {
		return err
	}
	m.TaskID, m.Result = w.task.ID, text
	return s.opt.Journal.Move(ctx, m)
}

// waiting are the tasks of a feature that wait for a person, oldest first.
func (x *session) waiting(ctx context.Context) ([]waiter, error) {
	return x.s.waiting(ctx, x.feature.ID)
}

func (s *Supervisor) waiting(ctx context.Context, feature string) (list []waiter, err error) {
	tasks, err := s.opt.Journal.Tasks(ctx, feature)
	for i := range tasks {
		if r := result(&tasks[i]); tasks[i].State == StateAwaitingApproval && r != nil {
			list = append(list, waiter{tasks[i], r})
		}
	}
	return list, err
}

// giveUp ends tasks that wait for a person: rejected, or cancelled.
func (s *Supervisor) giveUp(ctx context.Context, list []waiter, v Verdict, cause string) error {
	for i := range list {
		w := &list[i]
		w.result.Verdict, w.result.Code, w.result.Cause, w.result.Remedy = v, string(v), cause, ""
		if err := w.move(ctx, s, Move{From: StateAwaitingApproval, To: endOf(v), Cause: cause}); err != nil && !errors.Is(err, ErrStale) {
			return err
		}
	}
	return nil
}

// arrived ends tasks that waited for a change which somebody else has promoted.
func (x *session) arrived(ctx context.Context, r *PromoteResult) error {
	list, err := x.waiting(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		w := &list[i]
		if w.result.Change == nil || w.result.Change.Digest != r.Change.Digest {
			continue
		}
		if err := w.move(ctx, x.s, Move{From: StateAwaitingApproval, To: StatePromoting, Cause: "promoted by itself"}); err != nil {
			return err
		}
		res := w.result
		res.Verdict, res.Code, res.Cause, res.Remedy, res.Gates, res.Approvals, res.Promoted = VerdictOK, "", "", "", r.Gates, r.Approvals, r.Report
		if err := w.move(ctx, x.s, Move{From: StatePromoting, To: StateSucceeded, Cause: "promoted by itself"}); err != nil {
			return err
		}
	}
	return nil
}

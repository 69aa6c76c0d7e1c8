package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// FollowUp is what was done with a state that gates had refused. What there was before is at Undo.
type FollowUp struct {
	Rollback   string          `json:"rollback"`             // profiles.RollbackSmart, RollbackFull
	To         string          `json:"to,omitempty"`         // id of the checkpoint that it, or the paths, went back to; RefBase is the workspace
	Undo       string          `json:"undo,omitempty"`       // id of the checkpoint with the refused state
	Paths      []string        `json:"paths,omitempty"`      // that went back, of RollbackSmart
	Unnamed    []string        `json:"unnamed,omitempty"`    // what gates object to and no path of the change stands for, in words
	PassedBy   []PassedBy      `json:"passed_by,omitempty"`  // good checkpoints that would have come before To, and cannot be read
	Checkpoint string          `json:"checkpoint,omitempty"` // id of the state after it
	Gates      []gates.Verdict `json:"gates,omitempty"`      // what they say of that
	Problem    string          `json:"problem,omitempty"`    // why it was not done
}

// maxRounds bounds how often gates are asked again: they list a bounded number of findings at a time.
const maxRounds = 8

// followUp does what the profile says of a state that gates refuse. That it cannot be done is no other failure of the task.
func (t *task) followUp(ctx context.Context) error {
	how := t.req.Profile.Gates.Rollback
	if how != profiles.RollbackFull && how != profiles.RollbackSmart || t.req.Remove && !t.stays() {
		return nil
	}
	select {
	case t.following() <- struct{}{}: // two that go back would stop each other
		defer func() { <-t.following() }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	f := &FollowUp{Rollback: how}
	t.res.FollowUp = f
	var err error
	if how == profiles.RollbackSmart {
		err = t.putBack(ctx, f)
		if err == nil && (len(f.Gates) == 0 || gates.Blocked(f.Gates)) && t.req.Profile.Gates.Unnamed == profiles.RollbackFull {
			f.Rollback = profiles.RollbackFull
		}
	}
	if err == nil && f.Rollback == profiles.RollbackFull {
		err = t.goBack(ctx, f)
	}
	if err != nil && ctx.Err() == nil {
		f.Problem, err = typed(err, "going back").Error(), nil
	}
	return err
}

// following lets one task of a session go back at a time.
func (x *session) following() chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.turn == nil {
		x.turn = make(chan struct{}, 1)
	}
	return x.turn
}

// goBack takes the feature to its last good checkpoint that can be read, or to before the task, or to the workspace.
func (t *task) goBack(ctx context.Context, f *FollowUp) error {
	candidates, passed := t.earlier(ctx)
	r, err := t.rollbackBy(ctx, RollbackOptions{To: candidates[0]}, t)
	if err != nil {
		return err
	}
	f.To, f.PassedBy, f.Checkpoint, f.Gates, f.Paths = r.To.ID, passed, r.To.ID, nil, nil
	if f.Undo == "" && r.Undo != nil {
		f.Undo = r.Undo.ID
	}
	return nil
}

// earlierThan are the states that something can go back to, the best first, and the better ones that cannot be read.
func (x *session) earlierThan(ctx context.Context, began string) (list []string, passed []PassedBy) {
	good, passed, err := x.readableGood(ctx)
	if err == nil && good != nil {
		list = append(list, good.ID)
	}
	if began != "" && !slices.Contains(list, began) {
		if why := x.unreadable(ctx, began); why == "" {
			list = append(list, began)
		} else if len(list) == 0 {
			passed = append(passed, PassedBy{began, why})
		}
	}
	return append(list, RefBase), passed
}

func (t *task) earlier(ctx context.Context) ([]string, []PassedBy) {
	return t.earlierThan(ctx, t.began)
}

// putBack puts back what gates named, and asks them again, until they accept or name nothing that could still go back.
func (t *task) putBack(ctx context.Context, f *FollowUp) error {
	verdicts, change := t.res.Gates, t.change
	candidates, passed := t.earlier(ctx)
	for range maxRounds {
		var paths []string
		paths, f.Unnamed = named(verdicts, changedPaths(change))
		to, err := t.firstThatDiffers(ctx, candidates, paths)
		if err != nil || to == "" {
			return err
		}
		r, err := t.rollbackBy(ctx, RollbackOptions{To: to, Smart: paths}, t)
		if err != nil {
			return err
		}
		if f.Undo == "" && r.Undo != nil {
			f.Undo = r.Undo.ID
		}
		f.To, f.PassedBy = to, passed
		for _, p := range r.Report.Paths {
			if !slices.Contains(f.Paths, p) {
				f.Paths = append(f.Paths, p)
			}
		}
		if change, err = t.judgeAgain(ctx, f); err != nil || len(change.Entries) == 0 || !gates.Blocked(f.Gates) {
			return err
		}
		verdicts = f.Gates
	}
	return nil
}

// judgeAgain seals what there is and asks the gates about it.
func (t *task) judgeAgain(ctx context.Context, f *FollowUp) (*snapshot.Change, error) {
	ctx = context.WithoutCancel(ctx)
	c := &Checkpoint{TaskID: t.res.TaskID, Step: max(t.stepNow(), t.first), Reason: ReasonRollback}
	if err := t.session.seal(ctx, c); err != nil {
		return nil, err
	}
	if err := t.s.opt.Journal.AddCheckpoint(ctx, CheckpointRecord{*c}); err != nil {
		return nil, err
	}
	t.later(c)
	t.keep(c)
	change, err := t.layers.Change(ctx, snapshot.Base, c.ID)
	if err != nil {
		return nil, err
	}
	f.Checkpoint, f.Gates = c.ID, nil
	if len(change.Entries) > 0 {
		f.Gates, err = t.session.validate(ctx, t.req.Profile, toHand(t.layers, c.ID, change, t.req.Promote), t.req.AllowProtected)
	}
	return change, err
}

// firstThatDiffers is the first of some states at which one of the paths is not as it is now; "" when there is none.
func (x *session) firstThatDiffers(ctx context.Context, candidates, paths []string) (string, error) {
	if len(paths) == 0 {
		return "", nil
	}
	o := RollbackOptions{Smart: paths}
	for _, to := range candidates {
		id, err := x.resolveID(ctx, to)
		if err != nil {
			continue // dropped, or damaged
		}
		if differs, err := x.differs(ctx, id, &o); differs || ctx.Err() != nil {
			return to, errors.Join(err, ctx.Err())
		}
	}
	return "", nil
}

// named are the paths of a change for which gates refuse it, and what they refuse besides. What a verdict says is a path only
// counts where it was changed.
func named(verdicts []gates.Verdict, changed map[string]bool) (paths, unnamed []string) {
	seen := map[string]bool{}
	for _, v := range gates.Blocking(verdicts) {
		switch {
		case v.Unresolved != "":
			unnamed = append(unnamed, fmt.Sprintf("gate %s: its failure at %s stands", v.Gate, v.Unresolved))
		case v.Status != gates.Fail:
			unnamed = append(unnamed, fmt.Sprintf("gate %s: %s", v.Gate, v.Reason))
		}
		for _, f := range v.Findings {
			switch {
			case f.Severity != gates.SeverityBlock || seen[f.Path]:
			case changed[f.Path]:
				seen[f.Path] = true
				paths = append(paths, f.Path)
			default:
				unnamed = append(unnamed, fmt.Sprintf("gate %s: %s [%s]", v.Gate, f.Message, f.Rule))
			}
		}
	}
	return paths, unnamed
}

// changedPaths are the paths of a change, its root apart.
func changedPaths(c *snapshot.Change) map[string]bool {
	changed := make(map[string]bool, len(c.Entries))
	for i := range c.Entries {
		changed[c.Entries[i].Path] = c.Entries[i].Path != "."
	}
	return changed
}

// accuse fills in the paths that gates named at the newest checkpoint that they judged, and says what they go back to, and what
// would have come before that and cannot be read.
func (x *session) accuse(ctx context.Context, o *RollbackOptions) (string, []PassedBy, error) {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return "", nil, err
	}
	slices.Reverse(rows)
	i := slices.IndexFunc(rows, func(c CheckpointRecord) bool {
		return slices.ContainsFunc(c.Verdicts, func(v gates.Verdict) bool { return v.Status != gates.Skipped }) && !c.Lost && c.Damaged == ""
	})
	if i < 0 {
		return "", nil, refuse(CodeNothingToDo, "caisson gate run "+x.feature.Name, "no gate has judged %s", x.feature.Name)
	}
	candidates, passed, asked := []string{o.To}, []PassedBy(nil), o.To != "" || o.LastGood
	if !asked {
		candidates, passed = x.earlierThan(ctx, "")
	} else if o.LastGood {
		if candidates[0], passed, err = x.lastGood(ctx); err != nil {
			return "", nil, err
		}
	}
	var unnamed []string
	for _, to := range candidates {
		id, err := x.resolveID(ctx, to)
		var differ map[string]bool
		if err == nil {
			differ, err = x.differing(ctx, id, rows[i].Verdicts)
		}
		if err != nil && !asked && to != RefBase {
			continue // dropped, or damaged
		}
		if err != nil {
			return "", nil, err
		}
		if o.Smart, unnamed = named(rows[i].Verdicts, differ); len(o.Smart) > 0 {
			return id, passed, nil
		}
	}
	e := refuse(CodeNothingToDo, "", "gates named no path of %s@%s that blocks and has not been put back", x.feature.Name, rows[i].ID)
	for _, u := range unnamed {
		e.Cause += "\n" + u
	}
	return "", nil, e
}

// differing are the paths in verdicts that are not as they were at a checkpoint. Nothing else is read.
func (x *session) differing(ctx context.Context, id string, verdicts []gates.Verdict) (map[string]bool, error) {
	var o RollbackOptions
	for _, v := range gates.Blocking(verdicts) {
		for _, f := range v.Findings {
			if f.Path != "." && filepath.IsLocal(f.Path) {
				o.Smart = append(o.Smart, f.Path)
			}
		}
	}
	if len(o.Smart) == 0 {
		return nil, nil
	}
	report, err := x.layers.Reset(ctx, snapshot.ResetOptions{To: id, Paths: o.globs(), DryRun: true})
	if err != nil {
		return nil, err
	}
	differ := make(map[string]bool, len(report.Paths))
	for _, p := range report.Paths {
		differ[p] = p != "."
	}
	return differ, nil
}

package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// taskOptions is what the journal keeps of a request for a resume, besides the steps.
type taskOptions struct {
	Promote        string            `json:"promote,omitempty"`
	PatchFile      string            `json:"patch_file,omitempty"`
	Branch         BranchOptions     `json:"branch,omitzero"`
	AllowProtected []string          `json:"allow_protected,omitempty"`
	Consent        bool              `json:"consent,omitempty"`
	Checkpoints    *CheckpointPolicy `json:"checkpoints,omitempty"`
	Learn          string            `json:"learn,omitempty"`
	Publish        []egress.Publish  `json:"publish,omitempty"`
}

// Resume goes on with a task that failed, was cancelled or interrupted, at its first step that is not done and on the
// checkpoint before it, under the same profile. ref is the task's id, or a feature, whose newest task is meant. A step
// that was interrupted is run again only if it may be (Step.Retry, RetryInterrupted); else the error is CodeResume.
func (s *Supervisor) Resume(ctx context.Context, ref string, o ResumeOptions) (*Result, error) {
	t, err := s.resume(ctx, ref, &o)
	if err != nil {
		return nil, typed(err, "resuming "+ref)
	}
	return t.life()
}

// resume makes the task of what the journal has of it.
func (s *Supervisor) resume(ctx context.Context, ref string, o *ResumeOptions) (*task, error) {
	record, err := s.taskOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	f, err := s.opt.Journal.Feature(ctx, record.FeatureID)
	if err != nil {
		return nil, explain(err, "feature", record.FeatureID)
	}
	x := s.session(f.ID)
	if x == nil { // who died is settled now
		var release func() error
		if release, err = s.settleNow(ctx, f.ID); err != nil {
			return nil, err
		}
		if err := release(); err != nil {
			return nil, err
		}
		if record, err = s.opt.Journal.Task(ctx, record.ID); err != nil {
			return nil, err
		}
	}
	if !record.State.May(StatePreparing) {
		return nil, refuse(CodeUsage, "", "the task %s cannot be resumed: it is %s", record.ID, record.State)
	}
	r, err := requestOf(&f, &record, o)
	if err != nil {
		return nil, err
	}
	forget := s.know(r)
	t, err := s.takeUp(ctx, r, &record, o)
	if err != nil {
		forget()
		return nil, s.told(err)
	}
	t.learned(forget)
	s.remember(t)
	return t, nil
}

// takeUp admits and submits a recorded task.
func (s *Supervisor) takeUp(ctx context.Context, r *Request, record *TaskRecord, o *ResumeOptions) (*task, error) {
	t, err := s.admit(ctx, r)
	if err != nil {
		return nil, err
	}
	t.resumed = record
	if err := t.goOnAt(record, o); err != nil {
		return nil, err
	}
	if err := t.judge(ctx); err != nil {
		return nil, err
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.rooting.Go(t.makeRoot)
	if err := t.submit(t.ctx); err != nil {
		return nil, t.abandon(err)
	}
	return t, nil
}

// requestOf is the request of a recorded task.
func requestOf(f *FeatureRecord, record *TaskRecord, o *ResumeOptions) (*Request, error) {
	p := &profiles.Effective{}
	if err := json.Unmarshal(record.Profile, p); err != nil {
		return nil, fmt.Errorf("the profile of task %s: %w", record.ID, err)
	}
	p.Digest = record.ProfileDigest
	if o.Profile != nil && o.Profile.Digest != record.ProfileDigest {
		return nil, refuse(CodeConfiguration, "use the profile that the task began with, or start a new task",
			"the task %s began under the profile %s (%s), and this is %s (%s)", record.ID, p.Name, short(record.ProfileDigest), o.Profile.Name, short(o.Profile.Digest))
	}
	var more taskOptions
	if len(record.Options) > 0 {
		if err := json.Unmarshal(record.Options, &more); err != nil {
			return nil, fmt.Errorf("the options of task %s: %w", record.ID, err)
		}
	}
	r := &Request{Workspace: f.Workspace, Feature: f.Name, Profile: p, Promote: more.Promote, PatchFile: more.PatchFile, Branch: more.Branch,
		AllowProtected: more.AllowProtected, Consent: more.Consent, Checkpoints: more.Checkpoints, Learn: more.Learn, Publish: more.Publish, Detach: o.Detach, Remove: record.Remove,
		Environ: o.Environ, Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Signals: o.Signals, Progress: o.Progress}
	environ := &surroundings{vars: environOf(r)}
	lacking := fill(p.Env, environ)
	for i := range record.Steps {
		st, missing, err := stepOf(&record.Steps[i], environ)
		if err != nil {
			return nil, fmt.Errorf("step %d of task %s: %w", i+1, record.ID, err)
		}
		if missing = append(missing, lacking...); len(missing) > 0 && record.Steps[i].State != StepDone && record.State != StateAwaitingApproval {
			return nil, errMissing(record.ID, i+1, missing)
		}
		r.Steps = append(r.Steps, st)
	}
	r.taken = environ.taken
	return r, nil
}

// short is a digest for people.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// goOnAt finds the step to go on at.
func (t *task) goOnAt(record *TaskRecord, o *ResumeOptions) error {
	t.insists = o.RetryInterrupted
	t.first = slices.IndexFunc(record.Steps, func(st StepRecord) bool { return st.State != StepDone })
	if t.first < 0 {
		t.first = len(record.Steps)
		return nil
	}
	st := &record.Steps[t.first]
	if st.State != StepInterrupted {
		return nil
	}
	switch {
	case o.SkipInterrupted:
		t.skipped = true
		t.first++
	case o.RetryInterrupted, st.Retry:
	default:
		return &Error{Code: CodeResume, Exit: ExitPerson,
			Cause: fmt.Sprintf("step %d of task %s was interrupted and may have had effects: %q", st.N, record.ID, t.s.shownArgs(st)),
			Remedy: fmt.Sprintf("caisson resume %s --retry-interrupted, to run it again on the state before it; or caisson resume %s --skip-interrupted",
				record.ID, record.ID)}
	}
	return nil
}

// again records that a task goes on, and takes over what it had done.
func (t *task) again(ctx context.Context) error {
	record := t.resumed
	t.res.TaskID, t.res.Created, t.res.FromEnvironment = record.ID, record.Created, t.req.taken
	old := result(record)
	for i, st := range record.Steps {
		r := StepResult{N: st.N, Name: t.req.Steps[i].Name, Args: t.s.shownArgs(&st), State: st.State, Checkpoint: st.Checkpoint}
		if old != nil && i < len(old.Steps) && st.State == StepDone {
			r = old.Steps[i]
			r.Checkpoint = st.Checkpoint
		}
		t.res.Steps = append(t.res.Steps, r)
	}
	move := Move{TaskID: record.ID, From: record.State, To: StatePreparing, Cause: "resumed"}
	if t.skipped {
		n := t.first
		move.Step = &StepMove{N: n, From: StepInterrupted, To: StepDone}
		t.res.Steps[n-1].State = StepDone
	}
	t.changing.Lock()
	defer t.changing.Unlock()
	now, err := t.s.opt.Journal.Task(ctx, record.ID)
	if err != nil {
		return err
	}
	if now.State != record.State || !now.Updated.Equal(record.Updated) { // what was decided was decided on the old record
		return refuse(CodeBusy, "try again", "somebody else has just resumed the task %s", record.ID)
	}
	if err := t.alone(); err != nil {
		return err
	}
	if err := t.chooseState(ctx); err != nil {
		return err
	}
	t.state = StatePreparing
	return t.s.opt.Journal.Move(ctx, move)
}

// alone refuses a resume beside other tasks: going back would take the state from under them.
func (t *task) alone() error {
	if t.resumed == nil || len(t.running()) == 0 {
		return nil
	}
	return refuse(CodeBusy, "wait until they have ended, or caisson stop "+t.feature.Name, "other tasks run in the feature %s", t.feature.Name)
}

// chooseState decides what the task goes back to before it goes on; "" is nowhere.
func (t *task) chooseState(ctx context.Context) (err error) {
	done, promotes := t.first == len(t.resumed.Steps), t.req.Promote != PromoteNone
	if !t.skipped && (promotes || !done) { // else the state is as the last step left it
		if t.back, err = t.stateBefore(ctx); err != nil || t.back != "" {
			return err
		}
		if err := t.onWhatIsThere(); err != nil {
			return err
		}
	}
	if !promotes {
		return nil
	}
	return t.onItsOwn(ctx)
}

// onItsOwn refuses to go on with what is there when it may hold more than the task made: it would be promoted with it, under
// the task's profile and its word for protected paths.
func (t *task) onItsOwn(ctx context.Context) error {
	id, old := t.resumed.ID, result(t.resumed)
	cause := "other tasks have run in the feature since"
	switch {
	case !t.skipped && t.first == len(t.resumed.Steps) && old != nil && old.Checkpoint != "":
		cause = "its last checkpoint is gone"
	default:
		list, err := t.s.opt.Journal.Tasks(ctx, t.feature.ID)
		if err != nil {
			return err
		}
		if len(list) == 0 || list[len(list)-1].ID == id {
			return nil
		}
	}
	return refuse(CodeResume, "look at `caisson diff "+t.feature.Name+"`, and promote what there is by itself: caisson promote "+t.feature.Name,
		"the task %s promotes what it made, and nobody knows any more what that is: %s", id, cause)
}

// rewind puts the layers of a resumed task back to where its first step begins; what is there is sealed first. The
// feature is not live yet, unless the task joins a session.
func (t *task) rewind(ctx context.Context) error {
	if t.resumed == nil {
		return nil
	}
	if t.live == nil { // a sandbox that lives stays the machine that it is
		if err := renewMachineID(t.dir, t.s.opt.NewID()); err != nil {
			return err
		}
	}
	if t.back == "" {
		return nil
	}
	return t.session.rewound(ctx, snapshot.ResetOptions{To: t.back}, RollbackOptions{}, &RollbackResult{})
}

// stateBefore is the checkpoint on which the step to go on at begins: that of the step before, or the task's first; where no step
// is left, the task's last. "" when there is none that can be used.
func (t *task) stateBefore(ctx context.Context) (string, error) {
	rows, err := t.s.opt.Journal.Checkpoints(ctx, t.feature.ID)
	if err != nil {
		return "", err
	}
	last := t.first == len(t.resumed.Steps) // which is recorded apart from its step's end
	for i := range slices.Backward(rows) {
		r := &rows[i]
		if r.Lost || r.Damaged != "" {
			continue
		}
		mine := r.TaskID == t.resumed.ID
		switch {
		case last && mine && r.Step == t.first && (r.Reason == ReasonStep || r.Reason == ReasonStart):
			return r.ID, nil
		case last && mine && r.Reason == ReasonStart: // it began there, and has not come to sealing what it made
			return "", nil
		}
		if t.first > 0 && r.ID == t.resumed.Steps[t.first-1].Checkpoint || t.first == 0 && r.TaskID == t.resumed.ID && r.Reason == ReasonStart {
			return r.ID, nil
		}
	}
	return "", nil
}

// onWhatIsThere goes on without going back: when nothing has run since the last step that is done, or somebody insists.
func (t *task) onWhatIsThere() error {
	ran := slices.ContainsFunc(t.resumed.Steps[t.first:], func(st StepRecord) bool { return st.State != StepNotStarted })
	if !ran || t.insists {
		return nil
	}
	id := t.resumed.ID
	return &Error{Code: CodeResume, Exit: ExitPerson,
		Cause:  fmt.Sprintf("step %d of task %s has run, and there is no checkpoint of the state before it", t.first+1, id),
		Remedy: fmt.Sprintf("caisson resume %s --retry-interrupted, to run it again on what it left", id)}
}

// settleNow takes a feature's lock and finishes what a dead process left of it.
func (s *Supervisor) settleNow(ctx context.Context, id string) (release func() error, err error) {
	_, l, err := s.hold(ctx, id, flock.Exclusive)
	if err != nil {
		return nil, err
	}
	return l.Release, nil
}

// renewMachineID makes another machine-id: a resumed feature is another machine.
func renewMachineID(dir, seed string) error {
	if err := os.Remove(machineID(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return writeOnce(machineID(dir), seed)
}

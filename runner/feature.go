package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/logfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// FeatureInfo is what `ps` and `inspect` show of a feature.
type FeatureInfo struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Workspace string            `json:"workspace"`
	State     State             `json:"state"`             // of its newest task
	Verdict   Verdict           `json:"verdict,omitempty"` // likewise, once it has ended
	Command   []string          `json:"command"`           // of its newest task's first step
	Live      bool              `json:"live"`              // somebody works on it now
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Updated   time.Time         `json:"updated"`
	Dir       string            `json:"dir"` // where its layers lie
	Detached  bool              `json:"detached,omitempty"`
	TTL       time.Duration     `json:"ttl_ns,omitempty"`
	Idle      time.Duration     `json:"idle_ns,omitempty"`
	Head      string            `json:"head,omitempty"`        // checkpoint that the current state goes on from
	Saved     int               `json:"checkpoints,omitempty"` // how many checkpoints there are
	Origin    string            `json:"origin,omitempty"`      // id of the feature that it was forked from
	Disk      *DiskUsage        `json:"disk,omitempty"`        // in lists and of busy features -1 is used: nobody has looked
	Damaged   string            `json:"damaged,omitempty"`     // what of it cannot be used, and why
	Tasks     []TaskInfo        `json:"tasks,omitempty"`       // oldest first; not in lists
}

// TaskInfo is what `inspect` shows of a task.
type TaskInfo struct {
	ID            string       `json:"id"`
	Feature       string       `json:"feature_id"`
	State         State        `json:"state"`
	Steps         []StepRecord `json:"steps"`
	ProfileDigest string       `json:"profile_digest"`
	Created       time.Time    `json:"created"`
	Updated       time.Time    `json:"updated"`
	Result        *Result      `json:"result,omitempty"` // nil until it has ended
}

// PromoteOptions is how Promote promotes.
type PromoteOptions struct {
	Kind           string   // PromoteApply ("" too) or PromotePatch
	PatchFile      string   // for PromotePatch
	AllowProtected []string // globs: the explicit word for protected paths
	Stop           bool     // processes of other features that hold the workspace are stopped
}

// PromoteResult is what Promote did. Blocked by a gate, Report is nil and the error has CodeGate.
type PromoteResult struct {
	Feature    string                  `json:"feature"`
	Checkpoint string                  `json:"checkpoint"` // id of the state that was promoted
	Kind       string                  `json:"kind"`
	Change     ChangeSummary           `json:"change"`
	Gates      []gates.Verdict         `json:"gates"`
	Report     *snapshot.PromoteReport `json:"report,omitempty"`
}

// LogOptions picks from a feature's log.
type LogOptions struct {
	Task   string // id; "" means the feature's newest
	Stream string // "stdout", "stderr" or "" for both
	Step   int    // 1-based; 0 means all
	Follow bool   // go on until the task ends
}

// GCReport is what GC removed, or would remove.
type GCReport struct {
	DryRun      bool     `json:"dry_run,omitempty"`
	Interrupted []string `json:"interrupted,omitempty"` // tasks whose supervisor died
	Features    []string `json:"features,omitempty"`    // half removed ones
	Directories []string `json:"directories,omitempty"` // that no record names
	Cgroups     []string `json:"cgroups,omitempty"`     // likewise
	Recovered   []string `json:"recovered,omitempty"`   // features whose promotion was finished or undone
	Checkpoints []string `json:"checkpoints,omitempty"` // that the rules of retention dropped
	Bytes       int64    `json:"bytes,omitempty"`       // that were freed
	Damaged     []string `json:"damaged,omitempty"`     // checkpoints and layers that cannot be used
	Problems    []string `json:"problems,omitempty"`    // what could not be done, and why; it stays for the next time
}

// Features lists the features, newest first: those that are live, and with all the others too.
func (s *Supervisor) Features(ctx context.Context, all bool) ([]FeatureInfo, error) {
	if err := s.sweep(ctx, &GCReport{}); err != nil {
		return nil, err
	}
	records, err := s.opt.Journal.Features(ctx)
	if err != nil {
		return nil, err
	}
	list := []FeatureInfo{}
	held := flock.Holders()
	for _, f := range records {
		if info := s.info(&f, held); all || info.Live {
			list = append(list, info)
		}
	}
	return list, nil
}

// info is what the journal says of a feature, and its lock.
func (s *Supervisor) info(f *FeatureRecord, held flock.Table) FeatureInfo {
	i := FeatureInfo{ID: f.ID, Name: f.Name, Workspace: f.Workspace, Labels: f.Labels, Created: f.Created, Updated: f.Created,
		Dir: s.featureDir(f.ID), Detached: f.Detached, TTL: f.TTL, Idle: f.Idle, Origin: f.Origin, Damaged: f.Damaged}
	if f.Mechanism != "" {
		i.Disk = &DiskUsage{Mechanism: f.Mechanism, Limit: int64(f.Disk), InodeLimit: int64(f.Inodes), Used: -1, Inodes: -1}
	}
	if t := f.Last; t != nil {
		i.State, i.Updated, i.Live = t.State, t.Updated, !t.State.Ended()
		if len(t.Steps) > 0 {
			i.Command = t.Steps[0].Args
		}
		if r := result(t); r != nil {
			i.Verdict = r.Verdict
		}
	}
	if x := s.session(f.ID); x != nil {
		i.Live = true
	} else {
		i.Live = (i.Live || f.Detached) && held.Alive(lockFile(s.featureDir(f.ID)))
	}
	return i
}

// result is a task's stored result; nil when it has none.
func result(t *TaskRecord) *Result {
	if t.Result == nil {
		return nil
	}
	r := &Result{}
	if err := json.Unmarshal(t.Result, r); err != nil {
		return nil // a result is for people; the state counts
	}
	return r
}

// Feature finds one by name, id or unique prefix of an id. CodeNotFound, CodeAmbiguous.
func (s *Supervisor) Feature(ctx context.Context, ref string) (*FeatureInfo, error) {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return nil, explain(err, "feature", ref)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	if len(tasks) > 0 {
		f.Last = &tasks[len(tasks)-1]
	}
	info := s.info(&f, flock.Holders())
	for i := range tasks {
		info.Tasks = append(info.Tasks, taskInfo(&tasks[i]))
	}
	rows, err := s.opt.Journal.Checkpoints(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	info.Saved = len(rows)
	err = s.use(ctx, f.ID, reading, func(x *session) error {
		info.Head = x.layers.Info().Head
		if u := x.diskUsage(); u != nil {
			info.Disk = u
		}
		return nil
	})
	if err != nil && CodeOf(err) != CodeBusy { // it is shown all the same
		info.Damaged = cmp.Or(info.Damaged, err.Error())
	}
	return &info, nil
}

// Task finds a task by id. CodeNotFound.
func (s *Supervisor) Task(ctx context.Context, id string) (*TaskInfo, error) {
	t, err := s.opt.Journal.Task(ctx, id)
	if err != nil {
		return nil, explain(err, "task", id)
	}
	info := taskInfo(&t)
	return &info, nil
}

func taskInfo(t *TaskRecord) TaskInfo {
	return TaskInfo{ID: t.ID, Feature: t.FeatureID, State: t.State, Steps: t.Steps, ProfileDigest: t.ProfileDigest,
		Created: t.Created, Updated: t.Updated, Result: result(t)}
}

// Change reads the change of FEATURE or FEATURE@CHECKPOINT against the workspace. Of a live feature it is what shows now.
func (s *Supervisor) Change(ctx context.Context, ref string) (c *snapshot.Change, err error) {
	err = s.withChange(ctx, ref, func(_ *session, change *snapshot.Change) error { c = change; return nil })
	return c, err
}

// Diff writes such a change as text.
func (s *Supervisor) Diff(ctx context.Context, ref string, w io.Writer, o snapshot.DiffOptions) error {
	return s.withChange(ctx, ref, func(x *session, c *snapshot.Change) error { return x.layers.WriteDiff(ctx, c, w, o) })
}

func (s *Supervisor) withChange(ctx context.Context, ref string, do func(*session, *snapshot.Change) error) error {
	r, err := ParseRef(ref)
	if err != nil {
		return err
	}
	err = s.use(ctx, r.Feature, reading, func(x *session) error {
		at, err := x.state(ctx, r)
		if err != nil {
			return err
		}
		c, err := x.layers.Change(ctx, snapshot.Base, at)
		if err != nil {
			return err
		}
		return do(x, c)
	})
	return typed(err, "reading the change of "+ref)
}

// state is what a reference means to the layers: without a checkpoint, the current state.
func (x *session) state(ctx context.Context, r Ref) (string, error) {
	if r.Checkpoint == "" {
		return snapshot.Current, nil
	}
	return x.resolveID(ctx, r.Checkpoint)
}

// Promote applies a feature's change after its gates have passed. CodeGate with the verdicts in the result; CodeConflict
// wrapping *snapshot.ConflictError; CodeNothingToDo; CodeBusy.
func (s *Supervisor) Promote(ctx context.Context, ref string, o PromoteOptions) (*PromoteResult, error) {
	o.Kind = cmp.Or(o.Kind, PromoteApply)
	if err := checkPromote(o.Kind, o.PatchFile); err != nil {
		return nil, err
	}
	parsed, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	var r *PromoteResult
	err = s.use(ctx, parsed.Feature, writing, func(x *session) (err error) {
		r, err = x.judgeAndPromote(ctx, parsed, o)
		return err
	})
	return r, typed(err, "promoting "+ref)
}

func (x *session) judgeAndPromote(ctx context.Context, ref Ref, o PromoteOptions) (*PromoteResult, error) {
	policy, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return nil, err
	}
	at := ""
	if ref.Checkpoint != "" {
		at, err = x.resolveID(ctx, ref.Checkpoint)
	} else {
		var c *Checkpoint
		if c, err = x.checkpoint(ctx, ReasonPromote, CheckpointOptions{}); err == nil {
			at = c.ID
		}
	}
	if err != nil {
		return nil, err
	}
	c, err := x.layers.Change(ctx, snapshot.Base, at)
	if err != nil {
		return nil, err
	}
	r := &PromoteResult{Feature: x.feature.Name, Kind: o.Kind, Change: *summary(c), Checkpoint: at}
	if r.Change.Empty() {
		return r, refuse(CodeNothingToDo, "", "the feature %s has changed nothing", x.feature.Name)
	}
	if r.Gates, err = x.validate(ctx, policy, &judged{x.layers, at, c}, o.AllowProtected); err != nil {
		return r, err
	}
	if gates.Blocked(r.Gates) {
		return r, blockedError(x.feature.Name)
	}
	if err := x.s.opt.Journal.Promoting(ctx, x.feature.ID, true); err != nil {
		return r, err
	}
	// From here on nothing stops half way: what was begun is finished or undone.
	ctx = context.WithoutCancel(ctx)
	r.Report, err = x.promote(ctx, c, o, at)
	if err == nil {
		err = x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "promote", To: at, Cause: o.Kind})
	}
	return r, errors.Join(err, x.s.opt.Journal.Promoting(ctx, x.feature.ID, false))
}

// validate runs the gates on a sealed state, and stores with it what they say.
func (x *session) validate(ctx context.Context, p *profiles.Effective, state *judged, allow []string) ([]gates.Verdict, error) {
	start := time.Now()
	verdicts, err := judge(ctx, p, state, allow)
	if err != nil {
		return nil, err
	}
	x.s.timed(Timing{FeatureID: x.feature.ID, Kind: TimingValidation, At: start, Took: time.Since(start)})
	if state.at == snapshot.Current {
		return verdicts, nil
	}
	err = x.s.opt.Journal.AddVerdicts(context.WithoutCancel(ctx), state.at, verdicts)
	if errors.Is(err, ErrNotFound) {
		err = nil // the checkpoint is another feature's
	}
	return verdicts, err
}

// promote hands a sealed state over. Other live features of the workspace move first, or it is refused.
func (x *session) promote(ctx context.Context, c *snapshot.Change, o PromoteOptions, at string) (report *snapshot.PromoteReport, err error) {
	options := snapshot.PromoteOptions{Kind: snapshot.PromoteKind(o.Kind), PatchFile: o.PatchFile,
		Moving: func(ctx context.Context, generation int) error { return x.moveOthers(ctx, generation, o.Stop) }}
	do := func(ctx context.Context) (bool, error) {
		report, err = x.layers.Promote(ctx, c, options)
		return err == nil && options.Kind == snapshot.PromoteApply, err
	}
	if x.live != nil && options.Kind == snapshot.PromoteApply {
		err = x.live.Change(ctx, live.KeepOthers, do)
	} else {
		_, err = do(ctx)
	}
	if conflict, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		return report, conflictError(conflict, x.feature.Name)
	}
	if held, ok := errors.AsType[*isolation.HeldError](err); ok {
		return report, heldError(x.feature.Name, held.Holders)
	}
	if err == nil && at != snapshot.Current && options.Kind == snapshot.PromoteApply {
		yes := true
		if err = x.s.opt.Journal.UpdateCheckpoint(ctx, at, CheckpointUpdate{Promoted: &yes}); errors.Is(err, ErrNotFound) {
			err = nil
		}
	}
	return report, err
}

// moveOthers has the other live features of a workspace take up what a promote is about to replace. Those that are not
// live do when they are opened.
func (x *session) moveOthers(ctx context.Context, generation int, stop bool) error {
	features, err := x.s.opt.Journal.Features(ctx)
	if err != nil {
		return err
	}
	features = slices.DeleteFunc(features, func(f FeatureRecord) bool { return f.ID == x.feature.ID || f.Workspace != x.feature.Workspace })
	if len(features) == 0 {
		return nil
	}
	held := flock.Holders()
	features = slices.DeleteFunc(features, func(f FeatureRecord) bool {
		return x.s.session(f.ID) == nil && !held.Alive(lockFile(x.s.featureDir(f.ID)))
	})
	for i := range features { // before any of them has moved
		if err := x.s.mayMove(ctx, &features[i], stop); err != nil {
			return errors.Join(err, snapshot.ErrStayed)
		}
	}
	for i := range features {
		if err := x.s.move(ctx, &features[i], generation, stop); err != nil {
			return err
		}
	}
	return nil
}

// mayMove refuses when a live feature cannot be moved.
func (s *Supervisor) mayMove(ctx context.Context, f *FeatureRecord, stop bool) error {
	ctx, cancel := context.WithTimeout(ctx, rebaseTime)
	defer cancel()
	var holders []isolation.Holder
	var err error
	switch {
	case stop:
		return nil
	case s.session(f.ID) != nil:
		holders, err = s.Holders(ctx, f.ID)
	case s.opt.Daemon == nil:
		return refuse(CodeHeld, "wait until it has ended", "the feature %s of the same workspace is in use", f.Name)
	default:
		holders, err = s.opt.Daemon.Holders(ctx, f.ID)
	}
	if err == nil && len(holders) > 0 {
		e := heldError(f.Name, holders)
		e.Remedy = "end them, or stop them with --stop"
		return e
	}
	return silent(err, f)
}

// move has a live feature take up new base layers.
func (s *Supervisor) move(ctx context.Context, f *FeatureRecord, generation int, stop bool) error {
	if s.session(f.ID) != nil {
		return s.Rebase(ctx, f.ID, generation, stop)
	}
	ctx, cancel := context.WithTimeout(ctx, rebaseTime)
	defer cancel()
	if s.opt.Daemon == nil {
		return refuse(CodeHeld, "wait until it has ended", "the feature %s of the same workspace is in use", f.Name)
	}
	return silent(s.opt.Daemon.Rebase(ctx, f.ID, generation, stop), f)
}

// silent explains that a feature did not answer.
func silent(err error, f *FeatureRecord) error {
	if err != nil && CodeOf(err) == CodeInternal {
		return &Error{Code: CodeHeld, Cause: "the feature " + f.Name + " of the same workspace does not answer", Exit: ExitRefused, Err: err,
			Remedy: "wait until it has ended, or stop it: caisson stop " + f.Name}
	}
	return err
}

// policy is the profile that a feature's newest task ran under; of a fork without a task, its origin's.
func (s *Supervisor) policy(ctx context.Context, f *FeatureRecord) (*profiles.Effective, error) {
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err == nil && len(tasks) == 0 && f.Origin != "" {
		tasks, err = s.opt.Journal.Tasks(ctx, f.Origin)
	}
	if err != nil {
		return nil, err
	}
	if len(tasks) == 0 {
		return profiles.Load(profiles.LoadOptions{Name: "default"})
	}
	p := &profiles.Effective{}
	if err := json.Unmarshal(tasks[len(tasks)-1].Profile, p); err != nil {
		return nil, fmt.Errorf("the profile of feature %s: %w", f.Name, err)
	}
	return p, nil
}

// Discard throws a feature's change away, and the feature with it. CodeBusy.
func (s *Supervisor) Discard(ctx context.Context, ref string) error {
	f, l, err := s.hold(ctx, ref, flock.Exclusive)
	if err != nil {
		return err
	}
	return errors.Join(typed(s.destroy(ctx, &f), "discarding "+f.Name), l.Release())
}

// Remove removes features, their changes and their records. One with a change that was not promoted needs force; one
// that is live is CodeBusy. It goes on after an error.
func (s *Supervisor) Remove(ctx context.Context, refs []string, force bool) error {
	var errs []error
	for _, ref := range refs {
		f, l, err := s.hold(ctx, ref, flock.Exclusive)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !force {
			err = s.unchanged(ctx, &f)
		}
		if err == nil {
			err = s.destroy(ctx, &f)
		}
		errs = append(errs, typed(err, "removing "+f.Name), l.Release())
	}
	return errors.Join(errs...)
}

func (s *Supervisor) unchanged(ctx context.Context, f *FeatureRecord) error {
	x := &session{s: s, feature: *f, dir: s.featureDir(f.ID)}
	n := 0
	err := x.open(ctx, reading)
	if err == nil {
		var c *snapshot.Change
		if c, err = x.layers.Change(ctx, snapshot.Base, snapshot.Current); err == nil {
			n = len(c.Entries)
		}
	}
	if err = errors.Join(err, x.close(ctx, false)); err == nil && n > 0 {
		err = refuse(CodeUsage, fmt.Sprintf("caisson rm --force %s, or caisson promote %s", f.Name, f.Name),
			"the feature %s has a change that was not promoted (%d paths)", f.Name, n)
	}
	return err
}

// destroy removes a feature, whose lock is held: it is no longer found, then its files go, then its record. While forks
// need its layers, these and the record stay.
func (s *Supervisor) destroy(ctx context.Context, f *FeatureRecord) error {
	if !f.Retired {
		if err := s.opt.Journal.Retire(ctx, f.ID); err != nil {
			return err
		}
	}
	kin, err := s.opt.Journal.Kin(ctx, f.ID)
	if err != nil {
		return err
	}
	for i := range kin {
		if kin[i].ID == f.ID || kin[i].Retired {
			continue
		}
		refs, err := s.refsOf(ctx, &kin[i])
		if err != nil || slices.ContainsFunc(refs, func(r snapshot.LayerRef) bool { return r.Feature == f.ID }) {
			return nil //nolint:nilerr // what cannot be read may need it
		}
	}
	if err := s.removeFeature(ctx, s.featureDir(f.ID), f.ID); err != nil {
		return err
	}
	if err := s.opt.Journal.Forget(ctx, f.ID); err != nil {
		return err
	}
	for i := range kin { // those that were kept for this one
		if kin[i].ID != f.ID && kin[i].Retired {
			if l, err := s.lock(ctx, &kin[i], flock.Exclusive); err == nil {
				if err := errors.Join(s.destroy(ctx, &kin[i]), l.Release()); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Logs replays what a task wrote.
func (s *Supervisor) Logs(ctx context.Context, ref string, o LogOptions, stdout, stderr io.Writer) error {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return explain(err, "feature", ref)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err != nil {
		return err
	}
	id := ""
	for _, t := range tasks {
		if o.Task == "" || o.Task == t.ID {
			id = t.ID
		}
	}
	if id == "" {
		return notFound("task", o.Task)
	}
	do := func(r logfile.Record) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		return o.write(r, stdout, stderr)
	}
	if log := s.liveLog(f.ID, id); o.Follow && log != nil {
		err = log.Follow(ctx, do)
	} else {
		err = logfile.Replay(s.logPath(f.ID, id), do)
	}
	return typed(err, "reading the log of "+f.Name)
}

// liveLog is the log of a task that runs in this process, or nil.
func (s *Supervisor) liveLog(feature, task string) *logfile.Writer {
	if x := s.session(feature); x != nil {
		for _, t := range x.running() {
			if t.res.TaskID == task {
				return t.steps.Log
			}
		}
	}
	return nil
}

func (s *Supervisor) logPath(feature, task string) string {
	return filepath.Join(s.featureDir(feature), "log", task)
}

func (o LogOptions) write(r logfile.Record, stdout, stderr io.Writer) error {
	if r.Gap > 0 {
		_, err := fmt.Fprintf(stderr, "\n[caisson: %d bytes of output are missing here: the log is bounded]\n", r.Gap)
		return err
	}
	if o.Step != 0 && o.Step != r.Step {
		return nil
	}
	w, name := stdout, "stdout"
	if r.Stream == logfile.Stderr {
		w, name = stderr, "stderr"
	}
	if o.Stream != "" && o.Stream != name {
		return nil
	}
	_, err := w.Write(r.Data)
	return err
}

// mountMapping has a mount's owner be the command's user inside, where its filesystem can be idmapped; elsewhere it is seen
// with the host's ids, as nobody's.
func (s *Supervisor) mountMapping(source string) isolation.Mapping {
	if s.direct(source) != "" {
		return isolation.MapNone
	}
	return isolation.MapOwner
}

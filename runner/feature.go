package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// FeatureInfo is what `ps` and `inspect` show of a feature.
type FeatureInfo struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Workspace string            `json:"workspace"`
	State     State             `json:"state"`             // of its newest task that has not ended, or if all have of its newest
	Verdict   Verdict           `json:"verdict,omitempty"` // likewise, once it has ended
	Command   []string          `json:"command"`           // likewise, of its first step
	Live      bool              `json:"live"`              // somebody works on it now
	Paused    bool              `json:"paused,omitempty"`  // it is live in this process and stands still
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
	Driver    string            `json:"driver,omitempty"`      // of its layers: overlay, copy
	Disk      *DiskUsage        `json:"disk,omitempty"`        // in lists and of busy features -1 is used: nobody has looked
	Damaged   string            `json:"damaged,omitempty"`     // what of it cannot be used, and why
	Running   []TaskInfo        `json:"running,omitempty"`     // those that have not ended, oldest first; only of a live one
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
	running, err := s.running(ctx)
	if err != nil {
		return nil, err
	}
	list := []FeatureInfo{}
	held := flock.Holders()
	for _, f := range records {
		if info := s.info(&f, running[f.ID], held); all || info.Live {
			list = append(list, info)
		}
	}
	return list, nil
}

// running are the tasks that have not ended, by feature, oldest first.
func (s *Supervisor) running(ctx context.Context) (map[string][]TaskRecord, error) {
	list, err := s.opt.Journal.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	by := map[string][]TaskRecord{}
	for i := range list {
		if list[i].Last == nil {
			continue
		}
		t, err := s.opt.Journal.Task(ctx, list[i].Last.ID) // with its steps
		if errors.Is(err, ErrNotFound) {
			continue // it has just gone
		}
		if err != nil {
			return nil, err
		}
		by[t.FeatureID] = append(by[t.FeatureID], t)
	}
	for _, tasks := range by {
		slices.SortFunc(tasks, func(a, b TaskRecord) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	}
	return by, nil
}

// info is what the journal says of a feature and of its tasks that have not ended, and its lock.
func (s *Supervisor) info(f *FeatureRecord, running []TaskRecord, held flock.Table) FeatureInfo {
	if n := len(running); n > 0 {
		f.Last = &running[n-1]
	}
	i := FeatureInfo{ID: f.ID, Name: f.Name, Workspace: f.Workspace, Labels: f.Labels, Created: f.Created, Updated: f.Created,
		Dir: s.featureDir(f.ID), Detached: f.Detached, TTL: f.TTL, Idle: f.Idle, Origin: f.Origin, Driver: f.Driver, Damaged: f.Damaged}
	if f.Mechanism != "" {
		i.Disk = &DiskUsage{Mechanism: f.Mechanism, Limit: int64(f.Disk), InodeLimit: int64(f.Inodes), Used: -1, Inodes: -1}
	}
	if t := f.Last; t != nil {
		i.State, i.Updated, i.Live = t.State, t.Updated, !t.State.Ended()
		if len(t.Steps) > 0 {
			i.Command = s.shownArgs(&t.Steps[0])
		}
		if r := result(t); r != nil {
			i.Verdict = r.Verdict
		}
	}
	if x := s.session(f.ID); x != nil {
		i.Live, i.Paused = true, x.paused()
	} else {
		i.Live = (i.Live || f.Detached) && held.Alive(lockFile(s.featureDir(f.ID)))
	}
	for j := range running {
		if i.Live {
			i.Running = append(i.Running, s.taskInfo(&running[j]))
		}
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
	info := s.info(&f, slices.DeleteFunc(slices.Clone(tasks), func(t TaskRecord) bool { return t.State.Ended() }), flock.Holders())
	for i := range tasks {
		info.Tasks = append(info.Tasks, s.taskInfo(&tasks[i]))
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
	info := s.taskInfo(&t)
	return &info, nil
}

func (s *Supervisor) taskInfo(t *TaskRecord) TaskInfo {
	steps := make([]StepRecord, 0, len(t.Steps))
	for _, st := range t.Steps {
		steps = append(steps, s.shown(st))
	}
	return TaskInfo{ID: t.ID, Feature: t.FeatureID, State: t.State, Steps: steps, ProfileDigest: t.ProfileDigest,
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

// policy is the profile that a feature's newest task ran under; of a fork without a task, that of where it came from.
func (s *Supervisor) policy(ctx context.Context, f *FeatureRecord) (*profiles.Effective, error) {
	text, err := s.opt.Journal.Policy(ctx, f.ID)
	if errors.Is(err, ErrNotFound) { // which gates there were is not known either
		return nil, refuse(CodeConfiguration, fmt.Sprintf("run something in it under one: caisson run --feature %s --profile PROFILE -- true", f.Name),
			"the profile of the feature %s is not known", f.Name)
	}
	if err != nil {
		return nil, err
	}
	p := &profiles.Effective{}
	if err := json.Unmarshal(text, p); err != nil {
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
		waiting, _ := s.waiting(ctx, f.ID) // what cannot be read goes all the same
		if err := s.giveUp(ctx, waiting, VerdictGate, "the feature was removed with its change"); err != nil {
			return err
		}
		if err := s.opt.Journal.Retire(ctx, f.ID); err != nil {
			return err
		}
		f.Retired = true
	}
	kin, err := s.opt.Journal.Kin(ctx, f.ID)
	if err != nil {
		return err
	}
	if s.needed(ctx, f, kin) {
		_ = s.identify(ctx, f) // it is only missed when the store is lost
		return nil
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

// needed reports whether forks need layers of a feature. What cannot be read may.
func (s *Supervisor) needed(ctx context.Context, f *FeatureRecord, kin []FeatureRecord) bool {
	lost, err := s.forkLost(ctx, f)
	return lost || err != nil || slices.ContainsFunc(kin, func(k FeatureRecord) bool {
		if k.ID == f.ID || k.Retired {
			return false
		}
		refs, err := s.refsOf(ctx, &k)
		return err != nil || slices.ContainsFunc(refs, func(r snapshot.LayerRef) bool { return r.Feature == f.ID })
	})
}

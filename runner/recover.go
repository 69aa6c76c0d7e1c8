package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/images"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Names in tmp/.
const (
	memoryPrefix = "memory-" // the features of a supervisor without persistence
	gonePrefix   = "gone-"   // what is being removed
)

// unusedRoot is for how long an unpacked root file system that nobody asks for is kept.
const unusedRoot = 7 * 24 * time.Hour

// recoverAll is what every start does: one question to the journal, and work only where somebody died. What cannot be
// settled now (a workspace that is not mounted, say) stays for the next time and for who wants the feature.
func (s *Supervisor) recoverAll(ctx context.Context) error {
	ids, err := s.opt.Journal.UnfinishedIDs(ctx)
	if err != nil || len(ids) == 0 {
		return err
	}
	holders := flock.Holders()
	for _, id := range ids {
		if holders.Alive(lockFile(s.featureDir(id))) {
			continue // the usual case, of which there may be a thousand
		}
		f := FeatureRecord{ID: id, Name: id} // until settle knows it
		err := s.adopt(ctx, &f)
		if err != nil && !errors.Is(err, flock.ErrLocked) && CodeOf(err) != CodeNotFound {
			s.found.Problems = append(s.found.Problems, f.Name+": "+err.Error())
		}
	}
	return nil
}

// adopt takes the lock of a feature whose owner may be dead, and settles it if so. ErrLocked says that it lives. A
// directory that has left its place is one that is being removed, and its lock went with it.
func (s *Supervisor) adopt(ctx context.Context, f *FeatureRecord) error {
	l, err := flock.Inherit(ctx, lockFile(s.featureDir(f.ID)), flock.Exclusive)
	if !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = errors.Join(s.settle(ctx, f, &s.found), l.Release())
		}
		return err
	}
	gone := s.gone(f.ID)
	if err := os.Mkdir(gone, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return stateFailure(err)
	}
	if l, err = flock.Inherit(ctx, lockFile(gone), flock.Exclusive); err != nil {
		return err
	}
	return errors.Join(s.settle(ctx, f, &s.found), removeLast(ctx, gone), l.Release())
}

// settle finishes what a dead process left of the feature f, whose lock is held. It answers CodeNotFound when nothing
// of the feature remains.
func (s *Supervisor) settle(ctx context.Context, f *FeatureRecord, r *GCReport) error {
	now, err := s.unfinished(ctx, f.ID)
	if err != nil || now == nil {
		return err
	}
	*f = now[0]
	if err := s.killGroup(ctx, f.ID, r); err != nil {
		return err
	}
	promoted := slices.ContainsFunc(now, func(f FeatureRecord) bool {
		return f.Promoting || f.Last != nil && f.Last.State == StatePromoting
	})
	halfMade, err := s.mend(ctx, f, promoted) // killed before it had layers: nothing ever ran in it
	if err != nil && !f.Retired {
		return err
	}
	gone := f.Retired || halfMade
	for _, record := range now {
		if t := record.Last; t != nil {
			gone = gone || t.Remove
			if err := s.interrupt(ctx, f, t.ID); err != nil {
				return err
			}
			r.Interrupted = append(r.Interrupted, t.ID)
		}
	}
	if promoted {
		r.Recovered = append(r.Recovered, f.Name)
	}
	if f.Promoting {
		if err := s.opt.Journal.Promoting(ctx, f.ID, false); err != nil {
			return err
		}
	}
	if f.Detached { // its sandbox died with its supervisor
		off := false
		if err := s.opt.Journal.UpdateFeature(ctx, f.ID, FeatureUpdate{Detached: &off}); err != nil {
			return err
		}
		f.Detached = false
	}
	if !gone {
		return nil
	}
	if err := s.destroy(ctx, f); err != nil {
		return err
	}
	r.Features = append(r.Features, f.Name)
	return notFound("feature", f.Name)
}

// mend finishes or undoes what a dead process had begun on the layers, and records the checkpoints that it had made, and how its
// promotion ended. It reports whether there are no layers.
func (s *Supervisor) mend(ctx context.Context, f *FeatureRecord, promoting bool) (missing bool, err error) {
	x := &session{s: s, feature: *f, dir: s.featureDir(f.ID)}
	planned, done := halfPromoted(x.dir)
	if err = x.open(ctx, writing); err == nil && promoting {
		err = x.settlePromotion(ctx, planned, done)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, disk.ErrDamaged) {
		// A directory that has left its place is being removed; what has lost its layers in it is damaged.
		if _, gone := os.Lstat(x.dir); gone != nil || s.neverRan(ctx, f) {
			missing, err = true, nil
		}
	}
	return missing, errors.Join(err, x.close(ctx, false))
}

// neverRan reports whether nothing was ever executed in a feature: then nothing of it can be lost.
func (s *Supervisor) neverRan(ctx context.Context, f *FeatureRecord) bool {
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	rows, rowsErr := s.opt.Journal.Checkpoints(ctx, f.ID)
	started := func(t TaskRecord) bool {
		return slices.ContainsFunc(t.Steps, func(st StepRecord) bool { return st.State != StepNotStarted })
	}
	return err == nil && rowsErr == nil && len(rows) == 0 && f.Origin == "" && !slices.ContainsFunc(tasks, started)
}

// unfinished is what the journal says of one feature now that its lock is held: nil when nothing is to be done.
func (s *Supervisor) unfinished(ctx context.Context, id string) (mine []FeatureRecord, err error) {
	list, err := s.opt.Journal.Unfinished(ctx)
	for _, f := range list {
		if f.ID == id {
			mine = append(mine, f)
		}
	}
	return mine, err
}

// interrupt writes the end of a task whose supervisor died.
func (s *Supervisor) interrupt(ctx context.Context, f *FeatureRecord, id string) error {
	t, err := s.opt.Journal.Task(ctx, id)
	if err != nil {
		return err
	}
	r := Result{
		TaskID: t.ID, Feature: f.Name, FeatureID: f.ID, Workspace: f.Workspace, State: StateInterrupted, Verdict: VerdictInterrupted,
		Code: string(VerdictInterrupted), Cause: "its supervisor died while it was " + string(t.State), Kept: !t.Remove,
		Remedy:  fmt.Sprintf("caisson resume %s, or: caisson discard %s", t.ID, f.Name),
		Created: t.Created, Ended: time.Now(), ProfileDigest: t.ProfileDigest,
	}
	if old := result(&t); old != nil && t.State == StatePromoting { // it had waited for a person
		r.Checkpoint = old.Checkpoint
	}
	m := Move{TaskID: t.ID, From: t.State, To: StateInterrupted, Cause: r.Cause}
	for _, st := range t.Steps {
		if st.State == StepRunning {
			m.Step = &StepMove{N: st.N, From: StepRunning, To: StepInterrupted, Command: &Command{Verdict: VerdictInterrupted}}
			st.State = StepInterrupted
		}
		r.Steps = append(r.Steps, StepResult{N: st.N, Args: s.shownArgs(&st), State: st.State, Checkpoint: st.Checkpoint})
	}
	if m.Result, err = json.Marshal(&r); err != nil {
		return err
	}
	return s.opt.Journal.Move(ctx, m)
}

// killGroup kills what runs in a feature's cgroup and removes it.
func (s *Supervisor) killGroup(ctx context.Context, id string, r *GCReport) error {
	if s.opt.Cgroups == nil {
		return nil
	}
	g, err := s.opt.Cgroups.Load(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.Cgroups = append(r.Cgroups, id)
	if r.DryRun {
		return nil
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	return errors.Join(g.Kill(ctx), g.Remove(ctx))
}

// GC removes what nobody owns any more, and says what, including what New removed already. With dryRun it only says.
// It never removes a change. Errors that concern one thing do not stop it; they are in the report.
func (s *Supervisor) GC(ctx context.Context, dryRun bool) (*GCReport, error) {
	r := s.found
	r.DryRun = dryRun
	if err := s.sweep(ctx, &r); err != nil {
		return nil, err
	}
	live, err := s.opt.Journal.Unfinished(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.retain(ctx, &r); err != nil {
		return nil, err
	}
	if d := s.opt.Disk; d != nil && !dryRun {
		cleaned, err := d.Clean(ctx)
		r.Directories = append(r.Directories, cleaned...)
		r.problem(err)
	}
	keep := func(string) bool { return len(live) > 0 } // it may be what a sandbox stands on
	roots, err := images.Prune(filepath.Join(s.state, "roots"), unusedRoot, keep, dryRun)
	r.Directories = append(r.Directories, roots...)
	r.problem(err)
	if s.opt.Cgroups != nil && !dryRun {
		r.problem(s.opt.Cgroups.Cleanup())
	}
	return &r, nil
}

func (r *GCReport) problem(err error) {
	if err != nil {
		r.Problems = append(r.Problems, err.Error())
	}
}

// sweep removes directories that no record names: of a supervisor that died between a directory and its record, of
// removals that were cut short, and of supervisors without persistence that died.
func (s *Supervisor) sweep(ctx context.Context, r *GCReport) error {
	dirs, err := os.ReadDir(filepath.Join(s.dir, "features"))
	if err != nil {
		return stateFailure(err)
	}
	known, err := s.known(ctx)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if f, ok := known[d.Name()]; !ok {
			r.problem(s.sweepFeature(ctx, r, d.Name()))
		} else if !r.DryRun {
			r.problem(s.identifyOld(ctx, &f))
		}
	}
	tmp, err := os.ReadDir(filepath.Join(s.state, "tmp"))
	if err != nil {
		return stateFailure(err)
	}
	for _, d := range tmp {
		r.problem(s.sweepTmp(ctx, r, d.Name()))
	}
	return nil
}

// known are the features that have a record, by id.
func (s *Supervisor) known(ctx context.Context) (map[string]FeatureRecord, error) {
	known := map[string]FeatureRecord{}
	features, err := s.opt.Journal.Features(ctx)
	if err != nil {
		return nil, err
	}
	half, err := s.opt.Journal.Unfinished(ctx)
	for _, f := range append(features, half...) {
		known[f.ID] = f
	}
	return known, err
}

func (s *Supervisor) sweepFeature(ctx context.Context, r *GCReport, id string) error {
	dir := s.featureDir(id)
	l, err := flock.Inherit(ctx, lockFile(dir), flock.Exclusive)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return nil // somebody is about to record it, or has removed it
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	// With the lock held, nobody but us can record it any more.
	known, err := s.known(ctx)
	if _, ok := known[id]; err != nil || ok {
		return err
	}
	if hadRecord(dir) {
		return fmt.Errorf("%s is a feature that the store has lost: caisson doctor --repair brings it back", dir)
	}
	r.Directories = append(r.Directories, dir)
	return s.clear(ctx, dir, id, r)
}

// clear removes the cgroup, the half-done promotion and the files of a feature that has no record.
func (s *Supervisor) clear(ctx context.Context, dir, id string, r *GCReport) error {
	if err := s.killGroup(ctx, id, r); err != nil || r.DryRun {
		return err
	}
	return s.removeFeature(ctx, dir, id)
}

func (s *Supervisor) sweepTmp(ctx context.Context, r *GCReport, name string) error {
	dir := filepath.Join(s.state, "tmp", name)
	l, err := flock.Inherit(ctx, lockFile(dir), flock.Exclusive)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return nil // its owner is alive
	}
	if err != nil {
		return err
	}
	defer func() { _ = l.Release() }()
	if strings.HasPrefix(name, memoryPrefix) {
		features, err := os.ReadDir(filepath.Join(dir, "features"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, f := range features {
			if err := s.clear(ctx, filepath.Join(dir, "features", f.Name()), f.Name(), r); err != nil {
				return err
			}
		}
	}
	r.Directories = append(r.Directories, dir)
	if r.DryRun {
		return nil
	}
	return removeLast(ctx, dir)
}

// gone is where a feature's directory is removed.
func (s *Supervisor) gone(id string) string { return filepath.Join(s.state, "tmp", gonePrefix+id) }

// removeFeature removes a feature's disk unit and its directory, whose lock is held.
func (s *Supervisor) removeFeature(ctx context.Context, dir, id string) error {
	if d := s.opt.Disk; d != nil && dir == s.featureDir(id) {
		if !s.privileged() { // overlayfs leaves directories that only root gets into
			if err := snapshot.Remove(ctx, plainBase(dir)); err != nil {
				return err
			}
		}
		if err := d.Remove(ctx, id); err != nil {
			return err
		}
	}
	return s.removeDir(ctx, dir)
}

// removeDir removes a feature's directory, whose lock is held.
func (s *Supervisor) removeDir(ctx context.Context, dir string) error {
	gone, err := s.moveAway(dir)
	if err != nil {
		return err
	}
	return removeLast(ctx, gone)
}

// moveAway takes a directory out of its place in one step, so that nobody meets half of it, and returns where it is.
func (s *Supervisor) moveAway(dir string) (string, error) {
	gone := s.gone(filepath.Base(dir))
	if err := os.Rename(dir, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return gone, nil
}

// removeLast removes a directory, its lock last: while it is there, it says that somebody is at work.
func removeLast(ctx context.Context, dir string) error {
	if err := snapshot.Remove(ctx, dir, "lock"); err != nil {
		return err
	}
	return snapshot.Remove(ctx, dir)
}

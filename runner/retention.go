package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// retain applies the rules of retention to every feature that nobody works on.
func (s *Supervisor) retain(ctx context.Context, r *GCReport) error {
	features, err := s.opt.Journal.Features(ctx)
	if err != nil {
		return err
	}
	a := writing
	if r.DryRun {
		a = reading
	}
	oldest := map[string]int{} // generation of each workspace that somebody still sees; -1: nobody knows
	for i := range features {
		f := &features[i]
		seen := -1
		err := s.use(ctx, f.ID, a, func(x *session) (err error) {
			if err = x.retain(ctx, r); err == nil {
				seen, err = x.oldest()
			}
			return err
		})
		if code := CodeOf(err); err != nil && code != CodeBusy && code != CodeNotFound {
			r.problem(fmt.Errorf("%s: %w", f.Name, err))
		}
		if least, ok := oldest[f.Workspace]; !ok || seen < least {
			oldest[f.Workspace] = seen
		}
	}
	if s.opt.Memory || s.others() { // whose features are in no journal that we can read
		return nil
	}
	for workspace, generation := range oldest {
		if generation >= 0 && !r.DryRun {
			freed, err := overlay.CollectBases(ctx, s.bases(), workspace, generation)
			r.Bytes += freed
			r.problem(err)
		}
	}
	if r.DryRun {
		return nil
	}
	freed, err := overlay.CollectUnusedBases(ctx, s.bases(), func(workspace string) bool {
		now, err := s.opt.Journal.Features(ctx)
		return err != nil || slices.ContainsFunc(now, func(f FeatureRecord) bool { return f.Workspace == workspace })
	})
	r.Bytes += freed
	r.problem(err)
	return nil
}

// others reports whether a supervisor without persistence lives on the state directory.
func (s *Supervisor) others() bool {
	locks, err := filepath.Glob(filepath.Join(s.state, "tmp", memoryPrefix+"*", "lock"))
	held := flock.Holders()
	return err != nil || slices.ContainsFunc(locks, held.Alive)
}

// oldest is the oldest generation of the workspace that the feature or one of its checkpoints sees.
func (x *session) oldest() (int, error) {
	least := x.layers.Info().Generation
	records, err := x.layers.Records()
	for i := range records {
		least = min(least, records[i].Generation)
	}
	return least, err
}

// retain drops what the rules do not keep, and frees what nobody needs.
func (x *session) retain(ctx context.Context, r *GCReport) error {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return err
	}
	policy, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return err
	}
	rule := &policy.Retention
	keep := snapshot.Keep{Count: int(rule.Count), Age: time.Duration(rule.Age)}
	if rule.Bytes != nil {
		keep.Bytes = int64(*rule.Bytes)
	}
	head := x.layers.Info().Head
	open, err := x.resumable(ctx)
	if err != nil {
		return err
	}
	var all []snapshot.Candidate
	for _, c := range rows {
		if c.Lost {
			continue
		}
		if c.Damaged != "" {
			r.Damaged = append(r.Damaged, x.feature.Name+"@"+c.ID+": "+c.Damaged)
		}
		all = append(all, snapshot.Candidate{
			Record:   snapshot.Record{ID: c.ID, Parent: c.Parent, AliasOf: c.AliasOf, Created: c.Created, Bytes: c.Bytes},
			LastGood: c.LastGood, Promoted: c.Promoted, Labelled: c.Label != "" || c.TaskID != "" && c.TaskID == open, Head: c.ID == head})
	}
	drop := snapshot.Retain(keep, all, time.Now())
	for _, id := range drop {
		r.Checkpoints = append(r.Checkpoints, x.feature.Name+"@"+id)
	}
	if r.DryRun || len(drop) == 0 {
		return nil
	}
	if err := x.putAside(ctx, rule, drop); err != nil {
		return err
	}
	if err := x.drop(ctx, drop); err != nil {
		return err
	}
	freed, err := x.collect(ctx)
	r.Bytes += freed
	return err
}

// resumable is the newest task, if it can be resumed: its checkpoints are what it goes on at.
func (x *session) resumable(ctx context.Context) (string, error) {
	tasks, err := x.s.opt.Journal.Tasks(ctx, x.feature.ID)
	if err != nil || len(tasks) == 0 || !tasks[len(tasks)-1].State.May(StatePreparing) {
		return "", err
	}
	return tasks[len(tasks)-1].ID, nil
}

// putAside keeps checkpoints that are dropped as compressed archives, if the rules say so.
func (x *session) putAside(ctx context.Context, rule *profiles.Retention, ids []string) error {
	if rule.Export != "zstd" {
		return nil
	}
	dir := filepath.Join(x.dir, "exports")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, id := range ids {
		if err := x.exportTo(ctx, id, filepath.Join(dir, id+".tar.zst")); err != nil {
			return err
		}
	}
	return nil
}

func (x *session) exportTo(ctx context.Context, id, file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".export-")
	if err != nil {
		return err
	}
	_, err = x.layers.Export(ctx, id, f, snapshot.ExportOptions{Zstd: true})
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Repair makes the journal agree with what lies on disk, for every feature that nobody works on, and names what is damaged;
// the rest stays usable.
func (s *Supervisor) Repair(ctx context.Context) (*GCReport, error) {
	r := s.found
	features, err := s.opt.Journal.Features(ctx)
	if err != nil {
		return nil, err
	}
	for i := range features {
		f := &features[i]
		if err := s.repair(ctx, f, &r); err != nil && CodeOf(err) != CodeBusy {
			r.problem(fmt.Errorf("%s: %w", f.Name, err))
		}
	}
	return &r, nil
}

func (s *Supervisor) repair(ctx context.Context, f *FeatureRecord, r *GCReport) error {
	if s.session(f.ID) != nil {
		return nil
	}
	_, l, err := s.hold(ctx, f.ID, flock.Exclusive)
	if err != nil {
		return err
	}
	x := &session{s: s, feature: *f, dir: s.featureDir(f.ID), lock: l}
	err = x.openUnit(ctx)
	if err == nil {
		var found []snapshot.DamageError
		found, err = repairLayers(ctx, f.Driver, x.openOptions(ctx, false))
		for i := range found {
			r.Damaged = append(r.Damaged, f.Name+": "+found[i].Error())
		}
	}
	if err == nil {
		if x.layers, err = openLayers(f.Driver, x.openOptions(ctx, false)); err == nil {
			err = x.reconcile(ctx, true)
		}
	}
	return errors.Join(err, x.close(ctx, false))
}

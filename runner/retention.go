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
				err = x.retainArtifacts(ctx, r)
			}
			if err == nil {
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
	if lost, _, err := s.strays(ctx); err != nil || len(lost) > 0 || s.opt.Memory || s.others() {
		return err // whose features are in no journal that we can read
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

// rules are what the feature's profile says of its checkpoints.
func (x *session) rules(ctx context.Context) (*profiles.Retention, error) {
	if p := x.policy; p != nil {
		return &p.Retention, nil
	}
	p, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return nil, err
	}
	return &p.Retention, nil
}

// retain drops what the rules do not keep, and frees what nobody needs.
func (x *session) retain(ctx context.Context, r *GCReport) error {
	rule, err := x.rules(ctx)
	if err != nil {
		return err
	}
	drop, kept, err := x.doomed(ctx, rule, r)
	if err != nil {
		return err
	}
	for _, c := range drop {
		r.Checkpoints = append(r.Checkpoints, x.feature.Name+"@"+c.ID)
	}
	if r.DryRun || len(drop) == 0 {
		return nil
	}
	if err := errors.Join(x.putAside(ctx, rule, drop), x.flatten(ctx, kept)); err != nil {
		return err
	}
	ids := make([]string, len(drop))
	for i := range drop {
		ids[i] = drop[i].ID
	}
	if err := x.drop(ctx, ids); err != nil {
		return err
	}
	freed, err := x.collect(ctx)
	r.Bytes += freed
	return err
}

// prune does the same for a feature that lives, whose checkpoints become more: others wait for it only while it drops.
func (x *session) prune(ctx context.Context) error {
	rule, err := x.rules(ctx)
	if err != nil {
		return err
	}
	drop, kept, err := x.doomed(ctx, rule, &GCReport{})
	if err != nil || len(drop) == 0 {
		return err
	}
	if err := errors.Join(x.putAside(ctx, rule, drop), x.flatten(ctx, kept)); err != nil { // takes its time
		return err
	}
	x.changing.Lock()
	defer x.changing.Unlock()
	return x.retain(ctx, &GCReport{})
}

// flatten makes one layer of many when few checkpoints stay: what was written again and again in layers that no checkpoint ends
// with would not get free otherwise.
func (x *session) flatten(ctx context.Context, kept int) error {
	const few, shallow = 3, 6
	if depth := x.layers.Info().Depth; depth < shallow || depth < few*kept {
		return nil
	}
	_, err := x.layers.Squash(ctx, true)
	return err
}

// doomed are the checkpoints that the rules do not keep, oldest first, and how many others there are, without aliases. Damaged
// ones are named in r.
func (x *session) doomed(ctx context.Context, rule *profiles.Retention, r *GCReport) (drop []CheckpointRecord, kept int, err error) {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return nil, 0, err
	}
	keep := snapshot.Keep{Count: int(rule.Count), Age: time.Duration(rule.Age)}
	if rule.Bytes != nil {
		keep.Bytes = int64(*rule.Bytes)
	}
	head := x.layers.Info().Head
	goesOn, err := x.goesOnAt(ctx, rows)
	if err != nil {
		return nil, 0, err
	}
	var all []snapshot.Candidate
	known := map[string]CheckpointRecord{}
	for _, c := range rows {
		if c.Lost {
			continue
		}
		if c.Damaged != "" {
			r.Damaged = append(r.Damaged, x.feature.Name+"@"+c.ID+": "+c.Damaged)
		}
		known[c.ID] = c
		all = append(all, snapshot.Candidate{
			Record:   snapshot.Record{ID: c.ID, Parent: c.Parent, AliasOf: c.AliasOf, Created: c.Created, Bytes: c.Bytes},
			LastGood: c.LastGood, Promoted: c.Promoted, Labelled: c.Label != "" || goesOn[c.ID], Head: c.ID == head})
	}
	for _, id := range snapshot.Retain(keep, all, time.Now()) {
		drop = append(drop, known[id])
		delete(known, id)
	}
	for _, c := range known {
		if c.AliasOf == "" {
			kept++
		}
	}
	return drop, kept, nil
}

// goesOnAt are the checkpoints that tasks would go on at if they were resumed, the newest task and those that run: the state
// after the steps that are done, or before the first.
func (x *session) goesOnAt(ctx context.Context, rows []CheckpointRecord) (map[string]bool, error) {
	tasks, err := x.s.opt.Journal.Tasks(ctx, x.feature.ID)
	ids, started := map[string]bool{}, map[string]bool{}
	for i := range tasks {
		t := &tasks[i]
		if t.State.Ended() && t.State != StateAwaitingApproval && (i < len(tasks)-1 || !t.State.May(StatePreparing)) {
			continue
		}
		first := slices.IndexFunc(t.Steps, func(st StepRecord) bool { return st.State != StepDone })
		if first < 0 {
			first = len(t.Steps)
		}
		if first > 0 {
			ids[t.Steps[first-1].Checkpoint] = true
		} else {
			started[t.ID] = true
		}
	}
	for _, c := range rows {
		if c.Reason == ReasonStart && started[c.TaskID] {
			ids[c.ID] = true
		}
	}
	return ids, err
}

// putAside keeps the workspace of checkpoints that are dropped as compressed archives, if the rules say so, and of these
// the newest that together take no more than the feature's disk.
func (x *session) putAside(ctx context.Context, rule *profiles.Retention, drop []CheckpointRecord) error {
	if rule.Export != "zstd" {
		return nil
	}
	dir := filepath.Join(x.dir, "exports")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, c := range drop {
		file := filepath.Join(dir, c.ID+".tar.zst")
		if _, err := os.Lstat(file); err == nil || c.AliasOf != "" || c.Damaged != "" {
			continue
		}
		if err := x.exportTo(ctx, c.ID, file); err != nil {
			return err
		}
		if err := trim(dir, int64(x.feature.Disk)); err != nil {
			return err
		}
	}
	return nil
}

// trim removes the oldest files of a directory until the others take no more than limit bytes; 0 is no limit. Their names
// are in the order of their making.
func trim(dir string, limit int64) error {
	files, err := os.ReadDir(dir)
	if err != nil || limit <= 0 {
		return err
	}
	for _, f := range slices.Backward(files) {
		info, err := f.Info()
		if err != nil {
			return err
		}
		if limit -= info.Size(); limit < 0 {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *session) exportTo(ctx context.Context, id, file string) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".export-")
	if err != nil {
		return err
	}
	_, err = x.layers.Export(ctx, id, f, snapshot.ExportOptions{Full: true, Zstd: true})
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
	if err := s.restore(ctx, &r); err != nil {
		return nil, err
	}
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

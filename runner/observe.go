package runner

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/steps"
)

// full says whether the feature's disk is, or was since then, why a step failed: others may have made room meanwhile, and the
// command itself, which takes away what it could not finish.
func (t *task) full(since time.Time) (hit *steps.LimitHit, now bool) {
	if t.unit == nil {
		return nil, false
	}
	if u, err := t.unit.Usage(); err == nil && u.Full() {
		return hitOf(u), true
	}
	if u, ok := t.unit.WasFull(since); ok {
		return hitOf(u), false
	}
	return nil, false
}

// hitOf says which limit of a disk was met.
func hitOf(u disk.Usage) *steps.LimitHit {
	if u.NoInodes() {
		return &steps.LimitHit{Name: "inodes", Limit: u.InodeLimit.String() + " inodes", Peak: u.Inodes.String(), Hint: "raise it with --inodes, or limits.inodes in a profile"}
	}
	return &steps.LimitHit{Name: "disk", Limit: u.Limit.String(), Peak: u.Used.String(), Hint: "raise it with --disk, or limits.disk in a profile"}
}

// usedOf is how full a disk is, for people.
func usedOf(u disk.Usage) string {
	text := u.Used.String() + " of " + u.Limit.String()
	if u.InodeLimit > 0 {
		text += ", " + u.Inodes.String() + " of " + u.InodeLimit.String() + " inodes"
	}
	return text
}

// diskUsage is what the feature takes; nil where nobody counts.
func (x *session) diskUsage() *DiskUsage {
	if x.unit == nil {
		return nil
	}
	u, err := x.unit.Usage()
	if err != nil {
		return nil
	}
	return &DiskUsage{Mechanism: x.feature.Mechanism, Used: int64(u.Used), Limit: int64(u.Limit), Inodes: int64(u.Inodes), InodeLimit: int64(u.InodeLimit)}
}

// Stats measures features; none means those that are live in this process.
func (s *Supervisor) Stats(ctx context.Context, features []string) ([]Stats, error) {
	if err := s.flushTimings(ctx); err != nil {
		return nil, err
	}
	if len(features) == 0 {
		features = slices.DeleteFunc(s.Live(), func(id string) bool { return s.session(id) == nil })
	}
	list := []Stats{}
	for _, ref := range features {
		err := s.use(ctx, ref, reading, func(x *session) error {
			one, err := x.stats(ctx)
			list = append(list, one)
			return err
		})
		if err != nil {
			return nil, typed(err, "measuring "+ref)
		}
	}
	return list, nil
}

func (x *session) stats(ctx context.Context) (Stats, error) {
	st := Stats{Feature: x.feature.Name, FeatureID: x.feature.ID, Memory: -1, Pids: -1, Disk: x.diskUsage(), Times: map[string]Percentiles{}}
	if f := x.sandbox(); f != nil {
		st.Live, st.Watch = true, f.WatchMode()
	}
	if x.group != nil {
		u, err := x.group.Usage()
		if err != nil {
			return st, err
		}
		st.CPU, st.Memory, st.Pids = u.CPU, int64(u.MemoryCurrent), int64(u.PidsCurrent)
	}
	timings, err := x.s.opt.Journal.Timings(ctx, x.feature.ID)
	if err != nil {
		return st, err
	}
	took := map[string][]time.Duration{}
	for _, t := range timings {
		took[t.Kind] = append(took[t.Kind], t.Took)
	}
	for kind, list := range took {
		st.Times[kind] = percentiles(list)
	}
	return st, nil
}

// percentiles sums up a list that is not empty, by nearest rank.
func percentiles(list []time.Duration) Percentiles {
	slices.Sort(list)
	at := func(p int) time.Duration { return list[(len(list)*p+99)/100-1] }
	return Percentiles{N: len(list), P50: at(50), P95: at(95), P99: at(99)}
}

// followEvery is how often a follower looks for new events: the journal announces nothing to other processes.
const followEvery = 200 * time.Millisecond

// Events calls do for each event, oldest first.
func (s *Supervisor) Events(ctx context.Context, o EventOptions, do func(Event) error) error {
	if o.Feature != "" {
		f, err := s.opt.Journal.Feature(ctx, o.Feature)
		if errors.Is(err, ErrNotFound) {
			f.ID, err = o.Feature, nil // of one that has gone the trail stays
		}
		if err != nil {
			return explain(err, "feature", o.Feature)
		}
		o.Feature = f.ID
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		list, err := s.opt.Journal.Events(ctx, o)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := do(e); err != nil {
				return err
			}
			o.Since = max(o.Since, e.Seq)
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

package runner

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/steps"
	"github.com/caisson-dev/caisson/runner/watch"
)

// watchOptions are when a task's long steps get checkpoints by themselves; nil: never.
func (t *task) watchOptions() *watch.Options {
	p := t.saving()
	if p.Off || p.Every == 0 && p.Files == 0 || t.req.Remove {
		return nil
	}
	const never = 1 << 30
	o := &watch.Options{Debounce: p.Debounce, Every: p.Every, Files: p.Files}
	if p.Every == 0 {
		o.Every = never * time.Second
	}
	if p.Files == 0 {
		o.Files = never
	}
	return o
}

// maxTodo is how many checkpoints wait to be looked at.
const maxTodo = 1024

// attend does what goes on beside the tasks of a live session, until its end: the log of what happens to files, checkpoints
// of long steps, and what can be known of checkpoints later.
func (x *session) attend(ctx context.Context) {
	ctx, x.dismiss = context.WithCancelCause(context.WithoutCancel(ctx))
	if full := x.watchDisk(ctx); full != nil { // apart: a seal must not keep it from looking
		x.attending.Go(func() {
			for u := range full {
				x.filling(ctx, u)
			}
		})
	}
	x.attending.Go(func() {
		f := x.live
		events, due := f.Events(), f.Due()
		for {
			select {
			case <-ctx.Done():
				return
			case list, ok := <-events:
				if !ok {
					events = nil
				}
				x.logFiles(ctx, list)
			case <-due:
				x.saveNow(ctx)
			}
		}
	})
	if x.alarms != nil {
		x.attending.Go(func() { x.heed(ctx) })
	}
	x.attending.Go(func() { // apart: an archive takes its time
		for {
			select {
			case <-ctx.Done():
				return
			case id := <-x.todo:
				if _, err := x.settled(ctx, id); err == nil {
					x.tidy(ctx)
				}
			case <-x.grown:
				x.tidy(ctx)
			}
		}
	})
}

// tidyEvery is after how many checkpoints a session that nobody attends to checkpoint by checkpoint is tidied up.
const tidyEvery = 16

// tidy keeps a session that lives for days from growing: long runs of layers become one, and what the rules of retention do
// not keep goes. What cannot be done now is tried again after the next checkpoint.
func (x *session) tidy(ctx context.Context) {
	_, err := x.layers.Squash(ctx, false)
	if err = errors.Join(err, x.prune(ctx)); err != nil && ctx.Err() == nil {
		_ = x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "tidy", To: "failed", Cause: err.Error()})
	}
}

// leaveAlone ends attend.
func (x *session) leaveAlone() {
	if x.dismiss != nil {
		x.dismiss(os.ErrClosed)
		x.attending.Wait()
	}
}

// deep is how many layers a feature may lie on before it is tidied up also when it never lives for long: a few runs of those
// that Squash joins.
const deep = 40

// shorten does for a feature that is used in many short runs what tidy does for one that lives.
func (x *session) shorten(ctx context.Context) {
	if x.layers.Info().Depth >= deep {
		_, _ = x.layers.Squash(ctx, false) // the next run tries again, until the layers are too many: snapshot.ErrDepth
	}
}

// later has a recorded checkpoint looked at when there is time. A session that is about to end leaves that to whoever asks,
// and is only kept from growing.
func (x *session) later(c *Checkpoint) {
	if x.todo != nil {
		select {
		case x.todo <- c.ID:
		default: // there are many: whoever asks has it looked at
		}
		return
	}
	if x.recorded.Add(1)%tidyEvery != 0 && c.Reason != ReasonAuto {
		return
	}
	select {
	case x.grown <- struct{}{}:
	default: // it is known already
	}
}

// logFiles appends to the log of what happened to files.
func (x *session) logFiles(ctx context.Context, list []watch.Event) {
	if len(list) == 0 {
		return
	}
	task, step := "", 0
	if t := x.newest(); t != nil {
		task, step = t.res.TaskID, t.stepNow()
	}
	rows := make([]FileEvent, len(list))
	for i, e := range list {
		rows[i] = FileEvent{At: e.At, FeatureID: x.feature.ID, TaskID: task, Step: step, Stack: e.Stack, Path: e.Path, Kind: e.Kind, Size: e.Size}
	}
	_ = x.s.opt.Journal.AddFileEvents(ctx, rows) // the log of files is a convenience
}

// errCrowded is why an automatic checkpoint is left out.
var errCrowded = errors.New("its copies might fill the feature's disk, and take from the task what it was promised")

// saveNow makes an automatic checkpoint.
func (x *session) saveNow(ctx context.Context) {
	x.changing.Lock()
	defer x.changing.Unlock()
	err := errCrowded
	if !x.crowded() {
		_, err = x.checkpoint(ctx, ReasonAuto, CheckpointOptions{})
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		_ = x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "checkpoint", To: "failed", Cause: ReasonAuto + ": " + err.Error()})
	}
}

// crowded reports whether what has come since the last checkpoint, which sealing a live feature copies, is more than half of
// what its disk has left.
func (x *session) crowded() bool {
	now, ok := x.usage()
	if !ok {
		return false
	}
	x.mu.Lock()
	then := x.sealed
	x.mu.Unlock()
	return crowds(&then, &now)
}

func crowds(then, now *disk.Usage) bool {
	return now.Used-then.Used > (now.Limit-now.Used)/2 || now.InodeLimit > 0 && now.Inodes-then.Inodes > (now.InodeLimit-now.Inodes)/2
}

// usage asks the kernel how full the disk is; a watched one would have to be walked through.
func (x *session) usage() (u disk.Usage, ok bool) {
	if x.unit == nil || x.unit.Mechanism() == disk.Watched {
		return u, false
	}
	u, err := x.unit.Usage()
	return u, err == nil
}

// watchDisk tells when the feature's disk fills up; nil where nobody counts.
func (x *session) watchDisk(ctx context.Context) <-chan disk.Usage {
	if x.unit == nil {
		return nil
	}
	return x.unit.Watch(ctx, x.live.Sandbox().Processes)
}

// filling notes that a disk fills up. Where nothing but we enforces the limit, who goes over it is killed.
func (x *session) filling(ctx context.Context, u disk.Usage) {
	if x.unit.Mechanism() == disk.Watched && u.Percent() >= 100 {
		hit := hitOf(u)
		cause := "the feature's disk is full: the limit is " + hit.Limit
		if u.Unknown != "" {
			cause = "how much of its disk the feature uses cannot be known: " + u.Unknown
		}
		for _, t := range x.running() {
			t.cancel(&steps.LimitError{Verdict: VerdictDisk, Hit: *hit, Cause: cause})
		}
		return
	}
	_ = x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "disk", Cause: usedOf(u)})
}

// settled makes everything known of a checkpoint that can be, and makes it durable.
func (x *session) settled(ctx context.Context, id string) (*Checkpoint, error) {
	row, err := x.index(ctx, id)
	if err != nil {
		return nil, err
	}
	if !row.Durable {
		if err := x.layers.Sync(ctx); err != nil {
			return nil, err
		}
		yes := true
		if err := x.s.opt.Journal.UpdateCheckpoint(ctx, id, CheckpointUpdate{Durable: &yes}); err != nil {
			return nil, err
		}
	}
	return x.find(ctx, id, nil)
}

// index makes known what a checkpoint changes. An alias is known as what it means.
func (x *session) index(ctx context.Context, id string) (CheckpointRecord, error) {
	j := x.s.opt.Journal
	row, err := j.Checkpoint(ctx, x.feature.ID, id)
	if err != nil || row.Indexed || row.Lost || row.Damaged != "" {
		return row, explain(err, "checkpoint", id)
	}
	if row.AliasOf != "" {
		if _, err := x.index(ctx, row.AliasOf); err != nil && CodeOf(err) != CodeNotFound {
			return row, err
		}
	}
	i, err := x.layers.Index(ctx, id)
	if err != nil {
		return row, err
	}
	yes := true
	u := CheckpointUpdate{Digest: &i.Digest, Counts: &i.Counts, Bytes: &i.Bytes, Indexed: &yes}
	if i.AliasOf != "" {
		u.AliasOf = &i.AliasOf
	}
	return row, j.UpdateCheckpoint(ctx, id, u)
}

// timed remembers how long something took, until flushTimings.
func (s *Supervisor) timed(t Timing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timings = append(s.timings, t)
}

// flushTimings writes down what timed remembered.
func (s *Supervisor) flushTimings(ctx context.Context) error {
	s.mu.Lock()
	list := s.timings
	s.timings = nil
	s.mu.Unlock()
	var errs []error
	for _, t := range list {
		if err := s.opt.Journal.AddTiming(ctx, t); !errors.Is(err, ErrNotFound) { // the feature may have gone
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

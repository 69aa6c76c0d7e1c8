package runner

import (
	"context"
	"errors"
	"slices"
)

// Pause makes a live feature stand still.
func (s *Supervisor) Pause(ctx context.Context, feature string) error {
	x, err := s.alive(ctx, feature, nil)
	if err == nil {
		err = x.pause(ctx, true)
	}
	return typed(err, "pausing "+feature)
}

// Unpause lets it go on.
func (s *Supervisor) Unpause(ctx context.Context, feature string) error {
	x, err := s.alive(ctx, feature, nil)
	if err == nil {
		err = x.pause(ctx, false)
	}
	return typed(err, "unpausing "+feature)
}

// pause makes the session stand still, or go on. The tasks' clocks stop before everything is frozen, and go on after.
func (x *session) pause(ctx context.Context, on bool) error {
	x.pausing.Lock()
	defer x.pausing.Unlock()
	f := x.sandbox()
	if f == nil {
		return refuse(CodeNotLive, "", "the feature %s has just ended", x.feature.Name)
	}
	if on == x.paused() {
		return nil
	}
	event, change := "unpause", f.Unpause
	if on {
		event, change = "pause", f.Pause
		if err := x.hold(ctx, true); err != nil {
			return err
		}
	}
	if err := change(ctx); err != nil {
		if on {
			err = errors.Join(err, x.hold(ctx, false))
		}
		return err
	}
	if !on {
		if err := x.hold(ctx, false); err != nil {
			return err
		}
	}
	return x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: event})
}

// hold tells the tasks that run, and those that come, whether they stand still.
func (x *session) hold(ctx context.Context, on bool) error {
	x.mu.Lock()
	x.still = on
	tasks := slices.Clone(x.tasks)
	x.mu.Unlock()
	var errs []error
	for _, t := range tasks {
		errs = append(errs, t.pause(ctx, on))
	}
	return errors.Join(errs...)
}

// paused reports whether the session stands still.
func (x *session) paused() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.still
}

// pause stops a task's wall time, or lets it go on, and records it.
func (t *task) pause(ctx context.Context, on bool) error {
	t.steps.Pause(on)
	t.moving.Lock()
	defer t.moving.Unlock()
	from, to := StateRunning, StatePaused
	if !on {
		from, to = to, from
	}
	if t.state != from || len(t.pending) > 0 {
		return nil // it is between two states
	}
	t.state = to
	return t.s.opt.Journal.Move(ctx, Move{TaskID: t.res.TaskID, From: from, To: to})
}

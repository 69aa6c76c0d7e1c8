package main

import (
	"context"
	"errors"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

const (
	turnPatience = 10 * time.Second // as long as one waits for it
	turnFirst    = 10 * time.Millisecond
	turnMost     = 40 * time.Millisecond
)

// turn is a wait for a feature that another process has, and does not serve: a diff, a checkpoint or a promote of its own,
// a run that has not begun yet or is about to leave. Most take milliseconds. Its lock is not waited for, because who has it may
// begin to serve, and is the one to ask then: so it is tried again, at first at once.
type turn struct {
	until time.Time
	next  time.Duration
}

func newTurn() *turn { return &turn{until: time.Now().Add(turnPatience), next: turnFirst} }

// wait waits until it is worth another try. It is false when there is none: it has taken too long, or the wait has failed.
func (t *turn) wait(ctx context.Context, pass func(context.Context, time.Duration) error) bool {
	d := t.next
	t.next = min(2*d, turnMost)
	return time.Now().Before(t.until) && pass(ctx, d) == nil
}

// sleep lets time pass, until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// busy says that another process has the feature.
func busy(err error) bool { return errors.Is(err, &runner.Error{Code: runner.CodeBusy}) }

// notLive says that nothing of the feature runs.
func notLive(err error) bool { return errors.Is(err, &runner.Error{Code: runner.CodeNotLive}) }

// runOrAdd runs a task in this process; or where its feature is another one's, in that one. One that has the feature and runs
// nothing in it is waited for.
func (a *app) runOrAdd(ctx context.Context, s *runner.Supervisor, r *runner.Request) (*runner.Result, error) {
	for t := newTurn(); ; {
		result, err := s.Run(ctx, *r)
		if !busy(err) || r.Feature == "" {
			return result, err
		}
		result, added := a.addTask(ctx, r)
		if !notLive(added) {
			return result, added
		}
		var gone error
		if !t.wait(ctx, func(ctx context.Context, d time.Duration) error { gone = r.Defer(ctx, d); return gone }) {
			if gone != nil {
				err = gone
			}
			return nil, err
		}
	}
}

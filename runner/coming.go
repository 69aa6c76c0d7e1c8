package runner

import (
	"context"
	"os"
	"time"
)

// expect says that a task is about to make a feature's session, once it has a place. Its caller holds the feature's lock.
func (s *Supervisor) expect(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[t.feature.ID], t.placed = t, t.slot != nil
}

// place says that a task has its place.
func (t *task) place() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.placed = true
}

// arrive tells who waits for the session of a task that it is there, or with an error that it will not be. Only the first
// word counts.
func (t *task) arrive(err error) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.s.coming[t.feature.ID] == t {
		delete(t.s.coming, t.feature.ID)
		t.lost = err
		close(t.came)
	}
}

// expected is the task that makes a feature's session just now, or nil; placed: it has a place.
func (s *Supervisor) expected(featureID string) (t *task, placed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t = s.coming[featureID]
	return t, t != nil && t.placed
}

// patience is what somebody has who needs a session that is still to be made. With none, it is waited for while it is being
// made: that takes a moment. Else also until there is a place for it, however long others work: then it is called first.
type patience func(feature string)

// patient waits as tasks do, and tells the caller.
func (r *Request) patient() patience {
	return func(feature string) {
		if r.Progress != nil {
			r.Progress(Progress{Feature: feature, State: StateQueued, Steps: len(r.Steps), Message: "waiting until there is a place for " + feature})
		}
	}
}

// Defer waits for d, with a task that was refused with CodeBusy, and tells the caller so. A signal that asks for an end ends it:
// CodeCancelled.
func (r *Request) Defer(ctx context.Context, d time.Duration) error {
	if r.Progress != nil {
		r.Progress(Progress{Feature: r.Feature, State: StateQueued, Steps: len(r.Steps), Message: "waiting until another process is done with " + r.Feature})
	}
	waiting, stop := untilSignal(ctx, r.Signals) // there is no command yet that could get one
	defer stop()
	select {
	case <-time.After(d):
		return nil
	case <-waiting.Done():
		return &Error{Code: CodeCancelled, Cause: "nobody waits for " + r.Feature + " any more", Exit: ExitCanceled, Err: context.Cause(waiting)}
	}
}

// await is the session of a feature in this process, or nil; one that is being made is waited for. CodeBusy.
func (s *Supervisor) await(ctx context.Context, featureID string, p patience) (*session, error) {
	t, placed := s.expected(featureID)
	if t == nil {
		return s.session(featureID), nil
	}
	switch {
	case placed:
	case p != nil:
		p(t.feature.Name)
	default:
		return nil, refuse(CodeBusy, "wait until it has had its turn: caisson wait "+t.feature.Name+"; or give it up: caisson stop "+t.feature.Name,
			"the feature %s waits for a place: as many tasks run as may", t.feature.Name)
	}
	select {
	case <-t.came:
	case <-ctx.Done():
		return nil, &Error{Code: CodeCancelled, Cause: "nobody waits for " + t.feature.Name + " any more", Exit: ExitCanceled, Err: context.Cause(ctx)}
	}
	return s.session(featureID), nil
}

// untilSignal is a context that ends also with a signal that asks for an end, until stop.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig, ok := <-signals:
				if !ok {
					signals = nil
				} else if fatal(sig) {
					cancel(errSignal{sig})
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

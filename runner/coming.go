package runner

import (
	"context"
	"os"
)

// expect says that a task is about to make a feature's session. Its caller holds the feature's lock.
func (s *Supervisor) expect(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.coming[t.feature.ID] = t
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

// expected is the task that makes a feature's session just now, or nil.
func (s *Supervisor) expected(featureID string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.coming[featureID]
}

// await is the session of a feature in this process, or nil; one that is being made is waited for.
func (s *Supervisor) await(ctx context.Context, featureID string) (*session, error) {
	t := s.expected(featureID)
	if t == nil {
		return s.session(featureID), nil
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

// Package pump moves bytes between a step and its caller: output to the caller's writers and to the log, within a
// budget, and input to the step. Nothing that the caller does (a slow terminal, a closed pipe, a standard input that
// nobody types into) keeps a step from ending, and no more than a few hundred kilobytes are ever in flight.
package pump

import (
	"context"
	"io"
	"sync"
)

// maxPending is how many bytes wait for a slow writer before the step is held up.
const maxPending = 256 << 10

// Sink writes to a caller's writer from a goroutine of its own. After the writer's first error it discards: a reader
// that has gone away is no concern of the task's, and the log still has everything.
type Sink struct {
	w    io.Writer
	done chan struct{} // the goroutine's end

	mu      sync.Mutex
	wake    sync.Cond
	pending []byte
	started bool
	relaxed bool // never hold a step up any more
	closed  bool
	err     error
}

// NewSink returns a Sink for w; nil discards.
func NewSink(w io.Writer) *Sink {
	s := &Sink{w: w, done: make(chan struct{})}
	s.wake.L = &s.mu
	return s
}

// Write queues p. It waits while too much is pending. It never fails.
func (s *Sink) Write(p []byte) (int, error) {
	if s.w == nil || len(p) == 0 {
		return len(p), nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		go s.run()
	}
	for len(s.pending) >= maxPending && !s.relaxed && s.err == nil {
		s.wake.Wait()
	}
	if s.err == nil && !s.closed {
		s.pending = append(s.pending, p...)
		s.wake.Broadcast()
	}
	return len(p), nil
}

// Relax lets what is left in a dying step's pipes in, however slow the writer is, until it is called with false. A pipe
// is bounded, so this is too.
func (s *Sink) Relax(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relaxed = on
	s.wake.Broadcast()
}

// Close waits until everything has been written, or until ctx is done: then the writer is left alone with what it has,
// and context.Cause(ctx) is the error. A writer's own error is not one of Close's.
func (s *Sink) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	started := s.started
	s.wake.Broadcast()
	s.mu.Unlock()
	if !started {
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Sink) run() {
	defer close(s.done)
	var spare []byte
	for {
		p, ok := s.take(spare)
		if !ok {
			return
		}
		if _, err := s.w.Write(p); err != nil {
			s.fail(err)
			return
		}
		spare = p[:0]
	}
}

// take swaps the full buffer for the empty one.
func (s *Sink) take(spare []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) == 0 {
		if s.closed {
			return nil, false
		}
		s.wake.Wait()
	}
	p := s.pending
	s.pending = spare
	s.wake.Broadcast()
	return p, true
}

func (s *Sink) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.pending = err, nil
	s.wake.Broadcast()
}

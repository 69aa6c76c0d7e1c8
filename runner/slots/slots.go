// Package slots bounds how much goes on at once, over all processes of a state directory. A slot is a locked file, so
// the kernel frees it with its holder. Who finds none waits in a queue, which is a lock too: its holder is the first in
// line, and waits for all slots at once. Nothing polls.
package slots

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/caisson-dev/caisson/runner/flock"
)

// Slots is one process's view. It is safe for concurrent use.
type Slots struct {
	dir  string
	n    int
	turn chan struct{} // of this process, to stand in the queue: one waiter there is enough

	mu       sync.Mutex
	watched  []bool           // slots that a goroutine waits for
	first    chan *flock.Lock // the first in line, buffered; nil when it is not in this process
	watchErr chan error
}

// Slot is a place; Release gives it back.
type Slot = flock.Lock

// New uses n slots in dir, which must exist.
func New(dir string, n int) *Slots {
	return &Slots{dir: dir, n: n, turn: make(chan struct{}, 1), watched: make([]bool, n)}
}

func (s *Slots) queue() string     { return filepath.Join(s.dir, "queue") }
func (s *Slots) slot(i int) string { return filepath.Join(s.dir, strconv.Itoa(i)) }

// Try takes a slot if one is free and nobody waits; otherwise it returns nil.
func (s *Slots) Try() (*Slot, error) {
	q, err := flock.Try(s.queue(), flock.Exclusive)
	if errors.Is(err, flock.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slot, err := s.free()
	return slot, errors.Join(err, q.Release())
}

func (s *Slots) free() (*Slot, error) {
	for i := range s.n {
		slot, err := flock.Try(s.slot(i), flock.Exclusive)
		if !errors.Is(err, flock.ErrLocked) {
			return slot, err
		}
	}
	return nil, nil
}

// Wait takes a slot, in turn, when one is free. It returns context.Cause(ctx) when ctx is done before.
func (s *Slots) Wait(ctx context.Context) (*Slot, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	q, err := flock.Acquire(ctx, s.queue())
	if err != nil {
		return nil, err
	}
	slot, err := s.waitFirst(ctx)
	return slot, errors.Join(err, q.Release())
}

// waitFirst waits for any slot. Every slot gets a goroutine that waits for its lock: that wait cannot be taken back,
// so it outlives this one and serves the next who waits, or gives the lock back when nobody does.
func (s *Slots) waitFirst(ctx context.Context) (*Slot, error) {
	mine, failed := make(chan *flock.Lock, 1), make(chan error, 1)
	s.mu.Lock()
	s.first, s.watchErr = mine, failed
	for i, watched := range s.watched {
		if !watched {
			s.watched[i] = true
			go s.watch(i)
		}
	}
	s.mu.Unlock()
	select {
	case slot := <-mine:
		return slot, nil
	case err := <-failed:
		return s.leave(mine, err)
	case <-ctx.Done():
		return s.leave(mine, context.Cause(ctx))
	}
}

// leave steps out of the line, and gives back what was handed over meanwhile.
func (s *Slots) leave(mine chan *flock.Lock, why error) (*Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first == mine {
		s.first = nil
	}
	select {
	case slot := <-mine:
		return nil, errors.Join(why, slot.Release())
	default:
		return nil, why
	}
}

func (s *Slots) watch(i int) {
	slot, err := flock.Acquire(context.Background(), s.slot(i))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched[i] = false
	switch {
	case s.first == nil:
		_ = slot.Release()
	case err != nil:
		select {
		case s.watchErr <- err:
		default:
		}
	default:
		s.first <- slot
		s.first = nil
	}
}

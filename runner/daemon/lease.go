package daemon

import (
	"context"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// lease is how long a live feature may stay.
type lease struct {
	since     time.Time // it has been live
	woken     time.Time // it was unpaused last
	ttl, idle time.Duration
	still     bool // it is paused
}

// reap stops features whose time is over, and says when to look again; 0 is when something happens.
func (s *Server) reap(ctx context.Context) time.Duration {
	var next time.Duration
	live := map[string]*lease{}
	for _, id := range s.keeper.Live() {
		left, known := s.remaining(ctx, id)
		if !known {
			continue
		}
		live[id] = s.leases[id]
		if left <= 0 {
			s.logf("feature %s: its time is over", id)
			err := s.keeper.Stop(ctx, []string{id}, runner.StopOptions{Grace: stopGrace, Seal: true})
			if err == nil {
				delete(live, id)
				continue
			}
			s.logf("feature %s: stopping it: %v", id, err)
			left = time.Minute // and then again
		}
		if left < forever && (next == 0 || left < next) {
			next = left
		}
	}
	s.leases = live
	return next
}

// forever is what remains of a feature without an end.
const forever time.Duration = 1<<63 - 1

// remaining is how long a feature may still be live. Only Serve's goroutine calls it.
func (s *Server) remaining(ctx context.Context, id string) (time.Duration, bool) {
	s.mu.Lock()
	since, held := s.held[id]
	s.mu.Unlock()
	l := s.leases[id]
	if l != nil && held && l.since != since {
		l = nil // it has been stopped and started meanwhile
	}
	if l != nil && l.idle == 0 { // nothing that happens changes it
		return l.left(time.Time{}), true
	}
	f, err := s.keeper.Feature(ctx, id)
	if err != nil {
		return 0, false // it has just gone
	}
	if l == nil {
		if !held {
			since = time.Now()
		}
		l = &lease{since: since, ttl: f.TTL, idle: f.Idle}
		s.leases[id] = l
	}
	if l.still && !f.Paused {
		l.woken = time.Now() // its idle time begins anew
	}
	l.still = f.Paused
	last := f.Updated
	if l.still || len(f.Tasks) > 0 && !f.State.Ended() {
		return l.left(time.Time{}), true // at work, or put aside by somebody
	}
	for _, t := range []time.Time{l.since, l.woken} {
		if last.Before(t) {
			last = t
		}
	}
	return l.left(last), true
}

// left is what remains when the last task ended then; zero: one runs.
func (l *lease) left(last time.Time) time.Duration {
	left := forever
	if l.ttl > 0 {
		left = time.Until(l.since.Add(l.ttl))
	}
	if l.idle > 0 && !last.IsZero() {
		left = min(left, time.Until(last.Add(l.idle)))
	}
	return left
}

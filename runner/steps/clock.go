package steps

import (
	"context"
	"sync"
	"time"
)

// clock measures the wall time of one command after the other. It stands still while somebody holds it.
type clock struct {
	mu    sync.Mutex
	timer *time.Timer   // of the command that runs, or nil
	limit time.Duration // of it
	spent time.Duration // of it before since
	since time.Time     // that it runs
	goes  chan struct{} // closed when the clock goes on; nil while nobody holds it
}

// start begins with a command. The channel tells when its limit is over.
func (c *clock) start(limit time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit, c.spent, c.since, c.timer = limit, 0, time.Now(), time.NewTimer(limit)
	if c.goes != nil {
		c.timer.Stop()
	}
	return c.timer.C
}

// stop ends with a command.
func (c *clock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
	c.timer = nil
}

// elapsed is how long the command has run, without the time in which it stood still.
func (c *clock) elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.goes != nil {
		return c.spent
	}
	return c.spent + time.Since(c.since)
}

// hold makes the clock stand still, or go on.
func (c *clock) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case on == (c.goes != nil):
		return
	case on:
		c.goes = make(chan struct{})
		c.spent += time.Since(c.since)
		if c.timer != nil {
			c.timer.Stop()
		}
	default:
		close(c.goes)
		c.goes, c.since = nil, time.Now()
		if c.timer != nil {
			c.timer.Reset(c.limit - c.spent)
		}
	}
}

// wait waits until nobody holds the clock.
func (c *clock) wait(ctx context.Context) error {
	c.mu.Lock()
	goes := c.goes
	c.mu.Unlock()
	if goes == nil {
		return context.Cause(ctx)
	}
	select {
	case <-goes:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

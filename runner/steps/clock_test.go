package steps

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What stands still takes no time, however often and however long.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		began := time.Now()
		over := c.start(10 * time.Second)
		time.Sleep(4 * time.Second)
		c.hold(true)
		c.hold(true)
		time.Sleep(time.Hour)
		if got := c.elapsed(); got != 4*time.Second {
			t.Errorf("%s were spent after 4", got)
		}
		c.hold(false)
		c.hold(false)
		time.Sleep(5 * time.Second)
		c.hold(true)
		time.Sleep(time.Hour)
		select {
		case <-over:
			t.Error("it was over after 9 s")
		default:
		}
		c.hold(false)
		<-over
		if got := time.Since(began); got != 2*time.Hour+10*time.Second {
			t.Errorf("it was over after %s", got)
		}
		c.stop()

		// The next command begins while the clock is held.
		c.hold(true)
		over = c.start(time.Second)
		time.Sleep(time.Minute)
		if got := c.elapsed(); got != 0 {
			t.Errorf("%s were spent of nothing", got)
		}
		go func() {
			time.Sleep(time.Minute)
			c.hold(false)
		}()
		if err := c.wait(t.Context()); err != nil {
			t.Error(err)
		}
		began = time.Now()
		<-over
		if got := time.Since(began); got != time.Second {
			t.Errorf("it was over %s after it went on", got)
		}
		c.stop()

		c.hold(true)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if err := c.wait(ctx); err == nil || err.Error() != "enough" {
			t.Errorf("who gave up heard %v", err)
		}
	})
}

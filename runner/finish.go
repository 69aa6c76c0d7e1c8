package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/runner/pump"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

func (t *task) fail(v Verdict, code, cause, remedy string) {
	t.res.Verdict, t.res.Code, t.res.Cause, t.res.Remedy = v, code, cause, remedy
}

// finish gives the task its end: after nothing of it runs any more, and before its change goes, if it goes.
func (t *task) finish(ctx context.Context, err error) error {
	close(t.over)
	cancelled := context.Cause(ctx)
	if cancelled != nil && errors.Is(err, context.Canceled) {
		err = cancelled // who is told by the context alone does not know why
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	err = errors.Join(err, t.stop(ctx))
	if t.owner && t.live == nil {
		err = errors.Join(err, t.removing.Wait())
	}
	limit, watched := errors.AsType[*steps.LimitError](cancelled)
	switch {
	case watched && errors.Is(err, cancelled):
		t.fail(limit.Verdict, string(limit.Verdict), limit.Cause, limit.Hit.Hint)
		t.res.Limit, err = &limit.Hit, nil
	case errors.Is(err, errInterrupted), err != nil && cancelled != nil && errors.Is(err, cancelled):
		t.fail(VerdictCancelled, string(VerdictCancelled), err.Error(), "")
		err = nil
	case err != nil:
		err = typed(err, "running a task in "+t.feature.Name)
		v := VerdictInternal
		if e, ok := errors.AsType[*Error](err); ok {
			if e.Exit == ExitRefused {
				v = VerdictRefused
			}
			if t.resumed != nil && !t.ran {
				v = VerdictCancelled // it can be resumed again
			}
			t.fail(v, e.Code, e.Error(), e.Remedy)
		}
	}
	t.res.Disk = t.diskUsage()
	if len(t.res.Gates) > 0 && !t.req.Remove {
		if good, err := t.s.opt.Journal.LastGood(ctx, t.feature.ID); err == nil {
			t.res.LastGood = good.ID
		}
	}
	if t.res.State = endOf(t.res.Verdict); t.waits && t.res.Verdict == VerdictGate {
		t.res.State = StateAwaitingApproval
	}
	t.res.Ended = time.Now()
	return errors.Join(err, typed(t.end(ctx), "recording a task's end"))
}

// end records the task's end, and takes the feature away if it is to go: first out of its place, so that who comes after
// a crash in between finds a feature without layers, or layers without a feature, and removes them.
func (t *task) end(ctx context.Context) error {
	remove := t.owner && t.live == nil && (t.req.Remove || t.fresh && !t.ran)
	t.res.Kept = !remove
	text, err := t.s.hide(&t.res) // who waits is told the same
	if err != nil {
		return err
	}
	if remove && t.req.Key == "" && t.resumed == nil { // nobody can ask for it
		text = nil
	}
	gone := ""
	if remove {
		t.saved = nil
		if gone, err = t.s.moveAway(t.dir); err != nil {
			return err
		}
	}
	t.plan(t.res.State, string(t.res.Verdict), nil)
	last := &t.pending[len(t.pending)-1]
	last.Result, last.Forget = text, remove
	if !remove {
		return t.record(ctx)
	}
	var g errgroup.Group
	g.Go(func() error { return t.removeFiles(ctx, gone) })
	g.Go(func() error { return t.session.shut(true) }) // the kernel takes a while
	// As long as there is a record, the lock has to say that we live.
	if err := errors.Join(t.record(ctx), g.Wait()); err != nil {
		return err
	}
	return snapshot.Remove(ctx, gone)
}

// endOf is the last state of a task with a verdict.
func endOf(v Verdict) State {
	switch v {
	case VerdictOK:
		return StateSucceeded
	case VerdictGate, VerdictRefused:
		return StateRejected
	case VerdictCancelled:
		return StateCancelled
	}
	return StateFailed
}

// result is what Run answers: nothing beside an error.
func (t *task) result(err error) *Result {
	if err != nil {
		return nil
	}
	return &t.res
}

// release gives back what others wait for.
func (t *task) release() error {
	_ = t.rooting.Wait() // if it mattered, prepare has said so
	for _, stop := range t.hide {
		stop()
	}
	errs := []error{t.slot.Release()}
	t.leave(t)
	if t.owner && t.live == nil {
		errs = append(errs, t.session.close(t.ctx, t.req.Remove))
	}
	t.isReady()
	return errors.Join(errs...)
}

// stop ends what runs of the task, and of its session unless that stays. It is idempotent.
func (t *task) stop(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	var errs []error
	for _, l := range t.steps.Leaves() {
		errs = append(errs, l.Kill(ctx))
		if t.stays() {
			errs = append(errs, l.Remove(ctx))
		}
	}
	if t.owner && !t.stays() {
		errs = append(errs, t.session.cancel(ctx, t, fmt.Errorf("the feature's first task has ended")))
		usage, err := t.session.stop(ctx)
		if usage != nil {
			t.res.Usage = steps.UsageOf(*usage)
		}
		errs = append(errs, err)
	}
	if t.steps.Budget != nil {
		t.res.Usage.Output = t.steps.Budget.Used()
	}
	if t.steps.Log != nil {
		_ = t.steps.Log.Close() // that the log is not whole is no failure of the task's
		t.res.Truncated = t.res.Truncated || t.steps.Log.Lost() > 0
	}
	return errors.Join(errs...)
}

// stays reports whether the sandbox outlives the task.
func (t *task) stays() bool {
	return !t.owner || t.req.Detach && t.live != nil && !t.live.Closed(t.ctx)
}

// flush waits until the caller has all of the output. A caller that does not read is waited for when the task ended by
// itself, until ctx is done, and hardly at all when the task was to end at a promised time.
func (t *task) flush(ctx context.Context) error {
	if v := t.res.Verdict; v == VerdictTimeout || v == VerdictCancelled || v.Limit() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), flushTime)
		defer cancel()
	}
	for _, sink := range []*pump.Sink{t.steps.Out, t.steps.Err} {
		_ = sink.Close(ctx) // what the caller did not take, the log has
	}
	return nil
}

// flushTime is how long a caller that does not read holds up a task that was killed.
const flushTime = 200 * time.Millisecond

func (t *task) removeFiles(ctx context.Context, gone string) error {
	return snapshot.Remove(ctx, gone, "lock")
}

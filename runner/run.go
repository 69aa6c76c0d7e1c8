package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner/logfile"
	"github.com/caisson-dev/caisson/runner/pump"
	"github.com/caisson-dev/caisson/runner/slots"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

// Run runs one task to its end. The error is for our own failures and for refusals (*Error, which wraps
// *isolation.UnsupportedError where a control is missing); whatever the task did is in the Result. Cancelling ctx
// kills the task; context.Cause(ctx) is its cause.
func (s *Supervisor) Run(ctx context.Context, r Request) (*Result, error) {
	t, err := s.begin(ctx, &r)
	if claimed, ok := errors.AsType[*ClaimedError](err); ok {
		return s.claimed(ctx, claimed)
	}
	if err != nil {
		return nil, err
	}
	return t.life()
}

// begin admits and submits a task.
func (s *Supervisor) begin(ctx context.Context, r *Request) (*task, error) {
	forget := s.know(r)
	t, err := s.admit(ctx, r) // what cannot be is refused before anything exists
	if err == nil {
		err = t.judge(ctx)
	}
	if err != nil {
		defer forget()
		return nil, s.refusedTask(ctx, r, s.told(err))
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	t.rooting.Go(t.makeRoot)                // needs nothing of what follows
	if err := t.submit(t.ctx); err != nil { // the feature's lock, a record in the journal
		defer forget()
		return nil, s.refusedTask(ctx, r, s.told(t.abandon(err)))
	}
	t.learned(forget)
	s.remember(t)
	return t, nil
}

// abandon gives up a task that could not be submitted.
func (t *task) abandon(err error) error {
	t.cancel(nil)
	err = errors.Join(err, t.release())
	t.arrive(err)
	return err
}

// life is the rest of a task's: each line is a method of that name.
func (t *task) life() (*Result, error) {
	defer t.cancel(nil)
	defer t.s.forget(t) // who asks now finds its end in the journal
	defer close(t.ended)
	defer t.unlearn()
	unforward := t.forward()
	var err error
	for _, phase := range []func(context.Context) error{
		t.queue,    // until there is a slot
		t.prepare,  // layers, root file system, cgroup, sandbox; or those that live
		t.runSteps, // one after the other, until one fails, with a checkpoint before and after each
		t.seal,     // nothing of the task runs any more; what changed?
		t.validate, // the gates judge the change
		t.promote,  // if all went well and somebody asked for it
	} {
		if err = phase(t.ctx); err != nil {
			break
		}
	}
	err = t.s.told(t.finish(t.ctx, err)) // while its secrets are known
	err = errors.Join(err, t.release())  // nothing stays but the record, the change, and what is to stay alive
	unforward()
	t.arrive(cmp.Or(err, errors.New(cmp.Or(t.res.Cause, "it has ended"))))
	t.answer, t.failure = t.result(err), errors.Join(err, t.flush(t.ctx))
	return t.answer, t.failure
}

// task is a task on its way.
type task struct {
	*session
	owner bool // the session is this task's own, and ends with it unless it is to stay
	req   *Request
	res   Result

	ctx    context.Context // the task's; its end ends it
	cancel context.CancelCauseFunc
	ready  chan struct{} // closed when there is a sandbox, or when there is no place for one yet
	told   sync.Once     // of ready
	placed bool          // it has a place; under Supervisor.mu, as lost
	came   chan struct{} // closed when its session is there, or will not be: for lost
	lost   error
	over   chan struct{} // closed when nothing more will be run
	ended  chan struct{} // closed at the end, with answer and failure

	unlearn func() // has its secrets forgotten, unless they stay with the session

	answer  *Result
	failure error

	profile json.RawMessage
	state   State
	resumed *TaskRecord // what the journal has of it, when it goes on
	first   int         // how many steps were done before
	back    string      // the checkpoint that it goes back to before it goes on
	insists bool        // go on also where the state before is not known
	skipped bool        // the last of them was interrupted and is taken for done
	done    *StepMove   // the last step's end, to be recorded with the next transition
	saved   *Checkpoint // likewise
	pending []Move      // transitions to be recorded with the next one
	ran     bool        // something was executed
	waits   bool        // it ends, and a person may have it go on

	rules []*egress.Rule // of the steps
	hide  []func()       // ends what shows ports for this task alone

	slot     *slots.Slot
	change   *snapshot.Change
	at       string // the state that is judged: a checkpoint or snapshot.Current
	unsealed error  // why the last state that was to be a checkpoint is none; under changing
	unjudged bool   // the state is not sealed, and others may write to it
	began    string // the checkpoint before its first step; "": not known

	rooting errgroup.Group // of the root file system

	moving      sync.Mutex   // state, pending, saved
	stepping    atomic.Int32 // the step that runs, 1-based
	interrupted atomic.Bool  // SIGINT or SIGTERM was passed on
	progress    sync.Mutex

	steps steps.Runner
}

// to moves the task on, together with the end of the step before and the checkpoint after it.
func (t *task) to(ctx context.Context, next State, cause string, step *StepMove) error {
	t.plan(next, cause, step)
	return t.record(context.WithoutCancel(ctx))
}

// record writes down what is pending, in one transaction.
func (t *task) record(ctx context.Context) error {
	t.moving.Lock()
	moves, saved := t.pending, t.saved
	t.pending, t.saved = nil, nil
	defer t.moving.Unlock()
	if saved == nil {
		return t.s.opt.Journal.Move(ctx, moves...)
	}
	err := t.s.opt.Journal.AddCheckpoint(ctx, CheckpointRecord{*saved}, moves...)
	if err == nil {
		t.later(saved)
	}
	return err
}

// plan moves the task on without recording it before the next transition: where a crash between the two would leave
// nothing else than one after both.
func (t *task) plan(next State, cause string, step *StepMove) {
	t.moving.Lock()
	defer t.moving.Unlock()
	if t.state == StatePaused { // it ended all the same
		t.pending = append(t.pending, Move{TaskID: t.res.TaskID, From: StatePaused, To: StateRunning, Cause: "it has ended"})
		t.state = StateRunning
	}
	if t.done != nil && step != nil {
		t.pending = append(t.pending, Move{TaskID: t.res.TaskID, From: t.state, To: t.state, Step: t.done})
		t.done = nil
	}
	n := 0
	if step == nil {
		step, t.done = t.done, nil
	} else {
		n = step.N
	}
	t.pending = append(t.pending, Move{TaskID: t.res.TaskID, From: t.state, To: next, Cause: cause, Step: step})
	t.state = next
	t.tell(n, "")
}

// tell tells the caller where the task stands.
func (t *task) tell(step int, message string) {
	if t.req.Progress == nil {
		return
	}
	t.progress.Lock()
	defer t.progress.Unlock()
	t.req.Progress(Progress{TaskID: t.res.TaskID, Feature: t.feature.Name, State: t.state, Step: step,
		Steps: len(t.req.Steps), Message: message})
}

// isReady tells Start that there is nothing more to wait for.
func (t *task) isReady() { t.told.Do(func() { close(t.ready) }) }

// connect makes what the output goes through.
func (t *task) connect() {
	out, err := t.req.Stdout, t.req.Stderr
	in := t.req.Stdin
	if t.req.TTY {
		out, err, in = t.req.Terminal.Out, nil, t.req.Terminal.In
	}
	x := &t.steps
	x.Chown, x.Resize, x.Full, x.Redact = t.s.privileged(), t.req.Terminal.Resize, t.full, t.s.opt.Redact
	x.Out = pump.NewSink(out)
	x.Err = x.Out
	if err == nil || !sameWriter(out, err) {
		x.Err = pump.NewSink(err)
	}
	if in != nil {
		x.In = pump.NewInput(in)
	}
	x.Log = logfile.Create(t.s.logPath(t.feature.ID, t.res.TaskID), 0)
	x.Budget = pump.NewBudget(int64(t.req.Profile.Limits.Output))
}

// sameWriter reports whether a and b are one writer, to which no two goroutines may write.
func sameWriter(a, b io.Writer) bool {
	defer func() { _ = recover() }() // values that cannot be compared are not the same
	return a == b
}

// errSignal is why a task was cancelled by a signal.
type errSignal struct{ sig os.Signal }

func (e errSignal) Error() string { return "cancelled by signal: " + e.sig.String() }

// errInterrupted is why no further step is run.
var errInterrupted = errors.New("a signal asked the step before to end")

// fatal reports whether a signal asks a program to end.
func fatal(sig os.Signal) bool {
	return sig == syscall.SIGINT || sig == syscall.SIGTERM || sig == syscall.SIGHUP || sig == syscall.SIGQUIT
}

// forward passes the caller's signals on to the running step. One that asks for an end cancels the task when there is
// no step to ask, and when it is not the first.
func (t *task) forward() (stop func()) {
	if t.req.Signals == nil {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		asked := 0
		for {
			select {
			case <-quit:
				return
			case sig, ok := <-t.req.Signals:
				if !ok {
					return
				}
				end := sig == syscall.SIGINT || sig == syscall.SIGTERM
				if end {
					asked++
				}
				if asked > 1 && end || !t.signal(sig) && fatal(sig) {
					t.cancel(errSignal{sig})
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

// seal ends everything of the task that runs, seals the state, and reads what changed.
func (t *task) seal(ctx context.Context) error {
	var g errgroup.Group                 // a crash between the two is one in either state
	if t.saved == nil && !t.req.Remove { // of what goes with its task a crash leaves nothing, in either
		g.Go(func() error { return t.to(ctx, StateSealing, "the steps have ended", nil) })
	} else {
		t.plan(StateSealing, "the steps have ended", nil)
	}
	if err := errors.Join(t.stop(ctx), g.Wait()); err != nil {
		return err
	}
	if err := t.saveLast(ctx); err != nil {
		return err
	}
	c, err := t.layers.Change(ctx, snapshot.Base, t.at)
	if err != nil {
		return err
	}
	t.change, t.res.Change = c, summary(c)
	if t.at != snapshot.Current {
		t.res.Checkpoint = t.at
	}
	return nil
}

// validate runs the gates. What becomes of a change that they refuse, the profile says.
func (t *task) validate(ctx context.Context) error {
	if t.unjudged {
		t.plan(StateValidating, "no gate is asked: the state is not sealed, and may still change", nil)
		return nil
	}
	if len(t.change.Entries) == 0 {
		t.plan(StateValidating, "nothing changed", nil)
		return nil
	}
	if err := t.to(ctx, StateValidating, "the change is sealed", nil); err != nil {
		return err
	}
	var err error
	state := toHand(t.layers, t.at, t.change, t.req.Promote)
	state.steps, state.led = t.res.Steps, t.led()
	t.res.Gates, err = t.session.validate(ctx, t.req.Profile, state, t.req.AllowProtected)
	if err != nil {
		return err
	}
	if t.res.Approvals, err = t.approvals(ctx, t.res.Gates); err != nil {
		return err
	}
	if !gates.Blocked(t.res.Gates) || !t.objected(ctx) {
		return nil
	}
	if t.res.Verdict == VerdictOK && t.awaits() {
		t.await()
		return nil
	}
	if t.res.Verdict == VerdictOK {
		blocked := blockedError(t.feature.Name, t.res.Gates)
		if t.req.Remove {
			blocked.Remedy = "run it without --rm to look at the change"
		}
		t.fail(VerdictGate, blocked.Code, blocked.Cause, blocked.Remedy)
	}
	return t.followUp(ctx)
}

// objected reports whether what gates object to is the task's matter. Where only what it did itself is, that is found by
// asking them about the state that it began with too; where that cannot be told, it is.
func (t *task) objected(ctx context.Context) bool {
	if !t.req.OwnOnly || t.began == "" || t.req.Promote != PromoteNone {
		return true
	}
	c, err := t.layers.Change(ctx, snapshot.Base, t.began)
	if err != nil {
		return true
	}
	before, err := t.ask(ctx, t.req.Profile, &judged{layers: t.layers, at: t.began, change: c}, t.req.AllowProtected)
	return err != nil || gates.Objects(before, t.res.Gates)
}

// promote hands the change over.
func (t *task) promote(ctx context.Context) error {
	if t.res.Verdict != VerdictOK || t.req.Promote == PromoteNone || len(t.change.Entries) == 0 {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	begins, err := t.begins(t.change, t.at, t.req.Promote, t.res.Gates, t.res.Approvals)
	if err != nil {
		return err
	}
	t.plan(StatePromoting, t.req.Promote, nil)
	t.pending[len(t.pending)-1].Detail = begins.Detail
	if err := t.record(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	o := promoteOptionsOf(t.req)
	o.again = t.resumed != nil
	report, err := t.session.promote(handing(ctx, o.Kind), t.change, o, t.at)
	ctx = context.WithoutCancel(ctx)
	if CodeOf(err) == CodeNothingToDo { // all of it is ignored, for a commit
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Exit == ExitRefused {
		t.fail(VerdictRefused, e.Code, e.Error(), e.Remedy)
		return t.s.noteRefusal(ctx, AuditRecord{FeatureID: t.feature.ID, TaskID: t.res.TaskID}, Refusal{What: RefusedPromote, Checkpoint: t.at}, err)
	}
	t.res.Promoted = report
	if err == nil {
		err = t.s.opt.Journal.Note(ctx, t.promotion(t.res.TaskID, t.at, how(t.req.Promote, report), t.res.Gates, t.res.Approvals))
	}
	return err
}

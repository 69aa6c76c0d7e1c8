package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
)

// Running is a task that Start has started.
type Running struct {
	s                   *Supervisor
	t                   *task   // nil when it had been started before
	was                 State   // then
	answer              *Result // when it has gone with its feature
	id, name, featureID string
}

// Task is its id.
func (r *Running) Task() string { return r.id }

// Feature is its feature's name.
func (r *Running) Feature() string { return r.name }

// FeatureID is its feature's id.
func (r *Running) FeatureID() string { return r.featureID }

// State is where the task stands now; of one that had been started before, where it stood when Start returned.
func (r *Running) State() State {
	if r.t == nil {
		return r.was
	}
	r.t.moving.Lock()
	defer r.t.moving.Unlock()
	return r.t.state
}

// Wait waits for the task's end. When ctx ends before, the task goes on.
func (r *Running) Wait(ctx context.Context) (*Result, error) {
	if r.answer != nil {
		return r.answer, nil
	}
	if r.t == nil {
		return r.s.Wait(ctx, r.id)
	}
	return r.t.wait(ctx)
}

// Live is the sandbox that it runs in; nil when there is none any more.
func (r *Running) Live() *live.Feature {
	if x := r.s.session(r.featureID); x != nil {
		return x.sandbox()
	}
	return nil
}

func (t *task) wait(ctx context.Context) (*Result, error) {
	select {
	case <-t.ended:
		return t.answer, t.failure
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Start starts a task and returns when its sandbox is there, or when it has to wait for a place. Cancelling ctx
// afterwards does nothing: see Kill and Stop.
func (s *Supervisor) Start(ctx context.Context, r Request) (*Running, error) {
	t, err := s.begin(context.WithoutCancel(ctx), &r)
	if claimed, ok := errors.AsType[*ClaimedError](err); ok {
		return s.earlier(ctx, claimed)
	}
	if err != nil {
		return nil, err
	}
	go func() { _, _ = t.life() }() // Wait answers
	run := &Running{s: s, t: t, id: t.res.TaskID, name: t.feature.Name, featureID: t.feature.ID}
	select {
	case <-t.ready:
	case <-t.ended:
	case <-ctx.Done():
		t.cancel(context.Cause(ctx))
		<-t.ended
	}
	select {
	case <-t.ended:
		if t.failure != nil {
			return nil, t.failure
		}
	default:
	}
	return run, nil
}

// claimed is the result of the task that an idempotency key stands for.
func (s *Supervisor) claimed(ctx context.Context, c *ClaimedError) (*Result, error) {
	run, err := s.earlier(ctx, c)
	if err != nil {
		return nil, err
	}
	return run.Wait(ctx)
}

// earlier is the task that an idempotency key stands for. It may have gone with its feature.
func (s *Supervisor) earlier(ctx context.Context, c *ClaimedError) (*Running, error) {
	if r := result(&TaskRecord{Result: c.Result}); r != nil {
		return &Running{s: s, answer: r, was: r.State, id: c.Task, name: r.Feature, featureID: r.FeatureID}, nil
	}
	t, err := s.opt.Journal.Task(ctx, c.Task)
	if err != nil {
		return nil, explain(err, "task", c.Task)
	}
	f, err := s.opt.Journal.Feature(ctx, t.FeatureID)
	return &Running{s: s, was: t.State, id: t.ID, name: f.Name, featureID: t.FeatureID}, err
}

// Exec runs a task in a live feature of this process; in one that is still to be prepared, as soon as it lives. CodeNotLive.
func (s *Supervisor) Exec(ctx context.Context, feature string, r Request) (*Result, error) {
	waiting, stop := untilSignal(ctx, r.Signals) // there is no command yet that could get one
	x, err := s.alive(waiting, feature, r.patient())
	stop()
	if err != nil {
		return nil, err
	}
	r.Feature, r.Workspace = x.feature.Name, x.feature.Workspace
	if r.Profile == nil {
		r.Profile = x.policy
	}
	return s.Run(ctx, r)
}

// alive finds a live feature of this process.
func (s *Supervisor) alive(ctx context.Context, ref string, p patience) (*session, error) {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return nil, explain(err, "feature", ref)
	}
	coming, _ := s.expected(f.ID)
	x, err := s.await(ctx, f.ID, p)
	if err != nil {
		return nil, err
	}
	if x != nil && x.sandbox() != nil && x.sandbox().Closed(ctx) { // it failed, and was ended: the state is safe
		if err := x.shutDown(ctx, StopOptions{Seal: true}); err != nil {
			return nil, err
		}
		x = nil
	}
	if x != nil {
		return x, nil
	}
	why := ""
	if coming != nil && coming.lost != nil {
		why = ": " + coming.lost.Error()
	}
	return nil, refuse(CodeNotLive, "caisson run -d --feature "+f.Name, "the feature %s is not live%s", f.Name, why)
}

// Wait waits for a task's end: ref is its id, or a feature, whose newest it is then.
func (s *Supervisor) Wait(ctx context.Context, ref string) (*Result, error) {
	t, err := s.taskOf(ctx, ref)
	if err != nil {
		return nil, err
	}
	for !t.State.Ended() {
		if run := s.task(t.ID); run != nil {
			return run.wait(ctx)
		}
		if s.session(t.FeatureID) == nil {
			if err := s.waitForOther(ctx, t.FeatureID); err != nil {
				return nil, err
			}
		} // else it has just ended here
		if t, err = s.opt.Journal.Task(ctx, t.ID); err != nil {
			return nil, explain(err, "task", ref)
		}
	}
	if r := result(&t); r != nil {
		return r, nil
	}
	return nil, &Error{Code: CodeInternal, Cause: "the result of the task " + t.ID + " cannot be read", Exit: ExitInternal}
}

// waitForOther waits until no other process works on a feature, and finishes what a dead one left.
func (s *Supervisor) waitForOther(ctx context.Context, id string) error {
	l, err := flock.Acquire(ctx, lockFile(s.featureDir(id)))
	if err != nil {
		return typed(stateFailure(err), "waiting for another process")
	}
	if err := l.Release(); err != nil {
		return err
	}
	if _, l, err = s.hold(ctx, id, flock.Exclusive); err != nil {
		if CodeOf(err) == CodeBusy {
			return nil // somebody else was faster: look again
		}
		return err
	}
	return l.Release()
}

// remember makes a task known until its end.
func (s *Supervisor) remember(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.res.TaskID] = t
}

func (s *Supervisor) forget(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, t.res.TaskID)
}

func (s *Supervisor) task(id string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[id]
}

// taskOf finds a task by its id, or the newest of a feature.
func (s *Supervisor) taskOf(ctx context.Context, ref string) (TaskRecord, error) {
	t, err := s.opt.Journal.Task(ctx, ref)
	if !errors.Is(err, ErrNotFound) {
		return t, err
	}
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return t, explain(err, "task or feature", ref)
	}
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err == nil && len(tasks) == 0 {
		return t, refuse(CodeNotFound, "", "the feature %s has had no task", f.Name)
	}
	if err != nil {
		return t, err
	}
	return tasks[len(tasks)-1], nil
}

// errStopped is why the tasks of a feature were cancelled.
var errStopped = errors.New("the feature was stopped")

// Stop ends live features of this process, and those that are being prepared; they stay. It goes on after an error.
func (s *Supervisor) Stop(ctx context.Context, features []string, o StopOptions) error {
	var errs []error
	for _, ref := range features {
		errs = append(errs, s.stop(ctx, ref, o))
	}
	return errors.Join(errs...)
}

// stop ends one. What is only about to live is given up.
func (s *Supervisor) stop(ctx context.Context, ref string, o StopOptions) error {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return explain(err, "feature", ref)
	}
	if t, _ := s.expected(f.ID); t != nil {
		t.cancel(errStopped)
		if x, err := s.await(ctx, f.ID, func(string) {}); x == nil {
			return err
		}
	}
	x, err := s.alive(ctx, ref, nil)
	if err != nil {
		return err
	}
	return typed(x.shutDown(ctx, o), "stopping "+ref)
}

// shutDown asks what runs to end, ends it, seals the last state, and lets the feature go.
func (x *session) shutDown(ctx context.Context, o StopOptions) error {
	if err := x.pause(ctx, false); err != nil && !errors.Is(err, os.ErrClosed) { // what stands still does not end
		return err
	}
	x.terminate(ctx, o.Grace)
	tasks := x.running()
	if err := x.cancel(ctx, nil, errStopped); err != nil {
		return err
	}
	for _, t := range tasks {
		select {
		case <-t.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if x.s.session(x.feature.ID) != x {
		return nil // it has ended with its task, or somebody else has stopped it
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	_, err := x.stop(ctx)
	if err == nil && o.Seal {
		_, err = x.checkpoint(ctx, ReasonStop, CheckpointOptions{})
	}
	off := false
	err = errors.Join(err, x.s.opt.Journal.UpdateFeature(ctx, x.feature.ID, FeatureUpdate{Detached: &off}))
	return errors.Join(err, x.close(ctx, false))
}

// terminate sends SIGTERM to the tasks' commands and waits a little for their ends.
func (x *session) terminate(ctx context.Context, grace time.Duration) {
	tasks := x.running()
	if grace <= 0 || len(tasks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, t := range tasks {
		t.interrupted.Store(true)
		t.signal(syscall.SIGTERM)
	}
	for _, t := range tasks {
		select {
		case <-t.ended:
		case <-ctx.Done():
			return
		}
	}
}

// Kill sends a signal to the running command of a task, or of a feature's newest task.
func (s *Supervisor) Kill(ctx context.Context, ref string, sig syscall.Signal) error {
	t, err := s.taskOf(ctx, ref)
	if err != nil {
		return err
	}
	if r := result(&t); t.State == StateAwaitingApproval && r != nil {
		return s.giveUp(ctx, []waiter{{t, r}}, VerdictCancelled, "cancelled while it waited for a person")
	}
	if run, _ := s.expected(t.FeatureID); run != nil && run.res.TaskID == t.ID {
		run.cancel(errSignal{sig}) // nothing of it runs yet that could get it
		return nil
	}
	x := s.session(t.FeatureID)
	if x == nil {
		return refuse(CodeNotLive, "", "nothing of %s runs", ref)
	}
	tasks := x.running()
	slices.Reverse(tasks)
	for _, run := range tasks {
		if run.res.TaskID == t.ID || t.ID != ref {
			if run.signal(sig) {
				return nil
			}
			run.cancel(errSignal{sig})
			return nil
		}
	}
	return refuse(CodeNotLive, "", "no command of %s runs", ref)
}

// rebaseTime is how long a promote waits for another live feature.
const rebaseTime = 5 * time.Second

// Rebase has a live feature of this process take up new base layers: see Dialer.
func (s *Supervisor) Rebase(ctx context.Context, featureID string, _ int, stop bool) error {
	x := s.session(featureID)
	if x == nil || x.sandbox() == nil {
		return nil // it takes them up when it is opened
	}
	ctx, cancel := context.WithTimeoutCause(ctx, rebaseTime, fmt.Errorf("the feature %s is busy", x.feature.Name))
	defer cancel()
	policy := live.KeepOthers
	if stop {
		policy = live.StopAll
	}
	err := x.sandbox().Rebase(ctx, policy)
	if held, ok := errors.AsType[*isolation.HeldError](err); ok {
		e := heldError(x.feature.Name, held.Holders)
		e.Remedy = "end them, or say --stop: caisson stop " + x.feature.Name
		return e
	}
	return typed(err, "moving "+x.feature.Name)
}

// Holders are the processes that hold the workspace or HOME of a live feature of this process.
func (s *Supervisor) Holders(ctx context.Context, featureID string) ([]isolation.Holder, error) {
	x := s.session(featureID)
	if x == nil || x.sandbox() == nil {
		return nil, nil
	}
	return x.sandbox().Holders(ctx)
}

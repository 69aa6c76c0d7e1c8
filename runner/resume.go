package runner

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// errLater is what methods answer that are not there yet.
var errLater = &Error{Code: CodeUnsupported, Cause: "not available yet", Exit: ExitRefused, Err: errors.ErrUnsupported}

// Running is a task that Start has started.
type Running struct{ t *task }

// Task is its id.
func (r *Running) Task() string { return r.t.res.TaskID }

// Feature is its feature's name.
func (r *Running) Feature() string { return r.t.feature.Name }

// FeatureID is its feature's id.
func (r *Running) FeatureID() string { return r.t.feature.ID }

// Wait waits for the task's end. When ctx ends before, the task goes on.
func (r *Running) Wait(context.Context) (*Result, error) { return nil, errLater }

// Live is the sandbox that it runs in.
func (r *Running) Live() *live.Feature { return nil }

// Dialer asks the process that holds a feature's lock.
type Dialer interface {
	// Rebase has a live feature take up what a promote of another one took out of their workspace. The error is an *Error
	// with CodeHeld when a live process prevents it and stop is false.
	Rebase(ctx context.Context, featureID string, generation int, stop bool) error
	// Holders are the processes that hold its workspace or HOME.
	Holders(ctx context.Context, featureID string) ([]isolation.Holder, error)
}

// Start starts a task and returns when its sandbox is there, or when it has to wait for a place. Cancelling ctx
// afterwards does nothing: see Kill and Stop.
func (s *Supervisor) Start(ctx context.Context, r Request) (*Running, error) { return nil, errLater }

// Exec runs a task in a live feature of this process. CodeNotLive.
func (s *Supervisor) Exec(ctx context.Context, feature string, r Request) (*Result, error) {
	return nil, errLater
}

// Wait waits for a task's end: ref is its id, or a feature, whose newest it is then.
func (s *Supervisor) Wait(ctx context.Context, ref string) (*Result, error) { return nil, errLater }

// Live lists the features that are live in this process.
func (s *Supervisor) Live() []string { return nil }

// Checkpoint seals the current state of a feature.
func (s *Supervisor) Checkpoint(ctx context.Context, ref string, o CheckpointOptions) (*Checkpoint, error) {
	return nil, errLater
}

// Checkpoints lists a feature's, oldest first; they are a tree by Parent.
func (s *Supervisor) Checkpoints(ctx context.Context, feature string) ([]Checkpoint, error) {
	return nil, errLater
}

// CheckpointOf finds FEATURE@CHECKPOINT; without a checkpoint, the head.
func (s *Supervisor) CheckpointOf(ctx context.Context, ref string) (*Checkpoint, error) {
	return nil, errLater
}

// Label names a checkpoint; "" takes its name away. One with a label is kept by GC.
func (s *Supervisor) Label(ctx context.Context, ref, label string) error { return errLater }

// DropCheckpoints forgets checkpoints and frees what only they need.
func (s *Supervisor) DropCheckpoints(ctx context.Context, refs ...string) error { return errLater }

// Export writes a checkpoint as an OCI layer tar, and returns its digest.
func (s *Supervisor) Export(ctx context.Context, ref string, w io.Writer, o snapshot.ExportOptions) (string, error) {
	return "", errLater
}

// Import makes a checkpoint of an OCI layer tar.
func (s *Supervisor) Import(ctx context.Context, feature string, r io.Reader, o snapshot.ImportOptions) (*Checkpoint, error) {
	return nil, errLater
}

// ChangeBetween compares two states: FEATURE, FEATURE@CHECKPOINT, FEATURE@base.
func (s *Supervisor) ChangeBetween(ctx context.Context, a, b string) (*snapshot.Change, error) {
	return nil, errLater
}

// DiffBetween writes what ChangeBetween compares as text.
func (s *Supervisor) DiffBetween(ctx context.Context, a, b string, w io.Writer, o snapshot.DiffOptions) error {
	return errLater
}

// Rollback goes back to a checkpoint.
func (s *Supervisor) Rollback(ctx context.Context, feature string, o RollbackOptions) (*RollbackResult, error) {
	return nil, errLater
}

// Fork begins a feature on a checkpoint of another, without copying.
func (s *Supervisor) Fork(ctx context.Context, ref, name string) (*FeatureInfo, error) {
	return nil, errLater
}

// Resume goes on with a task that failed, was cancelled or interrupted, at its first step that is not done.
func (s *Supervisor) Resume(ctx context.Context, task string, o ResumeOptions) (*Result, error) {
	return nil, errLater
}

// Stop ends live features of this process; they stay.
func (s *Supervisor) Stop(ctx context.Context, features []string, o StopOptions) error {
	return errLater
}

// Kill sends a signal to the running command of a task, or of a feature's newest task.
func (s *Supervisor) Kill(ctx context.Context, ref string, sig syscall.Signal) error {
	return errLater
}

// Pause makes a live feature stand still.
func (s *Supervisor) Pause(ctx context.Context, feature string) error { return errLater }

// Unpause lets it go on.
func (s *Supervisor) Unpause(ctx context.Context, feature string) error { return errLater }

// Rebase has a live feature of this process take up new base layers: see Dialer.
func (s *Supervisor) Rebase(ctx context.Context, featureID string, generation int, stop bool) error {
	return errLater
}

// Holders are the processes that hold the workspace or HOME of a live feature of this process.
func (s *Supervisor) Holders(ctx context.Context, featureID string) ([]isolation.Holder, error) {
	return nil, errLater
}

// Copy copies a file or a tree between the host and a feature.
func (s *Supervisor) Copy(ctx context.Context, from, to CopyPath) error { return errLater }

// Stats measures features; none means those that are live in this process.
func (s *Supervisor) Stats(ctx context.Context, features []string) ([]Stats, error) {
	return nil, errLater
}

// Events calls do for each event, oldest first.
func (s *Supervisor) Events(ctx context.Context, o EventOptions, do func(Event) error) error {
	return errLater
}

// Repair makes the journal agree with what lies on disk, for every feature, and names what is damaged.
func (s *Supervisor) Repair(ctx context.Context) (*GCReport, error) { return nil, errLater }

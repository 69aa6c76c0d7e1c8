package runner

import (
	"context"
	"io"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// The defaults of Options.
const (
	DefaultMaxTasks = 5
	DefaultMaxQueue = 1000
)

// Options is what a Supervisor works with.
type Options struct {
	StateDir string // made when missing: 0711, its contents 0700
	Memory   bool   // --state-persistence memory: nothing outlives Close
	MaxTasks int    // tasks at once, over all processes of this state directory; 0 means DefaultMaxTasks
	MaxQueue int    // tasks that may wait; 0 means DefaultMaxQueue, negative none

	Engine     isolation.Engine
	Cgroups    *quota.Cgroups // nil where there are none; then
	CgroupsErr error          // says why
	Journal    Journal        // the Supervisor closes it
	NewID      func() string  // ids of features and tasks; nil: monotonic ULIDs
}

// FeatureInfo is what `ps` and `inspect` show of a feature.
type FeatureInfo struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Workspace string            `json:"workspace"`
	State     State             `json:"state"`             // of its newest task
	Verdict   Verdict           `json:"verdict,omitempty"` // likewise, once it has ended
	Command   []string          `json:"command"`           // of its newest task's first step
	Live      bool              `json:"live"`              // somebody works on it now
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Updated   time.Time         `json:"updated"`
	Dir       string            `json:"dir"`             // where its layers lie
	Tasks     []TaskInfo        `json:"tasks,omitempty"` // oldest first; not in lists
}

// TaskInfo is what `inspect` shows of a task.
type TaskInfo struct {
	ID            string       `json:"id"`
	Feature       string       `json:"feature_id"`
	State         State        `json:"state"`
	Steps         []StepRecord `json:"steps"`
	ProfileDigest string       `json:"profile_digest"`
	Created       time.Time    `json:"created"`
	Updated       time.Time    `json:"updated"`
	Result        *Result      `json:"result,omitempty"` // nil until it has ended
}

// PromoteOptions is how Promote promotes.
type PromoteOptions struct {
	Kind           string   // PromoteApply ("" too) or PromotePatch
	PatchFile      string   // for PromotePatch
	AllowProtected []string // globs: the explicit word for protected paths
}

// PromoteResult is what Promote did. Blocked by a gate, Report is nil and the error has CodeGate.
type PromoteResult struct {
	Feature string                  `json:"feature"`
	Kind    string                  `json:"kind"`
	Change  ChangeSummary           `json:"change"`
	Gates   []gates.Verdict         `json:"gates"`
	Report  *snapshot.PromoteReport `json:"report,omitempty"`
}

// LogOptions picks from a feature's log.
type LogOptions struct {
	Task   string // id; "" means the feature's newest
	Stream string // "stdout", "stderr" or "" for both
	Step   int    // 1-based; 0 means all
}

// GCReport is what GC removed, or would remove.
type GCReport struct {
	DryRun      bool     `json:"dry_run,omitempty"`
	Interrupted []string `json:"interrupted,omitempty"` // tasks whose supervisor died
	Features    []string `json:"features,omitempty"`    // half removed ones
	Directories []string `json:"directories,omitempty"` // that no record names
	Cgroups     []string `json:"cgroups,omitempty"`     // likewise
	Recovered   []string `json:"recovered,omitempty"`   // promotions that were finished or undone
}

var _ = []any{(*Supervisor).Run, io.Discard, snapshot.DiffOptions{}}

// Supervisor owns the sandboxes of one process. Several, in one process or in many, share a state directory.
type Supervisor struct{ opt Options }

// New opens the state directory and finishes what a dead supervisor left: no process, cgroup or half-made directory of
// it stays, its task becomes interrupted, a promotion is finished or undone. Errors: CodeState, CodeStore….
func New(ctx context.Context, o Options) (*Supervisor, error) { return nil, ErrNotFound }

// Run runs one task to its end. The error is for our own failures and for refusals (*Error, which wraps
// *isolation.UnsupportedError where a control is missing); whatever the task did is in the Result. Cancelling ctx
// kills the task; context.Cause(ctx) is its cause.
func (s *Supervisor) Run(ctx context.Context, r Request) (*Result, error) { return nil, ErrNotFound }

// Features lists the features, newest first: those that are live, and with all the others too.
func (s *Supervisor) Features(ctx context.Context, all bool) ([]FeatureInfo, error) {
	return nil, ErrNotFound
}

// Feature finds one by name, id or unique prefix of an id. CodeNotFound, CodeAmbiguous.
func (s *Supervisor) Feature(ctx context.Context, ref string) (*FeatureInfo, error) {
	return nil, ErrNotFound
}

// Task finds a task by id. CodeNotFound.
func (s *Supervisor) Task(ctx context.Context, id string) (*TaskInfo, error) { return nil, ErrNotFound }

// Spec is the sandbox that Run would make for r, without making it.
func (s *Supervisor) Spec(ctx context.Context, r Request) (*isolation.Spec, error) {
	return nil, ErrNotFound
}

// SpecOf is the sandbox of a feature's newest task.
func (s *Supervisor) SpecOf(ctx context.Context, ref string) (*isolation.Spec, error) {
	return nil, ErrNotFound
}

// Change reads a feature's change. CodeBusy while a task runs.
func (s *Supervisor) Change(ctx context.Context, ref string) (*snapshot.Change, error) {
	return nil, ErrNotFound
}

// Diff writes a feature's change as text. CodeBusy while a task runs.
func (s *Supervisor) Diff(ctx context.Context, ref string, w io.Writer, o snapshot.DiffOptions) error {
	return ErrNotFound
}

// Promote applies a feature's change after its gates have passed. CodeGate with the verdicts in the result; CodeConflict
// wrapping *snapshot.ConflictError; CodeBusy.
func (s *Supervisor) Promote(ctx context.Context, ref string, o PromoteOptions) (*PromoteResult, error) {
	return nil, ErrNotFound
}

// Discard throws a feature's change away, and the feature with it. CodeBusy.
func (s *Supervisor) Discard(ctx context.Context, ref string) error { return ErrNotFound }

// Remove removes features, their changes and their records. One with a change that was not promoted needs force; one
// that is live is CodeBusy.
func (s *Supervisor) Remove(ctx context.Context, refs []string, force bool) error { return ErrNotFound }

// Logs replays what a task wrote.
func (s *Supervisor) Logs(ctx context.Context, ref string, o LogOptions, stdout, stderr io.Writer) error {
	return ErrNotFound
}

// GC removes what nobody owns any more, and says what. With dryRun it only says.
func (s *Supervisor) GC(ctx context.Context, dryRun bool) (*GCReport, error) { return nil, ErrNotFound }

// Close waits for nothing: tasks must have ended. It closes the journal; with Memory the features go too.
func (s *Supervisor) Close() error { return nil }

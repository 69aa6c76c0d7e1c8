package runner

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Errors of a Journal. Everything else that it returns is an *Error already, or the context's.
var (
	ErrNotFound   = errors.New("not found")
	ErrExists     = errors.New("exists already")
	ErrQueueFull  = errors.New("the queue is full")
	ErrStale      = errors.New("the state has changed meanwhile") // compare-and-set failed
	ErrTransition = errors.New("no such transition")              // not in Transitions
)

// ClaimedError is Submit's answer for an idempotency key that a task has: nothing was recorded.
type ClaimedError struct {
	Task   string
	Result json.RawMessage // of a task that has gone with its feature; nil: the journal has it
}

func (e *ClaimedError) Error() string { return "the key belongs to task " + e.Task }

// Is says that a claimed key exists already.
func (e *ClaimedError) Is(target error) bool { return target == ErrExists }

// Journal is the durable memory of a supervisor: features, tasks, steps and the audit trail. Every method is one
// transaction. Several processes share one journal; it is safe for concurrent use. Liveness is never in it: a
// live task whose feature lock can be taken is a dead one.
//
// A task is born in StateQueued by Submit and moves by Move alone, which compares the old state, writes the new one
// and appends the audit row. What Transitions and StepTransitions do not name cannot happen.
type Journal interface {
	// Submit records a task, and its feature when s.NewFeature is set, in one transaction. It answers ErrExists for a
	// feature name or id that is taken, ErrNotFound for a feature that does not exist (or is being removed), and
	// ErrQueueFull when s.MaxQueue tasks wait already. With s.Admitted the task goes on to StatePreparing at once.
	// It returns the feature as stored: a new one has got its Index.
	Submit(ctx context.Context, s Submission) (FeatureRecord, error)
	// Move takes a task, and at most one of its steps, from one state to the next; several moves are one transaction.
	// ErrStale, ErrTransition, ErrNotFound.
	Move(ctx context.Context, moves ...Move) error

	// Feature finds by id, by name, or by a unique prefix of an id. ErrNotFound; *Error with CodeAmbiguous.
	Feature(ctx context.Context, ref string) (FeatureRecord, error)
	// Features lists, newest first, each with its newest task.
	Features(ctx context.Context) ([]FeatureRecord, error)
	// Task finds by id, or by a unique prefix of one. ErrNotFound; *Error with CodeAmbiguous.
	Task(ctx context.Context, id string) (TaskRecord, error)
	// Tasks lists a feature's, oldest first.
	Tasks(ctx context.Context, featureID string) ([]TaskRecord, error)
	// Unfinished are features with a live task (Last, without its steps), half removed, half
	// promoted, or live (Detached).
	Unfinished(ctx context.Context) ([]FeatureRecord, error)
	// UnfinishedIDs are the ids of those, in no order, for a fraction of the time: most of them live in other processes.
	UnfinishedIDs(ctx context.Context) ([]string, error)

	// Promoting notes that a promotion outside of any task begins, or that it has ended, with audit rows about it: meanwhile
	// Unfinished lists the feature. ErrNotFound.
	Promoting(ctx context.Context, featureID string, on bool, rows ...AuditRecord) error
	// Retire marks a feature as being removed: it is no longer found by name, and its name is free. ErrNotFound.
	Retire(ctx context.Context, featureID string) error
	// Forget deletes a feature, its tasks and steps; the audit trail stays. No error when there is none.
	Forget(ctx context.Context, featureID string) error

	// Note appends an audit row that is no transition: a promotion, a discard, a recovery.
	Note(ctx context.Context, a AuditRecord) error
	// Audit lists the trail of a feature, oldest first; "" means all.
	Audit(ctx context.Context, featureID string) ([]AuditRecord, error)

	CheckpointJournal
	VerdictJournal
	Close() error
}

// VerdictJournal is the part of a journal that remembers what follows from verdicts, and, as a gates.Cache, what gates said of
// trees that may come again.
type VerdictJournal interface {
	gates.Cache
	// Failures are those that stand at a checkpoint: of each gate the newest, on the way back from it to what was promoted
	// last, through forks and dropped checkpoints too, unless the gate has passed since.
	Failures(ctx context.Context, checkpoint string) ([]Failure, error)
	// Approve records that a person lets a gate's failure pass, with an audit row. ErrNotFound for an unknown feature.
	Approve(ctx context.Context, a Approval) error
	// Approvals lists a feature's, oldest first.
	Approvals(ctx context.Context, featureID string) ([]Approval, error)
}

// Failure is a verdict that blocks, and the checkpoint that it judged.
type Failure struct {
	Checkpoint string
	Verdict    gates.Verdict
}

// Approval is a person's word that a gate's failure may pass. It holds for the change that was judged, while the gate with the
// same configuration finds no more in it (gates.Verdict.CoveredBy), and in no other feature.
type Approval struct {
	At           time.Time     `json:"at"`
	Feature      string        `json:"feature"` // id
	TaskID       string        `json:"task,omitempty"`
	Checkpoint   string        `json:"checkpoint"` // id of the one that was judged
	Gate         string        `json:"gate"`
	GateDigest   string        `json:"gate_digest"`
	ChangeDigest string        `json:"change_digest"`
	UID          int           `json:"uid"` // on the host
	By           string        `json:"by"`  // the name that this uid has there
	Reason       string        `json:"reason"`
	Verdict      gates.Verdict `json:"-"` // that was approved
}

// CheckpointJournal is the part of a journal that remembers checkpoints. The disk is the truth about which there are;
// what only a journal knows of them (labels, verdicts, digests) is computed again or lost when it is.
type CheckpointJournal interface {
	// AddCheckpoint records a checkpoint, in the audit trail too, and does the moves in one transaction. A step that moves to StepDone gets the
	// checkpoint's id: "done" and "which state" cannot disagree. ErrExists for an id that is there, ErrNotFound for an
	// unknown feature, else what Move answers.
	AddCheckpoint(ctx context.Context, c CheckpointRecord, moves ...Move) error
	// UpdateCheckpoint changes what u names. ErrNotFound.
	UpdateCheckpoint(ctx context.Context, id string, u CheckpointUpdate) error
	// Checkpoint finds within a feature, by id, by a unique prefix of one, or by label (the newest with it). An alias is
	// found under its own id and answered with AliasOf. ErrNotFound, also for one of another feature; *Error with
	// CodeAmbiguous.
	Checkpoint(ctx context.Context, featureID, ref string) (CheckpointRecord, error)
	// Checkpoints lists a feature's own, oldest first, with Verdicts, Aliases and LastGood.
	Checkpoints(ctx context.Context, featureID string) ([]CheckpointRecord, error)
	// LastGood is the newest checkpoint that was promoted, or at which at least one gate ran and no blocking one failed;
	// not lost, not damaged. ErrNotFound.
	LastGood(ctx context.Context, featureID string) (CheckpointRecord, error)
	// DropCheckpoints forgets, with the verdicts; children keep the parent's id. All or none: ErrNotFound.
	DropCheckpoints(ctx context.Context, featureID string, ids ...string) error
	// AddVerdicts stores what gates say of a checkpoint; a gate's newer verdict replaces its older one. A failure that blocks
	// is replaced by a pass or by another such failure alone. ErrNotFound.
	AddVerdicts(ctx context.Context, checkpoint string, v []gates.Verdict) error

	// AddFileEvents appends to the log of what happened to files, which keeps the newest 20,000 of each feature.
	AddFileEvents(ctx context.Context, e []FileEvent) error
	// AddNetworkEvents appends to the log of the network, which keeps 10,000 to 20,000 of each feature, and 200,000 of all.
	// The newest stay, those that were let through beside the others. They need no feature that is there.
	AddNetworkEvents(ctx context.Context, e []NetworkEvent) error
	// Events is the audit trail and the logs of files and of the network, by Seq, those after o.Since; Follow is the caller's business.
	Events(ctx context.Context, o EventOptions) ([]Event, error)
	// AddTiming keeps the newest 4096 of each feature and kind.
	AddTiming(ctx context.Context, t Timing) error
	// Timings are a feature's, "" those of all.
	Timings(ctx context.Context, featureID string) ([]Timing, error)

	// Claim gives an idempotency key to id (of a task or a checkpoint) unless another has it, and answers that one. The
	// same key for something else (digest) is an *Error with CodeKey.
	Claim(ctx context.Context, key, digest, id string) (existing string, err error)
	// Policy is the effective profile that holds for a feature, as JSON: that of its newest task, or without one
	// that under which it began. ErrNotFound when none is known.
	Policy(ctx context.Context, featureID string) (json.RawMessage, error)
	// Fork records a feature that begins on a checkpoint of another, in its lineage and under its policy: FeatureRecord.Index
	// is the lineage's. ErrExists for the name, ErrNotFound.
	Fork(ctx context.Context, f FeatureRecord, from string) (FeatureRecord, error)
	// Restore records a feature that was lost with its record, with its own Index, or that of Lineage when there is one. ErrExists
	// for the name, the id or the index. One that is Retired is recorded as being removed.
	Restore(ctx context.Context, f FeatureRecord) error
	// Kin lists every feature of a lineage, itself and retired ones too, oldest first.
	Kin(ctx context.Context, featureID string) ([]FeatureRecord, error)
	// UpdateFeature changes what u names. ErrNotFound.
	UpdateFeature(ctx context.Context, id string, u FeatureUpdate) error
	// Compact makes the files of the journal small (wal_checkpoint(TRUNCATE)).
	Compact(ctx context.Context) error
}

// Submission is what Journal.Submit records.
type Submission struct {
	Feature    FeatureRecord // only its ID matters unless NewFeature
	NewFeature bool
	Task       TaskRecord
	MaxQueue   int  // how many tasks may wait; ignored when Admitted
	Admitted   bool // it has a slot: from StateQueued to StatePreparing at once

	// Key is an idempotency key, claimed in the same transaction with KeyDigest: when a task has it, Submit records nothing
	// and answers *ClaimedError.
	Key, KeyDigest string
}

// FeatureRecord is a feature as stored.
type FeatureRecord struct {
	ID        string
	Name      string
	Workspace string // absolute host path
	Index     int    // the lowest that was free: its id range is 1<<30 + Index*65536
	Direct    bool   // its ids are mapped without idmapped mounts (isolation.IDs)
	Labels    map[string]string
	Created   time.Time
	Retired   bool        // being removed
	Promoting bool        // being promoted outside of any task
	Last      *TaskRecord // newest task; only in lists
	Damaged   string      // what of it cannot be read, and why; only in lists

	Lineage   string        // id of the feature whose Index it has: itself, unless it is a fork
	Origin    string        // id of the feature that it was forked from
	Detached  bool          // it is live without a task
	TTL       time.Duration // it is stopped this long after its start; 0: never
	Idle      time.Duration // it is stopped this long after its last task; 0: never
	Disk      quota.Bytes   // the limits of its disk unit; 0: it has none
	Inodes    quota.Count   // 0: no limit
	Mechanism string        // that keeps them
	Driver    string        // of its layers; "" is overlay

	Profile json.RawMessage // the effective profile that it begins under, of a fork or a restored one; written, but answered by Policy
}

// FeatureUpdate is what may change of a feature; nil stays.
type FeatureUpdate struct {
	Detached          *bool
	TTL, Idle         *time.Duration
	Disk              *quota.Bytes
	Inodes            *quota.Count
	Mechanism, Driver *string
}

// CheckpointRecord is a checkpoint as stored: FeatureID names the feature. Feature, Aliases, Head, LastGood and Verdicts
// are answers, and not stored in it.
type CheckpointRecord struct{ Checkpoint }

// CheckpointUpdate is what may change of a checkpoint; nil stays.
type CheckpointUpdate struct {
	Label, Digest, AliasOf, Damaged  *string
	Counts                           *snapshot.ChangeCounts
	Bytes                            *int64
	Indexed, Durable, Promoted, Lost *bool
}

// FileEvent is one thing that happened to a file of the workspace or of HOME.
type FileEvent struct {
	At        time.Time
	FeatureID string
	TaskID    string
	Step      int
	Stack     string // workspace, home
	Path      string // relative to it; any bytes
	Kind      string // added, modified, deleted, mode
	Size      int64
}

// NetworkEvent is one thing that a sandbox wanted of the network, and what came of it.
type NetworkEvent struct {
	FeatureID string
	TaskID    string
	Step      int // 1-based; Event.Step is the same
	Event     egress.Event
}

// Timing is how long something took once.
type Timing struct {
	FeatureID string
	Kind      string // TimingSeal and so on
	At        time.Time
	Took      time.Duration
}

// The kinds of Timing.
const (
	TimingSeal       = "seal"
	TimingPause      = "pause" // how long a live sandbox stood still for a seal
	TimingRollback   = "rollback"
	TimingValidation = "validation"
)

// TaskRecord is a task as stored.
type TaskRecord struct {
	ID            string
	FeatureID     string
	State         State
	Steps         []StepRecord
	Profile       json.RawMessage // the effective profile it ran under
	ProfileDigest string
	Remove        bool            // the feature goes with the task's end
	Options       json.RawMessage // of the request: what a resume needs besides the steps
	Result        json.RawMessage // a Result; nil until the task has ended
	Created       time.Time
	Updated       time.Time // of the last transition
}

// StepRecord is a step as stored.
type StepRecord struct {
	N          int             `json:"n"` // 1-based
	State      StepState       `json:"state"`
	Args       []string        `json:"args"`
	Retry      bool            `json:"retry,omitempty"`      // it may be run again after it was interrupted
	Checkpoint string          `json:"checkpoint,omitempty"` // id of the state after it
	Options    json.RawMessage `json:"options,omitempty"`    // a Step: what a resume needs besides Args
}

// Move is one transition of a task, with at most one of a step.
type Move struct {
	TaskID   string
	From, To State // equal only when Step is set: then only the step moves
	Cause    string
	Result   json.RawMessage // stored when not nil
	Step     *StepMove
	Forget   bool            // delete the feature, as Journal.Forget does: its files are gone
	Detail   json.RawMessage // of the audit row: to StatePromoting, a Promotion
}

// StepMove is one transition of a step.
type StepMove struct {
	N        int
	From, To StepState
	Command  *Command // recorded with it; nil: it runs nothing, and nothing ended
}

// AuditRecord is one entry of the log that stands for one event.
type AuditRecord struct {
	At        time.Time       `json:"at"`
	FeatureID string          `json:"feature,omitempty"`
	TaskID    string          `json:"task,omitempty"`
	Step      int             `json:"step,omitempty"`
	Event     string          `json:"event"` // submit, move, step, command, gate, checkpoint, label, drop, rollback, fork, promoting, promote, pause, unpause, disk, driver
	From      string          `json:"from,omitempty"`
	To        string          `json:"to,omitempty"`
	Cause     string          `json:"cause,omitempty"`
	Detail    json.RawMessage `json:"detail,omitempty"` // what else there is to say: of a command a Command, of a gate a GateRecord, of a promotion that begins a Promotion
}

// Command is what a step runs, when it begins, or how that ended.
type Command struct {
	Args     []string `json:"args,omitempty"`      // when it begins
	Verdict  Verdict  `json:"verdict,omitempty"`   // at its end
	ExitCode *int     `json:"exit_code,omitempty"` // likewise: its own, or 128+n after a signal; nil when it is not known
	Signal   string   `json:"signal,omitempty"`
}

// GateRecord is what a gate said of a checkpoint.
type GateRecord struct {
	Gate       string       `json:"gate"`
	Checkpoint string       `json:"checkpoint"`
	Status     gates.Status `json:"status"`
	Mode       gates.Mode   `json:"mode"`
	Findings   int          `json:"findings"`
}

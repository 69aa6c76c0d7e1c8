package runner

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Errors of a Journal. Everything else that it returns is an *Error already, or the context's.
var (
	ErrNotFound   = errors.New("not found")
	ErrExists     = errors.New("exists already")
	ErrQueueFull  = errors.New("the queue is full")
	ErrStale      = errors.New("the state has changed meanwhile") // compare-and-set failed
	ErrTransition = errors.New("no such transition")              // not in Transitions
)

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
	// Task finds by id. ErrNotFound.
	Task(ctx context.Context, id string) (TaskRecord, error)
	// Tasks lists a feature's, oldest first.
	Tasks(ctx context.Context, featureID string) ([]TaskRecord, error)
	// Unfinished is what a start asks: features with a live task (Last, without its steps), half removed, or half
	// promoted.
	Unfinished(ctx context.Context) ([]FeatureRecord, error)

	// Promoting notes that a promotion outside of any task begins, or that it has ended: meanwhile Unfinished lists the
	// feature. ErrNotFound.
	Promoting(ctx context.Context, featureID string, on bool) error
	// Retire marks a feature as being removed: it is no longer found by name, and its name is free. ErrNotFound.
	Retire(ctx context.Context, featureID string) error
	// Forget deletes a feature, its tasks and steps; the audit trail stays. No error when there is none.
	Forget(ctx context.Context, featureID string) error

	// Note appends an audit row that is no transition: a promotion, a discard, a recovery.
	Note(ctx context.Context, a AuditRecord) error
	// Audit lists the trail of a feature, oldest first; "" means all.
	Audit(ctx context.Context, featureID string) ([]AuditRecord, error)

	Close() error
}

// Submission is what Journal.Submit records.
type Submission struct {
	Feature    FeatureRecord // only its ID matters unless NewFeature
	NewFeature bool
	Task       TaskRecord
	MaxQueue   int  // how many tasks may wait; ignored when Admitted
	Admitted   bool // it has a slot: from StateQueued to StatePreparing at once
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
}

// TaskRecord is a task as stored.
type TaskRecord struct {
	ID            string
	FeatureID     string
	State         State
	Steps         []StepRecord
	Profile       json.RawMessage // the effective profile it ran under
	ProfileDigest string
	Remove        bool            // the feature goes with the task's end
	Result        json.RawMessage // a Result; nil until the task has ended
	Created       time.Time
	Updated       time.Time // of the last transition
}

// StepRecord is a step as stored.
type StepRecord struct {
	N     int // 1-based
	State StepState
	Args  []string
}

// Move is one transition of a task, with at most one of a step.
type Move struct {
	TaskID   string
	From, To State // equal only when Step is set: then only the step moves
	Cause    string
	Result   json.RawMessage // stored when not nil
	Step     *StepMove
	Forget   bool // delete the feature, as Journal.Forget does: its files are gone
}

// StepMove is one transition of a step.
type StepMove struct {
	N        int
	From, To StepState
}

// AuditRecord is one row of the audit trail, which only grows.
type AuditRecord struct {
	At        time.Time `json:"at"`
	FeatureID string    `json:"feature,omitempty"`
	TaskID    string    `json:"task,omitempty"`
	Step      int       `json:"step,omitempty"`
	Event     string    `json:"event"` // submit, move, step, promote, discard, remove, recover
	From      string    `json:"from,omitempty"`
	To        string    `json:"to,omitempty"`
	Cause     string    `json:"cause,omitempty"`
}

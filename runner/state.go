package runner

import (
	"maps"
	"slices"

	"github.com/caisson-dev/caisson/runner/steps"
)

// State is where a task stands in its life.
type State string

// The states of a task. A task starts in StateQueued; the last five are ends, of which StateInterrupted
// is what recovery writes for a task whose supervisor died.
const (
	StateQueued           State = "queued"
	StatePreparing        State = "preparing"
	StateRunning          State = "running"
	StatePaused           State = "paused"
	StateSealing          State = "sealing"
	StateValidating       State = "validating"
	StateAwaitingApproval State = "awaiting_approval"
	StatePromoting        State = "promoting"
	StateSucceeded        State = "succeeded"
	StateFailed           State = "failed"
	StateRejected         State = "rejected"
	StateCancelled        State = "cancelled"
	StateInterrupted      State = "interrupted"
)

// Transitions is the whole state machine of a task: what may follow each state. runner/store copies it
// into the database, where a trigger refuses everything else. Every live state can be interrupted (its
// supervisor may die), fail (so may our own machinery) and be cancelled. A task that a gate rejected stays
// rejected: promoting its change later is an act on the feature. One that waited for a person waits again when the promotion is
// refused for something else. What failed, was cancelled or was interrupted can
// be resumed, and is then prepared again.
var Transitions = map[State][]State{
	StateQueued:           {StatePreparing, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StatePreparing:        {StateRunning, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateRunning:          {StatePaused, StateSealing, StateFailed, StateCancelled, StateInterrupted},
	StatePaused:           {StateRunning, StateFailed, StateCancelled, StateInterrupted},
	StateSealing:          {StateValidating, StateFailed, StateCancelled, StateInterrupted},
	StateValidating:       {StateAwaitingApproval, StatePromoting, StateSucceeded, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateAwaitingApproval: {StatePromoting, StateRejected, StateCancelled},
	StatePromoting:        {StateAwaitingApproval, StateSucceeded, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateInterrupted:      {StatePreparing, StateCancelled},
	StateSucceeded:        nil,
	StateFailed:           {StatePreparing},
	StateRejected:         nil,
	StateCancelled:        {StatePreparing},
}

// States returns every state, sorted.
func States() []State { return slices.Sorted(maps.Keys(Transitions)) }

// May reports whether to may follow s.
func (s State) May(to State) bool { return slices.Contains(Transitions[s], to) }

// Ended reports whether nothing of the task is alive in this state: it has come to its end, or only a person can take it on.
func (s State) Ended() bool {
	switch s {
	case StateAwaitingApproval, StateSucceeded, StateFailed, StateRejected, StateCancelled, StateInterrupted:
		return true
	}
	return false
}

// StepState is where one step stands. After kill -9 of the supervisor and recovery every step is exactly one
// of not started, done, failed and interrupted.
type StepState = steps.State

// The states of a step.
const (
	StepNotStarted  StepState = "not_started"
	StepRunning     StepState = "running"
	StepDone        StepState = "done"
	StepFailed      StepState = "failed" // it ended badly by itself, or by a limit
	StepInterrupted StepState = "interrupted"
)

// StepTransitions is the state machine of a step; the database enforces it too.
var StepTransitions = map[StepState][]StepState{
	StepNotStarted:  {StepRunning},
	StepRunning:     {StepDone, StepFailed, StepInterrupted},
	StepFailed:      {StepRunning},
	StepInterrupted: {StepRunning, StepDone},
	StepDone:        nil,
}

// Verdict is why a task or a step ended the way it did: see steps.Verdict.
type Verdict = steps.Verdict

// The verdicts.
const (
	VerdictOK          = steps.VerdictOK
	VerdictNonzero     = steps.VerdictNonzero
	VerdictSignalled   = steps.VerdictSignalled
	VerdictTimeout     = steps.VerdictTimeout
	VerdictMemory      = steps.VerdictMemory
	VerdictPids        = steps.VerdictPids
	VerdictDisk        = steps.VerdictDisk
	VerdictOutput      = steps.VerdictOutput
	VerdictEgress      = steps.VerdictEgress
	VerdictCancelled   = steps.VerdictCancelled
	VerdictRefused     = steps.VerdictRefused
	VerdictGate        = steps.VerdictGate
	VerdictInterrupted = steps.VerdictInterrupted
	VerdictInternal    = steps.VerdictInternal
)

var verdicts = []Verdict{
	VerdictOK, VerdictNonzero, VerdictSignalled, VerdictTimeout, VerdictMemory, VerdictPids, VerdictDisk, VerdictOutput,
	VerdictEgress, VerdictCancelled, VerdictRefused, VerdictGate, VerdictInterrupted, VerdictInternal,
}

// Verdicts returns every verdict, in the order of the documentation.
func Verdicts() []Verdict { return slices.Clone(verdicts) }

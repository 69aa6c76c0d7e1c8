package runner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/pump"
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
// rejected: promoting its change later is an act on the feature.
var Transitions = map[State][]State{
	StateQueued:           {StatePreparing, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StatePreparing:        {StateRunning, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateRunning:          {StatePaused, StateSealing, StateFailed, StateCancelled, StateInterrupted},
	StatePaused:           {StateRunning, StateFailed, StateCancelled, StateInterrupted},
	StateSealing:          {StateValidating, StateFailed, StateCancelled, StateInterrupted},
	StateValidating:       {StateAwaitingApproval, StatePromoting, StateSucceeded, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateAwaitingApproval: {StatePromoting, StateRejected, StateCancelled},
	StatePromoting:        {StateSucceeded, StateRejected, StateFailed, StateCancelled, StateInterrupted},
	StateInterrupted:      {StatePreparing, StateCancelled},
	StateSucceeded:        nil,
	StateFailed:           nil,
	StateRejected:         nil,
	StateCancelled:        nil,
}

// States returns every state, sorted.
func States() []State { return slices.Sorted(maps.Keys(Transitions)) }

// May reports whether to may follow s.
func (s State) May(to State) bool { return slices.Contains(Transitions[s], to) }

// Ended reports whether nothing of the task is alive in this state.
func (s State) Ended() bool {
	switch s {
	case StateSucceeded, StateFailed, StateRejected, StateCancelled, StateInterrupted:
		return true
	}
	return false
}

// StepState is where one step stands. After kill -9 of the supervisor and recovery every step is exactly one
// of not started, done and interrupted.
type StepState string

// The states of a step.
const (
	StepNotStarted  StepState = "not_started"
	StepRunning     StepState = "running"
	StepDone        StepState = "done"
	StepInterrupted StepState = "interrupted"
)

// StepTransitions is the state machine of a step; the database enforces it too.
var StepTransitions = map[StepState][]StepState{
	StepNotStarted:  {StepRunning},
	StepRunning:     {StepDone, StepInterrupted},
	StepInterrupted: {StepRunning},
	StepDone:        nil,
}

// Verdict is why a task or a step ended the way it did. It comes before the exit status: a step in whose cgroup
// the OOM killer killed anything has VerdictMemory, also when its shell returned 0.
type Verdict string

// The verdicts.
const (
	VerdictOK          Verdict = "ok"
	VerdictNonzero     Verdict = "nonzero"
	VerdictSignalled   Verdict = "signalled"
	VerdictTimeout     Verdict = "timeout"
	VerdictMemory      Verdict = "memory"
	VerdictPids        Verdict = "pids"
	VerdictDisk        Verdict = "disk"
	VerdictOutput      Verdict = "output"
	VerdictEgress      Verdict = "egress"
	VerdictCancelled   Verdict = "cancelled"
	VerdictRefused     Verdict = "refused"
	VerdictGate        Verdict = "gate"
	VerdictInterrupted Verdict = "interrupted"
	VerdictInternal    Verdict = "internal"
)

var verdicts = []Verdict{
	VerdictOK, VerdictNonzero, VerdictSignalled, VerdictTimeout, VerdictMemory, VerdictPids, VerdictDisk, VerdictOutput,
	VerdictEgress, VerdictCancelled, VerdictRefused, VerdictGate, VerdictInterrupted, VerdictInternal,
}

// Verdicts returns every verdict, in the order of the documentation.
func Verdicts() []Verdict { return slices.Clone(verdicts) }

// Limit reports whether the verdict is a limit that ended the task (memory, pids, disk, output, egress); a timeout
// is not one of them: it has an exit code of its own.
func (v Verdict) Limit() bool {
	switch v {
	case VerdictMemory, VerdictPids, VerdictDisk, VerdictOutput, VerdictEgress:
		return true
	}
	return false
}

// ending is why a step was ended by us.
type ending int

const (
	byItself ending = iota
	byTimeout
	byCancel
	byOutput
	byOOM
)

// judge fills in how the step ended. The order matters: what the kernel counted comes before what the command says.
func (a *attempt) judge(r *StepResult, why ending, status isolation.ExitStatus) {
	r.ExitCode = status.Code
	if status.Signal != 0 {
		r.ExitCode, r.Signal = 128+int(status.Signal), signalName(status.Signal)
	}
	r.Usage = Usage{CPU: status.User + status.System, MemoryPeak: status.MaxRSS, PidsPeak: -1}
	if a.leaf != nil {
		if u, err := a.leaf.Usage(); err == nil {
			r.Usage = usageOf(u)
		}
	}
	own := a.budgets[len(a.budgets)-1]
	r.Usage.Output = own.Used()
	limits := *cmp.Or(a.st.Limits, &a.t.req.Profile.Limits)
	failed := r.ExitCode != 0
	switch {
	case why == byCancel:
		r.Verdict, r.Cause = VerdictCancelled, "cancelled"
	case r.Usage.OOMKills > 0 || why == byOOM:
		r.limit(VerdictMemory, limits.Memory.String(), known(quota.Bytes(r.Usage.MemoryPeak)), "--memory", "limits.memory")
		r.Cause = fmt.Sprintf("out of memory: the limit is %s", limits.Memory)
	case why == byTimeout:
		r.limit(VerdictTimeout, a.timeout().String(), time.Since(r.Started).Round(time.Millisecond).String(), "--timeout", "limits.timeout")
		r.Cause = fmt.Sprintf("not finished after %s", a.timeout())
	case slices.ContainsFunc(a.budgets, (*pump.Budget).Exceeded):
		r.Truncated = true
		r.limit(VerdictOutput, limits.Output.String(), quota.Bytes(r.Usage.Output).String(), "--output-limit", "limits.output")
		r.Cause = fmt.Sprintf("more output than %s", limits.Output)
	case r.Usage.PidsRefused > 0 && failed:
		r.limit(VerdictPids, limits.Pids.String(), known(quota.Count(r.Usage.PidsPeak)), "--pids-limit", "limits.pids")
		r.Cause = fmt.Sprintf("too many processes: the limit is %s, and %d forks were refused", limits.Pids, r.Usage.PidsRefused)
	case r.Signal != "":
		r.Verdict = VerdictSignalled
	case failed:
		r.Verdict = VerdictNonzero
	default:
		r.Verdict = VerdictOK
	}
}

func (r *StepResult) limit(v Verdict, limit, peak, flag, key string) {
	r.Verdict = v
	r.Limit = &LimitHit{Name: string(v), Limit: limit, Peak: peak, Hint: "raise it with " + flag + ", or " + key + " in a profile"}
}

// known writes a peak; -1 is what a kernel says that does not count it.
func known[T interface {
	~int64
	fmt.Stringer
}](peak T) string {
	if peak < 0 {
		return "unknown"
	}
	return peak.String()
}

// notExecuted is the end of a command that is not there (127) or cannot be executed (126).
func (a *attempt) notExecuted(r *StepResult, err *isolation.ExecError) {
	r.Verdict, r.ExitCode = VerdictNonzero, 126
	if err.Errno == syscall.ENOENT || err.Errno == syscall.ENOTDIR {
		r.ExitCode = 127
	}
	r.Cause = err.Error()
}

// signals are Linux' names, by number.
var signals = strings.Fields("0 HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS")

func signalName(s syscall.Signal) string {
	if n := int(s); n > 0 && n < len(signals) {
		return "SIG" + signals[n]
	}
	return fmt.Sprintf("signal %d", int(s))
}

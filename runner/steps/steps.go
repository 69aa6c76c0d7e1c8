// Package steps runs one command of a task in a sandbox that is there: it connects the command's streams, follows it to
// its end or makes that end at the time promised, and says how it ended. It knows nothing of tasks and of journals.
package steps

import (
	"os"
	"sync/atomic"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/logfile"
	"github.com/caisson-dev/caisson/runner/pump"
	"github.com/caisson-dev/caisson/runner/redact"
	"github.com/caisson-dev/caisson/runner/uplink"
)

// Runner is what the commands of one task have in common.
type Runner struct {
	Sandbox isolation.Sandbox
	Group   *quota.Group // the feature's cgroup, or nil: then there are no leaves
	Chown   bool         // give the pipes to the command's user, so that it can open /dev/stdout

	Out, Err *pump.Sink
	In       *pump.Input // nil: end of file
	Log      *logfile.Writer
	Redact   *redact.Redactor // what goes to Log passes it
	Budget   *pump.Budget     // of all the task's output
	Resize   <-chan Winsize

	// Full tells, when a command that began then has failed, whether the feature's disk is why, and whether it is full now. nil:
	// nobody knows.
	Full func(began time.Time) (hit *LimitHit, now bool)

	clock   clock
	current atomic.Pointer[isolation.Execution] // what signals go to
	leaves  []*quota.Leaf                       // of commands that have ended
}

// Winsize is a terminal's size in characters. The zero Winsize leaves the kernel's default.
type Winsize struct{ Rows, Cols uint16 }

// Command is one step.
type Command struct {
	N        int               // 1-based, for the log
	Leaf     string            // the name of its cgroup: no other command of the group has it
	Process  isolation.Process // without streams and cgroup
	UID, GID uint32            // host ids of its user, for Runner.Chown
	Timeout  time.Duration
	Limits   quota.Limits // that hold
	Own      bool         // Limits are the step's own, not the feature's
}

// Result is how one step ended.
type Result struct {
	N          int           `json:"n"` // 1-based
	Name       string        `json:"name,omitempty"`
	Args       []string      `json:"args"`
	State      State         `json:"state"`
	Verdict    Verdict       `json:"verdict,omitempty"` // "" when it has not been started
	ExitCode   int           `json:"exit_code"`
	Signal     string        `json:"signal,omitempty"`
	Limit      *LimitHit     `json:"limit,omitempty"`
	Cause      string        `json:"cause,omitempty"`
	Usage      Usage         `json:"usage"`
	Truncated  bool          `json:"truncated,omitempty"`
	Network    *uplink.Use   `json:"network,omitempty"`    // what it did with the network; filled in by the caller
	Checkpoint string        `json:"checkpoint,omitempty"` // id of the state after it
	Started    time.Time     `json:"started,omitzero"`
	Duration   time.Duration `json:"duration_ns"`
}

// State is where one step stands; runner has the values.
type State string

// Verdict is why a task or a step ended the way it did. It comes before the exit status: a step in whose cgroup the OOM
// killer killed anything has VerdictMemory, also when its shell returned 0.
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

// Limit reports whether the verdict is a limit that ended the task (memory, pids, disk, output, egress); a timeout
// is not one of them: it has an exit code of its own.
func (v Verdict) Limit() bool {
	switch v {
	case VerdictMemory, VerdictPids, VerdictDisk, VerdictOutput, VerdictEgress:
		return true
	}
	return false
}

// LimitHit says which limit ended a step.
type LimitHit struct {
	Name  string `json:"name"`  // memory, pids, disk, inodes, timeout, output, egress
	Limit string `json:"limit"` // with its unit: 512m, 10m0s
	Peak  string `json:"peak"`  // what was reached; "unknown" where this kernel does not say
	Hint  string `json:"hint"`  // the flag and the profile key that raise it
}

// Usage is what the supervisor measured from outside: plain numbers, because a quantity is never negative and these are
// -1 where the kernel does not tell.
type Usage struct {
	CPU         time.Duration `json:"cpu_ns"`
	MemoryPeak  int64         `json:"memory_peak"` // bytes
	PidsPeak    int64         `json:"pids_peak"`
	OOMKills    int64         `json:"oom_kills,omitempty"`
	PidsRefused int64         `json:"pids_refused,omitempty"`
	Output      int64         `json:"output"` // bytes that came out of stdout and stderr
}

// UsageOf is what a cgroup has used.
func UsageOf(u quota.Usage) Usage {
	return Usage{CPU: u.CPU, MemoryPeak: int64(u.MemoryPeak), PidsPeak: int64(u.PidsPeak), OOMKills: u.OOMKills, PidsRefused: u.PidsRefused}
}

// Pause stops the wall time of the commands, or lets it go on, while the sandbox is frozen: a command that is to begin then
// waits. The caller freezes after it and thaws before it.
func (r *Runner) Pause(on bool) { r.clock.hold(on) }

// Current is the command that runs, or nil.
func (r *Runner) Current() isolation.Execution {
	if x := r.current.Load(); x != nil {
		return *x
	}
	return nil
}

// Leaves are the cgroups of the commands that have ended, for the caller to remove; each is given once.
func (r *Runner) Leaves() []*quota.Leaf {
	l := r.leaves
	r.leaves = nil
	return l
}

// closeFiles closes what is open.
func closeFiles(files []*os.File) (errs []error) {
	for _, f := range files {
		if f != nil {
			errs = append(errs, ignoreClosed(f.Close()))
		}
	}
	return errs
}

package steps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/pump"
)

// ending is why a step was ended by us.
type ending int

const (
	byItself ending = iota
	byTimeout
	byCancel
	byOutput
	byOOM
)

// LimitError is a cancellation's cause that is a limit: whoever watches it cancels the step with it.
type LimitError struct {
	Verdict Verdict
	Hit     LimitHit
	Cause   string
}

func (e *LimitError) Error() string { return e.Cause }

// judge fills in how the step ended. The order matters: what the kernel counted comes before what the command says.
func (a *attempt) judge(ctx context.Context, r *Result, why ending, status isolation.ExitStatus) {
	r.ExitCode = status.Code
	if status.Signal != 0 {
		r.ExitCode, r.Signal = 128+int(status.Signal), SignalName(status.Signal)
	}
	r.Usage = Usage{CPU: status.User + status.System, MemoryPeak: status.MaxRSS, PidsPeak: -1}
	if a.leaf != nil {
		if u, err := a.leaf.Usage(); err == nil {
			r.Usage = UsageOf(u)
		}
	}
	own := a.budgets[len(a.budgets)-1]
	r.Usage.Output = own.Used()
	failed := r.ExitCode != 0
	limit, watched := context.Cause(ctx).(*LimitError) //nolint:errorlint // the cause itself, not what it wraps
	switch {
	case why == byCancel && watched:
		r.Verdict, r.Cause, r.Limit = limit.Verdict, limit.Cause, &limit.Hit
	case why == byCancel:
		r.Verdict, r.Cause = VerdictCancelled, "cancelled"
	case a.byLimit(r, why, failed):
	case failed && a.full(r):
	case r.Signal != "":
		r.Verdict = VerdictSignalled
	case failed:
		r.Verdict = VerdictNonzero
	default:
		r.Verdict = VerdictOK
	}
}

// byLimit reports whether one of the limits that the kernel or the supervisor keeps ended the step.
func (a *attempt) byLimit(r *Result, why ending, failed bool) bool {
	limits := &a.c.Limits
	switch {
	case r.Usage.OOMKills > 0 || why == byOOM:
		r.limit(VerdictMemory, limits.Memory.String(), known(quota.Bytes(r.Usage.MemoryPeak)), "--memory", "limits.memory")
		r.Cause = fmt.Sprintf("out of memory: the limit is %s", limits.Memory)
	case why == byTimeout:
		r.limit(VerdictTimeout, a.c.Timeout.String(), a.r.clock.elapsed().Round(time.Millisecond).String(), "--timeout", "limits.timeout")
		r.Cause = fmt.Sprintf("not finished after %s", a.c.Timeout)
	case slices.ContainsFunc(a.budgets, (*pump.Budget).Exceeded):
		r.Truncated = true
		r.limit(VerdictOutput, limits.Output.String(), quota.Bytes(r.Usage.Output).String(), "--output-limit", "limits.output")
		r.Cause = fmt.Sprintf("more output than %s", limits.Output)
	case r.Usage.PidsRefused > 0 && failed:
		r.limit(VerdictPids, limits.Pids.String(), known(quota.Count(r.Usage.PidsPeak)), "--pids-limit", "limits.pids")
		r.Cause = fmt.Sprintf("too many processes: the limit is %s, and %d forks were refused", limits.Pids, r.Usage.PidsRefused)
	default:
		return false
	}
	return true
}

// full reports whether a failed step met the end of its disk.
func (a *attempt) full(r *Result) bool {
	if a.r.Full == nil {
		return false
	}
	hit, now := a.r.Full(r.Started)
	if hit == nil {
		return false
	}
	r.Verdict, r.Limit = VerdictDisk, hit
	r.Cause = "the feature's disk is full: the limit is " + hit.Limit
	if !now {
		r.Cause = "the feature's disk was full while the command ran: the limit is " + hit.Limit
	}
	return true
}

func (r *Result) limit(v Verdict, limit, peak, flag, key string) {
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
func (a *attempt) notExecuted(r *Result, err *isolation.ExecError) {
	r.Verdict, r.ExitCode = VerdictNonzero, 126
	if err.Errno == syscall.ENOENT || err.Errno == syscall.ENOTDIR {
		r.ExitCode = 127
	}
	r.Cause = err.Error()
}

// signals are Linux' names, by number.
var signals = strings.Fields("0 HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS")

// SignalName is Linux' name of a signal, whatever system this runs on.
func SignalName(s syscall.Signal) string {
	if n := int(s); n > 0 && n < len(signals) {
		return "SIG" + signals[n]
	}
	return fmt.Sprintf("signal %d", int(s))
}

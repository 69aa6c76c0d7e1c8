package gates

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// DefaultTimeout is the time a gate may take where none is configured.
const DefaultTimeout = time.Minute

// Configured is a gate with what its failure does and the time it may take (0: DefaultTimeout).
type Configured struct {
	Gate    Gate
	Mode    Mode
	Timeout time.Duration
}

// ErrTimeout is the cause of a gate's context when its time is over.
var ErrTimeout = errors.New("the gate ran out of time")

// Run asks every gate about c, several at once, and returns one verdict for each, in their order; a gate whose
// mode is off is not asked and its verdict says so. A gate that errs, panics, ends too late or looked at
// nothing gets the status Error. One that ignores its context is not waited for.
func Run(ctx context.Context, gs []Configured, c *Change) []Verdict {
	verdicts := make([]Verdict, len(gs))
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i, g := range gs {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			verdicts[i] = judge(ctx, g, c)
		})
	}
	wg.Wait()
	return verdicts
}

// judge makes one verdict.
func judge(ctx context.Context, g Configured, c *Change) Verdict {
	if g.Gate == nil {
		return Verdict{Status: Error, Mode: g.Mode, Reason: "there is no such gate", Started: time.Now()}
	}
	started := time.Now()
	v, err := Verdict{}, error(nil)
	switch {
	case g.Mode == ModeOff:
		v.Status = Skipped
	case c == nil:
		err = errors.New("there is no change to look at")
	default:
		v, err = check(ctx, g, c)
	}
	v.Gate, v.GateDigest, v.Mode, v.Started = g.Gate.Name(), g.Gate.Digest(), g.Mode, started
	v.Duration = time.Since(started)
	if c != nil {
		v.ChangeDigest = c.Digest
	}
	for _, f := range v.Findings {
		if f.Severity.rank() > v.Severity.rank() {
			v.Severity = f.Severity
		}
	}
	switch {
	case v.Status == Skipped:
	case err != nil:
		v.Status, v.Reason = Error, err.Error()
	case v.Checked == 0 && len(c.Entries) > 0:
		v.Status, v.Reason = Error, "the gate looked at nothing"
	case v.Severity.rank() >= SeverityBlock.rank():
		v.Status = Fail
	default:
		v.Status = Pass
	}
	return v
}

// check runs one gate within its time. What a gate writes into a verdict's other fields is overwritten.
func check(ctx context.Context, g Configured, c *Change) (Verdict, error) {
	timeout := g.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()
	type answer struct {
		v   Verdict
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a = answer{err: fmt.Errorf("the gate panicked: %v", p)}
			}
			done <- a
		}()
		a.v, a.err = g.Gate.Check(ctx, c)
	}()
	select {
	case a := <-done:
		if a.err == nil && ctx.Err() != nil {
			a.err = context.Cause(ctx) // whether it looked at everything is not known
		}
		return Verdict{Findings: a.v.Findings, Dropped: a.v.Dropped, Checked: a.v.Checked}, a.err
	case <-ctx.Done():
		return Verdict{}, context.Cause(ctx)
	}
}

// Blocked says whether the verdicts forbid to promote: a gate that blocks or is mandatory (or whose mode is
// unknown) neither passed nor is off. No verdict at all forbids it too: nobody looked.
func Blocked(vs []Verdict) bool {
	for _, v := range vs {
		if !v.accepts() {
			return true
		}
	}
	return len(vs) == 0
}

func (v Verdict) accepts() bool {
	switch v.Mode {
	case ModeOff, ModeWarn:
		return true
	}
	return v.Status == Pass
}

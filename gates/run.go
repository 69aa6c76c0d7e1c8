package gates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrTimeout is the cause of a gate's context when its time is over.
var ErrTimeout = errors.New("the gate ran out of time")

// Failure is why a gate could not do its work, and what to do about it.
type Failure struct{ Cause, Remedy string }

func (f *Failure) Error() string { return f.Cause }

// Run asks every gate about c, as a Pipeline of them does. Gates that make no pipeline block, all of them, with what is
// wrong as the reason.
func Run(ctx context.Context, gs []Configured, c *Change) []Verdict {
	p, err := New(gs, Options{})
	if err == nil {
		return p.Run(ctx, c)
	}
	verdicts := make([]Verdict, len(gs))
	for i, g := range gs {
		v := &verdicts[i]
		v.Mode, v.Started = g.Mode, time.Now()
		if v.Mode == ModeOff || v.Mode == ModeWarn {
			v.Mode = ModeBlock // who is wrong cannot be told
		}
		if g.Gate != nil {
			v.Gate, v.GateDigest = g.Gate.Name(), g.Gate.Digest()
		}
		if c != nil {
			v.ChangeDigest = c.Digest
		}
		v.fail(err)
		if e, ok := errors.AsType[*LoadError](err); ok {
			v.Remedy = e.Remedy
		}
	}
	return verdicts
}

// check asks one gate, within its time. What a gate writes into a verdict's other fields is lost.
func check(ctx context.Context, g Configured, c *Change) (Answer, error) {
	timeout := g.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	c, known := shown(g, c)
	if known && len(c.Entries) == 0 {
		return Answer{Checked: 1}, nil // nothing has changed since it passed
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
				a = answer{err: &Failure{fmt.Sprintf("the gate panicked: %v", p), "this is a mistake in the gate: report it with what it was shown; mode warn lets work go on meanwhile"}}
			}
			done <- a
		}()
		if a.v, a.err = g.Gate.Check(ctx, c); a.err != nil {
			a.v.Evidence = nil // nobody has looked at it
			return
		}
		a.v.Evidence, a.err = judgedBy(ctx, c, &a.v)
	}()
	select {
	case a := <-done:
		if a.err == nil && ctx.Err() != nil {
			a.err = context.Cause(ctx) // whether it looked at everything is not known
		}
		return Answer{Findings: a.v.Findings, Dropped: a.v.Dropped, Evidence: a.v.Evidence, Checked: a.v.Checked}, late(a.err, g, timeout)
	case <-ctx.Done():
		return Answer{}, late(context.Cause(ctx), g, timeout)
	}
}

// late says of a timeout how long the time was.
func late(err error, g Configured, timeout time.Duration) error {
	if errors.Is(err, ErrTimeout) {
		return &Failure{fmt.Sprintf("%v (%v)", ErrTimeout, timeout), "raise gates." + g.Gate.Name() + ".timeout, or make the change smaller"}
	}
	return err
}

// shown is what of a change a gate has to see: an incremental one only what is new since it passed.
func shown(g Configured, c *Change) (_ *Change, known bool) {
	if !g.Incremental || c.Since == nil {
		return c, false
	}
	entries, ok := c.Since(g.Gate.Name(), g.Gate.Digest())
	if !ok {
		return c, false
	}
	part := *c
	part.Entries = entries
	return &part, true
}

// capped lowers findings to at most the severity worst.
func capped(findings []Finding, worst Severity) []Finding {
	if worst == "" || worst == SeverityBlock {
		return findings
	}
	findings = slices.Clone(findings) // they may lie in a cache
	for i := range findings {
		if findings[i].Severity.rank() > worst.rank() {
			findings[i].Severity = worst
		}
	}
	return findings
}

// sound says what is wrong with an answer that looks like one. Evidence that is none goes.
func (a *Answer) sound(something bool, artifacts Artifacts) error {
	if a.Checked <= 0 && something {
		return &Failure{"the gate looked at nothing", "say in the profile what it has to look at, or switch it off by name"}
	}
	var first error
	sound := slices.DeleteFunc(slices.Clone(a.Evidence), func(e Evidence) bool {
		err := e.sound(artifacts)
		first = cmp.Or(first, err)
		return err != nil
	})
	if first != nil {
		a.Evidence = sound
	}
	return first
}

// Blocked says whether the verdicts forbid to promote: a gate that blocks or is mandatory (or whose mode is
// unknown) neither passed nor is off. No verdict at all forbids it too: nobody looked.
func Blocked(vs []Verdict) bool { return len(vs) == 0 || len(Blocking(vs)) > 0 }

// Blocking returns the verdicts that forbid to promote, in their order.
func Blocking(vs []Verdict) []Verdict { return slices.DeleteFunc(slices.Clone(vs), Verdict.accepts) }

// Objects says whether gates that block object in after to what they did not object to in before, where the same gates
// looked at an earlier state. A gate that could not look objects.
func Objects(before, after []Verdict) bool {
	return len(after) == 0 || slices.ContainsFunc(Blocking(after), func(v Verdict) bool {
		if v.Unresolved != "" {
			return false // it is older than both
		}
		i := slices.IndexFunc(before, func(b Verdict) bool { return b.Gate == v.Gate && b.GateDigest == v.GateDigest })
		return v.Status != Fail || i < 0 || v.adds(&before[i])
	})
}

// adds says whether v has more findings that block than old, of any rule at any path. Lines move, and do not count.
func (v *Verdict) adds(old *Verdict) bool {
	type place struct{ rule, path string }
	had := map[place]int{}
	for _, f := range old.Findings {
		if f.Severity.rank() >= SeverityBlock.rank() {
			had[place{f.Rule, f.Path}]++
		}
	}
	for _, f := range v.Findings {
		at := place{f.Rule, f.Path}
		if f.Severity.rank() < SeverityBlock.rank() {
			continue
		}
		if had[at]--; had[at] < 0 {
			return true
		}
	}
	return v.Dropped > old.Dropped
}

func (v Verdict) accepts() bool {
	switch {
	case v.Unresolved != "":
		return v.Approved
	case v.Mode == ModeOff, v.Mode == ModeWarn, v.Mode == ModeBlock && v.Approved:
		return true
	}
	return v.Status == Pass
}

// Failed says whether v is a failure that blocks: it stays until the same gate passes, whatever becomes of its mode.
func (v *Verdict) Failed() bool {
	switch v.Mode {
	case ModeOff, ModeWarn:
		return false
	}
	return v.Status == Fail || v.Status == Error
}

// CoveredBy says whether the approval of old is one of v too: the same gate with the same configuration says of the same
// change what it said then, or less; of a failure that stands, the same one.
func (v *Verdict) CoveredBy(old *Verdict) bool {
	return v.Gate == old.Gate && v.GateDigest == old.GateDigest && v.ChangeDigest != "" && v.ChangeDigest == old.ChangeDigest &&
		v.Status == old.Status && v.Reason == old.Reason && v.Unresolved == old.Unresolved && !v.adds(old)
}

package runner

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner/artifacts"
	"github.com/caisson-dev/caisson/runner/logfile"
)

// maxExits is how many steps' ends a verdict has: each gate's verdict has them again.
const maxExits = 8

// led is what gates cannot see and a verdict rests on all the same: how the steps ended that led to the change, and what they
// printed. That the log cannot be kept is no failure of the task's.
func (t *task) led() []gates.Evidence {
	list := exits(t.res.Steps)
	if t.req.Remove { // it would go with the feature
		return list
	}
	a, cut, err := artifacts.Of(t.dir).Put(func(w io.Writer) error {
		clean := t.s.opt.Redact.Writer(w)
		err := logfile.Replay(t.s.logPath(t.feature.ID, t.res.TaskID), func(r logfile.Record) error {
			return LogOptions{}.write(r, clean, clean)
		})
		return errors.Join(err, clean.Close())
	})
	if err != nil {
		a = gates.Artifact{}
	}
	return append(list, gates.OfLog(gates.Log{Truncated: cut || t.res.Truncated || err != nil, Artifact: a}))
}

// exits is how steps ended: those that did not end well, and the last one that began. The task's result has them all.
func exits(steps []StepResult) (list []gates.Evidence) {
	for i := range slices.Backward(steps) {
		r := &steps[i]
		if r.Verdict != "" && len(list) < maxExits && (len(list) == 0 || r.Verdict != VerdictOK) {
			list = append(list, gates.OfExit(gates.ExitCode{Step: r.N, Verdict: string(r.Verdict), Code: r.ExitCode}))
		}
	}
	slices.Reverse(list)
	return list
}

// commands is the text that the gate command has looked at, as evidence: of one step, or of all.
func commands(steps []StepResult) []gates.Evidence {
	switch len(steps) {
	case 0:
		return nil
	case 1:
		return []gates.Evidence{gates.OfCommand(steps[0].N, steps[0].Args)}
	}
	var words []string
	for i := range steps {
		words = append(append(words, strconv.Itoa(len(steps[i].Args))), steps[i].Args...)
	}
	return []gates.Evidence{gates.OfCommand(0, words)}
}

// attach adds to what gates say what led to the state that they judged. Of a state that was judged before, and that no task
// has just left, that is what the verdicts had then.
func (x *session) attach(ctx context.Context, state *judged, verdicts []gates.Verdict) {
	led := func(*gates.Verdict) []gates.Evidence { return state.led }
	if state.steps == nil {
		earlier := x.verdictsOf(ctx, state.at)
		led = func(v *gates.Verdict) []gates.Evidence {
			i := slices.IndexFunc(earlier, func(e gates.Verdict) bool { return e.Gate == v.Gate })
			if i < 0 {
				return nil
			}
			return slices.DeleteFunc(slices.Clone(earlier[i].Evidence), func(e gates.Evidence) bool {
				return e.Kind != gates.EvidenceExitCode && e.Kind != gates.EvidenceCommand && e.Kind != gates.EvidenceLog
			})
		}
	}
	for i := range verdicts {
		v := &verdicts[i]
		if v.Status == gates.Skipped {
			continue
		}
		v.Findings, v.Reason = x.s.clean(v.Findings), x.s.opt.Redact.Text(v.Reason)
		v.Evidence = slices.Concat(v.Evidence, led(v)) // the first may lie in a cache
		if v.Gate == "command" {
			v.Evidence = append(v.Evidence, commands(state.steps)...)
		}
	}
}

// clean takes secrets out of what gates say; the findings may lie in a cache.
func (s *Supervisor) clean(findings []gates.Finding) []gates.Finding {
	findings = slices.Clone(findings)
	for i := range findings {
		findings[i].Message, findings[i].Remedy = s.opt.Redact.Text(findings[i].Message), s.opt.Redact.Text(findings[i].Remedy)
	}
	return findings
}

// verdictsOf are those of a checkpoint, or of the one that it is equal to; none when that is not known.
func (x *session) verdictsOf(ctx context.Context, id string) []gates.Verdict {
	for range 2 {
		c, err := x.s.opt.Journal.Checkpoint(ctx, x.feature.ID, id)
		if err != nil || len(c.Verdicts) > 0 || c.AliasOf == "" {
			return c.Verdicts
		}
		id = c.AliasOf
	}
	return nil
}

// retainArtifacts removes artifacts that no verdict of the feature's rests on any more, unless somebody may be about to put
// one in.
func (x *session) retainArtifacts(ctx context.Context, r *GCReport) error {
	if r.DryRun || x.live != nil {
		return nil
	}
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return err
	}
	var verdicts []gates.Verdict
	for i := range rows {
		verdicts = append(verdicts, rows[i].Verdicts...)
	}
	freed, err := artifacts.Of(x.dir).Retain(verdicts)
	r.Bytes += freed
	return err
}

package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/gates"
)

// writeText writes for people at a terminal. What is not printable is quoted, so that nothing plays tricks on it.
func writeText(w io.Writer, r *Report) error {
	var b strings.Builder
	k := &r.Task
	line := func(label, format string, args ...any) {
		if text := gates.Quote(fmt.Sprintf(format, args...)); text != "" {
			fmt.Fprintf(&b, "%-11s %s\n", label+":", text)
		}
	}
	line("task", "%s", k.ID)
	line("feature", "%s on %s", k.Feature, k.Workspace)
	line("result", "%s", r.ended())
	line("cause", "%s", k.Cause)
	line("remedy", "%s", k.Remedy)
	if k.Profile != "" {
		line("profile", "%s %s", k.Profile, k.ProfileDigest)
	}
	for _, weak := range k.Weaker {
		line("not kept", "%s: %s", weak.Control, weak.Reason)
	}
	if c := r.Change; c != nil {
		line("change", "%d added, %d modified, %d deleted, %d B", c.Added, c.Modified, c.Deleted, c.Bytes)
	}
	if p := r.Promoted; p != nil {
		line("promoted", "%s: %d added, %d modified, %d deleted", promotion(p), p.Added, p.Modified, p.Deleted)
	}
	r.textSteps(&b)
	r.textGates(&b)
	for _, command := range r.Reproduce {
		line("reproduce", "%s", command)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) textSteps(b *strings.Builder) {
	for i := range r.Steps {
		s := &r.Steps[i]
		how := string(s.State)
		if s.Verdict != "" {
			how = string(s.Verdict)
		}
		fmt.Fprintf(b, "step %d: %s: %s", s.N, gates.Quote(strings.Join(s.Args, " ")), how)
		if s.Verdict != "" {
			fmt.Fprintf(b, " after %s", s.Duration.Round(time.Millisecond))
			if text := end(s); s.Verdict != "ok" && text != "" {
				fmt.Fprintf(b, ": %s", gates.Quote(text))
			}
		}
		b.WriteByte('\n')
		if text := network(s); text != "" {
			fmt.Fprintf(b, "  network: %s\n", text)
		}
		if s.Limit != nil {
			fmt.Fprintf(b, "  %s\n", gates.Quote(s.Limit.Hint))
		}
	}
	for _, j := range r.Judged {
		for _, f := range j.Findings {
			fmt.Fprintf(b, "step %d: the gate command would refuse %s, at %d:%d: %s [%s]\n", j.Step, gates.Quote(f.Text), f.Line, f.Column, gates.Quote(f.Message), f.Rule)
		}
	}
}

func (r *Report) textGates(b *strings.Builder) {
	if text := r.about(); text != "" {
		fmt.Fprintf(b, "%s\n", text)
	}
	verdicts := make([]gates.Verdict, len(r.Gates))
	for i := range r.Gates {
		verdicts[i] = r.Gates[i].Verdict
	}
	_ = gates.WriteText(b, verdicts, 0) // a Builder takes everything
	for _, g := range r.Gates {
		if g.Then != "" {
			fmt.Fprintf(b, "gate %s: it was %s at the task's end\n", g.Verdict.Gate, g.Then)
		}
		if g.Approve != "" {
			fmt.Fprintf(b, "gate %s: to let it pass all the same: %s\n", g.Verdict.Gate, g.Approve)
		}
	}
	for _, a := range r.Approvals {
		fmt.Fprintf(b, "gate %s: approved by %s at %s: %s\n", gates.Quote(a.Gate), gates.Quote(a.By), a.At.UTC().Format(time.RFC3339), gates.Quote(a.Reason))
	}
}

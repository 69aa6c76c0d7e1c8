package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/report"
)

func newWhyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "why [TASK | FEATURE]",
		Short: "Explain what was refused, and what would have it pass",
		Long: `Print what a task was refused, and what to do about each: what gates found, and how to approve it; what the gate command said of
a step, where, and what is safer; which limit was met, its peak, and the flag that raises it; why a task did not begin; at
which paths a promotion found other people's changes; and what was wanted of the network and not reached, with the flag that
would allow it.

Of a feature it is what all its tasks were refused, findings of gates that have passed since left out; without an argument,
of the newest task that was refused something. What was wanted of the network while several tasks ran at once is the
feature's. A connection that was cut because the next step's rule does not allow it, or because a limit was met, is listed, too.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runWhy(cmd.Context(), a, strings.Join(args, ""))
		},
	}
}

func runWhy(ctx context.Context, a *app, ref string) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	list := []report.Refusal{}
	if ref == "" {
		ref, err = newestRefused(ctx, s)
	}
	if err == nil && ref != "" {
		list, err = refusals(ctx, s, ref)
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(list)
	}
	if len(list) == 0 {
		a.note("nothing was refused")
		return nil
	}
	return writeWhy(a.stdout, list)
}

// refusals are those of a task, or of all tasks of a feature.
func refusals(ctx context.Context, s *runner.Supervisor, ref string) ([]report.Refusal, error) {
	noted, err := s.Refusals(ctx, "")
	if err != nil {
		return nil, err
	}
	t, err := s.Report(ctx, ref)
	switch known := err == nil; {
	case known && (ref == t.Feature || ref == t.FeatureID):
		return ofFeature(ctx, s, t, noted)
	case known:
		list := report.Why(t)
		missed, err := wanted(ctx, s, runner.EventOptions{Task: t.Task.ID})
		return append(list, missed...), err
	case runner.CodeOf(err) != runner.CodeNotFound:
		return nil, err
	}
	list := []report.Refusal{}
	for i := range noted { // of what never began there is no task
		if n := &noted[i]; n.TaskID == ref || n.FeatureID == ref {
			list = append(list, report.Noted(n, "")...)
		}
	}
	for _, o := range []runner.EventOptions{{Task: ref}, {Feature: ref}} { // the log outlives what it tells of
		missed, err := wanted(ctx, s, o)
		if err != nil {
			return nil, err
		}
		list = append(list, missed...)
	}
	if len(list) == 0 {
		return nil, err
	}
	return list, nil
}

// ofFeature are the refusals of all tasks of a feature, and of what was asked of it outside of them. A gate's findings are those
// of the newest task that it judged.
func ofFeature(ctx context.Context, s *runner.Supervisor, newest *runner.TaskReport, noted []runner.RefusedRecord) ([]report.Refusal, error) {
	reports, err := s.Reports(ctx, newest.FeatureID)
	if err != nil {
		return nil, err
	}
	list := []report.Refusal{}
	tasks, judged := map[string]bool{}, map[string]bool{}
	for i := range slices.Backward(reports) {
		r := &reports[i]
		tasks[r.Task.ID] = true
		own := slices.DeleteFunc(report.Why(r), func(x report.Refusal) bool { return x.Kind == report.KindGate && judged[x.Gate] })
		list = append(own, list...)
		for _, v := range report.Verdicts(r) {
			judged[v.Gate] = true
		}
	}
	for i := range noted {
		if n := &noted[i]; n.FeatureID == newest.FeatureID && !tasks[n.TaskID] {
			list = append(list, report.Noted(n, newest.Feature)...)
		}
	}
	missed, err := wanted(ctx, s, runner.EventOptions{Feature: newest.FeatureID})
	return append(list, missed...), err
}

// wanted is what was wanted of the network and not reached.
func wanted(ctx context.Context, s *runner.Supervisor, o runner.EventOptions) ([]report.Refusal, error) {
	var events []runner.Event
	o.Network = true
	err := s.Events(ctx, o, func(e runner.Event) error { events = append(events, e); return nil })
	return report.Network(events), err
}

// newestRefused is the task, or the feature while several ran, that was refused something last; "" when nothing was.
func newestRefused(ctx context.Context, s *runner.Supervisor) (ref string, err error) {
	var when time.Time
	newer := func(at time.Time, refs ...string) {
		if i := slices.IndexFunc(refs, func(r string) bool { return r != "" }); i >= 0 && !at.Before(when) {
			when, ref = at, refs[i]
		}
	}
	noted, err := s.Refusals(ctx, "")
	if err != nil {
		return "", err
	}
	for i := range noted {
		newer(noted[i].At, noted[i].TaskID, noted[i].FeatureID)
	}
	err = s.Events(ctx, runner.EventOptions{Network: true}, func(e runner.Event) error {
		if len(report.Network([]runner.Event{e})) > 0 {
			newer(e.At, e.TaskID, e.Feature)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	features, err := s.Features(ctx, true)
	if err != nil {
		return "", err
	}
	for i := range features {
		if features[i].Updated.Before(when) {
			continue
		}
		reports, err := s.Reports(ctx, features[i].ID)
		if err != nil {
			return "", err
		}
		for k := range reports {
			if r := &reports[k]; len(report.Why(r)) > 0 {
				newer(r.Task.Updated, r.Task.ID)
			}
		}
	}
	return ref, nil
}

// writeWhy writes refusals for people: those of the network in a table.
func writeWhy(w io.Writer, list []report.Refusal) error {
	head := ""
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	heads, remedy := 0, ""
	for i := range list {
		r := &list[i]
		if r.Kind == report.KindNetwork {
			if heads++; heads == 1 {
				fmt.Fprintln(table, "STEP\tTO\tTIMES\tWHY\tTO ALLOW IT")
			}
			flag := cmp.Or(r.Flag, r.Remedy, "cannot be allowed")
			step := "-" // of several that ran
			if r.Step > 0 {
				step = strconv.Itoa(r.Step)
			}
			if r.Remedy != flag {
				remedy = cmp.Or(r.Remedy, remedy)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", step, gates.Quote(r.To), r.Count, gates.Quote(r.Reason), gates.Quote(flag))
			continue
		}
		if of := whose(r); of != head {
			head = of
			fmt.Fprintln(w, gates.Quote(of))
		}
		writeRefusal(w, r)
	}
	if err := table.Flush(); err != nil || remedy == "" {
		return err
	}
	_, err := fmt.Fprintln(w, "  what to do: "+gates.Quote(remedy))
	return err
}

// whose is the task that a refusal is about, or the feature.
func whose(r *report.Refusal) string {
	if r.Task == "" {
		return "feature " + r.Feature
	}
	return "task " + r.Task
}

// writeRefusal writes one that is not of the network.
func writeRefusal(w io.Writer, r *report.Refusal) {
	where, why := r.Path, r.Reason
	if r.Line > 0 && r.Path != "" {
		where += ":" + strconv.Itoa(r.Line)
	}
	switch r.Kind {
	case report.KindGate:
		where = "gate " + r.Gate + ": " + where
	case report.KindCommand:
		where, why = fmt.Sprintf("step %d at %d:%d", r.Step, r.Line, r.Column), fmt.Sprintf("%s: %q", r.Reason, r.Text)
	case report.KindLimit:
		where, why = r.Rule, fmt.Sprintf("the limit is %s, the peak was %s", r.Limit, r.Peak)
		if r.Step > 0 {
			where = fmt.Sprintf("step %d: %s", r.Step, r.Rule)
		}
	default:
		where = strings.TrimSuffix(r.Kind+": "+where, ": ")
	}
	rule := ""
	if r.Rule != "" && r.Kind != report.KindLimit {
		rule = " [" + r.Rule + "]"
	}
	fmt.Fprintf(w, "  %s: %s%s\n", gates.Quote(strings.TrimSuffix(where, ": ")), gates.Quote(why), gates.Quote(rule))
	if r.Remedy != "" {
		fmt.Fprintf(w, "    what to do: %s\n", gates.Quote(r.Remedy))
	}
	if r.Approve != "" {
		fmt.Fprintf(w, "    to let it pass all the same: %s\n", gates.Quote(r.Approve))
	}
}

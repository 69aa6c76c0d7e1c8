package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

type psOptions struct {
	all, quiet bool
}

func newPsCommand(a *app) *cobra.Command {
	var o psOptions
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List features: those that run, or with -a all that are kept",
		Long: `List features, newest first: those that are live, or with -a all that are kept. One in which several tasks run has a line
for each of them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runPs(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&o.all, "all", "a", false, "also features in which nothing runs")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "only the ids")
	return cmd
}

// psRow is one feature as ps lists it.
type psRow struct {
	runner.FeatureInfo
	Change *runner.ChangeSummary `json:"change,omitempty"` // after its newest task
}

func runPs(ctx context.Context, a *app, o psOptions) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	features, err := s.Features(ctx, o.all)
	if err != nil {
		return err
	}
	if o.quiet && !a.json {
		for _, f := range features {
			fmt.Fprintln(a.stdout, f.ID)
		}
		return nil
	}
	rows := make([]psRow, 0, len(features))
	for _, f := range features {
		row := psRow{FeatureInfo: f}
		// It may have been removed since it was listed; then there is nothing more to say about it.
		if full, err := s.Feature(ctx, f.ID); err == nil {
			row.Change = lastChange(full)
		}
		rows = append(rows, row)
	}
	if a.json {
		return a.printJSON(rows)
	}
	return a.printFeatures(rows, time.Now())
}

// lastChange is what the feature's newest task left, nil while there is none.
func lastChange(f *runner.FeatureInfo) *runner.ChangeSummary {
	if n := len(f.Tasks); n > 0 && f.Tasks[n-1].Result != nil {
		return f.Tasks[n-1].Result.Change
	}
	return nil
}

func (a *app) printFeatures(rows []psRow, now time.Time) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FEATURE\tSTATE\tVERDICT\tCHANGE\tAGE\tWORKSPACE\tCOMMAND")
	for _, r := range rows {
		change := "-"
		if r.Change != nil {
			change = fmt.Sprintf("+%d ~%d -%d", r.Change.Added, r.Change.Modified, r.Change.Deleted)
		}
		line := func(state runner.State, command []string) {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, state, cmp.Or(string(r.Verdict), "-"), change,
				age(now.Sub(r.Created)), snapshot.Quote(r.Workspace), shorten(snapshot.Quote(strings.Join(command, " ")), 40))
		}
		if len(r.Running) < 2 {
			line(r.State, r.Command)
			continue
		}
		for _, t := range slices.Backward(r.Running) {
			line(t.State, commandOf(&t))
		}
	}
	return w.Flush()
}

// commandOf is what a task is known by: its first step.
func commandOf(t *runner.TaskInfo) []string {
	if len(t.Steps) == 0 {
		return nil
	}
	return t.Steps[0].Args
}

// shorten cuts s to n bytes; s is ASCII.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n-3] + "..."
}

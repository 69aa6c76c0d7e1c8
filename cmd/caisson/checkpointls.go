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

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

type checkpointLsOptions struct {
	graph, quiet bool
}

func newCheckpointLsCommand(a *app) *cobra.Command {
	var o checkpointLsOptions
	cmd := &cobra.Command{
		Use:   "ls FEATURE",
		Short: "List a feature's checkpoints, newest first; with --graph as the tree that they are",
		Args:  exactly(1, "one feature"), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointLs(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.graph, "graph", false, "draw the tree: rolling back begins a branch")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "only the ids")
	cmd.MarkFlagsMutuallyExclusive("graph", "quiet")
	return cmd
}

func runCheckpointLs(ctx context.Context, a *app, ref string, o checkpointLsOptions) error {
	var all []runner.Checkpoint
	err := a.serve(ctx, ref, func(s service) (err error) {
		all, err = s.Checkpoints(ctx, ref)
		return err
	})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.printJSON(append([]runner.Checkpoint{}, all...))
	}
	all = withoutAliases(all)
	switch {
	case o.quiet:
		for _, c := range slices.Backward(all) {
			fmt.Fprintln(a.stdout, c.ID)
		}
		return nil
	case o.graph:
		return a.printGraph(all, time.Now())
	}
	return a.printCheckpoints(all, time.Now())
}

// withoutAliases leaves the checkpoints that are states of their own. What an alias is (labelled, the head, last good), the
// one that it means is.
func withoutAliases(all []runner.Checkpoint) []runner.Checkpoint {
	var own []runner.Checkpoint
	place := map[string]int{} // of each id in own
	for _, c := range all {
		i, known := place[c.AliasOf]
		if c.AliasOf == "" || !known {
			place[c.ID] = len(own)
			own = append(own, c)
			continue
		}
		place[c.ID] = i
		o := &own[i]
		o.Label = strings.Join(slices.DeleteFunc([]string{o.Label, c.Label}, func(s string) bool { return s == "" }), ", ")
		o.Head, o.LastGood, o.Promoted = o.Head || c.Head, o.LastGood || c.LastGood, o.Promoted || c.Promoted
		if len(o.Verdicts) == 0 {
			o.Verdicts = c.Verdicts
		}
	}
	for i := range own { // a child of an alias is one of what it means
		if p, known := place[own[i].Parent]; known {
			own[i].Parent = own[p].ID
		}
	}
	return own
}

func (a *app) printCheckpoints(all []runner.Checkpoint, now time.Time) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CHECKPOINT\tAGE\tREASON\tCHANGE\tSIZE\tGATES\tLABEL\tIS")
	for i := len(all) - 1; i >= 0; i-- {
		c := &all[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", c.ID, age(now.Sub(c.Created)), checkpointWhen(c), checkpointChange(c),
			size(c.Bytes), gatesPassed(c), cmp.Or(snapshot.Quote(c.Label), "-"), cmp.Or(strings.Join(checkpointMarks(c), ", "), "-"))
	}
	return w.Flush()
}

// gatesPassed is what the gates said of a checkpoint, in a word.
func gatesPassed(c *runner.Checkpoint) string {
	switch {
	case len(c.Verdicts) == 0:
		return "-"
	case gates.Blocked(c.Verdicts):
		return "blocked"
	}
	return "passed"
}

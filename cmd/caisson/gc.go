package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newGCCommand(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead runs left behind",
		Long: `Remove what nobody owns any more: processes and cgroups of runs whose caisson was killed, half-made directories,
unpacked images that nothing uses; and checkpoints, by the profile's rules of retention. The last good checkpoint, promoted
and labelled ones and the one that a feature's state lies on stay. Every start of caisson does the first part by itself.
Changes are never removed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runGC(cmd.Context(), a, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	return cmd
}

func runGC(ctx context.Context, a *app, dryRun bool) error {
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	report, err := s.GC(ctx, dryRun)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(report)
	}
	a.printGC(report)
	return nil
}

// printGC lists what was found, by what it is.
func (a *app) printGC(report *runner.GCReport) {
	nothing := true
	for _, x := range []struct {
		what  string
		items []string
	}{
		{"interrupted", report.Interrupted}, {"feature", report.Features}, {"directory", report.Directories},
		{"cgroup", report.Cgroups}, {"recovered", report.Recovered}, {"checkpoint", report.Checkpoints},
		{"damaged", report.Damaged}, {"problem", report.Problems},
	} {
		for _, item := range x.items {
			nothing = false
			fmt.Fprintf(a.stdout, "%s\t%s\n", x.what, item)
		}
	}
	switch {
	case nothing:
		a.note("nothing to do")
	case report.Bytes > 0:
		a.note("%s freed", size(report.Bytes))
	}
}

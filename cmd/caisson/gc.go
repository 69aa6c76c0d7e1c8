package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

func newGCCommand(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead runs left behind",
		Long: `Remove what nobody owns any more: processes and cgroups of runs whose caisson was killed, half-made directories,
unpacked images that nothing uses. Every start of caisson does the first part by itself. Changes are never removed.`,
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
	nothing := true
	for _, x := range []struct {
		what  string
		items []string
	}{
		{"interrupted", report.Interrupted}, {"feature", report.Features}, {"directory", report.Directories},
		{"cgroup", report.Cgroups}, {"recovered", report.Recovered},
	} {
		for _, item := range x.items {
			nothing = false
			fmt.Fprintf(a.stdout, "%s\t%s\n", x.what, item)
		}
	}
	if nothing {
		a.note("nothing to remove")
	}
	return nil
}

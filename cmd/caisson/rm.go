package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newRmCommand(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm FEATURE…",
		Short: "Remove features and their records",
		Long: `Remove features, their logs and their records. A feature whose change was neither promoted nor discarded is
refused without --force.`,
		Args:              atLeast(1, "a feature"),
		ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRm(cmd.Context(), a, args, force)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also when that discards a change")
	return cmd
}

func runRm(ctx context.Context, a *app, refs []string, force bool) error {
	// A feature in which something runs is busy for everybody: stop it first.
	err := a.serve(ctx, "", func(s service) error {
		return a.every(refs, func(ref string) error { return s.Remove(ctx, []string{ref}, force) })
	})
	if err != nil {
		return err
	}
	return a.did("removed", refs)
}

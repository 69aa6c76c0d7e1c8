package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newDiscardCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "discard FEATURE…",
		Short:             "Throw features away, with what they changed",
		Args:              atLeast(1, "a feature"),
		ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runDiscard(cmd.Context(), a, args)
		},
	}
}

func runDiscard(ctx context.Context, a *app, refs []string) error {
	return a.each(ctx, "removed", refs, func(ctx context.Context, s service, ref string) error { return s.Discard(ctx, ref) })
}

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newWaitCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "wait FEATURE | wait TASK",
		Short: "Wait until a task has ended, and exit as it did",
		Long: `Wait until the newest task of a feature, or the task with an id, has ended. The exit code is the task's, as run would
have had it; with --json its result is printed.`,
		Args: exactly(1, "one feature or task"), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runWait(cmd.Context(), a, args[0])
		},
	}
}

func runWait(ctx context.Context, a *app, ref string) error {
	var result *runner.Result
	err := a.serve(ctx, ref, func(s service) (err error) {
		result, err = s.Wait(ctx, ref)
		return err
	})
	if err != nil {
		return err
	}
	return a.reportInside(result)
}

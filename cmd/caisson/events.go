package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newEventsCommand(a *app) *cobra.Command {
	var o runner.EventOptions
	cmd := &cobra.Command{
		Use:   "events [FEATURE]",
		Short: "Print what happened, as JSON Lines: states, checkpoints, rollbacks, promotions, files",
		Long: `Print what happened in a feature, or in all of them, oldest first, one JSON object in a line: its number, the time, the
feature, the task, the step, what kind it is, and for files the path and the size. With --follow it goes on until you
stop it. --since goes on after the number of the last one seen.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.Feature = args[0]
			}
			return runEvents(cmd.Context(), a, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Task, "task", "", "only a task's, by its id")
	f.Int64Var(&o.Since, "since", 0, "only those after this number")
	f.BoolVar(&o.Network, "network", false, "only what was wanted of the network, and what came of it")
	f.BoolVarP(&o.Follow, "follow", "f", false, "wait for more")
	return cmd
}

func runEvents(ctx context.Context, a *app, o runner.EventOptions) error {
	err := a.serve(ctx, o.Feature, func(s service) error {
		if o.Feature != "" { // one that is not there is a mistake, not silence
			if _, err := s.Feature(ctx, o.Feature); err != nil {
				return err
			}
		}
		return s.Events(ctx, o, func(e runner.Event) error { return a.printJSON(e) })
	})
	if o.Follow && ctx.Err() != nil { // it has no other end
		err = nil
	}
	return err
}

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

func newGateRunCommand(a *app) *cobra.Command {
	o := runner.PromoteOptions{Check: true}
	cmd := &cobra.Command{
		Use:   "run FEATURE[@CHECKPOINT]",
		Short: "Ask the gates about a feature's change, and hand nothing over",
		Long: `Ask the gates of the feature's profile about its change: at a checkpoint, or at one that is made of its current state.
What they say is kept with the checkpoint. The exit code is 0 when they let it pass and 121 when they do not.`,
		Args:              exactly(1, "one feature"),
		ValidArgsFunction: a.completeRefs(1),
		RunE:              func(cmd *cobra.Command, args []string) error { return runGateRun(cmd.Context(), a, args[0], o) },
	}
	cmd.Flags().StringArrayVar(&o.AllowProtected, "allow-protected", nil, "glob of protected paths that may change; repeatable")
	return cmd
}

func runGateRun(ctx context.Context, a *app, ref string, o runner.PromoteOptions) error {
	var result *runner.PromoteResult
	err := a.serve(ctx, ref, func(s service) (err error) {
		result, err = s.Promote(ctx, ref, o)
		return err
	})
	blocked := runner.CodeOf(err) == runner.CodeGate && result != nil
	if err != nil && !blocked {
		return err
	}
	if a.json {
		err = a.printJSON(result)
	} else {
		if result.Change.Empty() {
			a.note("%s: nothing changed", result.Feature)
		}
		err = gates.WriteText(a.stdout, result.Gates, 0)
	}
	if err == nil && blocked {
		err = exitError(exitGate) // the verdicts say why
	}
	return err
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newForkCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "fork FEATURE[@CHECKPOINT] NAME",
		Short: "Make a new feature of a state of another one, without copying",
		Long: `Make a feature that begins where another one is, or was at a checkpoint. Both go on by themselves: what one writes the
other does not see. The new one has a machine-id of its own.`,
		Args:              exactly(2, "a feature or a checkpoint, and a name"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var info *runner.FeatureInfo
			err := a.serve(ctx, args[0], func(s service) (err error) {
				info, err = s.Fork(ctx, args[0], args[1])
				return err
			})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(info)
			}
			_, err = fmt.Fprintln(a.stdout, info.Name)
			return err
		},
	}
}

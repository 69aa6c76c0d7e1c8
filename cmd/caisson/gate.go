package main

import "github.com/spf13/cobra"

func newGateCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gate",
		Short: "What refuses commands and changes: list, explain, ask, prove and try gates",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGateLsCommand(a), newGateShowCommand(a), newGateExplainCommand(a), newGateRunCommand(a), newGateSelftestCommand(a),
		newGateTryCommand(a))
	return cmd
}

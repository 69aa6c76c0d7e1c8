package main

import "github.com/spf13/cobra"

func newGateCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gate",
		Short: "Try gates out: what refuses commands and changes, and why",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGateTryCommand(a))
	return cmd
}

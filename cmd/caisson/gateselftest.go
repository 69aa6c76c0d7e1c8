package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
)

func newGateSelftestCommand(a *app) *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "selftest [NAME...]",
		Short: "Prove that gates accept what is good and refuse what is bad",
		Long: `Run gates on changes that are known to be good and changes that are known to be bad: all gates, those that a profile asks,
or those that are named. Right is that the good ones pass and the bad ones fail. The exit code is 121 when a gate gets one
of them wrong.`,
		ValidArgs: builtin.Names(),
		RunE:      func(cmd *cobra.Command, args []string) error { return runGateSelftest(cmd.Context(), a, args, profile) },
	}
	profileFlag(cmd, &profile)
	return cmd
}

func runGateSelftest(ctx context.Context, a *app, names []string, ref string) error {
	if len(names) == 0 {
		names = builtin.Names()
	}
	if ref != "" {
		p, err := loadRef(ref)
		if err != nil {
			return err
		}
		for _, g := range listGates(p) {
			if g.Mode == gates.ModeOff {
				names = slices.DeleteFunc(names, func(name string) bool { return name == g.Gate })
			}
		}
		if len(names) == 0 {
			return usage("the profile %s asks none of these gates", p.Name)
		}
	}
	right := true
	for _, name := range names {
		r, ok := builtin.Selftest(ctx, name)
		if !ok {
			_, err := gateNamed(name)
			return err
		}
		right = right && r.OK()
		if err := a.printSelftest(r); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !right {
		return exitError(exitGate)
	}
	return nil
}

func (a *app) printSelftest(r builtin.Result) error {
	if a.json {
		return a.printJSON(r)
	}
	if _, err := fmt.Fprintf(a.stdout, "%-10s good: %s  bad: %s\n", r.Gate, r.Good, r.Bad); err != nil {
		return err
	}
	for _, p := range r.Problems {
		fmt.Fprintf(a.stdout, "  %s\n", p)
	}
	return nil
}

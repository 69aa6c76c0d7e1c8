package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func newDiffCommand(a *app) *cobra.Command {
	var o snapshot.DiffOptions
	cmd := &cobra.Command{
		Use:   "diff FEATURE [-- PATH…]",
		Short: "Show what a feature changed",
		Long: `Print a feature's change against its workspace as git prints a diff: unified text, "Binary files differ", modes,
links, quoted names. A rename is a deletion and an addition. --json prints every entry with its metadata.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash == 1 || dash < 0 && len(args) == 1 {
				return nil
			}
			return usage("needs one feature; paths come after --")
		},
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Paths = args[1:]
			return runDiff(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Stat, "stat", false, "only how many lines of which file changed")
	f.BoolVar(&o.NameOnly, "name-only", false, "only the paths")
	f.IntVarP(&o.Context, "unified", "U", 3, "lines of context")
	cmd.MarkFlagsMutuallyExclusive("stat", "name-only")
	return cmd
}

func runDiff(ctx context.Context, a *app, ref string, o snapshot.DiffOptions) error {
	if o.Context == 0 {
		o.Context = -1 // what the library calls none
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if a.json {
		change, err := s.Change(ctx, ref)
		if err != nil {
			return err
		}
		return a.printJSON(change)
	}
	out := a.diffWriter()
	if err := s.Diff(ctx, ref, out, o); err != nil {
		return err
	}
	return out.Flush()
}

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func newDiffCommand(a *app) *cobra.Command {
	var o snapshot.DiffOptions
	cmd := &cobra.Command{
		Use:   "diff REF [REF] [-- PATH…]",
		Short: "Show what a feature changed, or what lies between two of its states",
		Long: `Print a feature's change against its workspace as git prints a diff: unified text, "Binary files differ", modes,
links, quoted names. A rename is a deletion and an addition. --json prints every entry with its metadata.

A REF is FEATURE for its state now, or FEATURE@CHECKPOINT: an id, the beginning of one, a label, head, last-good, start,
or base for the workspace. With one REF the difference is that from the workspace; with two that from the first to the
second.`,
		Example: `  caisson diff fix-1
  caisson diff fix-1@last-good fix-1 --stat
  caisson diff fix-1 -- 'src'`,
		Args: func(cmd *cobra.Command, args []string) error {
			refs := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				refs = dash
			}
			if refs != 1 && refs != 2 {
				return usage("needs one feature or checkpoint, or two; paths come after --")
			}
			return nil
		},
		ValidArgsFunction: a.completeRefs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs := args
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				refs, o.Paths = args[:dash], args[dash:]
			}
			return runDiff(cmd.Context(), a, refs, o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Stat, "stat", false, "only how many lines of which file changed")
	f.BoolVar(&o.NameOnly, "name-only", false, "only the paths")
	f.IntVarP(&o.Context, "unified", "U", 3, "lines of context")
	cmd.MarkFlagsMutuallyExclusive("stat", "name-only")
	return cmd
}

// runDiff prints the difference of one state from the workspace, or that between two.
func runDiff(ctx context.Context, a *app, refs []string, o snapshot.DiffOptions) error {
	switch {
	case o.Context < 0:
		return usage("--unified %d: must be at least 0", o.Context)
	case o.Context == 0:
		o.Context = -1 // what the library calls none
	}
	return a.serve(ctx, refs[0], func(s service) error {
		if a.json {
			change, err := readChange(ctx, s, refs)
			if err != nil {
				return err
			}
			return a.printJSON(change)
		}
		out := a.diffWriter()
		var err error
		if len(refs) == 1 {
			err = s.Diff(ctx, refs[0], out, o)
		} else {
			err = s.DiffBetween(ctx, refs[0], refs[1], out, o)
		}
		if err != nil {
			return err
		}
		return out.Flush()
	})
}

func readChange(ctx context.Context, s service, refs []string) (*snapshot.Change, error) {
	if len(refs) == 1 {
		return s.Change(ctx, refs[0])
	}
	return s.ChangeBetween(ctx, refs[0], refs[1])
}

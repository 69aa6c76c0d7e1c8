package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newPromoteCommand(a *app) *cobra.Command {
	o := runner.PromoteOptions{}
	cmd := &cobra.Command{
		Use:   "promote FEATURE[@CHECKPOINT]",
		Short: "Apply a feature's change to its workspace",
		Long: `Apply what a feature changed to its workspace, after the gates have passed on it. Nothing is applied when somebody
else changed one of the same paths meanwhile; a crash half way is finished or undone at the next start.

Paths that the host would execute or trust later (.git/**, .envrc, .vscode/tasks.json, …; "caisson profile show"
lists them) are promoted only with --allow-protected and a glob that names them.`,
		Args:              exactly(1, "one feature"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPromote(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Kind, "as", runner.PromoteApply, "apply, or patch to write a unified diff to --patch-file")
	f.StringVar(&o.PatchFile, "patch-file", "", "where --as patch writes")
	f.StringArrayVar(&o.AllowProtected, "allow-protected", nil, "glob of protected paths that may be promoted; repeatable")
	completeFlag(cmd, "as", cobra.FixedCompletions(
		[]string{runner.PromoteApply, runner.PromotePatch}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runPromote(ctx context.Context, a *app, ref string, o runner.PromoteOptions) error {
	switch {
	case o.Kind != runner.PromoteApply && o.Kind != runner.PromotePatch:
		return usage("--as %q: one of apply, patch (branch is not available in this version)", o.Kind)
	case o.Kind == runner.PromotePatch && o.PatchFile == "":
		return usage("--as patch needs --patch-file FILE")
	case o.Kind != runner.PromotePatch && o.PatchFile != "":
		return usage("--patch-file needs --as patch")
	}
	var result *runner.PromoteResult
	err := a.serve(ctx, ref, func(s service) (err error) {
		result, err = s.Promote(ctx, ref, o)
		return err
	})
	if result != nil {
		a.warn(result.Gates)
	}
	if err != nil && result != nil {
		return &blockedError{err, result.Gates}
	}
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(result)
	}
	if result.Unjudged {
		a.note("warning: the profile has switched the gates off: nobody judged this change")
	}
	a.noteApprovals(result.Approvals)
	if o.Kind == runner.PromotePatch {
		a.note("%s: %s, written to %s", result.Feature, changeCounts(&result.Change), o.PatchFile)
	} else {
		a.note("%s: %s, promoted", result.Feature, changeCounts(&result.Change))
	}
	if result.Report != nil {
		for _, n := range result.Report.Notes {
			a.note("%q: %s", n.Path, n.Text)
		}
	}
	return nil
}

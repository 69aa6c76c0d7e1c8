package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

func newPromoteCommand(a *app) *cobra.Command {
	o := runner.PromoteOptions{}
	cmd := &cobra.Command{
		Use:   "promote FEATURE[@CHECKPOINT]",
		Short: "Hand a feature's change over to its workspace, as a patch or as a commit",
		Long: `Apply what a feature changed to its workspace, after the gates have passed on it. Nothing is applied when somebody
else changed one of the same paths meanwhile; a crash half way is finished or undone at the next start.

Such conflicts are listed with their three sides: base, what the feature began with; ours, what the workspace has now;
theirs, what the feature has. --ours PATH keeps the workspace's side, --theirs PATH takes the feature's. Every conflict
has to be named, and every name has to fit one.

--as branch commits the change on top of HEAD to a branch of the workspace's git repository, and touches neither the
files nor the index. Ignored files are left out. No hook, filter or setting of git is obeyed.

Paths that the host would execute or trust later (.git/**, .envrc, .vscode/tasks.json, …; "caisson profile show"
lists them) are promoted only with --allow-protected and a glob that names them.`,
		Args:              exactly(1, "one feature"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPromote(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Kind, "as", runner.PromoteApply, "apply; patch to write a unified diff to --patch-file; branch to commit it to a branch")
	f.StringVar(&o.PatchFile, "patch-file", "", "where --as patch writes")
	addBranchFlags(f, &o.Branch)
	f.BoolVar(&o.Branch.Force, "force", false, "with --as branch: replace a branch that exists, but none that is checked out")
	f.StringArrayVar(&o.Choice.Ours, "ours", nil, "glob of conflicts at which the workspace's side stays; repeatable")
	f.StringArrayVar(&o.Choice.Theirs, "theirs", nil, "glob of conflicts at which the feature's side replaces the workspace's; repeatable")
	f.StringArrayVar(&o.AllowProtected, "allow-protected", nil, "glob of protected paths that may be promoted; repeatable")
	completeFlag(cmd, "as", cobra.FixedCompletions(
		[]string{runner.PromoteApply, runner.PromotePatch, runner.PromoteBranch}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runPromote(ctx context.Context, a *app, ref string, o runner.PromoteOptions) error {
	switch {
	case o.Kind != runner.PromoteApply && o.Kind != runner.PromotePatch && o.Kind != runner.PromoteBranch:
		return usage("--as %q: one of apply, patch, branch", o.Kind)
	case o.Kind != runner.PromoteBranch && o.Branch != (runner.BranchOptions{}):
		return usage("--branch, --message and --force need --as branch")
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
	a.reportPromoted(result.Feature, &result.Change, result.Report)
	return nil
}

func addBranchFlags(f *pflag.FlagSet, o *runner.BranchOptions) {
	f.StringVar(&o.Name, "branch", "", "the branch that a promotion as branch commits to (default caisson/FEATURE)")
	f.StringVar(&o.Message, "message", "", "the message of that commit (default: what was promoted)")
}

// reportPromoted says what was handed over, how every conflict was resolved, and what is not as one may expect.
func (a *app) reportPromoted(feature string, c *runner.ChangeSummary, r *snapshot.PromoteReport) {
	if r == nil {
		return
	}
	switch r.Kind {
	case snapshot.PromotePatch:
		a.note("%s: %s, written to %s", feature, changeCounts(c), r.PatchFile)
	case snapshot.PromoteBranch:
		a.note("%s: %s, committed to the branch %s (%.12s, files: %d)", feature, changeCounts(c), r.Branch, r.Commit, r.Files)
	default:
		a.note("%s: %s, promoted", feature, changeCounts(c))
	}
	for _, x := range r.Resolved {
		what := "the workspace's side stays"
		if x.Side == snapshot.Theirs {
			what = "the feature's side replaces the workspace's"
		}
		a.note("%s %s: %s (%s)", x.Side, snapshot.Quote(x.Path), what, x.Reason)
	}
	for _, n := range r.Notes {
		a.note("%s: %s", snapshot.Quote(n.Path), n.Text)
	}
}

// reportSides shows what is known of the three sides of a conflict.
func (a *app) reportSides(c *snapshot.Conflict) {
	if c.Ours == nil || c.Theirs == nil {
		return
	}
	if c.Base == nil {
		fmt.Fprintln(a.stderr, "      base    was not kept: the file was edited in place")
	}
	for _, s := range []struct {
		name string
		*snapshot.Side
	}{{"base", c.Base}, {"ours", c.Ours}, {"theirs", c.Theirs}} {
		if s.Side == nil {
			continue
		}
		words := []string{cmp.Or(string(s.Type), "nothing")}
		if s.Kind != "" {
			words = append([]string{string(s.Kind) + ":"}, words...)
		}
		if s.Mode != "" {
			words = append(words, s.Mode)
		}
		if s.Type == snapshot.File {
			words = append(words, fmt.Sprintf("%d bytes", s.Size))
		}
		if s.Link != "" {
			words = append(words, "to "+snapshot.Quote(s.Link))
		}
		if s.SHA256 != "" {
			words = append(words, "sha256 "+s.SHA256[:12])
		}
		fmt.Fprintf(a.stderr, "      %-7s %s\n", s.name, strings.Join(words, " "))
	}
}

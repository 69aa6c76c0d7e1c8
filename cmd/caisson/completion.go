package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newCompletionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell completion script",
		Long: `Print a script that completes commands, flags and feature names.

  bash        source <(caisson completion bash)
  zsh         caisson completion zsh > "${fpath[1]}/_caisson"
  fish        caisson completion fish | source
  powershell  caisson completion powershell | Out-String | Invoke-Expression`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			default:
				return root.GenPowerShellCompletionWithDesc(a.stdout)
			}
		},
	}
}

// completeFlag says how a flag's value is completed.
func completeFlag(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // there is no such flag
	}
}

// completeFeatures offers the names of the features that are kept, at most limit of them on one line
// (0: any number).
func (a *app) completeFeatures(limit int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, name := range a.featureNames(cmd.Context()) {
			if strings.HasPrefix(name, prefix) && !slices.Contains(args, name) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// featureNames are the names of the features that are kept; none when they cannot be had.
func (a *app) featureNames(ctx context.Context) []string {
	s, err := a.openExisting(ctx)
	if err != nil {
		return nil
	}
	defer s.Close()
	features, err := s.Features(ctx, true)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(features))
	for _, f := range features {
		names = append(names, f.Name)
	}
	return names
}

// completeRefs offers features, and after an @ the feature's checkpoints, at most limit of them on one line (0: any
// number).
func (a *app) completeRefs(limit int) cobra.CompletionFunc {
	features := a.completeFeatures(limit)
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		feature, checkpoint, found := strings.Cut(prefix, "@")
		if !found {
			names, d := features(cmd, args, prefix)
			return names, d | cobra.ShellCompDirectiveNoSpace
		}
		if limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var refs []string
		for _, id := range a.checkpointNames(cmd.Context(), feature) {
			if strings.HasPrefix(id, checkpoint) {
				refs = append(refs, feature+"@"+id)
			}
		}
		return refs, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeCheckpoints offers the checkpoints of the feature that comes first on the line.
func (a *app) completeCheckpoints(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) > 0 {
		for _, id := range a.checkpointNames(cmd.Context(), args[0]) {
			if strings.HasPrefix(id, prefix) {
				names = append(names, id)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// checkpointNames are the labels and ids of a feature's checkpoints, newest first, and the words that mean one.
func (a *app) checkpointNames(ctx context.Context, feature string) []string {
	s, err := a.openExisting(ctx)
	if err != nil {
		return nil
	}
	defer s.Close()
	all, err := s.Checkpoints(ctx, feature)
	if err != nil {
		return nil
	}
	names := []string{runner.RefHead, runner.RefLastGood, runner.RefStart, runner.RefBase}
	for _, c := range slices.Backward(all) {
		if c.Label != "" {
			names = append(names, c.Label)
		}
		names = append(names, c.ID)
	}
	return names
}

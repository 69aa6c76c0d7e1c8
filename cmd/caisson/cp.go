package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newCpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cp FEATURE[@CHECKPOINT]:PATH DEST | cp SOURCE FEATURE:PATH",
		Short: "Copy files out of a feature or a checkpoint, or into a feature",
		Long: `Copy a file or a directory between the host and a feature. PATH is inside, in the workspace: relative to
/workspace, or absolute. Out of a feature links are copied, and never followed. Into a feature is work in
the sandbox like any other: under its limits, with a checkpoint after it. A host path with a colon is written with ./
before it.`,
		Example: `  caisson cp fix-1:report.txt .
  caisson cp fix-1@before:src ./src-before
  caisson cp patch.diff fix-1:patch.diff`,
		Args: exactly(2, "a source and a destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCp(cmd.Context(), a, args[0], args[1])
		},
	}
}

// copyPath reads an argument of cp: REF:PATH, else a path on the host.
func copyPath(arg string) runner.CopyPath {
	ref, path, found := strings.Cut(arg, ":")
	if !found || ref == "" || strings.ContainsRune(ref, '/') || strings.HasPrefix(arg, ".") {
		return runner.CopyPath{Path: arg}
	}
	return runner.CopyPath{Ref: ref, Path: path}
}

func runCp(ctx context.Context, a *app, source, dest string) error {
	from, to := copyPath(source), copyPath(dest)
	switch {
	case from.Ref == "" && to.Ref == "":
		return usage("one of the two must be FEATURE:PATH")
	case from.Ref != "" && to.Ref != "":
		return usage("one of the two must be on the host")
	}
	ref := from.Ref + to.Ref
	err := a.serveTask(ctx, ref, func(s service) error { return s.Copy(ctx, from, to) })
	if err != nil || !a.json {
		return err
	}
	return a.printJSON(struct {
		From string `json:"from"`
		To   string `json:"to"`
	}{source, dest})
}

package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "caisson",
		Short: "Run untrusted work in a sandbox, see what it changed, promote or discard it",
		Long: `caisson runs a command in a sandbox against a directory that it never writes while the command runs.
What the command changed is kept as a feature: look at it (diff), apply it (promote) or drop it (discard).

  caisson run -- make test      run a command against the current directory
  caisson promote FEATURE       apply what it changed`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.parsed = true
			if cmd.Name() != "run" { // whose signals are the command's
				ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
				cmd.SetContext(ctx)
			}
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.CompletionOptions.DisableDefaultCmd = true

	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print JSON: one document, or one line per event with a last event of its own")
	f.StringVar(&a.stateDir, "state-dir", "", "where features are kept (default $CAISSON_STATE, else /var/lib/caisson or $XDG_STATE_HOME/caisson)")
	f.StringVar(&a.persistence, "state-persistence", "disk", "where the records are kept: disk, or memory (gone when caisson ends)")
	f.IntVar(&a.maxTasks, "max-tasks", 0, "how many tasks of one state directory run at once (default $CAISSON_MAX_TASKS, else 5)")

	root.AddCommand(
		newRunCommand(a), newDiffCommand(a), newPromoteCommand(a), newDiscardCommand(a),
		newPsCommand(a), newInspectCommand(a), newLogsCommand(a), newRmCommand(a),
		newProfileCommand(a), newDoctorCommand(a), newGCCommand(a), newBenchCommand(a),
		newVersionCommand(a), newCompletionCommand(a),
	)
	return root
}

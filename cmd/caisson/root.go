package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// forwarding are the commands whose signals are the task's.
var forwarding = []string{"run", "exec", "shell", "attach", "resume"}

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "caisson",
		Short: "Run untrusted work in a sandbox, see what it changed, promote or discard it",
		Long: `caisson runs a command in a sandbox against a directory that it never writes while the command runs.
What the command changed is kept as a feature: look at it (diff), apply it (promote) or drop it (discard).

  caisson run -- make test              run a command against the current directory
  caisson promote FEATURE               apply what it changed

A feature can live for days: run -d and exec work in it, every state that was good can be had again.

  caisson run -d --feature dev          a feature that stays until stop
  caisson exec dev -- make test         one more command in it
  caisson checkpoint ls dev --graph     its states
  caisson rollback dev --last-good      back to the newest that the gates passed`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.ValidateFlagGroups(); err != nil { // cobra asks only later, when it is no usage error any more
				return err
			}
			a.parsed = true
			if !slices.Contains(forwarding, cmd.Name()) {
				ctx, _ := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
				cmd.SetContext(ctx)
			}
			return nil
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

	addGroup(root, "Run:", newRunCommand(a), newExecCommand(a), newShellCommand(a), newAttachCommand(a), newWaitCommand(a),
		newResumeCommand(a), newStopCommand(a), newKillCommand(a), newPauseCommand(a), newUnpauseCommand(a), newCpCommand(a))
	addGroup(root, "Look:", newPsCommand(a), newInspectCommand(a), newLogsCommand(a), newDiffCommand(a), newStatsCommand(a),
		newEventsCommand(a), newWhyCommand(a), newAuditCommand(a), newReportCommand(a))
	addGroup(root, "Go back, take, drop:", newCheckpointCommand(a), newRollbackCommand(a), newForkCommand(a), newPromoteCommand(a), newApproveCommand(a),
		newDiscardCommand(a), newRmCommand(a))
	addGroup(root, "The host:", newProfileCommand(a), newGateCommand(a), newDoctorCommand(a), newGCCommand(a), newBenchCommand(a),
		newVersionCommand(a), newCompletionCommand(a), newSuperviseCommand(a))
	root.SetHelpCommandGroupID("The host:")
	return root
}

// addGroup adds commands that help lists together.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}

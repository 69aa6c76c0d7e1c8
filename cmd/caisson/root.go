package main

import (
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// forwarding are the commands whose signals are the task's.
var forwarding = []string{"run", "exec", "shell", "attach", "resume"}

// subcommand makes one of the commands.
type subcommand struct {
	name string
	make func(*app) *cobra.Command
}

// groups are the commands as help lists them.
var groups = []struct {
	title    string
	commands []subcommand
}{
	{"Run:", []subcommand{
		{"run", newRunCommand}, {"exec", newExecCommand}, {"shell", newShellCommand}, {"attach", newAttachCommand},
		{"wait", newWaitCommand}, {"resume", newResumeCommand}, {"stop", newStopCommand}, {"kill", newKillCommand},
		{"pause", newPauseCommand}, {"unpause", newUnpauseCommand}, {"cp", newCpCommand},
	}},
	{"Look:", []subcommand{
		{"ps", newPsCommand}, {"inspect", newInspectCommand}, {"logs", newLogsCommand}, {"diff", newDiffCommand},
		{"stats", newStatsCommand}, {"events", newEventsCommand}, {"why", newWhyCommand}, {"audit", newAuditCommand},
		{"report", newReportCommand},
	}},
	{"Go back, take, drop:", []subcommand{
		{"checkpoint", newCheckpointCommand}, {"rollback", newRollbackCommand}, {"fork", newForkCommand},
		{"promote", newPromoteCommand}, {"approve", newApproveCommand}, {"discard", newDiscardCommand},
		{"rm", newRmCommand},
	}},
	{"The host:", []subcommand{
		{"profile", newProfileCommand}, {"gate", newGateCommand}, {"doctor", newDoctorCommand}, {"gc", newGCCommand},
		{"bench", newBenchCommand}, {"version", newVersionCommand}, {"completion", newCompletionCommand},
		{"supervise", newSuperviseCommand},
	}},
}

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
			a.parsed, a.command = true, cmd.CommandPath() // what is refused before its end is told of, too
			if !slices.Contains(forwarding, cmd.Name()) {
				ctx, _ := signal.NotifyContext(cmd.Context(), heeded(os.Interrupt, syscall.SIGTERM)...)
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
	f.Var(&a.maxTasks, "max-tasks", "how many tasks of one state directory run at once (default $CAISSON_MAX_TASKS, else 5)")

	chosen := chosenCommand(f, a.args)
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			if chosen == "" || chosen == c.name {
				cmd := c.make(a)
				cmd.GroupID = g.title
				root.AddCommand(cmd)
			}
		}
	}
	root.SetHelpCommandGroupID("The host:")
	return root
}

// heeded are signals without SIGHUP (under nohup) and SIGINT (behind a script's &) where they were ignored when the program
// began: to ask for one would end that. Of other signals Go does not tell: its own handlers replace what was inherited.
func heeded(signals ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
}

// chosenCommand is the command that the arguments name, if it is one of groups: the others, with all of their flags, then need
// not be made, which takes a fifth of a millisecond. It is "" for everything else: help, completion, and what is to be refused.
func chosenCommand(f *pflag.FlagSet, args []string) string {
	for len(args) > 0 && strings.HasPrefix(args[0], "--") {
		name, _, valued := strings.Cut(args[0][2:], "=")
		flag := f.Lookup(name)
		if flag == nil {
			return ""
		}
		if args = args[1:]; !valued && flag.NoOptDefVal == "" {
			args = args[min(1, len(args)):]
		}
	}
	for _, g := range groups {
		if len(args) > 0 && slices.ContainsFunc(g.commands, func(c subcommand) bool { return c.name == args[0] }) {
			return args[0]
		}
	}
	return ""
}

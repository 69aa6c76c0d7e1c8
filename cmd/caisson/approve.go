package main

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/gates/builtin"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

func newApproveCommand(a *app) *cobra.Command {
	var o runner.ApproveOptions
	cmd := &cobra.Command{
		Use:   "approve TASK|FEATURE[@CHECKPOINT] --gate NAME --reason TEXT",
		Short: "Let a gate's failure pass, for one change",
		Long: `Let the failure of a gate in mode block pass, at the newest checkpoint of a task, or of a feature, that gates judged. Who, when and why
goes into the audit trail, and into the record of the promotion that it lets pass. A mandatory gate cannot be approved.

The approval holds for that change alone, while the gate with the same configuration finds no more in it. When a task waits for it (gates.on_block: wait)
and nothing else blocks any more, its change is promoted; "caisson discard" rejects it.`,
		Example:           `  caisson approve fix-1 --gate size --reason "the fixtures are large"`,
		Args:              exactly(1, "one task or feature"),
		ValidArgsFunction: a.completeRefs(1),
		RunE:              func(cmd *cobra.Command, args []string) error { return runApprove(cmd.Context(), a, args[0], o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.Gate, "gate", "", "the gate whose failure may pass")
	f.StringVar(&o.Reason, "reason", "", "why; it cannot be empty")
	completeFlag(cmd, "gate", cobra.FixedCompletions(builtin.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func runApprove(ctx context.Context, a *app, ref string, o runner.ApproveOptions) error {
	if o.Gate == "" {
		return usage("--gate NAME says whose failure may pass")
	}
	o.UID, o.By = whoami()
	var r *runner.ApproveResult
	err := a.serve(ctx, ref, func(s service) (err error) {
		r, err = s.Approve(ctx, ref, o)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		if err := a.printJSON(r); err != nil {
			return err
		}
	} else {
		a.note("approved: gate %s at %s", r.Gate, r.Checkpoint)
		for _, gate := range r.Blocking {
			a.note("the gate %s still refuses it", gate)
		}
	}
	switch {
	case r.Task == nil:
		return nil
	case a.json && exitCode(r.Task) != 0:
		return exitError(exitCode(r.Task))
	case a.json:
		return nil
	}
	return a.reportRun(r.Task, &runOptions{})
}

// whoami is the person at the keyboard, as the host knows it.
func whoami() (uid int, name string) {
	uid = os.Getuid()
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return uid, u.Username
	}
	return uid, strconv.Itoa(uid)
}

// noteApprovals says whose word let gates pass that had failed.
func (a *app) noteApprovals(list []runner.Approval) {
	for _, p := range list {
		a.note("gate %s approved by %s (uid %d): %s", p.Gate, gates.Quote(p.By), p.UID, gates.Quote(p.Reason))
	}
}

// reportFollowUp says what was put back after gates refused a change.
func (a *app) reportFollowUp(r *runner.Result) {
	f := r.FollowUp
	if f == nil {
		return
	}
	a.notePassedBy(f.PassedBy)
	switch {
	case f.Problem != "":
		a.note("what the gates refused is still there: %s", f.Problem)
	case f.Rollback == profiles.RollbackFull:
		a.note("%s is back at checkpoint %s", r.Feature, f.To)
	case len(f.Paths) > 0:
		a.note("put back, because gates named it: %s, as in checkpoint %s", someOf(f.Paths), f.To)
	}
	for _, u := range f.Unnamed {
		a.note("no path to put back: %s", gates.Quote(u))
	}
	switch {
	case f.Rollback != profiles.RollbackSmart || f.Checkpoint == "":
	case len(f.Gates) == 0:
		a.note("nothing is left of the change")
	case gates.Blocked(f.Gates):
		a.note("the gates still refuse what is left")
	default:
		a.note("the gates accept what is left: caisson promote %s", r.Feature)
	}
	if f.Undo != "" {
		fmt.Fprintf(a.stderr, "  undo: caisson rollback %s --to %s\n", r.Feature, f.Undo)
	}
}

// someOf names the first of some paths.
func someOf(paths []string) string {
	const most = 5
	var names []string
	for _, p := range paths[:min(len(paths), most)] {
		names = append(names, snapshot.Quote(p))
	}
	if more := len(paths) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
)

func newCheckpointCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Seal the state of a feature, and list, show, label, remove, export and import what was sealed",
		Long: `A checkpoint is a sealed state of a feature: its workspace and its home, exactly, with times and attributes. One is made
before a task's first step, after each step, in long steps by time and by count of changed files, before a rollback
and before a promotion, and when you ask for one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointCreateCommand(a), newCheckpointLsCommand(a), newCheckpointShowCommand(a),
		newCheckpointLabelCommand(a), newCheckpointRmCommand(a), newCheckpointExportCommand(a), newCheckpointImportCommand(a))
	return cmd
}

func newCheckpointCreateCommand(a *app) *cobra.Command {
	var o runner.CheckpointOptions
	cmd := &cobra.Command{
		Use:   "create FEATURE",
		Short: "Seal a feature's state now, and print the checkpoint's id",
		Long: `Seal a feature's state now, also while something runs in it: processes notice a pause at most. A state that is already
sealed gets no second checkpoint; its id is printed, and with --label it gets the label.`,
		Args:              exactly(1, "one feature"),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCheckpointCreate(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Label, "label", "", "a word for people, and for FEATURE@LABEL")
	f.StringVar(&o.Key, "key", "", "idempotency key: asked again with the same key, the same checkpoint answers")
	f.BoolVar(&o.Wait, "wait", false, "until its digest and its counts are known, and it is on the disk")
	return cmd
}

func runCheckpointCreate(ctx context.Context, a *app, ref string, o runner.CheckpointOptions) error {
	return a.serve(ctx, ref, func(s service) error {
		c, err := s.Checkpoint(ctx, ref, o)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(c)
		}
		_, err = fmt.Fprintln(a.stdout, c.ID)
		return err
	})
}

func newCheckpointShowCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show FEATURE@CHECKPOINT",
		Short:             "Print all there is to know about a checkpoint, as JSON",
		Args:              exactly(1, "one checkpoint, as FEATURE@CHECKPOINT"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.serve(cmd.Context(), args[0], func(s service) error {
				c, err := s.CheckpointOf(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return a.printIndented(c)
			})
		},
	}
}

func newCheckpointLabelCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "label FEATURE@CHECKPOINT LABEL",
		Short: "Give a checkpoint a label, or take it away with an empty one",
		Long: `Give a checkpoint a label. FEATURE@LABEL then means it, and gc keeps it. An empty label takes the label away; a label
that another checkpoint of the feature has is refused.`,
		Args:              exactly(2, "a checkpoint and a label"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			return a.serve(ctx, args[0], func(s service) error {
				if err := s.Label(ctx, args[0], args[1]); err != nil || !a.json {
					return err
				}
				c, err := s.CheckpointOf(ctx, args[0])
				if err != nil {
					return err
				}
				return a.printJSON(c)
			})
		},
	}
}

func newCheckpointRmCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm FEATURE@CHECKPOINT…",
		Short: "Remove checkpoints; the states after them stay exact",
		Long: `Remove checkpoints. What later checkpoints and the feature itself need of them stays on the disk until they have gone
too. The checkpoint that the feature's current state lies on is refused.`,
		Args:              atLeast(1, "a checkpoint, as FEATURE@CHECKPOINT"),
		ValidArgsFunction: a.completeRefs(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			err := a.every(args, func(ref string) error {
				return a.serve(ctx, ref, func(s service) error { return s.DropCheckpoints(ctx, ref) })
			})
			if err != nil {
				return err
			}
			return a.did("removed", args)
		},
	}
}

// checkpointWhen says why and in which step a checkpoint was made: "step 2", "manual".
func checkpointWhen(c *runner.Checkpoint) string {
	if c.Step > 0 {
		return fmt.Sprintf("%s %d", c.Reason, c.Step)
	}
	return c.Reason
}

// checkpointMarks are the properties of a checkpoint that people look for.
func checkpointMarks(c *runner.Checkpoint) []string {
	var marks []string
	for _, x := range []struct {
		yes  bool
		what string
	}{
		{c.Head, "head"}, {c.LastGood, "last good"}, {c.Promoted, "promoted"},
		{c.Lost, "lost"}, {c.Damaged != "", "damaged"},
	} {
		if x.yes {
			marks = append(marks, x.what)
		}
	}
	return marks
}

// checkpointChange is a checkpoint's change against its workspace, as ps shows one. It is known once the checkpoint is
// indexed, in the background.
func checkpointChange(c *runner.Checkpoint) string {
	if !c.Indexed {
		return "-"
	}
	return fmt.Sprintf("+%d ~%d -%d", c.Counts.Added, c.Counts.Modified, c.Counts.Deleted)
}

// ago is a time as people read it in a list.
func ago(t, now time.Time) string { return age(now.Sub(t)) + " ago" }

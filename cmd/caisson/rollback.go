package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

type rollbackOptions struct {
	runner.RollbackOptions
	smart      bool
	violations string
}

func newRollbackCommand(a *app) *cobra.Command {
	var o rollbackOptions
	cmd := &cobra.Command{
		Use:   "rollback FEATURE [--to CHECKPOINT | --last-good] [--paths GLOB… | --smart [--violations FILE]]",
		Short: "Put a feature, or some of its paths, back into the state of a checkpoint",
		Long: `Put a feature back into the state of a checkpoint: without --to and --last-good one step, to the newest checkpoint on the way back from what
there is that differs from it. What there was is sealed first, so that a rollback can be undone; the last lines say how. Processes that hold the workspace or the
home directory are stopped, and the feature stays; with --keep all of them go on, which is refused while one holds it.
No process sees a half state.

With --paths only what the globs name goes back (** crosses directories). With --smart only the paths that gates named in what they refused at the newest
checkpoint which they judged, to the last good checkpoint or, without one, to the workspace; or those that a list of violations names: a JSON list of paths, or of
objects with a path, as the findings of gates are.`,
		Example: `  caisson rollback fix-1 --last-good
  caisson rollback fix-1 --to before-refactoring --paths 'src/**' '*.lock'
  caisson rollback fix-1 --smart
  caisson rollback fix-1 --smart --violations findings.json --dry-run`,
		Args:              atLeast(1, "a feature"),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("to") && o.To == "" { // a variable that was not set must not choose
				return usage("--to needs a checkpoint")
			}
			if err := o.take(args[1:], cmd.Flags().Changed("paths")); err != nil {
				return err
			}
			return runRollback(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.To, "to", "", "a checkpoint: its id, the beginning of it, or its label")
	f.BoolVar(&o.LastGood, "last-good", false, "the newest checkpoint that the gates passed and that can be read")
	f.StringArrayVar(&o.Paths, "paths", nil, "only these; more globs may follow")
	f.BoolVar(&o.smart, "smart", false, "only the paths that gates refused, or that --violations lists")
	f.StringVar(&o.violations, "violations", "", "for --smart: a JSON file, - for standard input")
	f.BoolVar(&o.DryRun, "dry-run", false, "only say what would change")
	f.BoolVar(&o.Keep, "keep", false, "stop no process; refused, naming them, while one holds the workspace or the home directory")
	f.BoolVar(&o.NoUndo, "no-undo", false, "do not seal what there is first")
	cmd.MarkFlagsMutuallyExclusive("to", "last-good")
	cmd.MarkFlagsMutuallyExclusive("paths", "smart")
	completeFlag(cmd, "to", a.completeCheckpoints)
	return cmd
}

// take completes the options with what stands after the feature: more globs for --paths.
func (o *rollbackOptions) take(rest []string, paths bool) (err error) {
	if len(rest) > 0 && !paths {
		return usage("needs one feature; globs come after --paths")
	}
	o.Paths = append(o.Paths, rest...)
	switch {
	case !o.smart && o.violations != "":
		return usage("--violations needs --smart")
	case o.smart && o.violations != "":
		o.Smart, err = readViolations(o.violations)
	default:
		o.Named = o.smart
	}
	return err
}

// readViolations reads the list of --smart: paths, or objects that have one, or an object that has such a list as
// findings or violations.
func readViolations(file string) ([]string, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(os.Stdin, maxViolations+1))
	} else {
		text, err = readBounded(file)
	}
	if err != nil {
		return nil, usage("--violations: %v", err)
	}
	if len(text) > maxViolations {
		return nil, usage("--violations %s: more than %d bytes", file, maxViolations)
	}
	paths, err := parseViolations(text)
	if err != nil {
		return nil, usage("--violations %s: %v", file, err)
	}
	return paths, nil
}

// maxViolations bounds the list of --smart, in bytes.
const maxViolations = 16 << 20

func readBounded(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxViolations+1))
}

func parseViolations(text []byte) ([]string, error) {
	list := json.RawMessage(text)
	var wrapped struct{ Violations, Findings json.RawMessage }
	if json.Unmarshal(text, &wrapped) == nil {
		list = wrapped.Violations
		if list == nil {
			list = wrapped.Findings
		}
	}
	var items []json.RawMessage
	if err := json.Unmarshal(list, &items); err != nil {
		return nil, fmt.Errorf("neither a JSON list nor an object with a list as violations or findings")
	}
	paths := []string{}
	for i, item := range items {
		var path string
		if json.Unmarshal(item, &path) != nil {
			var v struct{ Path string }
			if json.Unmarshal(item, &v) != nil || v.Path == "" {
				return nil, fmt.Errorf("item %d is neither a path nor an object with one", i+1)
			}
			path = v.Path
		}
		paths = append(paths, strings.TrimPrefix(path, "/workspace/"))
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("names no path")
	}
	return paths, nil
}

func runRollback(ctx context.Context, a *app, ref string, o rollbackOptions) error {
	var r *runner.RollbackResult
	err := a.serve(ctx, ref, func(s service) (err error) {
		r, err = s.Rollback(ctx, ref, o.RollbackOptions)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(r)
	}
	for _, p := range r.Report.Paths {
		fmt.Fprintln(a.stdout, snapshot.Quote(p))
	}
	for _, c := range r.Report.Conflicts {
		a.note("%s: %s", snapshot.Quote(c.Path), c.Reason)
	}
	for _, h := range r.Stopped {
		a.note("stopped: %s (pid %d), which held %s", snapshot.Quote(h.Command), h.PID, snapshot.Quote(h.Path))
	}
	a.notePassedBy(r.PassedBy)
	if o.DryRun {
		a.note("would go back to checkpoint %s", o.describe(&r.To))
		return nil
	}
	a.note("%s is at checkpoint %s (%s)", ref, o.describe(&r.To), r.Took.Round(time.Microsecond))
	if r.Undo != nil {
		fmt.Fprintf(a.stderr, "  undo: caisson rollback %s --to %s\n", ref, r.Undo.ID)
	}
	return nil
}

// notePassedBy says what would have been gone back to, and why it was not.
func (a *app) notePassedBy(list []runner.PassedBy) {
	for _, p := range list {
		a.note("passed by checkpoint %s, which cannot be used: %s", p.ID, snapshot.Quote(p.Reason))
	}
}

// describe names a checkpoint that was gone back to; one that we chose also by what it is.
func (o *rollbackOptions) describe(c *runner.Checkpoint) string {
	if o.To != "" || o.LastGood {
		return c.ID
	}
	what := strings.Join(slices.DeleteFunc([]string{checkpointWhen(c), snapshot.Quote(c.Label)}, func(s string) bool { return s == "" }), ", ")
	return c.ID + ", the newest that differs from what there was: " + cmp.Or(what, "the beginning")
}

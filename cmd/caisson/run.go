package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/gates"
	commandgate "github.com/caisson-dev/caisson/gates/command"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

const runLong = `Run a command in a sandbox against a directory, which becomes /workspace inside and is not written while
the command runs. What the command changed is kept as a feature: see it with diff, apply it with promote, drop
it with discard. A second run with the same --feature goes on where the first one ended.

Flags after the command's first word belong to the command; -- ends caisson's own.

Standard input reaches the command when it is a pipe or a file, and with -i. With -t the command has a terminal of
its own, joined to yours. Nothing of your environment is passed on but what -e or the profile names.
A directory that -v shows is read-only unless you write :rw, because what is written there escapes diff and promote.

The exit code is the command's own (128+n for signal n, 126 not executable, 127 not found), or caisson's:
120 refused, 121 gate, 122 limit, 123 waits for approval, 124 timeout, 125 internal error, 130 cancelled.`

func newRunCommand(a *app) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG…]",
		Short: "Run a command in a sandbox against a directory",
		Long:  runLong,
		Example: `  caisson run -- make test
  caisson run --workspace ~/src/app --feature fix-1 --memory 4g -- npm test
  caisson run --promote -- gofmt -w .
  caisson run -it --rm -- bash`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.take(cmd.Flags(), args)
			return runRun(cmd.Context(), a, &o)
		},
	}
	f := cmd.Flags()
	o.addFlags(f)
	f.BoolVar(&o.remove, "rm", false, "discard the change and the feature when the command has ended")
	o.streamOptions.addFlags(f)
	f.BoolVarP(&o.detach, "detach", "d", false, "in the background: the feature stays, live, until stop; without a command nothing runs in it yet")
	f.BoolVar(&o.retry, "retry", false, "a step that was interrupted may be run again by resume")
	f.BoolVar(&o.noCheckpoints, "no-checkpoints", false, "none by themselves, but before what destroys")
	f.StringVar(&o.key, "key", "", "idempotency key: asked again with the same key, the task is not run again")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not say what became of the change")
	o.ports.addFlags(f)
	f.StringVar(&o.learn, "learn", "", "print the smallest profile that would do for the network; allow (the default) lets the public internet be reached, enforce keeps the rules")
	f.Lookup("learn").NoOptDefVal = runner.LearnAllow
	completeFlag(cmd, "feature", a.completeFeatures(0))
	completeFlag(cmd, "profile", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return profileNames(), cobra.ShellCompDirectiveDefault
	})
	return cmd
}

func runRun(ctx context.Context, a *app, o *runOptions) error {
	if err := o.check(a); err != nil {
		return err
	}
	if err := a.checkWorkspace(o.workspace); err != nil {
		return err
	}
	if o.detach {
		return runDetached(ctx, a, o)
	}
	shareProcessors()
	// A task starts in milliseconds: what needs nothing of each other is done at the same time.
	var request *runner.Request
	signals := newTaskSignals()
	defer signals.stop()
	var g errgroup.Group
	g.Go(func() (err error) { request, err = o.request(a); return err })
	g.Go(func() error { signals.notify(); return nil })
	s, engine, err := a.openRunning(ctx)
	if rerr := g.Wait(); rerr != nil {
		if err == nil {
			rerr = errors.Join(rerr, s.Refused(ctx, o.feature, a.explain(rerr)))
		}
		err = rerr
	}
	if engine != nil {
		defer engine.Close()
		defer s.Close()
	}
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request.Signals = signals.c
	streams, err := a.attach(request, o.streamOptions, cancel)
	if err != nil {
		return err
	}
	var result *runner.Result
	err = a.withConsent(request, func() (err error) {
		result, err = a.runOrAdd(ctx, s, request)
		return err
	})
	streams.detach()
	signals.stop()
	if err == nil && o.learn != "" {
		err = a.reportLearned(result, request.Profile)
	}
	if err != nil {
		return err
	}
	return a.reportRun(result, o)
}

// openRunning opens the state directory for a task in the foreground: while it runs, others reach its feature through us.
func (a *app) openRunning(ctx context.Context) (*runner.Supervisor, isolation.Engine, error) {
	dir, err := a.resolveStateDir()
	if err != nil {
		return nil, nil, err
	}
	if a.persistence == "memory" {
		return a.openEngine(ctx, native.Options{Once: true})
	}
	server := daemon.New(daemon.Options{StateDir: dir})
	s, engine, err := a.openEngineWith(ctx, native.Options{Once: true}, runner.Options{Holding: server.Hold})
	if err == nil {
		server.Use(s)
	}
	return s, engine, err
}

// checkWorkspace refuses before the state directory is made, perhaps in the workspace itself.
func (a *app) checkWorkspace(workspace string) error {
	dir, err := a.resolveStateDir()
	if err != nil {
		return err
	}
	return snapshot.Check(workspace, dir)
}

// streams joins a task to this process's standard streams and signals until detach.
type streams struct {
	undo []func()
}

// detach gives the streams back as they were. It is idempotent.
func (s *streams) detach() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

// streamOptions say what of ours a command gets.
type streamOptions struct{ interactive, tty bool }

func (o *streamOptions) addFlags(f *pflag.FlagSet) {
	f.BoolVarP(&o.interactive, "interactive", "i", false, "pass standard input on, also from a terminal")
	f.BoolVarP(&o.tty, "tty", "t", false, "give the command a terminal, joined to yours")
}

func (o *streamOptions) check(a *app) error {
	switch {
	case o.tty && a.json:
		return usage("-t and --json exclude each other")
	case o.tty && !isTerminal(a.stdin):
		return usage("-t needs a terminal on standard input")
	}
	return nil
}

// attach fills in the request's streams. cancel ends the task when nobody reads its output any more.
func (a *app) attach(r *runner.Request, o streamOptions, cancel context.CancelCauseFunc) (*streams, error) {
	s := &streams{}
	if o.tty {
		t, err := openTerminal(a.stdin)
		if err != nil {
			return nil, err
		}
		s.undo = append(s.undo, t.Restore)
		r.TTY, r.Terminal = true, t.terminal(a.stdout)
	} else if o.interactive || !isTerminal(a.stdin) {
		r.Stdin = a.stdin
	}
	r.Interactive = r.Stdin != nil

	if a.json {
		all := &reader{Writer: a.stdout, cancel: cancel}
		events := &eventWriter{out: all}
		out, err := events.stream("stdout"), events.stream("stderr")
		r.Stdout, r.Stderr, r.Progress = out, err, events.progress
		s.undo = append(s.undo, func() { a.noteLost(all) }, out.flush, err.flush)
		return s, nil
	}
	stdout, stderr := &reader{Writer: a.stdout, cancel: cancel}, &reader{Writer: a.stderr, cancel: cancel}
	r.Stdout, r.Stderr = stdout, stderr
	s.undo = append(s.undo, func() { a.midLine = stderr.midLine; a.noteLost(stdout); a.noteLost(stderr) })
	line := newProgress(a.stderr)
	r.Progress = func(p runner.Progress) {
		if len(p.Ports) > 0 {
			a.tellPorts(p.Ports)
			return
		}
		line.set(progressText(p))
	}
	s.undo = append(s.undo, func() { line.set("") })
	return s, nil
}

// progressText says what is being done, or "" while the command itself has the terminal.
func progressText(p runner.Progress) string {
	if p.State == runner.StateRunning || p.State.Ended() {
		return ""
	}
	return cmp.Or(p.Message, string(p.State))
}

// reportRun says how a task ended, and what can be done with its change.
func (a *app) reportRun(r *runner.Result, o *runOptions) error {
	code := exitCode(r)
	if a.json {
		// Whoever does not read it still gets the task's exit code.
		_ = a.printJSON(resultEvent{Event: "result", Result: r, ExitCode: code})
	} else {
		a.reportResult(r, o)
	}
	switch {
	case code != 0:
		return exitError(code)
	case a.lost != nil: // what the command said is not where it was to go
		e := &runner.Error{Code: runner.CodeInternal, Cause: a.lost.Error(), Exit: exitInternal}
		if r.Kept {
			e.Remedy = "caisson logs " + r.Feature
		}
		return e
	}
	return nil
}

// reportInside says how a task ended in a feature that goes on: what becomes of the change is not its matter.
func (a *app) reportInside(r *runner.Result) error {
	a.warn(r.Gates)
	if r.Verdict != runner.VerdictGate { // of which more is said
		for _, v := range gates.Blocking(r.Gates) {
			a.note("the gate %s refuses the change of %s: caisson gate run %[2]s", v.Gate, r.Feature)
		}
	}
	return a.reportRun(r, &runOptions{quiet: true})
}

// resultEvent is the last line of run --json.
type resultEvent struct {
	Event string `json:"event"` // "result"
	*runner.Result
	ExitCode int `json:"exit_code"` // caisson's; the command's own is in the steps
}

func (a *app) reportResult(r *runner.Result, o *runOptions) {
	for _, w := range r.Weaker {
		a.note("not enforced: %s (%s)", w.Control, w.Reason)
	}
	a.noteTaken(r)
	for _, j := range r.Judged {
		if j.Verdict == commandgate.Deny {
			a.note("the gate command would refuse step %d (%s): %s", j.Step, j.Findings[0].Rule, j.Findings[0].Message)
		}
	}
	if r.Unjudged {
		a.note("warning: the profile %s has switched the gates off: nobody judges this change", r.Profile)
	}
	if !o.quiet && !o.remove {
		a.warn(r.Gates)
	}
	if r.Layers != nil && r.Layers.Reason != "" {
		a.note("layers are whole copies: no overlay here (%s)", r.Layers.Reason)
	}
	if r.Cause != "" {
		a.reportLines(cmp.Or(r.Code, string(r.Verdict)), r.Cause, r.Remedy)
	}
	if r.Verdict == runner.VerdictGate {
		a.reportBlocking(r.Gates)
	}
	a.reportFollowUp(r)
	if o.learn == "" {
		a.reportNetwork(r)
	}
	if o.quiet {
		return
	}
	if r.Truncated {
		a.note("the log does not hold all of the output")
	}
	switch {
	case o.remove:
	case r.Promoted != nil:
		a.reportPromoted(r.Feature, r.Change, r.Promoted)
	case r.Change.Empty():
		a.note("nothing changed")
	case r.Kept:
		a.hints(r, o)
	}
}

// hints are the last lines of a run whose change waits for somebody to decide.
func (a *app) hints(r *runner.Result, o *runOptions) {
	not := ""
	if o.promote != "" && o.promote != runner.PromoteNone {
		not = ", not promoted"
	}
	a.note("%s%s in feature %s", changeCounts(r.Change), not, r.Feature)
	promote := "caisson promote " + r.Feature
	switch {
	case r.State == runner.StateAwaitingApproval:
		promote = "caisson approve, as above; the last one promotes it"
	case r.Verdict == runner.VerdictGate && strings.Contains(r.Remedy, "--allow-protected"):
		promote += " --allow-protected GLOB"
	case r.Verdict == runner.VerdictGate:
		promote = "caisson gate run " + r.Feature + " says what to correct first"
	}
	fmt.Fprintf(a.stderr, "  see:     caisson diff %s\n  promote: %s\n  discard: caisson discard %s\n", r.Feature, promote, r.Feature)
}

// changeCounts is a change in words: "2 added, 1 deleted".
func changeCounts(c *runner.ChangeSummary) string {
	if c.Empty() {
		return "nothing changed"
	}
	var parts []string
	for _, x := range []struct {
		n    int
		what string
	}{{c.Added, "added"}, {c.Modified, "modified"}, {c.Deleted, "deleted"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return strings.Join(parts, ", ")
}

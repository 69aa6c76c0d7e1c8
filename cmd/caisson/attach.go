package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

type attachOptions struct {
	keys    string
	noStdin bool
}

func newAttachCommand(a *app) *cobra.Command {
	var o attachOptions
	cmd := &cobra.Command{
		Use:   "attach FEATURE",
		Short: "Join your terminal to what runs in a live feature",
		Long: `Join standard input, output and error to the newest task that runs in a live feature. What it wrote before comes first.
The detach keys leave it running; so does closing the terminal. Signals go to the command. When the task ends, its exit
code is caisson's.`,
		Args: exactly(1, "one feature"), ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAttach(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.keys, "detach-keys", daemon.DefaultDetachKeys, "what leaves the task running: letters and ctrl-LETTER, with commas between")
	f.BoolVar(&o.noStdin, "no-stdin", false, "only look on")
	return cmd
}

func runAttach(ctx context.Context, a *app, ref string, o attachOptions) error {
	keys, err := daemon.ParseDetachKeys(o.keys)
	if err != nil {
		return usage("--detach-keys: %v", err)
	}
	var result *runner.Result
	err = a.withHolder(ctx, ref, func(c *daemon.Client) (err error) {
		result, err = a.join(ctx, c, ref, keys, o.noStdin)
		return err
	})
	if errors.Is(err, daemon.ErrDetached) {
		a.note("detached; caisson attach %s joins it again", ref)
		return nil
	}
	if err != nil {
		return err
	}
	return a.reportInside(result)
}

// join joins our streams, or our terminal to that of the task, until the task ends or the detach keys are typed.
func (a *app) join(ctx context.Context, c *daemon.Client, ref string, keys []byte, noStdin bool) (*runner.Result, error) {
	tty, err := c.HasTerminal(ctx, ref)
	if err != nil {
		return nil, err
	}
	signals := newTaskSignals()
	signals.notifyAttached()
	defer signals.stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := &runner.Request{}
	tty = tty && isTerminal(a.stdin) && !a.json && !noStdin
	streams, err := a.attach(r, streamOptions{interactive: !noStdin, tty: tty}, cancel)
	if err != nil {
		return nil, err
	}
	defer streams.detach()
	if noStdin {
		r.Stdin = nil
	}
	return c.Attach(ctx, ref, daemon.AttachOptions{
		Terminal: r.Terminal, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, DetachKeys: keys, Signals: signals.c,
	})
}

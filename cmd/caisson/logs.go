package main

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

type logsOptions struct {
	runner.LogOptions
	stdout, stderr bool
	tail           int
}

func newLogsCommand(a *app) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs FEATURE",
		Short: "Print what a feature's newest task wrote",
		Long: `Print what a task wrote, each stream to the stream that it came from. With --json one line per piece of output and
a last line {"event":"end"}.`,
		Args:              exactly(1, "one feature"),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runLogs(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.stdout, "stdout", false, "only standard output")
	f.BoolVar(&o.stderr, "stderr", false, "only standard error")
	f.IntVarP(&o.tail, "tail", "n", -1, "only the last lines, this many")
	f.StringVar(&o.Task, "task", "", "the id of an earlier task")
	f.BoolVarP(&o.Follow, "follow", "f", false, "what comes, too, until the task has ended")
	f.IntVar(&o.Step, "step", 0, "only one step, counted from 1")
	return cmd
}

func runLogs(ctx context.Context, a *app, ref string, o logsOptions) error {
	if o.Follow && o.tail >= 0 {
		return usage("--follow and --tail exclude each other")
	}
	if o.stdout != o.stderr {
		o.Stream = map[bool]string{true: "stdout", false: "stderr"}[o.stdout]
	}
	var stdout, stderr io.Writer = a.stdout, a.stderr
	end := func() error { return nil }
	if a.json {
		events := &eventWriter{out: a.stdout}
		out, errs := events.stream("stdout"), events.stream("stderr")
		stdout, stderr = out, errs
		end = func() error {
			out.flush()
			errs.flush()
			return events.write(struct {
				Event string `json:"event"`
			}{"end"})
		}
	}
	if o.tail < 0 {
		if err := a.readLogs(ctx, ref, o.LogOptions, stdout, stderr); err != nil {
			return err
		}
		return end()
	}
	t := &tail{lines: o.tail}
	if err := a.readLogs(ctx, ref, o.LogOptions, t.stream(stdout), t.stream(stderr)); err != nil {
		return err
	}
	if err := t.replay(); err != nil {
		return err
	}
	return end()
}

// readLogs replays a log; with Follow the process that holds the feature goes on until the task has ended.
func (a *app) readLogs(ctx context.Context, ref string, o runner.LogOptions, stdout, stderr io.Writer) error {
	if o.Follow {
		err := a.withHolder(ctx, ref, func(c *daemon.Client) error { return c.Logs(ctx, ref, o, stdout, stderr) })
		if !errors.Is(err, &runner.Error{Code: runner.CodeNotLive}) {
			return err
		}
		o.Follow = false
	}
	s, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Logs(ctx, ref, o, stdout, stderr)
}

// tail keeps the last lines of several streams, in the order in which they came.
type tail struct {
	lines int
	kept  []tailLine
}

type tailLine struct {
	to   io.Writer
	text []byte
}

type tailStream struct {
	tail *tail
	to   io.Writer
}

func (t *tail) stream(w io.Writer) io.Writer { return &tailStream{t, w} }

func (s *tailStream) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		s.tail.add(s.to, line)
	}
	return len(p), nil
}

// add appends to the stream's line that has no end yet, or begins a new one.
func (t *tail) add(to io.Writer, text []byte) {
	for i := len(t.kept) - 1; i >= 0; i-- {
		if l := &t.kept[i]; l.to == to {
			if !bytes.HasSuffix(l.text, []byte("\n")) {
				l.text = append(l.text, text...)
				return
			}
			break
		}
	}
	t.kept = append(t.kept, tailLine{to, bytes.Clone(text)})
	if len(t.kept) > t.lines {
		t.kept = t.kept[1:]
	}
}

func (t *tail) replay() error {
	for _, l := range t.kept {
		if _, err := l.to.Write(l.text); err != nil {
			return err
		}
	}
	return nil
}

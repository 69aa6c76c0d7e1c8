package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

type resumeOptions struct {
	retry, skip, detach, quiet bool
}

func newResumeCommand(a *app) *cobra.Command {
	var o resumeOptions
	cmd := &cobra.Command{
		Use:   "resume TASK",
		Short: "Go on with a task that failed, was cancelled or was interrupted, at its first step that is not done",
		Long: `Go on with a task at its first step that is not done, on the checkpoint after the last one that is, under the same
profile. Steps that are done are not run again. A step that was interrupted may have done half of its work: it is run
again when the task says that it may be (caisson run --retry), else the exit code is 123 and you say it here.

The values of secrets (variables with names such as API_TOKEN) are not kept: those that the task was given are taken
from the environment of resume, and a note names them ("from_environment" in the result): mind whose they are.

TASK is a task's id, or a feature for its newest task.`,
		Args:              exactly(1, "one task"),
		ValidArgsFunction: a.completeFeatures(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runResume(cmd.Context(), a, args[0], o)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.retry, "retry-interrupted", false, "run the step again that was interrupted")
	f.BoolVar(&o.skip, "skip-interrupted", false, "take the step that was interrupted for done")
	f.BoolVarP(&o.detach, "detach", "d", false, "in the background; the feature stays until stop")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "do not say what became of the change")
	cmd.MarkFlagsMutuallyExclusive("retry-interrupted", "skip-interrupted")
	return cmd
}

func runResume(ctx context.Context, a *app, task string, o resumeOptions) error {
	if o.detach {
		return runResumeDetached(ctx, a, task, o)
	}
	signals := newTaskSignals()
	signals.notify()
	defer signals.stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var r runner.Request // only for its streams
	streams, err := a.attach(&r, streamOptions{}, cancel)
	if err != nil {
		return err
	}
	defer streams.detach()
	options := o.options()
	options.Stdin, options.Stdout, options.Stderr, options.Progress, options.Signals = r.Stdin, r.Stdout, r.Stderr, r.Progress, signals.c
	result, err := a.resume(ctx, task, options)
	streams.detach()
	if err != nil {
		return err
	}
	return a.reportRun(result, &runOptions{quiet: o.quiet})
}

func (o *resumeOptions) options() runner.ResumeOptions {
	return runner.ResumeOptions{RetryInterrupted: o.retry, SkipInterrupted: o.skip, Detach: o.detach}
}

// resume goes on with a task in this process, which needs an engine, or in the one that holds its feature.
func (a *app) resume(ctx context.Context, task string, o runner.ResumeOptions) (*runner.Result, error) {
	s, engine, err := a.openRunning(ctx)
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	defer s.Close()
	result, err := s.Resume(ctx, task, o)
	if !errors.Is(err, &runner.Error{Code: runner.CodeBusy}) {
		return result, err
	}
	info, terr := s.Task(ctx, task)
	if terr != nil {
		return nil, err
	}
	err = a.serveTask(ctx, info.Feature, func(holder service) (err error) {
		result, err = holder.Resume(ctx, task, o)
		return err
	})
	return result, err
}

func runResumeDetached(ctx context.Context, a *app, task string, o resumeOptions) error {
	c, err := a.ensureSupervisor(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	result, err := c.Resume(ctx, task, o.options())
	if err != nil {
		return err
	}
	if a.json {
		f, err := c.Feature(ctx, result.FeatureID)
		if err != nil {
			return err
		}
		return a.printJSON(startedEvent{"started", &daemon.Started{Task: result.TaskID, Feature: result.Feature, FeatureID: result.FeatureID,
			State: result.State, Live: f.Live}})
	}
	a.noteTaken(result)
	_, err = fmt.Fprintln(a.stdout, result.Feature)
	return err
}

// noteTaken says which secrets a resume gave to the task.
func (a *app) noteTaken(r *runner.Result) {
	if len(r.FromEnvironment) > 0 {
		a.note("taken from your environment: %s", gates.Quote(strings.Join(r.FromEnvironment, ", ")))
	}
}

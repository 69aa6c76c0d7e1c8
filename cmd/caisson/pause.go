package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newPauseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "pause FEATURE…",
		Short: "Freeze everything that runs in live features",
		Args:  atLeast(1, "a feature"), ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), "paused", args, func(ctx context.Context, s service, ref string) error { return s.Pause(ctx, ref) })
		},
	}
}

func newUnpauseCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "unpause FEATURE…",
		Short: "Let go on what pause has frozen",
		Args:  atLeast(1, "a feature"), ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), "unpaused", args, func(ctx context.Context, s service, ref string) error { return s.Unpause(ctx, ref) })
		},
	}
}

// each does something with features one after the other.
func (a *app) each(ctx context.Context, done string, refs []string, do func(ctx context.Context, s service, ref string) error) error {
	err := a.every(refs, func(ref string) error {
		return a.serve(ctx, ref, func(s service) error { return do(ctx, s, ref) })
	})
	if err != nil {
		return err
	}
	return a.did(done, refs)
}

// every does the same with every one of several features: what is refused of one is no reason to leave out the next. Each
// failure is told of; with --json the first one.
func (a *app) every(refs []string, do func(ref string) error) error {
	var failed error
	for _, ref := range refs {
		err := do(ref)
		switch {
		case err == nil, failed != nil && a.json:
			continue
		case failed != nil:
			a.report(a.explain(failed), failed)
		}
		failed = err
	}
	return failed
}

// did tells a program with which features something was done.
func (a *app) did(what string, refs []string) error {
	if !a.json {
		return nil
	}
	return a.printJSON(map[string][]string{what: refs})
}

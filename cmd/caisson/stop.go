package main

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

type stopOptions struct {
	grace  time.Duration
	all    bool
	noSeal bool
}

func newStopCommand(a *app) *cobra.Command {
	var o stopOptions
	cmd := &cobra.Command{
		Use:   "stop FEATURE… | stop --all",
		Short: "End live features; their state is sealed and kept",
		Long: `End the sandboxes of live features: SIGTERM to what runs in them, and after --time SIGKILL. The state is sealed first and
stays: run, rollback, fork, diff and promote go on with it. With --all every live feature, and the background
supervisor with them.`,
		Args: func(_ *cobra.Command, args []string) error {
			if o.all == (len(args) > 0) {
				return usage("needs features, or --all")
			}
			return nil
		},
		ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runStop(cmd.Context(), a, args, o)
		},
	}
	f := cmd.Flags()
	f.DurationVarP(&o.grace, "time", "t", 10*time.Second, "how long SIGTERM may take")
	f.BoolVar(&o.all, "all", false, "all live features, and the background supervisor")
	f.BoolVar(&o.noSeal, "no-checkpoint", false, "do not seal the state first")
	return cmd
}

func runStop(ctx context.Context, a *app, refs []string, o stopOptions) error {
	stop := runner.StopOptions{Grace: o.grace, Seal: !o.noSeal}
	if o.all {
		return a.stopAll(ctx, stop)
	}
	if err := a.every(refs, func(ref string) error { return a.stopOne(ctx, ref, stop) }); err != nil {
		return err
	}
	return a.did("stopped", refs)
}

// stopOne stops a feature. One that is not live is as it should be.
func (a *app) stopOne(ctx context.Context, ref string, stop runner.StopOptions) error {
	err := a.serve(ctx, ref, func(s service) error { return s.Stop(ctx, []string{ref}, stop) })
	if errors.Is(err, &runner.Error{Code: runner.CodeNotLive}) {
		return nil
	}
	return err
}

// stopAll stops what the background supervisor holds, and it with them, whatever version it is; then what other processes
// hold.
func (a *app) stopAll(ctx context.Context, stop runner.StopOptions) error {
	dir, err := a.resolveStateDir()
	if err != nil {
		return err
	}
	stopped, err := daemon.StopAll(ctx, dir, stop)
	if err != nil && !errors.Is(err, daemon.ErrNotRunning) {
		return err
	}
	var live []runner.FeatureInfo
	s, err := a.openExisting(ctx)
	if err == nil {
		live, err = s.Features(ctx, false)
		err = errors.Join(err, s.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range live {
		if err := a.stopOne(ctx, f.ID, stop); err != nil {
			return err
		}
		stopped = append(stopped, f.ID)
	}
	return a.did("stopped", append([]string{}, stopped...))
}

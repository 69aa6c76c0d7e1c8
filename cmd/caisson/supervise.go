package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

// newSuperviseCommand is the background supervisor: what owns the features of `run -d`. It is started on demand, never by
// hand, and so not listed.
func newSuperviseCommand(a *app) *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:    "supervise",
		Short:  "Own the detached features of a state directory (started on demand)",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ready := daemon.Ready()
			err := runSupervise(cmd.Context(), a, idle, ready)
			if err != nil {
				ready.Fail(a.explain(err)) // whoever started us says it
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", daemon.DefaultIdle, "leave after so long without a live feature")
	return cmd
}

func runSupervise(ctx context.Context, a *app, idle time.Duration, ready *daemon.Readiness) error {
	engine, err := native.New(native.Options{})
	if err != nil {
		return err
	}
	defer engine.Close()
	dir, err := a.resolveStateDir()
	if err != nil {
		return err
	}
	server := daemon.New(daemon.Options{StateDir: dir, Idle: idle, Ready: ready})
	s, err := a.openWith(ctx, runner.Options{Engine: engine, Holding: server.Hold})
	if err != nil {
		return err
	}
	server.Use(s)
	return errors.Join(server.Serve(ctx), s.Close())
}

package main

import (
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// service is what commands ask of whoever works on a feature: the supervisor of this process, or over a socket the one
// that holds the feature's lock.
type service interface {
	Features(ctx context.Context, all bool) ([]runner.FeatureInfo, error)
	Feature(ctx context.Context, ref string) (*runner.FeatureInfo, error)
	Remove(ctx context.Context, refs []string, force bool) error
	Discard(ctx context.Context, ref string) error
	Promote(ctx context.Context, ref string, o runner.PromoteOptions) (*runner.PromoteResult, error)
	Approve(ctx context.Context, ref string, o runner.ApproveOptions) (*runner.ApproveResult, error)

	Change(ctx context.Context, ref string) (*snapshot.Change, error)
	Diff(ctx context.Context, ref string, w io.Writer, o snapshot.DiffOptions) error
	ChangeBetween(ctx context.Context, a, b string) (*snapshot.Change, error)
	DiffBetween(ctx context.Context, a, b string, w io.Writer, o snapshot.DiffOptions) error
	Copy(ctx context.Context, from, to runner.CopyPath) error

	Checkpoint(ctx context.Context, ref string, o runner.CheckpointOptions) (*runner.Checkpoint, error)
	Checkpoints(ctx context.Context, feature string) ([]runner.Checkpoint, error)
	CheckpointOf(ctx context.Context, ref string) (*runner.Checkpoint, error)
	Label(ctx context.Context, ref, label string) error
	DropCheckpoints(ctx context.Context, refs ...string) error
	Export(ctx context.Context, ref string, w io.Writer, o snapshot.ExportOptions) (string, error)
	Import(ctx context.Context, feature string, r io.Reader, o runner.ImportOptions) (*runner.Checkpoint, error)
	Rollback(ctx context.Context, feature string, o runner.RollbackOptions) (*runner.RollbackResult, error)
	Fork(ctx context.Context, ref, name string) (*runner.FeatureInfo, error)

	Wait(ctx context.Context, ref string) (*runner.Result, error)
	Exec(ctx context.Context, feature string, r runner.Request) (*runner.Result, error)
	Resume(ctx context.Context, task string, o runner.ResumeOptions) (*runner.Result, error)
	Stop(ctx context.Context, features []string, o runner.StopOptions) error
	Kill(ctx context.Context, ref string, sig syscall.Signal) error
	Pause(ctx context.Context, feature string) error
	Unpause(ctx context.Context, feature string) error
	Stats(ctx context.Context, features []string) ([]runner.Stats, error)
	Events(ctx context.Context, o runner.EventOptions, do func(runner.Event) error) error

	Close() error
}

var (
	_ service = (*runner.Supervisor)(nil)
	_ service = (*daemon.Client)(nil)
)

// serve calls do with whoever can work on the feature ref ("": on all of them). That is the background supervisor where
// one runs, without opening the store; else this process; and when the feature turns out to be another process's, for
// example that of a run in the foreground, that one. Who has it for a moment, for a command of his own, is waited for: see
// turn. do is called again only when nothing has been done.
func (a *app) serve(ctx context.Context, ref string, do func(service) error) error {
	return a.serveWith(ctx, ref, func() (service, error) { return a.open(ctx) }, do)
}

// serveTask is serve for what may need a sandbox of this process's own.
func (a *app) serveTask(ctx context.Context, ref string, do func(service) error) error {
	return a.serveWith(ctx, ref, func() (service, error) {
		s, engine, err := a.openRunning(ctx)
		if err != nil {
			return nil, err
		}
		return &withEngine{s, engine}, nil
	}, do)
}

// withEngine is a supervisor that closes its engine.
type withEngine struct {
	*runner.Supervisor
	engine isolation.Engine
}

func (w *withEngine) Close() error { return errors.Join(w.Supervisor.Close(), w.engine.Close()) }

// serveWith is serve with another way to open this process's own supervisor.
func (a *app) serveWith(ctx context.Context, ref string, open func() (service, error), do func(service) error) error {
	dir, err := a.resolveStateDir()
	if err != nil {
		return err
	}
	s, err := a.nearest(ctx, dir, open)
	if err != nil {
		return err
	}
	defer s.Close()
	for t := newTurn(); ; {
		err := do(s)
		if ref == "" || !elsewhere(err) {
			return err
		}
		if asked, herr := askHolder(ctx, dir, s, ref, do); asked && !errors.Is(herr, daemon.ErrNotRunning) {
			err = herr
		} // else nobody answers there: it is busy, as was said
		if !errors.Is(err, runner.ErrElsewhere) || !t.wait(ctx, sleep) {
			return err
		}
	}
}

// elsewhere says that somebody else may be the one to ask.
func elsewhere(err error) bool {
	return busy(err) || notLive(err)
}

// nearest is the background supervisor where one runs, else the supervisor of this process.
func (a *app) nearest(ctx context.Context, dir string, open func() (service, error)) (service, error) {
	if a.persistence == "memory" {
		return open()
	}
	c, err := daemon.Dial(ctx, dir)
	if errors.Is(err, daemon.ErrNotRunning) {
		return open()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// askHolder calls do with the process that holds a feature's lock, if it serves others.
func askHolder(ctx context.Context, dir string, s service, ref string, do func(service) error) (asked bool, err error) {
	info, err := s.Feature(ctx, featureOf(ref))
	if err != nil {
		return false, err
	}
	holder, err := daemon.DialFeature(ctx, dir, info.ID)
	if err != nil {
		return false, err
	}
	defer holder.Close()
	return true, do(holder)
}

// withHolder calls do with the process that holds a feature: the background supervisor, or that of a run in the
// foreground. What nobody holds is not live.
func (a *app) withHolder(ctx context.Context, ref string, do func(*daemon.Client) error) error {
	return a.serve(ctx, ref, func(s service) error {
		if c, ok := s.(*daemon.Client); ok {
			return do(c)
		}
		info, err := s.Feature(ctx, featureOf(ref))
		if err != nil {
			return err
		}
		dir, err := a.resolveStateDir()
		if err != nil {
			return err
		}
		holder, err := daemon.DialFeature(ctx, dir, info.ID)
		if errors.Is(err, daemon.ErrNotRunning) {
			return &runner.Error{
				Code: runner.CodeNotLive, Cause: "nothing runs in the feature " + info.Name, Exit: exitRefused,
				Remedy: "caisson run -d --feature " + info.Name,
			}
		}
		if err != nil {
			return err
		}
		defer holder.Close()
		return do(holder)
	})
}

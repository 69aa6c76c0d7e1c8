package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon"
)

// startedEvent is what run -d --json prints.
type startedEvent struct {
	Event string `json:"event"` // "started"
	*daemon.Started
}

// runDetached hands a task to the background supervisor, which it starts when there is none.
func runDetached(ctx context.Context, a *app, o *runOptions) error {
	request, err := o.request(a)
	if err != nil {
		if s, oerr := a.openExisting(ctx); oerr == nil {
			err = errors.Join(err, s.Refused(ctx, o.feature, a.explain(err)), s.Close())
		}
		return err
	}
	o.leaveOpen(request)
	c, err := a.ensureSupervisor(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	var started *daemon.Started
	err = a.withConsent(request, func() (err error) {
		started, err = c.Start(ctx, *request)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(startedEvent{"started", started})
	}
	if _, err := fmt.Fprintln(a.stdout, started.Feature); err != nil || o.quiet {
		return err
	}
	name := started.Feature
	switch {
	case started.Live:
		a.note("feature %s is live", name)
	case started.State == runner.StateQueued:
		a.note("feature %s is queued, because as many tasks run as may: it will be live when it has its turn", name)
	default: // the task of an idempotency key, whose feature was stopped since
		a.note("feature %s is not live: its task is %s", name, started.State)
	}
	a.tellPorts(started.Ports)
	fmt.Fprintf(a.stderr, "  output:  caisson logs --follow %s\n  command: caisson exec %s -- COMMAND\n  end:     caisson stop %s\n", name, name, name)
	return nil
}

// leaveOpen gives a detached command the input, or the terminal, that attach joins later.
func (o *runOptions) leaveOpen(r *runner.Request) {
	if o.interactive || o.tty {
		r.Interactive, r.Stdin = true, strings.NewReader("")
	}
	if o.tty {
		r.TTY = true
		r.Terminal = runner.Terminal{In: r.Stdin, Out: io.Discard, Name: os.Getenv("TERM")}
	}
}

// ensureSupervisor reaches the background supervisor of the state directory, and starts it when there is none.
func (a *app) ensureSupervisor(ctx context.Context) (*daemon.Client, error) {
	dir, err := a.resolveStateDir()
	if err != nil {
		return nil, err
	}
	n, err := a.resolveMaxTasks()
	if err != nil {
		return nil, err
	}
	if err := makeStateDir(dir); err != nil {
		return nil, err
	}
	args := []string{"supervise", "--state-dir", dir}
	if n > 0 {
		args = append(args, "--max-tasks", fmt.Sprint(n))
	}
	return daemon.Ensure(ctx, dir, daemon.Reexec(dir, args...))
}

// addTask runs the task of `run` in a feature that is live already, in the process that holds it.
func (a *app) addTask(ctx context.Context, r *runner.Request) (*runner.Result, error) {
	var result *runner.Result
	err := a.serve(ctx, r.Feature, func(s service) (err error) {
		result, err = s.Exec(ctx, r.Feature, *r)
		return err
	})
	return result, err
}

package steps

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/logfile"
	"github.com/caisson-dev/caisson/runner/pump"
)

// attempt is one command while it runs.
type attempt struct {
	r    *Runner
	c    *Command
	leaf *quota.Leaf // nil without cgroups

	exec      isolation.Execution
	proc      isolation.Process
	budgets   []*pump.Budget
	over      chan struct{} // a budget is exceeded
	ours      []*os.File    // our ends of the pipes
	copies    sync.WaitGroup
	stopInput func()
	resizing  sync.WaitGroup
	quit      chan struct{} // ends it
}

// Run runs a command to its end. The error is ours, and then res has no verdict; how the command ended is in res.
func (r *Runner) Run(ctx context.Context, c *Command, res *Result) error {
	a := &attempt{r: r, c: c, over: make(chan struct{}, 1), quit: make(chan struct{}), stopInput: func() {}}
	res.Started = time.Now()
	err := a.start(ctx)
	if failed, ok := errors.AsType[*isolation.ExecError](err); ok {
		a.notExecuted(res, failed)
	} else if err == nil {
		err = a.follow(ctx, res)
	}
	if err := errors.Join(err, a.close()); err != nil && res.Verdict == "" {
		return err
	}
	res.Duration = time.Since(res.Started)
	return nil
}

// start connects and executes the command.
func (a *attempt) start(ctx context.Context) error {
	a.proc = a.c.Process
	a.budgets = []*pump.Budget{a.r.Budget}
	if a.c.Own {
		a.budgets = append(a.budgets, pump.NewBudget(int64(a.c.Limits.Output)))
	}
	if a.r.Group == nil {
		a.proc.Rlimits = a.c.Limits.Rlimits()
	} else {
		var limits *quota.Limits
		if a.c.Own {
			limits = &a.c.Limits
		}
		leaf, err := a.r.Group.Leaf(a.c.Leaf, limits)
		if err != nil {
			return err
		}
		a.leaf, a.proc.Cgroup = leaf, leaf
		a.r.leaves = append(a.r.leaves, leaf)
	}
	if a.proc.Terminal {
		return a.startTerminal(ctx)
	}
	return a.startPipes(ctx)
}

func (a *attempt) startPipes(ctx context.Context) (err error) {
	r := a.r
	var theirs []*os.File
	defer func() { _ = closeFiles(theirs) }() // the child has them, or there is none
	pipe := func(reading bool) (mine, child *os.File) {
		if err != nil {
			return nil, nil
		}
		var from, to *os.File
		if from, to, err = os.Pipe(); err != nil {
			return nil, nil
		}
		if mine, child = from, to; !reading {
			mine, child = to, from
		}
		theirs = append(theirs, child)
		if r.Chown { // so that the command can open /dev/stdout, which is this pipe
			err = child.Chown(int(a.c.UID), int(a.c.GID))
		}
		return mine, child
	}
	var outR, errR, inW *os.File
	outR, a.proc.Stdout = pipe(true)
	errR, a.proc.Stderr = pipe(true)
	a.ours = []*os.File{outR, errR}
	if r.In != nil {
		inW, a.proc.Stdin = pipe(false)
		a.ours = append(a.ours, inW)
	}
	if err != nil {
		return err
	}
	if err = a.execute(ctx); err != nil {
		return err
	}
	r.current.Store(&a.exec) // before any output can tell the caller that there is somebody to signal
	a.copy(outR, r.Out, logfile.Stdout)
	a.copy(errR, r.Err, logfile.Stderr)
	if r.In != nil {
		a.stopInput = r.In.Feed(inW, nil, false)
	}
	return nil
}

// execute starts the command; in a sandbox that is paused, as soon as that goes on.
func (a *attempt) execute(ctx context.Context) (err error) {
	for {
		a.exec, err = a.r.Sandbox.Exec(ctx, &a.proc)
		if !errors.Is(err, isolation.ErrFrozen) {
			return err
		}
		if err := a.r.clock.wait(ctx); err != nil {
			return err
		}
	}
}

func (a *attempt) startTerminal(ctx context.Context) (err error) {
	r := a.r
	if err = a.execute(ctx); err != nil {
		return err
	}
	r.current.Store(&a.exec)
	master := a.exec.Terminal()
	a.ours = []*os.File{master}
	a.resizing.Go(func() { a.resize(master) })
	a.copy(master, r.Out, logfile.Stdout)
	if r.In != nil {
		const endOfFile = 4 // ^D, what a terminal sends
		a.stopInput = r.In.Feed(master, []byte{endOfFile}, true)
	}
	return nil
}

func (a *attempt) resize(master *os.File) {
	for {
		select {
		case <-a.quit:
			return
		case s, ok := <-a.r.Resize:
			if !ok {
				return
			}
			if s != (Winsize{}) {
				_ = hostfile.SetWinsize(master, s.Rows, s.Cols) // the terminal may be gone
			}
		}
	}
}

func (a *attempt) copy(from *os.File, to *pump.Sink, s logfile.Stream) {
	log := newKept(a.r.Redact, a.r.Log.To(s, a.c.N))
	o := &pump.Output{Sink: to, Log: log, Budgets: a.budgets, Over: func() {
		select {
		case a.over <- struct{}{}:
		default:
		}
	}}
	a.copies.Go(func() {
		defer log.close()
		o.Copy(from)
	})
}

// follow waits for the command's end, or makes it at the time promised: its whole tree is killed, whatever the rest of it
// ignores or holds open.
func (a *attempt) follow(ctx context.Context, res *Result) error {
	type exit struct {
		status isolation.ExitStatus
		err    error
	}
	ended := make(chan exit, 1)
	go func() {
		status, err := a.exec.Wait(context.WithoutCancel(ctx))
		a.r.current.Store(nil)
		ended <- exit{status, err}
	}()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	oom, err := a.watchOOM(watching)
	if err != nil {
		return errors.Join(err, a.kill(ctx))
	}
	over := a.r.clock.start(a.c.Timeout)
	defer a.r.clock.stop()
	var e exit
	why := byItself
	select {
	case e = <-ended:
	case <-over:
		why = byTimeout
	case <-ctx.Done():
		why = byCancel
	case <-a.over:
		why = byOutput
	case <-oom:
		why = byOOM
	}
	a.r.Out.Relax(true)
	a.r.Err.Relax(true)
	if why != byItself || a.leaf != nil {
		err = a.kill(ctx)
	}
	if why != byItself && err == nil {
		e = <-ended
	}
	if err = errors.Join(err, e.err); err != nil {
		return err
	}
	a.drain()
	a.judge(ctx, res, why, e.status)
	return nil
}

// watchOOM tells when the kernel has killed a process of the step for want of memory: then the rest has to go too. Version
// 2 does that itself (memory.oom.group), but only where the limit is the step's own.
func (a *attempt) watchOOM(ctx context.Context) (<-chan struct{}, error) {
	if a.leaf == nil {
		return nil, nil
	}
	return a.leaf.WatchOOM(ctx)
}

// cleanupTime bounds what is done after a cancellation.
const cleanupTime = 30 * time.Second

// kill kills the step's whole tree: its cgroup, or without one the sandbox.
func (a *attempt) kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if a.leaf != nil {
		if err := a.leaf.Kill(ctx); err == nil {
			return nil
		}
	}
	return a.r.Sandbox.Close(ctx)
}

// drainTime is how long what a step left running may still write, where there is no cgroup to kill it by.
const drainTime = 50 * time.Millisecond

// drain waits until all of the output has been read. The writers are dead; without a cgroup some may live on.
func (a *attempt) drain() {
	if a.leaf == nil {
		for _, f := range a.ours {
			_ = f.SetReadDeadline(time.Now().Add(drainTime)) // the end that we write to has none
		}
	}
	a.copies.Wait()
}

// close frees what the step held.
func (a *attempt) close() error {
	close(a.quit)
	a.resizing.Wait()
	a.stopInput()
	errs := closeFiles(a.ours)
	a.copies.Wait()
	a.r.Out.Relax(false)
	a.r.Err.Relax(false)
	return errors.Join(errs...)
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

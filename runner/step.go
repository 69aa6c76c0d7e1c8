package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/logfile"
	"github.com/caisson-dev/caisson/runner/pump"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// runSteps runs the steps in order until one does not end well.
func (t *task) runSteps(ctx context.Context) error {
	t.res.Verdict = VerdictOK
	for i := range t.req.Steps {
		r, err := t.step(ctx, i)
		if err != nil {
			return err
		}
		t.res.ExitCode, t.res.Signal, t.res.Limit = r.ExitCode, r.Signal, r.Limit
		t.res.Truncated = t.res.Truncated || r.Truncated
		if r.Verdict != VerdictOK {
			t.fail(r.Verdict, string(r.Verdict), r.Cause, "")
			if r.Limit != nil {
				t.res.Remedy = r.Limit.Hint
			}
			break
		}
		if t.interrupted.Load() && i < len(t.req.Steps)-1 {
			return errInterrupted
		}
	}
	return context.Cause(ctx)
}

// attempt is one step while it runs.
type attempt struct {
	t    *task
	st   *Step
	n    int
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

// step runs one step. The error is ours; how the step ended is in the result.
func (t *task) step(ctx context.Context, i int) (*StepResult, error) {
	r, n := &t.res.Steps[i], i+1
	a := &attempt{t: t, st: &t.req.Steps[i], n: n, over: make(chan struct{}, 1), quit: make(chan struct{}), stopInput: func() {}}
	if err := t.to(ctx, StateRunning, fmt.Sprintf("step %d of %d", n, len(t.req.Steps)), &StepMove{N: n, From: StepNotStarted, To: StepRunning}); err != nil {
		return r, err
	}
	t.ran = true
	t.done = &StepMove{N: n, From: StepRunning, To: StepInterrupted} // unless we learn better
	r.State, r.Started = StepInterrupted, time.Now()
	err := a.start(ctx)
	if failed, ok := errors.AsType[*isolation.ExecError](err); ok {
		a.notExecuted(r, failed)
	} else if err == nil {
		err = a.follow(ctx, r)
	}
	if err := errors.Join(err, a.close()); err != nil && r.Verdict == "" {
		return r, err
	}
	r.Duration = time.Since(r.Started)
	r.State, t.done.To = StepDone, StepDone
	return r, nil
}

// start connects and executes the command.
func (a *attempt) start(ctx context.Context) error {
	t := a.t
	uid, gid := t.user(a.st)
	a.proc = isolation.Process{Args: a.st.Args, Env: t.env(a.st, a.n), Cwd: cwd(a.st.Cwd), UID: uid, GID: gid, Terminal: t.req.TTY,
		Rows: t.req.Terminal.Size.Rows, Cols: t.req.Terminal.Size.Cols}
	a.budgets = []*pump.Budget{t.budget}
	if l := a.st.Limits; l != nil {
		a.budgets = append(a.budgets, pump.NewBudget(int64(l.Output)))
	}
	if t.group == nil {
		a.proc.Rlimits = cmp.Or(a.st.Limits, &t.req.Profile.Limits).Rlimits()
	} else {
		leaf, err := t.group.Leaf(fmt.Sprintf("step-%d", a.n), a.st.Limits)
		if err != nil {
			return err
		}
		a.leaf, a.proc.Cgroup = leaf, leaf
	}
	if t.req.TTY {
		return a.startTerminal(ctx)
	}
	return a.startPipes(ctx)
}

func (a *attempt) startPipes(ctx context.Context) (err error) {
	t := a.t
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close() // the child has them, or there is none
		}
	}()
	pipe := func(reading bool) (mine, child *os.File) {
		if err != nil {
			return nil, nil
		}
		var r, w *os.File
		if r, w, err = os.Pipe(); err != nil {
			return nil, nil
		}
		if mine, child = r, w; !reading {
			mine, child = w, r
		}
		theirs = append(theirs, child)
		if t.s.privileged() { // so that the command can open /dev/stdout, which is this pipe
			uid, gid := t.ids.Host(a.proc.UID, a.proc.GID)
			err = child.Chown(int(uid), int(gid))
		}
		return mine, child
	}
	var outR, errR, inW *os.File
	outR, a.proc.Stdout = pipe(true)
	errR, a.proc.Stderr = pipe(true)
	a.ours = []*os.File{outR, errR}
	if t.in != nil {
		inW, a.proc.Stdin = pipe(false)
		a.ours = append(a.ours, inW)
	}
	if err != nil {
		return err
	}
	if a.exec, err = t.sandbox.Exec(ctx, &a.proc); err != nil {
		return err
	}
	t.current.Store(&a.exec) // before any output can tell the caller that there is somebody to signal
	a.copy(outR, t.out, logfile.Stdout)
	a.copy(errR, t.err, logfile.Stderr)
	if t.in != nil {
		a.stopInput = t.in.Feed(inW, nil, false)
	}
	return nil
}

func (a *attempt) startTerminal(ctx context.Context) (err error) {
	t := a.t
	if a.exec, err = t.sandbox.Exec(ctx, &a.proc); err != nil {
		return err
	}
	t.current.Store(&a.exec)
	master := a.exec.Terminal()
	a.ours = []*os.File{master}
	resize := func(s Winsize) {
		if s != (Winsize{}) {
			_ = hostfile.SetWinsize(master, s.Rows, s.Cols) // the terminal may be gone
		}
	}
	a.resizing.Go(func() {
		for {
			select {
			case <-a.quit:
				return
			case s, ok := <-t.req.Terminal.Resize:
				if !ok {
					return
				}
				resize(s)
			}
		}
	})
	a.copy(master, t.out, logfile.Stdout)
	if t.in != nil {
		const endOfFile = 4 // ^D, what a terminal sends
		a.stopInput = t.in.Feed(master, []byte{endOfFile}, true)
	}
	return nil
}

func (a *attempt) copy(from *os.File, to *pump.Sink, s logfile.Stream) {
	o := &pump.Output{Sink: to, Log: a.t.log.To(s, a.n), Budgets: a.budgets, Over: func() {
		select {
		case a.over <- struct{}{}:
		default:
		}
	}}
	a.copies.Go(func() { o.Copy(from) })
}

// follow waits for the step's end, or makes it at the time promised: its whole tree is killed, whatever the rest of it
// ignores or holds open.
func (a *attempt) follow(ctx context.Context, r *StepResult) error {
	type exit struct {
		status isolation.ExitStatus
		err    error
	}
	ended := make(chan exit, 1)
	go func() {
		status, err := a.exec.Wait(context.WithoutCancel(ctx))
		a.t.current.Store(nil)
		ended <- exit{status, err}
	}()
	watching, unwatch := context.WithCancel(ctx)
	defer unwatch()
	oom, err := a.watchOOM(watching)
	if err != nil {
		return errors.Join(err, a.kill(ctx))
	}
	timer := time.NewTimer(a.timeout())
	defer timer.Stop()
	var e exit
	why := byItself
	select {
	case e = <-ended:
	case <-timer.C:
		why = byTimeout
	case <-ctx.Done():
		why = byCancel
	case <-a.over:
		why = byOutput
	case <-oom:
		why = byOOM
	}
	a.t.out.Relax(true)
	a.t.err.Relax(true)
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
	a.judge(r, why, e.status)
	return nil
}

func (a *attempt) timeout() time.Duration {
	switch {
	case a.st.Timeout > 0:
		return a.st.Timeout
	case a.st.Limits != nil:
		return time.Duration(a.st.Limits.Timeout)
	}
	return time.Duration(a.t.req.Profile.Limits.Timeout)
}

// watchOOM tells when the kernel has killed a process of the step for want of memory: then the rest has to go too. Version
// 2 does that itself (memory.oom.group), but only where the limit is the step's own.
func (a *attempt) watchOOM(ctx context.Context) (<-chan struct{}, error) {
	if a.leaf == nil {
		return nil, nil
	}
	return a.leaf.WatchOOM(ctx)
}

// kill kills the step's whole tree: its cgroup, or without one the sandbox.
func (a *attempt) kill(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if a.leaf != nil {
		if err := a.leaf.Kill(ctx); err == nil {
			return nil
		}
	}
	return a.t.sandbox.Close(ctx)
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
	var errs []error
	for _, f := range a.ours {
		if f == nil {
			continue
		}
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	a.copies.Wait()
	a.t.out.Relax(false)
	a.t.err.Relax(false)
	return errors.Join(errs...)
}

// user is who a step runs as, inside.
func (t *task) user(st *Step) (uid, gid uint32) {
	uid, gid = t.req.Profile.IDs()
	if st.UID != nil {
		uid, gid = *st.UID, *st.UID
	}
	if st.GID != nil {
		gid = *st.GID
	}
	return uid, gid
}

// cwd is a step's working directory inside.
func cwd(dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join(snapshot.WorkspaceTarget, dir)
}

// env is a step's whole environment: nothing of the host's is in it but what the profile and the caller name.
func (t *task) env(st *Step, n int) []string {
	vars := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": snapshot.HomeTarget, "USER": "user", "LOGNAME": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
		"CAISSON_TASK": t.res.TaskID, "CAISSON_FEATURE": t.feature.Name, "CAISSON_STEP": fmt.Sprint(n),
		"CAISSON_PROFILE": t.req.Profile.Name,
	}
	if t.req.TTY {
		vars["TERM"] = cmp.Or(t.req.Terminal.Name, "xterm")
	}
	host := t.req.Environ
	if host == nil {
		host = os.Environ()
	}
	maps.Copy(vars, t.req.Profile.Vars(host))
	for _, kv := range st.Env {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	env := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

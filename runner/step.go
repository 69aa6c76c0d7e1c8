package runner

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

// runSteps runs the steps in order until one does not end well, with a checkpoint before the first and after each but the
// last, whose state is sealed when nothing runs any more.
func (t *task) runSteps(ctx context.Context) error {
	t.res.Verdict = VerdictOK
	if !t.fresh || !t.req.Remove { // of what goes with the task, the beginning is the workspace
		if err := t.save(ctx, ReasonStart, t.first); err != nil {
			return err
		}
		if n := len(t.res.Checkpoints); n > 0 && t.first == 0 {
			t.began = t.res.Checkpoints[n-1].ID
		}
	}
	if len(t.req.Steps) == t.first { // a sandbox in which nothing runs yet, or a task whose steps are all done
		t.ran = true
		return t.to(ctx, StateRunning, "no step is left to run", nil)
	}
	for i := t.first; i < len(t.req.Steps); i++ {
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
		if i == len(t.req.Steps)-1 {
			break
		}
		if t.interrupted.Load() {
			return errInterrupted
		}
		if err := t.save(ctx, ReasonStep, i+1); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// step runs one step. The error is ours; how the step ended is in the result.
func (t *task) step(ctx context.Context, i int) (*StepResult, error) {
	r, n := &t.res.Steps[i], i+1
	if err := t.to(ctx, StateRunning, fmt.Sprintf("step %d of %d", n, len(t.req.Steps)), &StepMove{N: n, From: r.State, To: StepRunning,
		Command: &Command{Args: r.Args}}); err != nil {
		return r, err
	}
	t.ran = true
	t.stepping.Store(int32(n))
	t.done = &StepMove{N: n, From: StepRunning, To: StepInterrupted, Command: &Command{Verdict: VerdictInterrupted}} // unless we learn better
	*r = StepResult{N: n, Name: r.Name, Args: r.Args, State: StepInterrupted}
	run := func() error { return t.steps.Run(ctx, t.command(n), r) }
	if err := t.underRule(ctx, n, r, run); err != nil {
		return r, err
	}
	switch r.Verdict {
	case VerdictOK:
		r.State = StepDone
	case VerdictCancelled: // killed half way
	default:
		r.State = StepFailed
	}
	t.done.To, t.done.Command = r.State, &Command{Verdict: r.Verdict, ExitCode: &r.ExitCode, Signal: r.Signal}
	return r, nil
}

// command is a step as package steps runs it.
func (t *task) command(n int) *steps.Command {
	st := &t.req.Steps[n-1]
	uid, gid := t.user(st)
	c := &steps.Command{N: n, Leaf: t.leaf(), Limits: *cmp.Or(st.Limits, &t.req.Profile.Limits), Own: st.Limits != nil,
		Process: isolation.Process{Args: st.Args, Env: t.env(st, n), Cwd: cwd(st.Cwd), UID: uid, GID: gid, Terminal: t.req.TTY,
			Rows: t.req.Terminal.Size.Rows, Cols: t.req.Terminal.Size.Cols}}
	c.UID, c.GID = t.ids.Host(uid, gid)
	c.Timeout = cmp.Or(st.Timeout, time.Duration(c.Limits.Timeout))
	return c
}

// signal reports whether there was a process to get it.
func (t *task) signal(sig os.Signal) bool {
	x := t.steps.Current()
	n, ok := sig.(syscall.Signal)
	if x == nil || !ok || x.Signal(n) != nil {
		return false
	}
	if n == syscall.SIGINT || n == syscall.SIGTERM {
		t.interrupted.Store(true)
	}
	return true
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
		"CAISSON_PROFILE": t.req.Profile.Name, "CAISSON_FEEDBACK": feedbackTarget + "/" + feedbackName,
	}
	if t.req.TTY {
		vars["TERM"] = cmp.Or(t.req.Terminal.Name, "xterm")
	}
	maps.Copy(vars, t.req.Profile.Vars(environOf(t.req)))
	t.placeholders(vars)
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

func (t *task) stepNow() int { return int(t.stepping.Load()) }

package runner_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner"
)

// fake is an engine that isolates nothing: a command runs on the host, in the workspace's upper layer. So it needs no
// privilege, and a test sees what a supervisor does with an engine that fails.
type fake struct {
	missing  isolation.Control // Start refuses
	startErr error
	execErr  error
	closeErr error

	mu     sync.Mutex
	specs  []*isolation.Spec
	probes int
}

func (f *fake) Name() string { return "fake" }
func (f *fake) Root() bool   { return os.Geteuid() == 0 }
func (f *fake) Close() error { return nil }

func (f *fake) Probe(context.Context) isolation.Features {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probes++
	var all isolation.Features
	for _, c := range isolation.Controls() {
		x := isolation.Feature{Control: c, Support: isolation.Available}
		if c == f.missing {
			x = isolation.Feature{Control: c, Support: isolation.Unsupported, Detail: "the fake says no"}
		}
		all = append(all, x)
	}
	return all
}

func (f *fake) Start(_ context.Context, s *isolation.Spec) (isolation.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.specs = append(f.specs, s)
	if f.startErr != nil {
		return nil, f.startErr
	}
	if f.missing != "" {
		for _, c := range s.Weaker {
			if c == f.missing {
				return &fakeBox{f: f, spec: s}, nil
			}
		}
		return nil, &isolation.UnsupportedError{Control: f.missing, Reason: "the fake says no", Remedy: "ask it nicely"}
	}
	return &fakeBox{f: f, spec: s}, nil
}

type fakeBox struct {
	f      *fake
	spec   *isolation.Spec
	mu     sync.Mutex
	groups []int
	closed bool
}

func (b *fakeBox) PID() int                     { return os.Getpid() }
func (b *fakeBox) Freeze(context.Context) error { return nil }
func (b *fakeBox) Thaw(context.Context) error   { return nil }

func (b *fakeBox) Processes(context.Context) ([]int, error) { return nil, nil }

func (b *fakeBox) Holders(context.Context, ...string) ([]isolation.Holder, error) { return nil, nil }

func (b *fakeBox) Mapped(context.Context, ...string) ([]string, error) { return nil, nil }

func (b *fakeBox) Hold(context.Context) (func() error, error) {
	return func() error { return nil }, nil
}

func (b *fakeBox) Exchange(_ context.Context, stacks ...isolation.Stack) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	spec := *b.spec
	spec.Stacks = stacks
	b.spec = &spec
	return nil
}

func (b *fakeBox) Network(context.Context) (*isolation.Network, error) {
	return nil, &isolation.UnsupportedError{Control: isolation.ControlNetworkRules, Reason: "the fake has no network"}
}

// Close kills the process group of every command.
func (b *fakeBox) Close(context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	for _, g := range b.groups {
		_ = syscall.Kill(-g, syscall.SIGKILL)
	}
	return b.f.closeErr
}

func (b *fakeBox) Exec(_ context.Context, p *isolation.Process) (isolation.Execution, error) {
	if b.f.execErr != nil {
		return nil, b.f.execErr
	}
	path, err := exec.LookPath(p.Args[0])
	if err != nil {
		return nil, &isolation.ExecError{Path: p.Args[0], Errno: syscall.ENOENT}
	}
	dir := filepath.Join(b.spec.Stacks[0].Upper, strings.TrimPrefix(p.Cwd, "/workspace"))
	c := &exec.Cmd{Path: path, Args: p.Args, Env: p.Env, Dir: dir, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if p.Stdin != nil {
		c.Stdin = p.Stdin
	}
	c.Stdout, c.Stderr = p.Stdout, p.Stderr
	if err := c.Start(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.groups = append(b.groups, c.Process.Pid)
	x := &fakeExec{c: c, done: make(chan struct{})}
	go func() { x.err = c.Wait(); close(x.done) }()
	return x, nil
}

type fakeExec struct {
	c    *exec.Cmd
	done chan struct{}
	err  error
}

func (x *fakeExec) PID() int           { return x.c.Process.Pid }
func (x *fakeExec) Terminal() *os.File { return nil }

func (x *fakeExec) Signal(s syscall.Signal) error { return x.c.Process.Signal(s) }

func (x *fakeExec) Wait(ctx context.Context) (isolation.ExitStatus, error) {
	select {
	case <-x.done:
	case <-ctx.Done():
		return isolation.ExitStatus{}, context.Cause(ctx)
	}
	if _, ok := errors.AsType[*exec.ExitError](x.err); x.err != nil && !ok {
		return isolation.ExitStatus{}, x.err
	}
	w := x.c.ProcessState.Sys().(syscall.WaitStatus)
	if w.Signaled() {
		return isolation.ExitStatus{Signal: w.Signal()}, nil
	}
	return isolation.ExitStatus{Code: w.ExitStatus()}, nil
}

// withFake is a supervisor with the fake engine and no cgroups and no disk units, which the profile waives.
func withFake(t *testing.T, f *fake, o runner.Options) *bench {
	t.Helper()
	o.Engine = f
	b := newBench(t, o)
	b.profile = loadProfile(t, map[string][]string{"allow-weaker": {"cgroups", "disk_quota"}})
	return b
}

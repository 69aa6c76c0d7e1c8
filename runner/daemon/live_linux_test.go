package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/store"
)

// liveVariable has the test's supervisor be a real one.
const liveVariable = "CAISSON_TEST_LIVE"

// openLive is a real supervisor with the native engine, without cgroups and disk units, which testdata/profile.json waives:
// those are other packages' tests.
func openLive(ctx context.Context, dir string, s *Server) (closeAll func() error, err error) {
	engine, err := native.New(native.Options{})
	if err != nil {
		return nil, err
	}
	journal, err := store.Open(ctx, filepath.Join(dir, "store.db"))
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	v, err := runner.New(ctx, runner.Options{StateDir: dir, Engine: engine, Journal: journal, MaxTasks: 2,
		CgroupsErr: errors.New("not in this test"), Holding: s.Hold, Daemon: Peers(dir)})
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	s.Use(v)
	return func() error { return errors.Join(v.Close(), engine.Close()) }, nil
}

// land is a state directory with a background supervisor that is started on demand.
type land struct {
	dir, workspace string
	spawn          func(*os.File) error
}

func newLand(t *testing.T) *land {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = os.ErrPermission
	}
	testenv.Need(t, "root", err)
	l := &land{dir: t.TempDir(), workspace: t.TempDir()}
	open(t, l.dir) // sandboxes with ids of their own pass through
	open(t, l.workspace)
	t.Setenv(superviseVariable, l.dir)
	t.Setenv(liveVariable, "1")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	l.spawn = Reexec(l.dir, "supervise")
	t.Cleanup(func() {
		nothingLeft(t, filepath.Base(filepath.Dir(l.dir)))
	})
	t.Cleanup(func() {
		if _, err := StopAll(context.Background(), l.dir, runner.StopOptions{}); err != nil && !errors.Is(err, ErrNotRunning) {
			t.Error(err)
		}
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(l.dir, logName))
			t.Logf("%s", text)
		}
	})
	return l
}

// nothingLeft finds mounts, processes and other things of the kernel's with a word in them; the test's own directory goes
// later.
func nothingLeft(t *testing.T, word string) {
	t.Helper()
	found, err := leaktest.Find(word)
	if err != nil {
		t.Error(err)
	}
	for _, x := range found {
		if !strings.HasPrefix(x, "temporary directory ") {
			t.Error("left behind:", x)
		}
	}
}

func (l *land) client(t *testing.T) *Client {
	t.Helper()
	c, err := Ensure(t.Context(), l.dir, l.spawn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (l *land) request(t *testing.T, args ...string) runner.Request {
	t.Helper()
	text, err := os.ReadFile("testdata/profile.json")
	r := runner.Request{Workspace: l.workspace}
	if err = errors.Join(err, json.Unmarshal(text, &r.Profile)); err != nil {
		t.Fatal(err)
	}
	if len(args) > 0 {
		r.Steps = []runner.Step{{Args: args}}
	}
	return r
}

func (l *land) start(t *testing.T, c *Client, feature string, args ...string) *Started {
	t.Helper()
	r := l.request(t, args...)
	r.Feature, r.Detach = feature, true
	s, err := c.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A feature's life in the background: it is started, looked at, worked in, and stopped.
func TestLive(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	s := l.start(t, c, "life", "sh", "-c", "echo one; echo two >&2; echo three >file")
	var out, errs bytes.Buffer
	res, err := c.Attach(t.Context(), "life", AttachOptions{Stdout: &out, Stderr: &errs})
	if err != nil || res.Verdict != runner.VerdictOK || res.TaskID != s.Task || out.String() != "one\n" || errs.String() != "two\n" {
		t.Fatalf("%+v, %v, %q, %q", res, err, out.String(), errs.String())
	}
	if h := l.client(t).Health(); fmt.Sprint(h.Features) != "["+s.FeatureID+"]" {
		t.Error(h)
	}
	out.Reset()
	r := l.request(t, "sh", "-c", "cat file -; exit 3")
	r.Stdin, r.Stdout = strings.NewReader("typed\n"), &out
	if res, err = c.Exec(t.Context(), "life", r); err != nil || res.ExitCode != 3 || out.String() != "three\ntyped\n" {
		t.Fatalf("%+v, %v, %q", res, err, out.String())
	}
	peer, err := DialFeature(t.Context(), l.dir, s.FeatureID)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if info, err := peer.Feature(t.Context(), "life"); err != nil || !info.Live || !info.Detached {
		t.Errorf("%+v, %v", info, err)
	}
	if err := c.Stop(t.Context(), []string{"life"}, runner.StopOptions{Seal: true}); err != nil {
		t.Fatal(err)
	}
	if info, err := c.Feature(t.Context(), "life"); err != nil || info.Live {
		t.Errorf("%+v, %v", info, err)
	}
	if _, err := DialFeature(t.Context(), l.dir, s.FeatureID); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
}

// A client that is gone in the middle of a task comes back and has missed nothing.
func TestReattach(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	l.start(t, c, "long", "sh", "-c", "for i in $(seq 1 300); do echo line $i; sleep 0.01; done")
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	died := &dying{after: 50, die: func() { cancel(errors.New("killed")) }}
	if _, err := c.Attach(ctx, "long", AttachOptions{Stdout: died}); runner.CodeOf(err) != runner.CodeCancelled {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var out bytes.Buffer
			res, err := l.client(t).Attach(t.Context(), "long", AttachOptions{Stdout: &out})
			if err != nil || res.Verdict != runner.VerdictOK || out.String() != want.String() {
				t.Errorf("%+v, %v, %d bytes of %d", res, err, out.Len(), want.Len())
			}
		})
	}
	wg.Wait()
}

// A client that does not read holds nobody up: the task ends without it, and it finds everything later.
func TestSlowAttach(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	const size = 4 << 20 // more than the sockets and everything between hold
	s := l.start(t, c, "much", "head", "-c", fmt.Sprint(size), "/dev/zero")
	slow := &gate{open: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := l.client(t).Attach(t.Context(), s.Task, AttachOptions{Stdout: slow})
		done <- err
	}()
	if res, err := c.Wait(t.Context(), s.Task); err != nil || res.Verdict != runner.VerdictOK {
		t.Fatalf("%+v, %v", res, err)
	}
	close(slow.open)
	if err := <-done; err != nil || slow.n != size {
		t.Error(slow.n, err)
	}
}

// gate is a reader that begins late.
type gate struct {
	open chan struct{}
	n    int
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.n += len(p)
	return len(p), nil
}

// dying calls die after so many lines.
type dying struct {
	after int
	die   func()
}

func (d *dying) Write(p []byte) (int, error) {
	if d.after -= bytes.Count(p, []byte("\n")); d.after <= 0 {
		d.die()
	}
	return len(p), nil
}

// What is typed through one client after the other reaches the same task; a terminal is one; an end of input is the
// client's, not the task's.
func TestAttachTypes(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	r := l.request(t, "sh", "-c", "stty size; while read -r x; do echo got $x; [ $x = end ] && exit 4; done")
	r.Feature, r.Detach, r.TTY = "shell", true, true
	r.Terminal = runner.Terminal{In: strings.NewReader(""), Name: "xterm", Size: runner.Winsize{Rows: 24, Cols: 80}}
	if _, err := c.Start(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if tty, err := c.HasTerminal(t.Context(), "shell"); err != nil || !tty {
		t.Error(tty, err)
	}
	keys, _ := ParseDetachKeys("ctrl-a,d")
	in, keyboard := io.Pipe()
	go func() { _, _ = keyboard.Write([]byte("first\n\x01d")) }()
	_, err := c.Attach(t.Context(), "shell", AttachOptions{Terminal: runner.Terminal{In: in, Out: io.Discard}, DetachKeys: keys})
	if !errors.Is(err, ErrDetached) {
		t.Fatal(err)
	}
	var out bytes.Buffer
	res, err := c.Attach(t.Context(), "shell", AttachOptions{Terminal: runner.Terminal{In: strings.NewReader("end\n"), Out: &out}})
	if err != nil || res.ExitCode != 4 || !strings.Contains(out.String(), "got first\r\n") || !strings.Contains(out.String(), "got end\r\n") {
		t.Errorf("%q, %v, %+v", out.String(), err, res)
	}
}

// Of several tasks a feature means the newest that runs; a task that has ended is meant by its id.
func TestAttachToWhatRuns(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	r := l.request(t, "sh", "-c", "echo first; read -r x")
	r.Feature, r.Detach, r.Stdin = "two", true, strings.NewReader("")
	first, err := c.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	second := l.request(t, "echo", "second")
	ended, err := c.Exec(t.Context(), "two", second)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if res, err := c.Attach(t.Context(), ended.TaskID, AttachOptions{Stdout: &out}); err != nil || out.String() != "second\n" || res.TaskID != ended.TaskID {
		t.Errorf("%q, %v, %+v", out.String(), err, res)
	}
	out.Reset()
	if res, err := c.Attach(t.Context(), "two", AttachOptions{Stdin: strings.NewReader("x\n"), Stdout: &out}); err != nil || out.String() != "first\n" || res.TaskID != first.Task {
		t.Errorf("%q, %v, %+v", out.String(), err, res)
	}
}

// The supervisor is killed: the next one finds the task interrupted, and nothing is left of the sandbox.
func TestKilled(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	s := l.start(t, c, "victim", "sh", "-c", "echo started; sleep 1000")
	started := make(chan struct{})
	gone := make(chan error, 1)
	go func() {
		once := sync.OnceFunc(func() { close(started) })
		_, err := c.Attach(t.Context(), "victim", AttachOptions{Stdout: &dying{after: 1, die: once}})
		gone <- err
	}()
	<-started
	if err := syscall.Kill(c.Health().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; runner.CodeOf(err) != CodeGone {
		t.Error(err)
	}
	if _, err := DialFeature(t.Context(), l.dir, s.FeatureID); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	info, err := l.client(t).Feature(t.Context(), "victim")
	if err != nil || info.Live || info.State != runner.StateInterrupted {
		t.Errorf("%+v, %v", info, err)
	}
	nothingLeft(t, s.FeatureID)
}

// A feature without work is stopped when its time is over; then the supervisor has nothing to do either.
func TestFeatureTTL(t *testing.T) {
	l := newLand(t)
	t.Setenv(idleVariable, "100ms")
	c := l.client(t)
	r := l.request(t, "true")
	r.Feature, r.Detach, r.TTL = "brief", true, 500*time.Millisecond
	if _, err := c.Start(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	lock, err := flock.Acquire(t.Context(), filepath.Join(l.dir, lockName)) // until it has left
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Release()
	text, err := os.ReadFile(filepath.Join(l.dir, logName))
	if err != nil || !strings.Contains(string(text), "its time is over") {
		t.Errorf("%s, %v", text, err)
	}
}

// A run in the foreground is asked through its own socket.
func TestForeground(t *testing.T) {
	l := newLand(t)
	s := New(Options{StateDir: l.dir})
	closeAll, err := openLive(t.Context(), l.dir, s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closeAll(); err != nil {
			t.Error(err)
		}
	}()
	r := l.request(t, "sh", "-c", "echo x >new; echo ready; read -r line; echo $line")
	in, keyboard := io.Pipe()
	ready := make(chan struct{})
	r.Feature, r.Stdin, r.Stdout = "front", in, &dying{after: 1, die: sync.OnceFunc(func() { close(ready) })}
	done := make(chan error, 1)
	go func() {
		_, err := s.opt.Supervisor.Run(t.Context(), r)
		done <- err
	}()
	<-ready
	info, err := s.opt.Supervisor.Feature(t.Context(), "front")
	if err != nil {
		t.Fatal(err)
	}
	c, err := DialFeature(t.Context(), l.dir, info.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p, err := c.Checkpoint(t.Context(), "front", runner.CheckpointOptions{}); err != nil || p.ID == "" {
		t.Error(p, err)
	}
	var out bytes.Buffer
	attached := make(chan error, 1)
	go func() {
		_, err := c.Attach(t.Context(), "front", AttachOptions{Stdout: &out})
		attached <- err
	}()
	_, _ = keyboard.Write([]byte("typed here\n"))
	if err := errors.Join(<-done, <-attached); err != nil || out.String() != "ready\ntyped here\n" {
		t.Error(err, out.String())
	}
	if _, err := DialFeature(t.Context(), l.dir, info.ID); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
}

// Who attaches to a task that waits for its turn sees all of it.
func TestAttachQueued(t *testing.T) {
	l := newLand(t)
	c := l.client(t)
	for _, name := range []string{"one", "two"} { // as many as may run at once
		r := l.request(t, "sh", "-c", "read -r x")
		r.Feature, r.Detach, r.Stdin = name, true, strings.NewReader("")
		if _, err := c.Start(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	l.start(t, c, "three", "echo", "at last")
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := c.Attach(t.Context(), "three", AttachOptions{Stdout: &out})
		done <- err
	}()
	if _, err := c.Attach(t.Context(), "one", AttachOptions{Stdin: strings.NewReader("go\n")}); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil || out.String() != "at last\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

const (
	superviseVariable = "CAISSON_TEST_SUPERVISE" // the state directory of a test's supervisor
	idleVariable      = "CAISSON_TEST_IDLE"
	brokenVariable    = "CAISSON_TEST_BROKEN" // it fails before it serves
)

// TestMain is the tests, or the background supervisor that a test has started.
func TestMain(m *testing.M) {
	if dir := os.Getenv(superviseVariable); dir != "" && len(os.Args) > 1 && os.Args[1] == "supervise" {
		if err := supervise(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func supervise(dir string) error {
	ready := Ready()
	if why := os.Getenv(brokenVariable); why == "silent" {
		return errors.New("broken in silence")
	} else if why != "" {
		err := &runner.Error{Code: runner.CodeStoreNewer, Cause: why, Remedy: "a newer one", Exit: runner.ExitRefused}
		ready.Fail(err)
		return err
	}
	idle, _ := time.ParseDuration(os.Getenv(idleVariable))
	s := New(Options{StateDir: dir, Idle: idle, Ready: ready})
	if os.Getenv(liveVariable) == "" {
		s.keeper = &keep{}
		return s.Serve(context.Background())
	}
	closeAll, err := openLive(context.Background(), dir, s)
	if err != nil {
		ready.Fail(err)
		return err
	}
	return errors.Join(s.Serve(context.Background()), closeAll())
}

// keep is a supervisor's bookkeeping without the supervisor.
type keep struct {
	mu      sync.Mutex
	live    map[string]*runner.FeatureInfo
	stopped []string
	stopErr error
	gone    bool // what is to be stopped has ended already
}

func (k *keep) Live() (ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.live {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (k *keep) Feature(_ context.Context, ref string) (*runner.FeatureInfo, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.live[ref]; f != nil {
		c := *f
		return &c, nil
	}
	return nil, &runner.Error{Code: runner.CodeNotFound, Cause: "there is no feature " + ref, Exit: runner.ExitRefused}
}

func (k *keep) Stop(_ context.Context, ids []string, _ runner.StopOptions) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopErr != nil {
		return k.stopErr
	}
	for _, id := range ids {
		delete(k.live, id)
	}
	if k.gone {
		return &runner.Error{Code: runner.CodeNotLive, Cause: "not live", Exit: runner.ExitRefused}
	}
	k.stopped = append(k.stopped, ids...)
	return nil
}

func (k *keep) add(f runner.FeatureInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.live == nil {
		k.live = map[string]*runner.FeatureInfo{}
	}
	k.live[f.ID] = &f
}

// log collects what a server says.
type log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// bench is a background supervisor in this process.
type bench struct {
	*Server
	dir  string
	keep *keep
	log  *log
	stop context.CancelFunc
	done chan error // Serve's answer
}

// newBench serves routes beside the API until the test ends.
func newBench(t *testing.T, o Options, more ...route) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir(), keep: &keep{}, log: &log{}, done: make(chan error, 1)}
	if o.StateDir == "" {
		o.StateDir = b.dir
	}
	b.dir = o.StateDir
	o.Log = b.log
	if o.SocketDir == "" {
		o.SocketDir = t.TempDir()
	}
	b.Server = New(o)
	b.keeper, b.routes = b.keep, append(slices.Clone(routes), more...)
	b.serve(t)
	return b
}

func (b *bench) serve(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b.opt.Ready = &Readiness{w}
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go func() { b.done <- b.Serve(ctx) }()
	if err := awaitReady(r, "nowhere"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-b.done:
			if err != nil {
				t.Error("Serve:", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Serve hangs")
		}
		if t.Failed() {
			t.Log(b.log)
		}
	})
}

// ended waits for Serve's answer; it may be asked again.
func (b *bench) ended(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case err := <-b.done:
		if err != nil {
			t.Error("Serve:", err)
		}
		b.done <- nil
	case <-time.After(within):
		t.Fatal("the supervisor has not left")
	}
}

func (b *bench) dial(t *testing.T) *Client {
	t.Helper()
	c, err := Dial(t.Context(), b.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func wantCode(t *testing.T, err error, code string) *runner.Error {
	t.Helper()
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Code != code {
		t.Fatalf("got %v (%s), want %s", err, runner.CodeOf(err), code)
	}
	return e
}

// soon waits until ok holds.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("never: " + what)
}

func contextAfter(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

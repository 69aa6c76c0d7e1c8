//go:build linux

package isolationtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/caisson-dev/caisson/isolation"
	"golang.org/x/sys/unix"
)

var lifecycleTests = []test{
	{"start", (*suite).testStart, nil},
	{"close is idempotent", (*suite).testClose, nil},
	{"closed answers ErrClosed", (*suite).testErrClosed, nil},
	{"close ends commands", (*suite).testCloseEnds, nil},
	{"cancelled", (*suite).testCancelled, nil},
	{"concurrent starts", (*suite).testConcurrentStarts, nil},
	{"many execs", (*suite).testManyExecs, nil},
	{"concurrent execs", (*suite).testConcurrentExecs, nil},
	{"missing directory", (*suite).testMissingDirectory, nil},
	{"probe", (*suite).testProbe, nil},
}

func (s *suite) testStart(t *testing.T) {
	b := s.start(t)
	if !alive(b.PID()) {
		t.Errorf("PID 1 is said to be %d, which is no process", b.PID())
	}
	if got := b.help(t, "echo", "hello"); got != "hello\n" {
		t.Errorf("output %q", got)
	}
	if b.group != nil {
		pids, err := b.group.Procs()
		if err != nil || len(pids) != 1 || pids[0] != b.PID() {
			t.Errorf("the cgroup holds %v (%v), PID 1 is %d", pids, err, b.PID())
		}
	}
}

func (s *suite) testClose(t *testing.T) {
	b := s.start(t)
	pid := b.PID()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := b.Close(t.Context()); err != nil {
		t.Error("closed again:", err)
	}
	if alive(pid) {
		t.Error("PID 1 is alive after Close")
	}
}

func (s *suite) testErrClosed(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "exit", "0")
	must(t, b.Close(t.Context()))
	if _, err := b.Exec(t.Context(), p); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Exec: %v", err)
	}
	if err := b.Freeze(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Freeze: %v", err)
	}
	if err := b.Thaw(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Thaw: %v", err)
	}
}

func (s *suite) testCloseEnds(t *testing.T) {
	b := s.start(t)
	x, out := b.ready(t, b.process(t, "pause"))
	must(t, b.Close(t.Context()))
	if st := wait(t, x); st.Signal == 0 {
		t.Errorf("the command ended with %+v, not by a signal", st)
	}
	<-out.data
	if err := x.Signal(0); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the end: %v", err)
	}
}

func (s *suite) testCancelled(t *testing.T) {
	b := s.start(t)
	cause := errors.New("the user changed his mind")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := b.Exec(ctx, b.process(t, "exit", "0")); !errors.Is(err, cause) {
		t.Errorf("Exec: %v, want the cause", err)
	}
	// Wait gives up waiting; the command goes on.
	x, _ := b.ready(t, b.process(t, "pause"))
	ctx, cancelWait := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer cancelWait()
	if _, err := x.Wait(ctx); !errors.Is(err, cause) {
		t.Errorf("Wait: %v, want the cause", err)
	}
	if !alive(x.PID()) {
		t.Error("giving up waiting ended the command")
	}
}

func (s *suite) testConcurrentStarts(t *testing.T) {
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			b := s.start(t)
			if got := b.help(t, "echo", "x"); got != "x\n" {
				t.Errorf("output %q", got)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func (s *suite) testManyExecs(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "exit", "0")
	for i := range repeat(200) {
		x, err := b.Exec(t.Context(), p) // one cgroup for all
		if err != nil {
			t.Fatalf("exec %d: %v", i, err)
		}
		if st := wait(t, x); st.Code != 0 || st.Signal != 0 {
			t.Fatalf("exec %d: %+v", i, st)
		}
	}
}

func (s *suite) testConcurrentExecs(t *testing.T) {
	b := s.start(t)
	var wg sync.WaitGroup
	for i := range 16 {
		p := b.process(t, "exit", string(rune('0'+i%8)))
		wg.Go(func() {
			if r := b.run(t, p); r.Code != i%8 {
				t.Errorf("exit code %d, want %d", r.Code, i%8)
			}
		})
	}
	wg.Wait()
}

// testMissingDirectory: a spec that cannot be fulfilled is an error, and leaves nothing (the suite's end checks that).
func (s *suite) testMissingDirectory(t *testing.T) {
	for name, c := range map[string]change{
		"workspace": func(o *isolation.BuildOptions, _ *box) { o.Stacks[0].Lower[0].Path += "/none" },
		"upper":     func(o *isolation.BuildOptions, _ *box) { o.Stacks[0].Upper += "/none" },
		"root":      func(o *isolation.BuildOptions, _ *box) { o.Root.Layers[0].Path += "/none" },
		"bind": func(o *isolation.BuildOptions, b *box) {
			o.Mounts = append(o.Mounts, isolation.Bind{Source: b.dir + "/none", Target: "/mnt"})
		},
		"target": func(o *isolation.BuildOptions, b *box) {
			o.Mounts = append(o.Mounts, isolation.Bind{Source: b.dir, Target: "/none"})
		},
	} {
		if _, err := s.tryStart(t, c); err == nil {
			t.Errorf("a missing %s: no error", name)
		} else if errors.Is(err, isolation.ErrUnsupported) && name != "upper" {
			t.Errorf("a missing %s is blamed on the host: %v", name, err)
		}
	}
}

func (s *suite) testProbe(t *testing.T) {
	features := s.engine.Probe(t.Context())
	for _, c := range isolation.Controls() {
		f := features.Get(c)
		if f.Support != isolation.Available && f.Detail == "" {
			t.Errorf("%s is %v without a reason", c, f.Support)
		}
		if f.Support == isolation.Unsupported && f.Remedy == "" {
			t.Errorf("%s is unsupported (%s) without a remedy", c, f.Detail)
		}
	}
}

// makeQueue makes a POSIX message queue on the host and returns what removes it.
func makeQueue(t *testing.T, name string) func() {
	t.Helper()
	p, err := unix.BytePtrFromString(name[1:])
	must(t, err)
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0)
	if errno != 0 {
		t.Fatal("message queue:", errno)
	}
	must(t, unix.Close(int(fd)))
	return func() {
		if _, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0); errno != 0 {
			t.Error("message queue:", errno)
		}
	}
}

// held is what this process holds of the kernel.
type held struct {
	descriptors []string
	children    []string
}

// holdings takes stock.
func holdings(t *testing.T) held {
	t.Helper()
	var h held
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			h.descriptors = append(h.descriptors, strings.TrimRight(target, "0123456789[]")) // sockets have numbers
		}
	}
	pids, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range pids {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parent(pid) == os.Getpid() {
			h.children = append(h.children, fmt.Sprintf("%d (%s)", pid, state(pid)))
		}
	}
	return h
}

// checkHoldings fails the test for what has been left since before.
func checkHoldings(t *testing.T, before held) {
	t.Helper()
	after := holdings(t)
	for _, d := range after.descriptors {
		if i := slices.Index(before.descriptors, d); i >= 0 {
			before.descriptors = slices.Delete(before.descriptors, i, i+1)
		} else if d != "anon_inode:[eventpoll" && d != "anon_inode:[eventfd" { // the runtime's, made on demand
			t.Errorf("descriptor left open: %s", d)
		}
	}
	for _, c := range after.children {
		if !slices.Contains(before.children, c) {
			t.Errorf("child left: %s", c)
		}
	}
}

package native

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest"
)

// The test binary is also the supervisor that gets killed.
func TestMain(m *testing.M) {
	if os.Getenv("CAISSON_TEST_SUPERVISOR") != "" {
		superviseAndStop()
	}
	isolationtest.Main(m)
}

// superviseAndStop starts a sandbox whose set-up, or with CAISSON_TEST_EXCHANGE the exchange of its stacks, stops at a
// step, on a socket that the parent holds as fd 3.
func superviseAndStop() {
	at, err := strconv.Atoi(os.Getenv("CAISSON_TEST_SUPERVISOR"))
	if err != nil {
		panic(err)
	}
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{
		Name: "supervisor", F: func(t *testing.T) {
			e, s := testEngine(t), testSpec(t)
			exchange := os.Getenv("CAISSON_TEST_EXCHANGE") != ""
			if !exchange {
				e.stop = stopper{at: at, fd: 3}
			}
			b := startBox(t, e, s)
			if exchange {
				e.stop = stopper{at: at, fd: 3}
				if err := b.Exchange(t.Context(), rotated(t, s.Stacks[0]), rotated(t, s.Stacks[1])); err != nil {
					t.Error(err)
				}
			}
			fmt.Println("started")
			out, code := sh(t, b, "sleep 1000 & sleep 1000")
			t.Log(out, code)
		}}}, nil, nil)
	os.Exit(0)
}

// TestKillSupervisorAtEveryStep kills -9 the supervisor while its child is about to do step n, for every n, and once
// after the start. The child must end by itself, and leave nothing.
func TestKillSupervisorAtEveryStep(t *testing.T) {
	killAtEveryStep(t, 60)
}

// TestKillSupervisorAtEveryStepOfExchange does that while stacks are exchanged.
func TestKillSupervisorAtEveryStepOfExchange(t *testing.T) {
	killAtEveryStep(t, 15, "CAISSON_TEST_EXCHANGE=1")
}

func killAtEveryStep(t *testing.T, atLeast int, env ...string) {
	t.Helper()
	needUserns(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	before := mounts(t)
	steps, stride := 0, 1
	if testing.Short() { // in the slow virtual machine every step takes a second
		stride = 7
	}
	for at := 2; ; at += stride {
		stopped := killAt(t, at, env)
		if !stopped {
			break // beyond the last step: killed while it ran
		}
		steps++
	}
	if steps < atLeast/stride {
		t.Errorf("only %d steps were tried", steps)
	}
	if after := mounts(t); after != before {
		t.Errorf("mounts were left:\n%s", after)
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// killAt runs one supervisor and kills it. It returns false when the set-up ended before the step came.
func killAt(t *testing.T, at int, env []string) bool {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
	defer ours.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	t.Cleanup(func() { openDirs(tmp) })
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "CAISSON_TEST_SUPERVISOR="+strconv.Itoa(at), "TMPDIR="+tmp)
	cmd.Env = append(cmd.Env, env...)
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	event := make(chan bool, 2)
	go func() {
		var b [1]byte
		if n, err := ours.Read(b[:]); err == nil && n == 1 {
			event <- true
		}
	}()
	go func() {
		b := make([]byte, 4096)
		if n, err := out.Read(b); err == nil && strings.HasPrefix(string(b[:n]), "started") {
			event <- false
		} else {
			event <- false
			t.Logf("supervisor said %q", b[:n])
		}
	}()
	stopped := <-event
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = cmd.Process.Wait() // killed: nothing to learn
	if stopped {
		_, _ = ours.Write([]byte("g")) // the child goes on: it may be dead already
	}
	reapOrphans(t, at)
	return stopped
}

// openDirs makes what a killed supervisor's overlays left removable for its owner.
func openDirs(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // before WalkDir reads it; TempDir's own clean-up reports what remains
		}
		return nil
	})
}

// reapOrphans waits for every process that the supervisor left to us. All must end by themselves.
func reapOrphans(t *testing.T, at int) {
	t.Helper()
	timer := time.AfterFunc(20*time.Second, func() { panic(fmt.Sprintf("step %d: an orphan lives on", at)) })
	defer timer.Stop()
	for {
		_, err := unix.Wait4(-1, nil, unix.WALL, nil)
		if errors.Is(err, unix.ECHILD) {
			return
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// needUserns closes its engine at once: what that holds must not look like the test's own.
func needUserns(t *testing.T) {
	t.Helper()
	e, err := newEngine(Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := e.Probe(t.Context()).Get(isolation.ControlUserNS)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if f.Support != isolation.Available {
		testenv.Need(t, "userns", errors.New(f.Detail))
	}
}

// TestStopFromInside has somebody inside stop every process that appears, among them the child that is about to
// become a command. The supervisor must go on, with its garbage collector.
func TestStopFromInside(t *testing.T) {
	e := testEngine(t)
	e.patience = 300 * time.Millisecond
	b := startBox(t, e, testSpec(t))
	attacker, err := b.Exec(t.Context(), &isolation.Process{
		Args: []string{"sh", "-c", "while :; do kill -STOP -1; done 2>/dev/null"}, Env: []string{"PATH=/usr/bin"},
		Cwd: "/workspace", UID: 1000, GID: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 40 {
		x, err := b.Exec(t.Context(), trueProcess())
		if err != nil {
			continue // stopped, and killed for it
		}
		wg.Go(func() {
			if err := x.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
				t.Error(err)
			}
			if _, err := x.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := attacker.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if _, err := attacker.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

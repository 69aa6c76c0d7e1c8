package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/process"
	"github.com/caisson-dev/caisson/runner/daemon/internal/socket"
	"github.com/caisson-dev/caisson/runner/flock"
)

func TestDial(t *testing.T) {
	if _, err := Dial(t.Context(), t.TempDir()); !errors.Is(err, ErrNotRunning) {
		t.Fatal(err)
	}
	b := newBench(t, Options{})
	c := b.dial(t)
	h := c.Health()
	if h.PID != os.Getpid() || h.API != APIVersion || h.StateDir != b.dir || len(h.Features) != 0 {
		t.Errorf("%+v", h)
	}
	if fi, err := os.Stat(filepath.Join(b.dir, socketLink)); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
	b.stop()
	b.ended(t, 10*time.Second)
	if _, err := Dial(t.Context(), b.dir); !errors.Is(err, ErrNotRunning) {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(b.opt.SocketDir, "*"))
	if err != nil || len(left) != 0 {
		t.Error(left, err)
	}
}

// asUser calls do on a thread whose effective user is another one.
func asUser(t *testing.T, uid int, do func()) {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("not root")
	}
	testenv.Need(t, "root", err)
	done := make(chan syscall.Errno, 1)
	go func() {
		runtime.LockOSThread() // and the thread dies with the goroutine
		const keep = ^uintptr(0)
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep)
		if errno == 0 {
			do()
		}
		done <- errno
	}()
	if errno := <-done; errno != 0 {
		t.Fatal(errno)
	}
}

func open(t *testing.T, dir string) {
	t.Helper()
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// Another user is refused before a byte of the request is read, even when the file's mode would let him in.
func TestAnotherUser(t *testing.T) {
	b := newBench(t, Options{})
	open(t, b.opt.SocketDir)
	if err := os.Chmod(b.path, 0o666); err != nil {
		t.Fatal(err)
	}
	asUser(t, 12345, func() {
		c, err := net.Dial("unix", b.path)
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		answer, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 403 ") || !strings.Contains(string(answer), CodeForbidden) {
			t.Errorf("%q, %v", answer, err)
		}
	})
	soon(t, "a line in the log", func() bool { return strings.Contains(b.log.String(), "refused: user 12345") })
	b.dial(t) // the owner is served
}

// A socket that another user has put there is not believed.
func TestForeignSupervisor(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	asUser(t, 12345, func() {
		l, err := net.Listen("unix", filepath.Join(dir, socketLink))
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		t.Cleanup(func() { _ = l.Close() })
	})
	_, err := Dial(t.Context(), dir)
	wantCode(t, err, CodeForbidden)
}

func TestVersionMismatch(t *testing.T) {
	b := newBench(t, Options{Version: "v0.0.1"})
	b.keep.add(runner.FeatureInfo{ID: "f1"})
	_, err := Dial(t.Context(), b.dir)
	if e := wantCode(t, err, CodeVersion); e.Remedy != "caisson stop --all" || e.Exit != runner.ExitRefused {
		t.Errorf("%+v", e)
	}
	c := newClient(filepath.Join(b.dir, socketLink), buildVersion())
	defer c.Close()
	_, err = c.Features(t.Context(), true) // a client that did not ask first
	wantCode(t, err, CodeVersion)
	// The remedy works across versions.
	ids, err := StopAll(t.Context(), b.dir, runner.StopOptions{Seal: true})
	if err != nil || fmt.Sprint(ids) != "[f1]" || fmt.Sprint(b.keep.stopped) != "[f1]" {
		t.Error(ids, b.keep.stopped, err)
	}
	b.ended(t, time.Second) // it has left when StopAll returns, but for its goroutine
	if _, err := StopAll(t.Context(), b.dir, runner.StopOptions{}); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
}

// A supervisor that cannot stop its features stays with them.
func TestStopAllFails(t *testing.T) {
	b := newBench(t, Options{})
	b.keep.add(runner.FeatureInfo{ID: "f1"})
	b.keep.stopErr = &runner.Error{Code: runner.CodeDisk, Cause: "full", Exit: runner.ExitInternal}
	_, err := StopAll(t.Context(), b.dir, runner.StopOptions{})
	wantCode(t, err, runner.CodeDisk)
	b.dial(t)
	b.keep.mu.Lock()
	b.keep.stopErr = nil
	b.keep.mu.Unlock()
}

// One whose features end by themselves meanwhile leaves.
func TestStopAllOfWhatHasEnded(t *testing.T) {
	b := newBench(t, Options{})
	b.keep.add(runner.FeatureInfo{ID: "f1"})
	b.keep.gone = true
	if _, err := StopAll(t.Context(), b.dir, runner.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	b.ended(t, time.Second)
}

func TestIdle(t *testing.T) {
	b := newBench(t, Options{Idle: 50 * time.Millisecond})
	c := b.dial(t)
	b.keep.add(runner.FeatureInfo{ID: "f1"})
	_ = c.Close()
	select {
	case <-b.done:
		t.Fatal("left its feature alone")
	case <-time.After(200 * time.Millisecond):
	}
	c = b.dial(t)
	_ = b.keep.Stop(t.Context(), []string{"f1"}, runner.StopOptions{})
	b.wake()
	select {
	case <-b.done:
		t.Fatal("left while a client was connected")
	case <-time.After(200 * time.Millisecond):
	}
	_ = c.Close()
	b.ended(t, 5*time.Second)
}

// Supervisors that leave after a millisecond, and clients that want one: whoever gets a client can use it.
func TestIdleRace(t *testing.T) {
	dir, sockets := t.TempDir(), t.TempDir()
	var all sync.WaitGroup
	spawn := func(*os.File) error {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		s := New(Options{StateDir: dir, SocketDir: sockets, Idle: time.Millisecond, Log: io.Discard, Ready: &Readiness{w}})
		s.keeper = &keep{}
		all.Go(func() {
			if err := s.Serve(t.Context()); err != nil {
				t.Error(err)
			}
		})
		defer r.Close()
		return awaitReady(r, "nowhere")
	}
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for i := range 40 {
				c, err := Ensure(t.Context(), dir, spawn)
				if err != nil {
					t.Error(err)
					return
				}
				if i%2 == 0 {
					runtime.Gosched() // so that some go on at once and some do not
				}
				if err := c.get(t.Context()); err != nil {
					t.Error("a supervisor that has a client left:", err)
				}
				_ = c.Close()
			}
		})
	}
	clients.Wait()
	all.Wait()
}

// Twenty commands at once start one supervisor; it dies, and the next command starts another.
func TestSpawnRace(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(superviseVariable, dir)
	t.Setenv(idleVariable, "300ms")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("SECRET", "is not for the supervisor")
	spawn := Reexec(dir, "supervise")
	var mu sync.Mutex
	pids := map[int]int{}
	start := func() {
		var g sync.WaitGroup
		for range 20 {
			g.Go(func() {
				c, err := Ensure(t.Context(), dir, spawn)
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				mu.Lock()
				defer mu.Unlock()
				pids[c.Health().PID]++
			})
		}
		g.Wait()
	}
	start()
	if len(pids) != 1 {
		t.Fatal("several supervisors: ", pids)
	}
	var pid int
	for pid = range pids {
	}
	checkProcess(t, pid, dir)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	clear(pids)
	start()
	if pids[pid] != 0 || len(pids) != 1 {
		t.Fatal("several supervisors, or the dead one: ", pids)
	}
	lock, err := flock.Acquire(t.Context(), filepath.Join(dir, lockName)) // until it has left
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Release()
	if _, err := Dial(t.Context(), dir); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, logName))
	if err != nil || strings.Count(string(text), "serving") != 2 || !strings.Contains(string(text), "leaving: nothing to do") {
		t.Errorf("%s, %v", text, err)
	}
}

// checkProcess: a session of its own, the state directory, no inherited file, a reduced environment.
func checkProcess(t *testing.T, pid int, dir string) {
	t.Helper()
	if sid, err := unix.Getsid(pid); err != nil || sid != pid {
		t.Error("session", sid, err)
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if cwd, err := os.Readlink(proc + "cwd"); err != nil || cwd != dir {
		t.Error(cwd, err)
	}
	env, err := os.ReadFile(proc + "environ")
	if err != nil || strings.Contains(string(env), "SECRET") || !strings.Contains(string(env), "PATH=") {
		t.Errorf("%q, %v", env, err)
	}
	for fd, want := range map[int]string{0: "/dev/null", 1: filepath.Join(dir, logName), 2: filepath.Join(dir, logName)} {
		if got, err := os.Readlink(fmt.Sprintf("%sfd/%d", proc, fd)); err != nil || got != want {
			t.Errorf("fd %d is %s, %v", fd, got, err)
		}
	}
}

func TestSpawnFails(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(superviseVariable, dir)
	t.Setenv(brokenVariable, "the store is too new")
	_, err := Ensure(t.Context(), dir, Reexec(dir, "supervise"))
	if e := wantCode(t, err, runner.CodeStoreNewer); e.Cause != "the store is too new" || e.Remedy != "a newer one" {
		t.Errorf("%+v", e)
	}
	t.Setenv(brokenVariable, "silent")
	_, err = Ensure(t.Context(), dir, Reexec(dir, "supervise"))
	if e := wantCode(t, err, runner.CodeInternal); !strings.Contains(e.Remedy, logName) {
		t.Errorf("%+v", e)
	}
}

func TestOnlyOne(t *testing.T) {
	b := newBench(t, Options{})
	ctx, cancel := contextAfter(t, 50*time.Millisecond)
	defer cancel()
	s := New(Options{StateDir: b.dir, SocketDir: b.opt.SocketDir, Log: io.Discard})
	s.keeper = &keep{}
	if err := s.Serve(ctx); err == nil {
		t.Fatal("two of them")
	}
	b.dial(t)
}

// A foreground run serves its feature, and only as long as it holds it.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	for _, id := range []string{"one", "two"} {
		if err := os.MkdirAll(filepath.Join(dir, "features", id), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{StateDir: dir, SocketDir: t.TempDir()})
	s.keeper = &keep{}
	one, err1 := s.Hold(t.Context(), "one")
	two, err2 := s.Hold(t.Context(), "two")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	c, err := DialFeature(t.Context(), dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	one()
	if _, err := DialFeature(t.Context(), dir, "one"); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	if c, err := DialFeature(t.Context(), dir, "two"); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	two()
	for _, pattern := range []string{filepath.Join(s.opt.SocketDir, "*"), filepath.Join(dir, "features/*/*")} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) != 0 {
			t.Error(left, err)
		}
	}
}

// In the background supervisor a feature's socket is a link to the one that is there.
func TestHoldInBackground(t *testing.T) {
	b := newBench(t, Options{})
	if err := os.MkdirAll(filepath.Join(b.dir, "features", "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	release, err := b.Hold(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	c, err := DialFeature(t.Context(), b.dir, "one")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	release()
	if _, err := DialFeature(t.Context(), b.dir, "one"); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	b.dial(t)
}

// What a dead supervisor left in the socket directory goes with the next one; a state directory may be as deep as it likes.
func TestStaleSockets(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 60))
	if err := os.MkdirAll(filepath.Join(dir, "features", "dead"), 0o700); err != nil {
		t.Fatal(err)
	}
	sockets := filepath.Join(dir, "sockets")
	if err := os.Mkdir(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	dead, err := socket.Open(sockets, dir, "dead", featureLink(dir, "dead"))
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Close() // as the kernel does when it dies
	if _, err := DialFeature(t.Context(), dir, "dead"); !errors.Is(err, ErrNotRunning) {
		t.Error(err)
	}
	b := newBench(t, Options{StateDir: dir, SocketDir: sockets})
	b.dial(t)
	if _, err := os.Lstat(dead.Path); err == nil {
		t.Error("a dead one's socket is still there")
	}
}

func TestTTL(t *testing.T) {
	b := newBench(t, Options{Idle: time.Hour})
	now := time.Now()
	b.keep.add(runner.FeatureInfo{ID: "forever", State: runner.StateSucceeded, Updated: now.Add(-time.Hour)})
	b.keep.add(runner.FeatureInfo{ID: "ttl", State: runner.StateRunning, TTL: 100 * time.Millisecond, Tasks: make([]runner.TaskInfo, 1)})
	b.keep.add(runner.FeatureInfo{ID: "idle", State: runner.StateSucceeded, Idle: 150 * time.Millisecond, Updated: now.Add(-time.Hour),
		Tasks: make([]runner.TaskInfo, 1)})
	b.keep.add(runner.FeatureInfo{ID: "busy", State: runner.StateRunning, Idle: time.Millisecond, Updated: now.Add(-time.Hour),
		Tasks: make([]runner.TaskInfo, 1)})
	b.wake()
	soon(t, "the end of two", func() bool { return len(b.keep.Live()) == 2 })
	if took := time.Since(now); took < 100*time.Millisecond {
		t.Error("too early:", took)
	}
	if got := fmt.Sprint(b.keep.Live()); got != "[busy forever]" {
		t.Error(got)
	}
	b.keep.add(runner.FeatureInfo{ID: "busy", State: runner.StateSucceeded, Idle: time.Millisecond, Updated: time.Now(),
		Tasks: make([]runner.TaskInfo, 1)})
	b.wake() // as when a session has ended
	soon(t, "the end of the third", func() bool { return fmt.Sprint(b.keep.Live()) == "[forever]" })
}

func TestLog(t *testing.T) {
	dir := t.TempDir()
	turns := 0
	l := &process.Log{Path: filepath.Join(dir, "log"), Turn: func(*os.File) error { turns++; return nil }}
	defer l.Close()
	line := []byte(strings.Repeat("x", 1<<16-1) + "\n")
	for range 5 * process.MaxLog / len(line) {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 2 || turns < 4 {
		t.Fatal(files, turns, err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Size() > process.MaxLog || info.Mode().Perm() != 0o600 {
			t.Error(info, err)
		}
	}
}

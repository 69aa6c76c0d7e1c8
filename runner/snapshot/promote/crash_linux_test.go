package promote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// helper makes the test binary act for a test in a process of its own: "verb arg...".
const helper = "CAISSON_SNAPSHOT_HELPER"

func TestMain(m *testing.M) {
	if words := strings.Split(os.Getenv(helper), "\n"); words[0] != "" {
		if err := help(words[0], words[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func help(verb string, args []string) error {
	switch verb {
	case "promote", "resolve", "recover":
		return helpCrash(verb, args[0], args[1], args[2])
	case "wait":
		_, err := os.Stdin.Read(make([]byte, 1))
		return err
	case "overlay":
		return helpOverlay(args[0], args[1])
	}
	return fmt.Errorf("unknown helper %q", verb)
}

func helperCommand(words ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helper+"="+strings.Join(words, "\n"))
	cmd.Stderr = os.Stderr
	return cmd
}

// helpCrash promotes or recovers the feature in dir and dies at its nth step.
func helpCrash(verb, dir, nth, flags string) error {
	if flags == "noflags" {
		journal.Rename = renameWithoutFlags
	}
	left, err := strconv.Atoi(nth)
	if err != nil {
		return err
	}
	journal.Step = func(string) {
		if left--; left == 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	if verb == "recover" {
		return recovers(dir)
	}
	w, err := open(dir)
	if err != nil {
		return err
	}
	c, err := w.change(context.Background())
	if err == nil && verb == "resolve" {
		c, err = w.resolve(context.Background(), c, killedChoice)
	}
	if err != nil {
		return err
	}
	_, err = w.apply(context.Background(), c, nil)
	return err
}

// renameWithoutFlags is what NFS and some FUSE filesystems answer.
func renameWithoutFlags(fromDir int, from string, toDir int, to string, flags uint) error {
	if flags != 0 {
		return unix.EINVAL
	}
	return unix.Renameat(fromDir, from, toDir, to)
}

// killed reports whether a helper died by SIGKILL; another failure ends the test.
func killed(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return true
	}
	must(t, err)
	return false
}

// everything does one of each that promote knows.
func everything(m string) error {
	return steps(
		write(m+"/edit", "mine"), os.Remove(m+"/gone"), os.Chmod(m+"/mode", 0o4711), os.RemoveAll(m+"/dir/sub"),
		os.Remove(m+"/keep"), os.Mkdir(m+"/keep", 0o750), write(m+"/keep/in", "in"),
		os.Remove(m+"/link"), os.Symlink("nowhere", m+"/link"), os.Chmod(m+"/dir", 0o775),
		unix.Setxattr(m+"/dir", "user.d", []byte("1"), 0), unix.Setxattr(m+"/dir/a", "user.a", []byte("1"), 0),
		os.RemoveAll(m+"/empty"), write(m+"/empty", "file now"),
		os.MkdirAll(m+"/new/tree", 0o700), write(m+"/new/tree/f", "f"), os.Link(m+"/new/tree/f", m+"/new/g"),
		os.Link(m+"/new/g", m+"/dir/h"), unix.Mkfifo(m+"/new/pipe", 0o600),
	)
}

// expected is the state after a promote: what the sandbox saw, except for files of which only times differ.
func expected(c *tree.Change, old, seen map[string]string) map[string]string {
	changed := map[string]bool{}
	for _, e := range c.Entries {
		changed["/"+e.Path] = true
	}
	want := map[string]string{}
	for path, line := range seen {
		if o, ok := old[path]; ok && !changed[path] && !strings.HasPrefix(line, "4") {
			line = o
		}
		want[path] = line
	}
	return want
}

// TestKilled kills a promote at each of its steps, then its recovery at some step, and recovers.
func TestKilled(t *testing.T) {
	for _, flags := range []string{"flags", "noflags"} {
		t.Run(flags, func(t *testing.T) {
			olds, news := 0, 0
			for n := 1; ; n++ {
				b := newBox(t, project(t))
				old := listing(t, b.ws)
				other := newBoxAt(t, b.ws, b.w.dir+"2")
				others := other.shows()
				var seen map[string]string
				b.sandbox(func(m string) error {
					err := everything(m)
					seen = listing(t, m)
					return err
				})
				want := expected(b.change(), old, seen)
				if !killed(t, helperCommand("promote", b.w.dir, strconv.Itoa(n), flags)) {
					b.wantSame(want, "promoted")
					break
				}
				killed(t, helperCommand("recover", b.w.dir, strconv.Itoa(n%7+1), flags))
				must(t, recovers(b.w.dir))
				must(t, recovers(b.w.dir))
				now := listing(t, b.ws)
				if d := differences(others, other.shows()); d != "" {
					t.Fatalf("killed at step %d: another feature saw (-), sees (+):\n%s", n, d)
				}
				switch {
				case differences(old, now) == "":
					olds++
					b.promoteFrom(b.w.dir)
					b.wantSame(want, "promoted after recovery")
				case differences(want, now) == "":
					news++
				default:
					t.Fatalf("killed at step %d: neither old:\n%s\nnor new:\n%s", n, differences(old, now), differences(want, now))
				}
				if left, _ := filepath.Glob(b.w.dir + "/promote*"); left != nil {
					t.Fatalf("killed at step %d: left %v", n, left)
				}
				again, err := open(b.w.dir)
				must(t, err)
				c, err := again.change(t.Context())
				must(t, err)
				if len(c.Entries) > 0 {
					t.Fatalf("killed at step %d: feature still has:\n%s", n, summary(c))
				}
			}
			if olds < 10 || news < 2 {
				t.Fatalf("%d old and %d new states: too few to mean anything", olds, news)
			}
		})
	}
}

// killedChoice resolves what TestKilledResolved's others do.
var killedChoice = tree.Choice{Theirs: []string{"edit", "gone", "keep"}, Ours: []string{"mode", "empty"}}

// TestKilledResolved is TestKilled for a promote with conflicts that were resolved. Undone, they are conflicts again.
func TestKilledResolved(t *testing.T) {
	olds, news := 0, 0
	for n := 1; ; n++ {
		b := newBox(t, project(t))
		var seen map[string]string
		b.sandbox(func(m string) error {
			err := everything(m)
			seen = listing(t, m)
			return err
		})
		must(t, steps(write(b.ws+"/edit", "theirs"), write(b.ws+"/gone", "theirs"), write(b.ws+"/keep", "theirs"), write(b.ws+"/mode", "theirs"), write(b.ws+"/empty/in", "theirs")))
		old := listing(t, b.ws)
		before := b.at(0)
		c, err := b.w.resolve(t.Context(), b.change(), killedChoice)
		must(t, err)
		want := expected(c, old, seen)
		for _, path := range []string{"/mode", "/empty", "/empty/in"} {
			want[path] = old[path]
		}
		if !killed(t, helperCommand("resolve", b.w.dir, strconv.Itoa(n), "flags")) {
			b.wantSame(want, "promoted")
			break
		}
		killed(t, helperCommand("recover", b.w.dir, strconv.Itoa(n%7+1), "flags"))
		must(t, recovers(b.w.dir))
		if d := differences(before, b.at(0)); d != "" {
			t.Fatalf("killed at step %d: the workspace was (-), shows (+):\n%s", n, d)
		}
		w, err := open(b.w.dir)
		must(t, err)
		again, err := w.change(t.Context())
		must(t, err)
		switch now := listing(t, b.ws); {
		case differences(old, now) == "":
			olds++
			if _, err := w.apply(t.Context(), again, nil); !errors.Is(err, tree.ErrConflict) {
				t.Fatalf("killed at step %d: promoted without a word: %v", n, err)
			}
			again, err = w.resolve(t.Context(), again, killedChoice)
			must(t, err)
			_, err = w.apply(t.Context(), again, nil)
			must(t, err)
			b.wantSame(want, "promoted after recovery")
		case differences(want, now) == "":
			news++
			if len(again.Entries) > 0 {
				t.Fatalf("killed at step %d: feature still has:\n%s", n, summary(again))
			}
		default:
			t.Fatalf("killed at step %d: neither old:\n%s\nnor new:\n%s", n, differences(old, now), differences(want, now))
		}
	}
	if olds < 10 || news < 2 {
		t.Fatalf("%d old and %d new states: too few to mean anything", olds, news)
	}
}

func (b *box) promoteFrom(dir string) {
	b.Helper()
	w, err := open(dir)
	must(b, err)
	c, err := w.change(context.Background())
	must(b, err)
	_, err = w.apply(context.Background(), c, nil)
	must(b, err)
}

// TestCancelled ends the context at each step: the old state, at once and without a recovery.
func TestCancelled(t *testing.T) {
	for n := 1; ; n++ {
		b := newBox(t, project(t))
		old := listing(t, b.ws)
		b.sandbox(everything)
		c := b.change()
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		calls := 0
		journal.Step = func(string) {
			if calls++; calls == n {
				cancel(why)
			}
		}
		_, err := b.w.apply(ctx, c, nil)
		journal.Step = func(string) {}
		cancel(nil)
		if err == nil {
			if n < 10 {
				t.Fatalf("cancelled at step %d, and promoted", n)
			}
			break
		}
		if !errors.Is(err, why) {
			t.Fatalf("step %d: %v", n, err)
		}
		b.wantSame(old, fmt.Sprintf("cancelled at step %d", n))
		b.promote()
	}
}

// TestNoSpace promotes into a workspace that is too small for it.
func TestNoSpace(t *testing.T) {
	needRoot(t)
	must(t, kernel.InNamespace(func() error {
		ws := t.TempDir()
		if err := unix.Mount("tmpfs", ws, "tmpfs", 0, "size=1m"); err != nil {
			return err
		}
		defer func() { _ = unix.Unmount(ws, unix.MNT_DETACH) }()
		project(t)(ws)
		w, err := create(t.TempDir()+"/f", ws, true)
		if err != nil {
			return err
		}
		old := listing(t, ws)
		for i := range 4 {
			must(t, write(fmt.Sprintf("%s/upper/big%d", w.dir, i), strings.Repeat("x", 400<<10)))
		}
		must(t, write(w.dir+"/upper/edit", "mine"))
		c, err := w.change(t.Context())
		if err != nil {
			return err
		}
		_, err = w.apply(t.Context(), c, nil)
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "/big") {
			t.Errorf("promote: %v", err)
		}
		if d := differences(old, listing(t, ws)); d != "" {
			t.Errorf("not the old state:\n%s", d)
		}
		must(t, os.Remove(w.dir+"/upper/big0"))
		must(t, os.Remove(w.dir+"/upper/big1"))
		if c, err = w.change(t.Context()); err == nil {
			_, err = w.apply(t.Context(), c, nil)
		}
		return err
	}))
}

// TestTwoPromotes: the second waits for the first, and can be told to stop waiting.
func TestTwoPromotes(t *testing.T) {
	b := newBox(t, project(t))
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	b.upper("edit", "b")
	other.upper("keep", "other")
	oc := other.change()
	done := make(chan error, 1)
	journal.Step = func(name string) {
		if name != "staged" {
			return
		}
		journal.Step = func(string) {}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := other.w.apply(ctx, oc, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("second promote: %v", err)
		}
		go func() {
			_, err := other.w.apply(t.Context(), oc, nil)
			done <- err
		}()
	}
	b.promote()
	must(t, <-done)
	for path, want := range map[string]string{"edit": "b", "keep": "other"} {
		if data, err := os.ReadFile(b.ws + "/" + path); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
}

package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// crash is what a test's Step throws.
type crash struct{}

// crashing runs do with a crash after the n-th step, and reports whether it came to that.
func crashing(n int, do func()) (crashed bool) {
	defer func() {
		book.Step = func(string) {}
		if r := recover(); r != nil {
			if _, ours := r.(crash); !ours {
				panic(r)
			}
			crashed = true
		}
	}()
	step := func(string) {
		if n--; n < 0 {
			panic(crash{})
		}
	}
	book.Step = step
	do()
	return false
}

// crashVariable has the test program die in a promote: the number of steps, and the box's directory.
const crashVariable = "CAISSON_TEST_CRASH"

// TestCrashChild is the process that dies: a promote works in several goroutines.
func TestCrashChild(t *testing.T) {
	var n atomic.Int64
	count, dir, ok := strings.Cut(os.Getenv(crashVariable), " ")
	if !ok {
		return
	}
	left, err := strconv.Atoi(count)
	must(t, err)
	n.Store(int64(left))
	b := &box{TB: t, dir: dir, ws: filepath.Join(dir, "ws"), feature: "f"}
	l, err := Open(b.open())
	must(t, err)
	b.l = l.(*layers)
	step := func(string) {
		if n.Add(-1) < 0 {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	book.Step, journal.Step = step, step
	b.promote()
}

// dieInPromote lets a child promote and die after n steps; false: it did not come to that.
func (b *box) dieInPromote(n int) bool {
	b.Helper()
	b.unmount()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", crashVariable, n, b.dir))
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		b.Fatalf("%v: %s", err, out)
	}
	return err != nil
}

// snap is everything of a feature that must be of the old or of the new state.
func snap(b *box) string {
	return b.state() + "workspace " + read(b, b.mounts[0]) + "\nhome " + read(b, b.mounts[1])
}

// TestCrash cuts every operation short after each of its renames: a later Open finds the state before or after, whole, and
// nothing that nobody needs is left.
func TestCrash(t *testing.T) {
	ctx := context.Background()
	ops := map[string]func(b *box){
		"seal":    func(b *box) { b.seal("new") },
		"alias":   func(b *box) { b.reset("one"); b.seal("new") },
		"reset":   func(b *box) { b.reset("one") },
		"base":    func(b *box) { b.reset(snapshot.Base) },
		"paths":   func(b *box) { b.seal("undo"); b.reset("one", "a", "gone/**") },
		"drop":    func(b *box) { must(b, b.l.Drop(ctx, "one")) },
		"collect": func(b *box) { b.reset("one"); must(b, b.l.Drop(ctx, "two")); collect(b) },
		"squash":  func(b *box) { _, err := b.l.Squash(ctx, true); must(b, err); collect(b) },
		"live":    func(b *box) { b.sealLive("new") },
		"index": func(b *box) {
			b.reset("one")
			b.write("a", "1")
			b.seal("x")
			_, err := b.l.Index(ctx, "x")
			must(b, err)
		},
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			// What the states of an undisturbed run are, step by step of its parts.
			var valid []string
			b := crashBox(t)
			valid = append(valid, snap(b))
			steps := 0
			book.Step = func(string) { steps++ }
			op(b)
			book.Step = func(string) {}
			b.mount()
			valid = append(valid, snap(b))
			for n := range steps {
				b := crashBox(t)
				if !crashing(n, func() { op(b) }) {
					t.Fatalf("no crash after step %d of %d", n, steps)
				}
				b.reopen()
				got := snap(b)
				if !slices.ContainsFunc(valid, func(v string) bool { return sameState(v, got) }) && !between(name, got) {
					t.Errorf("after step %d of %d:\n%s\nwant one of\n%s", n, steps, got, strings.Join(valid, "\n--\n"))
				}
				collect(b)
				if left := leftovers(b); left != "" {
					t.Errorf("after step %d of %d: left over: %s", n, steps, left)
				}
				if again := snap(b); !sameState(got, again) {
					t.Errorf("collecting changed\n%s\nto\n%s", got, again)
				}
				b.write("after", "crash") // and it goes on
				b.seal("after")
			}
		})
	}
}

// between reports a state between two parts of an operation of several.
func between(name, got string) bool {
	switch name {
	case "alias", "collect":
		return strings.Contains(got, "head one ") && strings.Contains(got, "workspace a=1 base=base gone/ gone/x=x")
	case "paths":
		return strings.Contains(got, "head undo ") && strings.Contains(got, "workspace a=3")
	case "index":
		return strings.Contains(got, "workspace a=1 base=base gone/ gone/x=x") && (strings.Contains(got, "head one ") || strings.Contains(got, "head x "))
	}
	return false
}

// sameState compares without the current layer's number: those of layers that were cut short are not given twice.
func sameState(a, b string) bool {
	cut := func(s string) string {
		first, rest, _ := strings.Cut(s, "\n")
		first, _, _ = strings.Cut(first, " current ")
		return first + "\n" + rest
	}
	return cut(a) == cut(b)
}

func crashBox(t *testing.T) *box {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/base", []byte("base"), 0o644))
	b.create()
	b.write("a", "1")
	must(t, os.Mkdir(b.path("gone"), 0o755))
	b.write("gone/x", "x")
	b.seal("one")
	b.write("a", "2")
	must(t, os.RemoveAll(b.path("gone")))
	must(t, os.WriteFile(b.home("h"), []byte("h"), 0o644))
	b.seal("two")
	b.write("a", "3")
	return b
}

// TestCrashWhileForking: there is a fork or there is none, and it can be tried again.
func TestCrashWhileForking(t *testing.T) {
	for n := 0; ; n++ {
		b := crashBox(t)
		c := &box{TB: t, dir: b.dir, ws: b.ws, feature: "fork"}
		if !crashing(n, func() { b.fork("one", "fork") }) {
			break
		}
		if _, err := Open(c.open()); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after step %d: %v", n, err)
			}
			c = b.fork("one", "fork")
		} else {
			c.reopen()
			b.Cleanup(c.unmount)
		}
		c.want("a=1 base=base gone/ gone/x=x")
		c.write("a", "fork")
		c.seal("new")
		c.reset("one")
		c.want("a=1 base=base gone/ gone/x=x")
	}
}

// promote applies what the feature changed.
func (b *box) promote() {
	b.Helper()
	c, err := b.l.Change(b.Context(), snapshot.Base, snapshot.Current)
	must(b, err)
	_, err = b.l.Promote(b.Context(), c, snapshot.PromoteOptions{})
	must(b, err)
}

// TestCrashWhilePromoting: the workspace is the old or the new one, and the feature goes with it.
func TestCrashWhilePromoting(t *testing.T) {
	b := crashBox(t)
	b.promote()
	b.mount()
	now, seen := b.now(), map[string]bool{}
	for n := 0; ; n++ {
		b := crashBox(t)
		shown := b.now()
		if !b.dieInPromote(n) {
			break
		}
		b.reopen()
		ws, s := read(t, b.ws), b.l.book.State()
		seen[ws] = true
		switch ws {
		case "base=base": // as it was
			if s.Head != "two" || b.now() != shown {
				t.Errorf("after step %d: the workspace is the old one, the feature is on %q and shows %q", n, s.Head, b.now())
			}
			b.promote()
			b.mount()
		case "a=3 base=base":
			if s.Head != "" || b.now() != now {
				t.Errorf("after step %d: the workspace is the new one, the feature is on %q and shows %q", n, s.Head, b.now())
			}
		default:
			t.Fatalf("after step %d the workspace holds %q", n, ws)
		}
		collect(b)
		if left := leftovers(b); left != "" {
			t.Errorf("after step %d: left over: %s", n, left)
		}
		b.write("b", "next")
		b.seal("next")
		b.promote()
		if got := read(t, b.ws); got != "a=3 b=next base=base" {
			t.Errorf("after step %d, the next promote made %q", n, got)
		}
	}
	if len(seen) != 2 {
		t.Errorf("crashes led to %v", seen)
	}
}

func collect(b *box) {
	b.Helper()
	_, err := b.l.Collect(context.Background(), nil)
	must(b, err)
}

// leftovers lists what nothing refers to.
func leftovers(b *box) string {
	refs, err := b.l.Refs()
	must(b, err)
	var left []string
	for _, pattern := range []string{"*.tmp", "checkpoints/*.tmp", "layers/*/*.tmp", "layers/*"} {
		found, err := filepath.Glob(filepath.Join(b.at(b.feature), pattern))
		must(b, err)
		for _, path := range found {
			if !slices.ContainsFunc(refs, func(r snapshot.LayerRef) bool { return path == b.l.book.Layer(r.Layer) }) &&
				path != b.l.book.Layer(b.l.spare) {
				left = append(left, path)
			}
		}
	}
	return strings.Join(left, " ")
}

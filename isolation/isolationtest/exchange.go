//go:build linux

package isolationtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation"
)

var exchangeTests = []test{
	{"hold", (*suite).testHold, nil},
	{"processes", (*suite).testProcesses, nil},
	{"exchange", (*suite).testExchange, nil},
	{"holders", (*suite).testHolders, nil},
	{"mapped", (*suite).testMapped, nil},
	{"a pair is never mixed", (*suite).testPair, nil},
	{"mounts below are kept", (*suite).testMountsBelow, nil},
	{"exec beside exchange", (*suite).testExecBesideExchange, nil},
	{"frozen exchange and close", (*suite).testFrozenExchange, nil},
	{"deep stack", (*suite).testDeepStack, nil},
	{"stacks without overlay", (*suite).testPlainStacks, nil},
	{"bad stacks", (*suite).testBadStacks, nil},
}

const workspace, home = "/workspace", "/home/user"

// sealed gives the stacks that come after the mounted ones when a checkpoint is made: the uppers become layers.
func (b *box) sealed(t *testing.T) []isolation.Stack {
	t.Helper()
	var next []isolation.Stack
	for _, s := range b.stacks {
		next = append(next, b.fresh(t, s.Target, append([]isolation.Layer{{Path: s.Upper}}, s.Lower...)))
	}
	return next
}

// fresh gives a stack of layers under a new upper.
func (b *box) fresh(t *testing.T, target string, lower []isolation.Layer) isolation.Stack {
	t.Helper()
	s := isolation.Stack{Target: target, Lower: lower, Upper: b.layer(t), Work: b.layer(t)}
	return s
}

// layer makes an empty directory that belongs to the task.
func (b *box) layer(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(b.dir, "layer")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	uid, gid := b.ids.Host(1000, 1000)
	must(t, os.Chown(dir, int(uid), int(gid)))
	return dir
}

// exchange exchanges until no passing use of a mount prevents it.
func (b *box) exchange(t *testing.T, stacks ...isolation.Stack) {
	t.Helper()
	begin := time.Now()
	for {
		err := b.Exchange(t.Context(), stacks...)
		if err == nil {
			b.stacks = stacks
			return
		}
		if !errors.Is(err, isolation.ErrHeld) || time.Since(begin) > patience {
			t.Fatal(err)
		}
	}
}

// testHold: what is held makes no progress and nobody is started; Freeze and Hold do not undo each other.
func (s *suite) testHold(t *testing.T) {
	b := s.start(t)
	b.ready(t, b.process(t, "pause"))
	release, err := b.Hold(t.Context())
	must(t, err)
	second, err := b.Hold(t.Context())
	must(t, err)
	p := b.process(t, "exit", "0")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.Exec(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec while held: %v", err)
	}
	started := make(chan error, 1)
	go func() {
		x, err := b.Exec(t.Context(), p)
		if err == nil {
			_, err = x.Wait(t.Context())
		}
		started <- err
	}()
	must(t, b.Freeze(t.Context()))
	must(t, b.Thaw(t.Context()))
	must(t, release())
	must(t, release()) // again is nothing
	select {
	case err := <-started:
		t.Fatal("Exec went on while somebody holds:", err)
	case <-time.After(20 * time.Millisecond):
	}
	must(t, second())
	must(t, <-started)
	must(t, b.Freeze(t.Context()))
	release, err = b.Hold(t.Context())
	must(t, err)
	must(t, release())
	if _, err := b.Exec(t.Context(), p); err == nil || errors.Is(err, os.ErrClosed) {
		t.Errorf("Exec while frozen: %v", err)
	}
	must(t, b.Thaw(t.Context()))
	b.help(t, "exit", "0")
	release, err = b.Hold(t.Context())
	must(t, err)
	must(t, b.Close(t.Context()))
	must(t, release())
	if _, err := b.Hold(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Hold after Close: %v", err)
	}
}

// testExchange: what was written stays, and goes to the layer that was on top then.
func (s *suite) testExchange(t *testing.T) {
	b := s.start(t)
	writeFile(t, filepath.Join(b.workspace, "old"), "lowest")
	for i := range 4 {
		b.help(t, "write", fmt.Sprintf("%s/f%d", workspace, i), fmt.Sprint(i))
		b.help(t, "write", home+"/last", fmt.Sprint(i))
		before := b.stacks
		b.exchange(t, b.sealed(t)...)
		for file, want := range map[string]string{
			fmt.Sprintf("%s/f%d", before[0].Upper, i): fmt.Sprint(i), before[1].Upper + "/last": fmt.Sprint(i),
		} {
			if got, err := os.ReadFile(file); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", file, got, err)
			}
		}
		for file, want := range map[string]string{"/workspace/old": "lowest", "/workspace/f0": "0", home + "/last": fmt.Sprint(i)} {
			if got := b.help(t, "read", file); got != want {
				t.Errorf("%s: %q, want %q", file, got, want)
			}
		}
	}
	// Back to the beginning, as a rollback does.
	b.exchange(t, b.fresh(t, workspace, b.stacks[0].Lower[4:]))
	if r := b.run(t, b.process(t, "read", "/workspace/f0")); r.Code == 0 {
		t.Error("the file is still there")
	}
}

// generation exchanges both stacks for ones that show a number, except for the first.
func (b *box) generation(t *testing.T, n int) {
	t.Helper()
	var next []isolation.Stack
	for _, s := range b.stacks {
		layer := b.layer(t)
		writeFile(t, filepath.Join(layer, "generation"), fmt.Sprint(n))
		next = append(next, b.fresh(t, s.Target, []isolation.Layer{{Path: layer}, s.Lower[len(s.Lower)-1]}))
	}
	b.exchange(t, next...)
}

// testHolders: every way to hold a stack is named, nothing is exchanged, and the end of the holder lets it go on.
func (s *suite) testHolders(t *testing.T) {
	b := s.start(t)
	b.help(t, "write", "/workspace/file", "x")
	b.help(t, "write", home+"/file", "x")
	for _, c := range []struct{ way, path, target, what string }{
		{"cwd", workspace, workspace, isolation.HeldCwd}, {"directory", workspace, workspace, isolation.HeldFD},
		{"read", "/workspace/file", workspace, isolation.HeldFD}, {"write", home + "/file", home, isolation.HeldFD},
		{"map", "/workspace/file", workspace, isolation.HeldMap}, {"store", home + "/file", home, isolation.HeldMap},
		{"path", "/workspace/file", workspace, isolation.HeldFD}, {"child", home, home, isolation.HeldCwd},
		{"flight", "/workspace/file", workspace, isolation.HeldReference}, {"flight", home, home, isolation.HeldReference},
		{"socket", home, home, isolation.HeldReference},
	} {
		t.Run(c.way+" "+c.target, func(t *testing.T) {
			p := b.process(t, "hold", c.way, c.path)
			p.Cwd = "/"
			x, _ := b.ready(t, p)
			next := b.sealed(t)
			err := b.Exchange(t.Context(), next...)
			var held *isolation.HeldError
			if !errors.As(err, &held) || len(held.Holders) == 0 {
				t.Fatalf("%v", err)
			}
			h := held.Holders[0]
			release, err := b.Hold(t.Context())
			must(t, err)
			if asked, err := b.Holders(t.Context(), workspace, home); err != nil || !slices.Equal(asked, held.Holders) {
				t.Errorf("Holders %+v, %v; Exchange %+v", asked, err, held.Holders)
			}
			must(t, release())
			if h.What != c.what || h.Target != c.target || c.what != isolation.HeldReference && c.way != "child" && h.PID != x.PID() ||
				c.what != isolation.HeldReference && (h.Command == "" || !strings.HasPrefix(h.Path, c.path)) {
				t.Errorf("holders %+v", held.Holders)
			}
			if got := b.help(t, "read", c.target+"/file"); got != "x" {
				t.Errorf("after a refusal: %q", got)
			}
			must(t, x.Signal(syscall.SIGKILL))
			wait(t, x)
			if c.way == "child" {
				must(t, syscall.Kill(h.PID, syscall.SIGKILL))
			}
			b.exchange(t, next...)
		})
	}
}

// testMapped: what is mapped shared is named, also when nothing is stored just now.
func (s *suite) testMapped(t *testing.T) {
	b := s.start(t)
	const odd = "/workspace/a b\\012c"
	b.help(t, "write", odd, "x")
	b.help(t, "write", home+"/file", "x")
	for _, path := range []string{odd, home + "/file"} {
		p := b.process(t, "hold", "store", path)
		p.Cwd = "/"
		b.ready(t, p)
	}
	p := b.process(t, "hold", "map", home+"/file")
	p.Cwd = "/"
	b.ready(t, p)
	got, err := b.Mapped(t.Context(), workspace, home)
	must(t, err)
	if !slices.Contains(got, odd) || !slices.Contains(got, home+"/file") || len(got) > 3 {
		t.Errorf("%q", got)
	}
	if got, err := b.Mapped(t.Context(), home); err != nil || !slices.Equal(got, []string{home + "/file"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// testPair: who holds nothing lives on; somebody who looks all the time never sees the one stack without the other, nor none.
func (s *suite) testPair(t *testing.T) {
	b := s.start(t)
	b.generation(t, 0)
	p := b.process(t, "pair")
	p.Cwd = "/"
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	p.Stdin = r
	stderr := collect(t)
	p.Stderr = stderr.w
	x, out := b.ready(t, p)
	r.Close()
	stderr.w.Close()
	n := 1000
	if !s.cgroups() { // everybody is stopped and found one by one
		n = 300
	}
	for i := range repeat(n) {
		b.generation(t, i+1)
	}
	w.Close()
	if st := wait(t, x); st.Code != 0 {
		t.Errorf("%+v: %s", st, <-stderr.data)
	}
	t.Logf("%s looks", strings.TrimSpace(string(<-out.data)))
}

// testMountsBelow: a cache below HOME, a file over the workspace, and a mount on the cache stay where they are.
func (s *suite) testMountsBelow(t *testing.T) {
	b := s.start(t, func(o *isolation.BuildOptions, b *box) {
		mkdir(t, filepath.Join(o.Stacks[1].Lower[0].Path, "go/mod"))
		mkdir(t, filepath.Join(b.workspace, "vendor"))
		writeFile(t, filepath.Join(b.workspace, "config"), "the workspace's own")
		mkdir(t, filepath.Join(b.dir, "cache/sub"))
		writeFile(t, filepath.Join(b.dir, "cache/module"), "cached")
		writeFile(t, filepath.Join(b.dir, "config"), "the host's")
		o.Mounts = append(o.Mounts,
			isolation.Bind{Source: filepath.Join(b.dir, "cache"), Target: home + "/go/mod"},
			isolation.Bind{Source: filepath.Join(b.dir, "cache"), Target: home + "/go/mod/sub"},
			isolation.Bind{Source: filepath.Join(b.dir, "cache"), Target: workspace + "/vendor"},
			isolation.Bind{Source: filepath.Join(b.dir, "config"), Target: workspace + "/config"})
	})
	check := func() {
		t.Helper()
		for path, want := range map[string]string{
			home + "/go/mod/module": "cached", home + "/go/mod/sub/module": "cached", workspace + "/vendor/module": "cached", workspace + "/config": "the host's",
		} {
			if got := b.help(t, "read", path); got != want {
				t.Errorf("%s: %q", path, got)
			}
		}
		if r := b.run(t, b.process(t, "write", home+"/go/mod/new", "x")); r.Code == 0 {
			t.Error("the cache was written")
		}
	}
	check()
	for range 3 {
		b.exchange(t, b.sealed(t)...)
		check()
	}
	// Who uses the cache does not hold HOME, who holds HOME is told, and the cache is where it was.
	p := b.process(t, "hold", "read", home+"/go/mod/module")
	p.Cwd = "/"
	b.ready(t, p)
	b.exchange(t, b.sealed(t)...)
	check()
	p = b.process(t, "hold", "flight", home)
	p.Cwd = "/"
	b.ready(t, p)
	if err := b.Exchange(t.Context(), b.sealed(t)...); !errors.Is(err, isolation.ErrHeld) {
		t.Errorf("%v", err)
	}
	check()
	release, err := b.Hold(t.Context())
	must(t, err)
	if held, err := b.Holders(t.Context(), workspace, home); err != nil || len(held) != 1 || held[0].Target != home {
		t.Errorf("%v, %v", held, err)
	}
	must(t, release())
	check()
}

// testExecBesideExchange: an Exec comes before or after.
func (s *suite) testExecBesideExchange(t *testing.T) {
	b := s.start(t)
	var wg sync.WaitGroup
	p := b.process(t, "exit", "0")
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		for i := range repeat(500) {
			x, err := b.Exec(t.Context(), p)
			if err != nil {
				t.Errorf("exec %d: %v", i, err)
				return
			}
			if st := wait(t, x); st.Code != 0 || st.Signal != 0 {
				t.Errorf("exec %d: %+v", i, st)
			}
		}
	})
	n, refused := 0, 0
	for ended := false; !ended; n++ {
		select {
		case <-done:
			ended = true
		default:
		}
		next := b.fresh(t, workspace, b.stacks[0].Lower)
		err := b.Exchange(t.Context(), next)
		if errors.Is(err, isolation.ErrHeld) { // by what was just executed
			refused++
		} else if err != nil {
			t.Error(err)
			break
		}
	}
	wg.Wait()
	t.Logf("%d exchanges, %d refused", n, refused)
}

// testFrozenExchange: the user's pause outlives an exchange, and a frozen sandbox can be closed after it.
func (s *suite) testFrozenExchange(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "pause")
	p.Cwd = "/"
	x, _ := b.ready(t, p)
	must(t, b.Freeze(t.Context()))
	b.exchange(t, b.sealed(t)...)
	if _, err := b.Exec(t.Context(), b.process(t, "exit", "0")); err == nil {
		t.Error("the pause is over")
	}
	must(t, b.Close(t.Context()))
	if st := wait(t, x); st.Signal != syscall.SIGKILL {
		t.Errorf("%+v", st)
	}
	if err := b.Exchange(t.Context(), b.stacks...); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Exchange after Close: %v", err)
	}
}

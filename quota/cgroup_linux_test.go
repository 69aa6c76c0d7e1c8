package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testenv"
)

func probed(t testing.TB) *Cgroups {
	t.Helper()
	c, err := Probe()
	testenv.Need(t, "cgroups", err)
	t.Logf("mode %s at %s", c.Mode(), c.Root())
	return c
}

// unique is an id that no other test process uses.
func unique(t testing.TB) string {
	name := strings.NewReplacer("/", "-", ".", "-", "#", "-").Replace(t.Name())
	return fmt.Sprintf("test-%d-%s", os.Getpid(), name)
}

func smallLimits() Limits {
	l := validLimits()
	l.Memory, l.Pids = 64*MiB, 64
	return l
}

// newGroup makes a group that is gone after the test, with everything in it.
func newGroup(t testing.TB, c *Cgroups, l Limits) *Group {
	t.Helper()
	g, err := c.New(unique(t), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := errors.Join(g.Kill(ctx), g.Remove(ctx), c.Cleanup()); err != nil {
			t.Error(err)
		}
		for _, tr := range c.trees {
			if _, err := os.Stat(tr.dir(g.Path())); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left over: %v", tr.dir(g.Path()), err)
			}
		}
	})
	return g
}

// bounded is a context for what must not take long.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func newLeaf(t testing.TB, g *Group, name string, l *Limits) *Leaf {
	t.Helper()
	leaf, err := g.Leaf(name, l)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func usage(t testing.TB, of interface{ Usage() (Usage, error) }) Usage {
	t.Helper()
	u, err := of.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func readControl(t *testing.T, c *Cgroups, controller, node, file string) string {
	t.Helper()
	for _, tr := range c.trees {
		if slices.Contains(tr.controllers, controller) {
			data, err := os.ReadFile(filepath.Join(tr.dir(node), file))
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("no tree with %s", controller)
	return ""
}

func TestLimitsArePresent(t *testing.T) {
	c := probed(t)
	l := smallLimits()
	l.CPUs = 1500
	g := newGroup(t, c, l)
	own := l
	own.Memory, own.Pids, own.CPUs = 32*MiB, 16, 250
	newLeaf(t, g, "init", nil)
	newLeaf(t, g, "step-1", &own)
	type control struct{ controller, file string }
	memory, pids, cpu := control{"memory", "memory.max"}, control{"pids", "pids.max"}, control{"cpu", "cpu.max"}
	none := [3]string{"max", "max", "max 100000"}
	quota := func(us int) string { return fmt.Sprintf("%d 100000", us) }
	if c.Mode() != ModeV2 {
		memory.file, cpu.file = "memory.limit_in_bytes", "cpu.cfs_quota_us"
		none = [3]string{"9223372036854771712", "max", "-1"}
		quota = strconv.Itoa
	}
	for node, want := range map[string][3]string{
		g.Path():             {"67108864", "64", quota(150_000)},
		g.Path() + "/init":   none,
		g.Path() + "/step-1": {"33554432", "16", quota(25_000)},
	} {
		for i, f := range []control{memory, pids, cpu} {
			if got := readControl(t, c, f.controller, node, f.file); got != want[i] {
				t.Errorf("%s/%s = %s, want %s", node, f.file, got, want[i])
			}
		}
	}
	checkSwapAndGroupKill(t, c, g)
}

func checkSwapAndGroupKill(t *testing.T, c *Cgroups, g *Group) {
	t.Helper()
	if c.Mode() != ModeV2 {
		if c.ops.(*v1).memsw {
			if got := readControl(t, c, "memory", g.Path(), "memory.memsw.limit_in_bytes"); got != "67108864" {
				t.Errorf("memory and swap = %s", got)
			}
		}
		return
	}
	if _, err := os.Stat(c.trees[0].dir(g.Path()) + "/memory.swap.max"); err == nil {
		if got := readControl(t, c, "memory", g.Path(), "memory.swap.max"); got != "0" {
			t.Errorf("memory.swap.max = %s", got)
		}
	}
	for node, want := range map[string]string{g.Path(): "0", g.Path() + "/init": "0", g.Path() + "/step-1": "1"} {
		if got := readControl(t, c, "memory", node, "memory.oom.group"); got != want {
			t.Errorf("%s/memory.oom.group = %s, want %s", node, got, want)
		}
	}
}

func TestZeroIsRefused(t *testing.T) {
	c := probed(t)
	l := smallLimits()
	l.Pids = 0
	var e *LimitError
	if _, err := c.New(unique(t), l); !errors.As(err, &e) {
		t.Errorf("New with pids 0: %v", err)
	}
	g := newGroup(t, c, smallLimits())
	if _, err := g.Leaf("step-1", &l); !errors.As(err, &e) {
		t.Errorf("Leaf with pids 0: %v", err)
	}
	if _, err := g.Leaf("../step-1", nil); err == nil {
		t.Error("a leaf may be anywhere")
	}
}

func TestEntryAndUsage(t *testing.T) {
	c := probed(t)
	g := newGroup(t, c, smallLimits())
	leaf := newLeaf(t, g, "step-1", nil)
	s := sleeper(t, leaf)
	for _, procs := range []func() ([]int, error){leaf.Procs, g.Procs} {
		if pids, err := procs(); err != nil || !slices.Equal(pids, []int{s.Process.Pid}) {
			t.Errorf("processes %v, %v; want %d", pids, err, s.Process.Pid)
		}
	}
	checkMembership(t, c, leaf, s.Process.Pid)
	if err := inLeaf(t, leaf, "spin", "100ms").Run(); err != nil {
		t.Fatal(err)
	}
	for _, u := range []Usage{usage(t, leaf), usage(t, g)} {
		if u.CPU < 50*time.Millisecond || u.CPU > 10*time.Second {
			t.Errorf("CPU %v", u.CPU)
		}
		if u.MemoryCurrent < 100*KiB || u.MemoryPeak != unknown && u.MemoryPeak < u.MemoryCurrent/2 {
			t.Errorf("memory %d, peak %d", u.MemoryCurrent, u.MemoryPeak)
		}
		if u.PidsCurrent < 1 || u.PidsPeak != unknown && u.PidsPeak < u.PidsCurrent {
			t.Errorf("pids %d, peak %d", u.PidsCurrent, u.PidsPeak)
		}
		if u.OOMKills != 0 || u.PidsRefused != 0 {
			t.Errorf("%d OOM kills, %d refused forks", u.OOMKills, u.PidsRefused)
		}
	}
}

// checkMembership reads the kernel's own view.
func checkMembership(t *testing.T, c *Cgroups, leaf *Leaf, pid int) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	n := strings.Count(string(data), "/"+leaf.Path()+"\n")
	if n != len(c.trees) {
		t.Errorf("the process is in %d of %d hierarchies:\n%s", n, len(c.trees), data)
	}
}

func TestLoadListAfterCrash(t *testing.T) {
	c := probed(t)
	g := newGroup(t, c, smallLimits())
	sleeper(t, newLeaf(t, g, "init", nil))
	if _, err := c.New(g.ID(), smallLimits()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("New of a group that exists: %v", err)
	}
	if _, err := g.Leaf("init", nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Leaf that exists: %v", err)
	}
	again, err := Probe() // as another process would
	if err != nil {
		t.Fatal(err)
	}
	if ids, err := again.List(); err != nil || !slices.Contains(ids, g.ID()) {
		t.Errorf("List = %v, %v", ids, err)
	}
	loaded, err := again.Load(g.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Freeze(bounded(t)); err != nil { // the dead supervisor may have frozen it
		t.Fatal(err)
	}
	if err := errors.Join(loaded.Kill(bounded(t)), loaded.Remove(t.Context()), loaded.Remove(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Load(g.ID()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of what was removed: %v", err)
	}
	if ids, err := again.List(); err != nil || slices.Contains(ids, g.ID()) {
		t.Errorf("List = %v, %v", ids, err)
	}
	if _, err := g.Usage(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Usage of what was removed: %v", err)
	}
}

// TestIncompleteGroup is a supervisor that died between two mkdirs.
func TestIncompleteGroup(t *testing.T) {
	c := probed(t)
	for i, tr := range c.trees {
		id := unique(t) + "-" + strconv.Itoa(i)
		if err := os.MkdirAll(tr.dir(parentName+"/"+id+"/init"), 0o755); err != nil {
			t.Fatal(err)
		}
		if ids, err := c.List(); err != nil || !slices.Contains(ids, id) {
			t.Errorf("List = %v, %v", ids, err)
		}
		g, err := c.Load(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(g.Kill(bounded(t)), g.Remove(t.Context()), c.Cleanup()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(tr.dir(g.Path())); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left over: %v", err)
		}
	}
}

func TestRemoveInUse(t *testing.T) {
	g := newGroup(t, probed(t), smallLimits())
	pid := sleeper(t, newLeaf(t, g, "step-1", nil)).Process.Pid
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), strconv.Itoa(pid)) {
		t.Errorf("Remove of a group with process %d: %v", pid, err)
	}
	// A process that is just ending is waited for.
	done := make(chan error)
	go func() { done <- g.Remove(bounded(t)) }()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestConcurrent makes and removes groups and their shared parent from many sides at once.
func TestConcurrent(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		c := probed(t)
		wg.Go(func() {
			for j := range 20 {
				g, err := c.New(fmt.Sprintf("%s-%d-%d", unique(t), i, j), smallLimits())
				if err != nil {
					t.Error(err)
					return
				}
				_, err = g.Leaf("init", nil)
				if err := errors.Join(err, g.Remove(t.Context()), c.Cleanup()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestWatchEnds looks for what a watch leaves behind when its context ends.
func TestWatchEnds(t *testing.T) {
	g := newGroup(t, probed(t), smallLimits())
	leaf := newLeaf(t, g, "step-1", nil)
	before := openFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := leaf.WatchOOM(ctx); err != nil {
		t.Fatal(err)
	}
	if openFiles(t) != before+1 {
		t.Errorf("%d more files are open during a watch", openFiles(t)-before)
	}
	cancel()
	for end := time.Now().Add(10 * time.Second); openFiles(t) != before; runtimeYield() {
		if time.Now().After(end) {
			t.Fatalf("%d files are left open", openFiles(t)-before)
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

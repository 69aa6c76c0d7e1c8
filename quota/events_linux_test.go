package quota

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestOOM is the memory bomb whose shell returns 0.
func TestOOM(t *testing.T) {
	c := probed(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, own := range map[string]*Limits{"group limit": nil, "own limit": ptr(smallLimits())} {
		t.Run(name, func(t *testing.T) {
			l := smallLimits()
			if own != nil {
				l.Memory = GiB
			}
			g := newGroup(t, c, l)
			other, leaf := newLeaf(t, g, "step-1", nil), newLeaf(t, g, "step-2", own)
			quiet, err := other.WatchOOM(ctx)
			if err != nil {
				t.Fatal(err)
			}
			kills, err := leaf.WatchOOM(ctx)
			if err != nil {
				t.Fatal(err)
			}
			err = inLeaf(t, leaf, "shell", "hog", "512").Run()
			if groupKill := own != nil && c.Mode() == ModeV2; (err != nil) != groupKill {
				t.Errorf("the shell ended with %v, group kill %v", err, groupKill)
			}
			select {
			case <-kills:
			case <-time.After(10 * time.Second):
				t.Error("no OOM event")
			}
			u := usage(t, leaf)
			if u.OOMKills < 1 {
				t.Errorf("%d OOM kills", u.OOMKills)
			}
			if u.MemoryPeak != unknown && (u.MemoryPeak < 48*MiB || u.MemoryPeak > 65*MiB) {
				t.Errorf("peak %d bytes of 64 MiB", u.MemoryPeak)
			}
			if n := usage(t, g).OOMKills; n < 1 {
				t.Errorf("the group counts %d OOM kills", n)
			}
			if n := usage(t, other).OOMKills; n != 0 {
				t.Errorf("another leaf counts %d OOM kills", n)
			}
			select {
			case <-quiet:
				t.Error("another leaf got the OOM event")
			default:
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestPidsRefused(t *testing.T) {
	c := probed(t)
	for name, own := range map[string]*Limits{"group limit": nil, "own limit": ptr(smallLimits())} {
		t.Run(name, func(t *testing.T) {
			l := smallLimits()
			l.Memory = 512 * MiB
			if own != nil {
				own.Memory, l.Pids = l.Memory, 1024
			}
			g := newGroup(t, c, l)
			before, leaf := newLeaf(t, g, "step-1", nil), newLeaf(t, g, "step-2", own)
			if out, err := inLeaf(t, leaf, "forks", "64").CombinedOutput(); err != nil || !strings.Contains(string(out), "refused") {
				t.Logf("the helper may have died of the limit: %v, %s", err, out)
			}
			u := usage(t, leaf)
			if u.PidsRefused < 1 {
				t.Errorf("%d refused forks", u.PidsRefused)
			}
			// The kernel counts a fork before it refuses it, and several may be under way.
			if u.PidsPeak != unknown && (u.PidsPeak < 50 || u.PidsPeak > 80) {
				t.Errorf("peak of %d pids out of 64", u.PidsPeak)
			}
			if n := usage(t, g).PidsRefused; n < 1 {
				t.Errorf("the group counts %d refused forks", n)
			}
			if err := leaf.Kill(bounded(t)); err != nil {
				t.Fatal(err)
			}
			later := newLeaf(t, g, "step-3", nil)
			if n := usage(t, later).PidsRefused; n != 0 {
				t.Errorf("a later leaf counts %d refused forks", n)
			}
			if n := usage(t, before).PidsRefused; own != nil && n != 0 {
				t.Errorf("another leaf counts %d refused forks of the leaf's own limit", n)
			}
		})
	}
}

// oldKernel is version 2 without cgroup.kill, which came with Linux 5.14.
type oldKernel struct{ *v2 }

func (o oldKernel) kill(node string, procs func() ([]int, error)) error {
	return o.killEach(node, procs)
}

func TestKillForkBomb(t *testing.T) {
	c := probed(t)
	t.Run("as probed", func(t *testing.T) { testKillForkBomb(t, c) })
	if o, ok := c.ops.(*v2); ok {
		old := *c
		old.ops = oldKernel{o}
		t.Run("without cgroup.kill", func(t *testing.T) { testKillForkBomb(t, &old) })
	}
}

func testKillForkBomb(t *testing.T, c *Cgroups) {
	l := smallLimits()
	l.Memory, l.Pids = 512*MiB, 100
	g := newGroup(t, c, l)
	leaf := newLeaf(t, g, "step-1", nil)
	bomb := inLeaf(t, leaf, "bomb")
	if err := bomb.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); usage(t, leaf).PidsRefused == 0; {
		if time.Now().After(end) {
			t.Fatal("the bomb does not go off")
		}
		runtimeYield()
	}
	ctx := bounded(t)
	if err := leaf.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	_ = bomb.Wait()
	if pids, err := g.Procs(); err != nil || len(pids) != 0 {
		t.Errorf("left over: %v, %v", pids, err)
	}
}

// runtimeYield gives the processor away while a test waits for a counter of the kernel, which has no event.
func runtimeYield() { time.Sleep(time.Millisecond) }

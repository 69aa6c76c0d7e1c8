package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func state(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	rest := data[strings.LastIndexByte(string(data), ')')+2:]
	return string(rest[:1])
}

func TestFreezeThawKill(t *testing.T) {
	c := probed(t)
	g := newGroup(t, c, smallLimits())
	init, step := newLeaf(t, g, "init", nil), newLeaf(t, g, "step-1", nil)
	sleepers := []int{sleeper(t, init).Process.Pid, sleeper(t, step).Process.Pid}
	spin := inLeaf(t, step, "spin", "1h")
	if err := spin.Start(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(sleepers)
	ctx := bounded(t)
	if err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	before := usage(t, g).CPU
	time.Sleep(50 * time.Millisecond) // it is about nothing happening in a time
	if after := usage(t, g).CPU; after != before {
		t.Errorf("a frozen group used %v of CPU", after-before)
	}
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); usage(t, g).CPU == before; runtimeYield() {
		if time.Now().After(end) {
			t.Fatal("a thawed group does not run")
		}
	}
	if err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	// Frozen tasks of version 1 ignore SIGKILL; Kill must not.
	if err := g.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Procs(); err != nil || len(pids) != 0 {
		t.Errorf("left over: %v, %v", pids, err)
	}
	for _, pid := range sleepers {
		if s := state(t, pid); s != "Z" {
			t.Errorf("process %d is in state %s after Kill", pid, s)
		}
	}
}

func TestFreezeGivesUp(t *testing.T) {
	g := newGroup(t, probed(t), smallLimits())
	pid := sleeper(t, newLeaf(t, g, "step-1", nil)).Process.Pid
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("not today")
	cancel(reason)
	// It may have been frozen at once; if not, the cause is told and everything goes on.
	err := g.Freeze(ctx)
	if err != nil && !errors.Is(err, reason) {
		t.Errorf("Freeze says %v", err)
	}
	if err == nil {
		err = g.Thaw(bounded(t))
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if fd, ferr := unix.PidfdOpen(pid, 0); ferr == nil && !readable(fd, 10*time.Second) {
		t.Errorf("the process is still frozen; Freeze and Thaw said %v", err)
	}
}

func TestKillLeafOfFrozenGroup(t *testing.T) {
	c := probed(t)
	g := newGroup(t, c, smallLimits())
	leaf := newLeaf(t, g, "step-1", nil)
	pid := sleeper(t, leaf).Process.Pid
	if err := g.Freeze(bounded(t)); err != nil {
		t.Fatal(err)
	}
	ctx := bounded(t)
	if err := leaf.Kill(ctx); (err != nil) != (c.Mode() != ModeV2) {
		t.Errorf("Kill says %v", err)
	}
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil && !readable(fd, 10*time.Second) {
		t.Error("the process has not ended")
	}
}

package native

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// BenchmarkStart measures a whole sandbox: cgroups made, started, one command run, closed and clean. It reports the
// points in between.
func BenchmarkStart(b *testing.B) {
	e := testEngine(b)
	s := testSpec(b)
	c, err := quota.Probe()
	testenv.Need(b, "cgroups", err)
	var running, seen, closed []time.Duration
	for b.Loop() {
		t := time.Now()
		g, step := benchGroup(b, c, s)
		box, err := e.Start(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		p := trueProcess()
		p.Cgroup = step
		x, err := box.Exec(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		running = append(running, time.Since(t))
		if _, err := x.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		seen = append(seen, time.Since(t))
		if err := errors.Join(box.Close(context.Background()), g.Remove(context.Background())); err != nil {
			b.Fatal(err)
		}
		closed = append(closed, time.Since(t))
	}
	report(b, "running", running)
	report(b, "seen", seen)
	report(b, "closed", closed)
}

func benchGroup(b *testing.B, c *quota.Cgroups, s *isolation.Spec) (*quota.Group, *quota.Leaf) {
	b.Helper()
	g, err := c.New(s.ID, testLimits)
	if err != nil {
		b.Fatal(err)
	}
	init, err := g.Leaf("init", nil)
	if err != nil {
		b.Fatal(err)
	}
	step, err := g.Leaf("step-1", &testLimits)
	if err != nil {
		b.Fatal(err)
	}
	s.Cgroup, s.Init, s.Weaker = g, init, nil
	return g, step
}

// BenchmarkExec measures a command in a sandbox that lives.
func BenchmarkExec(b *testing.B) {
	s := withCgroup(b, testSpec(b))
	step, err := s.Cgroup.Leaf("step-1", &testLimits)
	if err != nil {
		b.Fatal(err)
	}
	box := startBox(b, testEngine(b), s)
	var d []time.Duration
	for b.Loop() {
		t := time.Now()
		p := trueProcess()
		p.Cgroup = step
		x, err := box.Exec(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := x.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		d = append(d, time.Since(t))
	}
	report(b, "seen", d)
}

func trueProcess() *isolation.Process {
	return &isolation.Process{Args: []string{"/usr/bin/true"}, Env: []string{"PATH=/usr/bin"}, Cwd: "/workspace", UID: 1000, GID: 1000}
}

func report(b *testing.B, name string, d []time.Duration) {
	b.Helper()
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50", .5}, {"p95", .95}} {
		b.ReportMetric(float64(quantile(d, q.at).Microseconds()), name+"-"+q.name+"-µs")
	}
}

// BenchmarkExchange measures what a checkpoint asks of a sandbox: with nobody alive, and with a process that holds
// nothing and is frozen meanwhile. The new layers' directories are made before.
func BenchmarkExchange(b *testing.B) {
	for _, live := range []bool{false, true} {
		name := "idle"
		if live {
			name = "live"
		}
		b.Run(name, func(b *testing.B) {
			s := withCgroup(b, testSpec(b))
			box := startBox(b, testEngine(b), s)
			if live {
				step, err := s.Cgroup.Leaf("step-1", &testLimits)
				if err != nil {
					b.Fatal(err)
				}
				p := trueProcess()
				p.Args, p.Cwd, p.Cgroup = []string{"sleep", "1000"}, "/", step
				x, err := box.Exec(b.Context(), p)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = x.Signal(unix.SIGKILL) })
			}
			var d []time.Duration
			for b.Loop() {
				next := []isolation.Stack{rotated(b, s.Stacks[0]), rotated(b, s.Stacks[1])}
				t := time.Now()
				if err := box.Exchange(b.Context(), next...); err != nil {
					b.Fatal(err)
				}
				d = append(d, time.Since(t))
			}
			report(b, "exchange", d)
		})
	}
}

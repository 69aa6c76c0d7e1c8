package native

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation"
)

// BenchmarkStart measures a whole sandbox: made, one command run, closed. It reports the points in between.
func BenchmarkStart(b *testing.B) {
	e := testEngine(b)
	s := testSpec(b)
	var running, seen, closed []time.Duration
	for b.Loop() {
		b.StopTimer()
		prepare(b, s)
		b.StartTimer()
		t := time.Now()
		box, err := e.Start(b.Context(), s)
		if err != nil {
			b.Fatal(err)
		}
		x, err := box.Exec(b.Context(), trueProcess())
		if err != nil {
			b.Fatal(err)
		}
		running = append(running, time.Since(t))
		if _, err := x.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
		seen = append(seen, time.Since(t))
		if err := box.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		closed = append(closed, time.Since(t))
	}
	report(b, "running", running)
	report(b, "seen", seen)
	report(b, "closed", closed)
}

// BenchmarkExec measures a command in a sandbox that lives.
func BenchmarkExec(b *testing.B) {
	box := startBox(b, testEngine(b), testSpec(b))
	var d []time.Duration
	for b.Loop() {
		t := time.Now()
		x, err := box.Exec(b.Context(), trueProcess())
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

// prepare removes what a volatile overlay leaves, as snapshot does.
func prepare(b *testing.B, s *isolation.Spec) {
	b.Helper()
	for _, st := range s.Stacks {
		if err := os.RemoveAll(filepath.Join(st.Work, "work", "incompat")); err != nil {
			b.Fatal(err)
		}
	}
}

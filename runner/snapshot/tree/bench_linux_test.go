package tree

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fill writes files small files into directories of a hundred.
func fill(t testing.TB, dir string, files int, text string) {
	t.Helper()
	for i := range files {
		d := fmt.Sprintf("%s/d%02d", dir, i/100)
		if i%100 == 0 {
			must(t, os.MkdirAll(d, 0o755))
		}
		must(t, write(fmt.Sprintf("%s/f%d", d, i), fmt.Sprintf("line one of %d\n%s\n", i, text)))
	}
}

// BenchmarkDelta is the second pass of a copy, which is what a sandbox stands still for: 100 changed of 10,000.
func BenchmarkDelta(b *testing.B) {
	s := newStack(b)
	upper := s.grow()
	fill(b, upper, 10_000, "old")
	from := Root{Path: upper}
	wait(b, 20*time.Millisecond)
	m, _, err := CopyDelta(b.Context(), from, nil, mkdir(b, s, "whole"), DeltaOptions{})
	must(b, err)
	var first, pause time.Duration
	for n := 0; b.Loop(); n++ {
		wait(b, 20*time.Millisecond)
		for i := range 100 {
			must(b, write(fmt.Sprintf("%s/d%02d/f%d", upper, i, i*100), fmt.Sprint("new ", n)))
		}
		dst := mkdir(b, s, fmt.Sprint("delta", n))
		began := time.Now()
		now, delta, err := CopyDelta(b.Context(), from, m, dst, DeltaOptions{})
		must(b, err)
		middle := time.Now()
		now, delta, err = CopyDelta(b.Context(), from, now, dst, DeltaOptions{Resume: &delta})
		must(b, err)
		first, pause = first+middle.Sub(began), pause+time.Since(middle)
		m = now
	}
	b.ReportMetric(float64(first.Microseconds())/float64(b.N)/1000, "ms/first")
	b.ReportMetric(float64(pause.Microseconds())/float64(b.N)/1000, "ms/pause")
}

func mkdir(t testing.TB, s *stack, name string) string {
	t.Helper()
	must(t, os.Mkdir(s.dir+"/"+name, 0o700))
	return s.dir + "/" + name
}

// BenchmarkMerge makes one layer of 16 with 100 files each.
func BenchmarkMerge(b *testing.B) {
	s := newStack(b)
	for range 16 {
		fill(b, s.grow(), 100, "text")
	}
	below, err := OpenView(s.roots()[16:])
	must(b, err)
	defer below.Close()
	for n := 0; b.Loop(); n++ {
		must(b, Merge(b.Context(), s.roots()[:16], below, mkdir(b, s, fmt.Sprint("merged", n))))
	}
}

// BenchmarkCompareDeep compares the top of 26 layers with the workspace: 1,000 files in each, all in the same 10 directories.
func BenchmarkCompareDeep(b *testing.B) {
	s := newStack(b)
	fill(b, s.layers[0], 1000, "base")
	for n := range 26 {
		fill(b, s.grow(), 1000, fmt.Sprint(n))
	}
	unix.Sync()
	old, err := OpenView(s.roots()[26:])
	must(b, err)
	defer old.Close()
	v := s.view()
	for b.Loop() {
		c, err := Compare(b.Context(), old, v, CompareOptions{})
		must(b, err)
		if c.Modified != 1000 {
			b.Fatal(c.Modified)
		}
	}
}

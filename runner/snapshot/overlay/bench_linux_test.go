package overlay

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// p50 reports the median of what was measured. Means are other jobs' noise on a shared machine.
func p50(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(took[len(took)*95/100].Microseconds()), "p95-us")
	b.ReportMetric(0, "ns/op")
}

// fill writes files of 100 bytes, 100 in a directory.
func fill(t testing.TB, dir string, from, to int, content string) {
	t.Helper()
	for i := from; i < to; i++ {
		sub := filepath.Join(dir, fmt.Sprintf("d%d", i/100))
		if i%100 == 0 || i == from {
			must(t, os.MkdirAll(sub, 0o755))
		}
		must(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%d", i)), []byte(content), 0o644))
	}
}

var sizes = []struct{ files, changed int }{{10, 10}, {1000, 100}, {100_000, 1000}}

func BenchmarkSeal(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%d", size.files), func(b *testing.B) {
			x := newBox(b)
			fill(b, x.ws, 0, size.files, "base")
			x.create()
			var took []time.Duration
			for i := range b.N {
				if i < 3 {
					fill(b, x.mounts[0], 0, size.changed, fmt.Sprint(i))
				} else {
					x.write("x", fmt.Sprint(i))
				}
				start := time.Now()
				_, err := x.l.Seal(b.Context(), snapshot.SealOptions{ID: fmt.Sprintf("c%d", i)})
				took = append(took, time.Since(start))
				must(b, err)
				x.mount()
				must(b, x.l.spareLayer()) // as Sync does, after the answer
				_, err = x.l.Squash(b.Context(), false)
				must(b, err)
			}
			p50(b, took)
		})
	}
}

// prepared is a feature with two checkpoints of a tree.
func prepared(b *testing.B, files, changed int) *box {
	x := newBox(b)
	fill(b, x.ws, 0, files, "base")
	x.create()
	fill(b, x.mounts[0], 0, changed, "one")
	x.seal("one")
	fill(b, x.mounts[0], 0, changed, "two")
	x.seal("two")
	must(b, x.l.Sync(b.Context()))
	return x
}

func BenchmarkReset(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%d", size.files), func(b *testing.B) {
			x := prepared(b, size.files, size.changed)
			var took []time.Duration
			for i := range b.N {
				start := time.Now()
				_, err := x.l.Reset(b.Context(), snapshot.ResetOptions{To: []string{"one", "two"}[i%2]})
				took = append(took, time.Since(start))
				must(b, err)
				x.mount()
				x.write("x", "y")
			}
			p50(b, took)
		})
	}
}

func BenchmarkFork(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("%d", size.files), func(b *testing.B) {
			x := prepared(b, size.files, size.changed)
			var took []time.Duration
			for i := range b.N {
				o := x.options()
				o.Feature = fmt.Sprintf("g%d", i)
				o.Dir = x.at(o.Feature)
				start := time.Now()
				_, err := Fork(b.Context(), x.open(), "one", o)
				took = append(took, time.Since(start))
				must(b, err)
			}
			p50(b, took)
		})
	}
}

// BenchmarkWorkOnChain does what a build does, in turns on top of one checkpoint and of 500, and reports how much slower that
// is: warm, on a fresh mount, and cold, when the kernel has forgotten names, inodes and data as well.
func BenchmarkWorkOnChain(b *testing.B) {
	one, many := chain(b, 1), chain(b, 500)
	for _, mode := range []string{"warm", "mounted", "cold"} {
		b.Run(mode, func(b *testing.B) {
			var took [2][]time.Duration
			for i := range b.N + 1 {
				for n, x := range []*box{one, many} {
					ready(b, x, mode)
					start := time.Now()
					work(b, x, i)
					if i > 0 { // the first round makes it warm
						took[n] = append(took[n], time.Since(start))
					}
				}
			}
			slices.Sort(took[0])
			p50(b, took[1])
			b.ReportMetric(float64(took[1][b.N/2])/float64(took[0][b.N/2]), "times-one")
		})
	}
}

// chain is a feature on top of so many checkpoints, which made the same thousand files.
func chain(b *testing.B, checkpoints int) *box {
	x := newBox(b)
	fill(b, x.ws, 0, 1000, "base")
	x.create()
	for i := range checkpoints {
		fill(b, x.mounts[0], 1000+i*1000/checkpoints, 1000+(i+1)*1000/checkpoints, "more")
		x.seal(fmt.Sprintf("c%d", i))
		_, err := x.l.Squash(b.Context(), false)
		must(b, err)
	}
	x.reset(fmt.Sprintf("c%d", checkpoints-1))
	return x
}

func ready(b *testing.B, x *box, mode string) {
	if mode != "warm" {
		x.mount()
	}
	if mode == "cold" {
		unix.Sync() // what is dirty cannot be forgotten
		must(b, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	}
}

// work reads every file, looks twice for one that is not there, as compilers do for headers, and writes a tenth as many.
func work(b *testing.B, x *box, round int) {
	for i := range 2000 {
		path := x.path(fmt.Sprintf("d%d/f%d", i/100, i))
		for _, suffix := range []string{".h", ".o"} {
			if _, err := os.Lstat(path + suffix); err == nil {
				b.Fatal("it is there")
			}
		}
		if _, err := os.ReadFile(path); err != nil {
			b.Fatal(err)
		}
		if i%10 == 0 {
			must(b, os.WriteFile(x.path(fmt.Sprintf("out%d", i)), []byte(fmt.Sprint(round)), 0o644))
		}
	}
}

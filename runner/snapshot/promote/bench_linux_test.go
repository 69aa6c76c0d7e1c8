package promote

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// tenThousand is a workspace of that many small files in directories of a hundred, all of them changed by the feature.
func tenThousand(b *testing.B) *box {
	b.Helper()
	const files = 10_000
	fill := func(dir, text string) {
		for i := range files {
			d := fmt.Sprintf("%s/d%02d", dir, i/100)
			if i%100 == 0 {
				must(b, os.Mkdir(d, 0o755))
			}
			must(b, write(fmt.Sprintf("%s/f%d", d, i), fmt.Sprintf("line one of %d\nline two\n%s\nline four\n", i, text)))
		}
	}
	box := newBox(b, func(ws string) { fill(ws, "old") })
	fill(box.w.dir+"/upper", "new and longer")
	unix.Sync()
	return box
}

// countCPU reports the processor's time, which depends less than the clock's on what else the machine does.
func countCPU(b *testing.B) (stop func()) {
	used := func() int64 {
		var u unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/float64(b.N)/1e6, "cpu-ms/op") }
}

func BenchmarkChange10k(b *testing.B) {
	box := tenThousand(b)
	defer countCPU(b)()
	for b.Loop() {
		if c := box.change(); c.Modified != 10_000 {
			b.Fatal(c.Modified)
		}
	}
}

func benchmarkDiff(b *testing.B, o tree.DiffOptions) {
	box := tenThousand(b)
	c := box.change()
	defer countCPU(b)()
	for b.Loop() {
		must(b, box.w.diff(b.Context(), c, io.Discard, o))
	}
}

func BenchmarkStat10k(b *testing.B) { benchmarkDiff(b, tree.DiffOptions{Stat: true}) }
func BenchmarkText10k(b *testing.B) { benchmarkDiff(b, tree.DiffOptions{}) }

// BenchmarkPromote10k also measures what it is compared with: cp -a of the same files, and a sync of that filesystem.
func BenchmarkPromote10k(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		box := tenThousand(b)
		c := box.change()
		b.StartTimer()
		_, err := box.w.apply(b.Context(), c, nil)
		must(b, err)
	}
}

func BenchmarkCopy10k(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		box := tenThousand(b)
		to := b.TempDir()
		b.StartTimer()
		must(b, exec.Command("cp", "-a", box.w.dir+"/upper/.", to+"/copy").Run())
		must(b, exec.Command("sync", "-f", to).Run())
	}
}

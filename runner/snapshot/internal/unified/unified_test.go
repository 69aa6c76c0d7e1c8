package unified

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff"
)

// TestCount counts what the hunks of the whole texts hold.
func TestCount(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range r.IntN(8) {
			b.WriteString([]string{"a\n", "b\n", "aa\n", "\n"}[r.IntN(4)])
		}
		if r.IntN(3) == 0 {
			b.WriteString([]string{"a", "b", "aa"}[r.IntN(3)])
		}
		return b.String()
	}
	for range 50_000 {
		old, now := text(), text()
		added, deleted := 0, 0
		for _, e := range udiff.Lines(old, now) {
			deleted += lines(old[e.Start:e.End])
			added += lines(e.New)
		}
		var f File
		if f.Count(old, now); f.Added != added || f.Deleted != deleted {
			t.Fatalf("%q → %q: +%d -%d, want +%d -%d", old, now, f.Added, f.Deleted, added, deleted)
		}
	}
}

// TestManyLines: what costs a task nothing costs us little, and the numbers are those of the hunks.
func TestManyLines(t *testing.T) {
	for _, n := range []int{maxLines / 4, maxLines / 2, 4 << 20} {
		old, now := strings.Repeat("a\nb\n", n/2), strings.Repeat("b\nc\n", n/2)+"end"
		began := time.Now()
		var out bytes.Buffer
		var f File
		f.Count(old, now)
		if err := Hunks(&out, Text{"a", old}, Text{"b", now}, 3); err != nil {
			t.Fatal(err)
		}
		added, deleted := 0, 0
		for l := range strings.Lines(out.String()) {
			switch l[0] {
			case '+':
				added++
			case '-':
				deleted++
			}
		}
		if f.Added != added-1 || f.Deleted != deleted-1 { // but for the names
			t.Errorf("%d lines: counted +%d -%d, printed +%d -%d", n, f.Added, f.Deleted, added-1, deleted-1)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%d lines: took %v", n, took)
		}
	}
}

package unified

import (
	"math/rand/v2"
	"strings"
	"testing"

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

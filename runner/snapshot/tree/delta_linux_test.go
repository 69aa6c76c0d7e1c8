package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// deltas is an upper in use, and what was copied of it.
type deltas struct {
	*stack
	birth    []string // what the upper lies on
	upper    string
	manifest *Manifest
	layers   []string // newest first
	sealed   []sealed
}

// sealed is what the kernel showed when a copy was made, and the layers that are to show the same.
type sealed struct {
	want   map[string]string
	layers []string
}

// seal copies in two passes, between which the sandbox goes on.
func (d *deltas) seal(m string, between func()) {
	d.Helper()
	dst := fmt.Sprintf("%s/delta%d", d.dir, len(d.sealed))
	must(d, os.Mkdir(dst, 0o700))
	from := Root{Path: d.upper, UserXattr: d.userXattr}
	manifest, delta, err := CopyDelta(d.Context(), from, d.manifest, dst, DeltaOptions{UserXattr: d.userXattr})
	must(d, err)
	if between != nil {
		between()
		manifest, delta, err = CopyDelta(d.Context(), from, manifest, dst, DeltaOptions{UserXattr: d.userXattr, Resume: &delta})
		must(d, err)
	}
	want, err := kernel.List(m)
	must(d, err)
	if delta.Whole {
		d.layers = nil
	}
	d.layers = append([]string{dst}, d.layers...)
	d.manifest = manifest
	d.sealed = append(d.sealed, sealed{want, slices.Concat(d.layers, d.birth)})
}

// check compares every copy with what it was made of.
func (d *deltas) check(what string) {
	d.Helper()
	for i, c := range d.sealed {
		d.stack.layers = c.layers
		if x := kernel.Differences(c.want, d.kernelShows()); x != "" {
			d.Fatalf("%s: copy %d of %d (%d layers): shown (-), copied (+):\n%s", what, i, len(d.sealed), len(c.layers)-len(d.birth), x)
		}
	}
}

// live mounts a new upper on the stack, and copies it while f works in it.
func (s *stack) live(f func(d *deltas, m string)) *deltas {
	s.Helper()
	d := &deltas{stack: s, birth: s.layers}
	s.sandbox(func(m string) error {
		d.upper = s.layers[0]
		f(d, m)
		return nil
	})
	return d
}

// TestCopyDelta seals an upper again and again while random things are done in it, in one pass or in two.
func TestCopyDelta(t *testing.T) {
	for seed := range rounds(60) {
		r := rand.New(rand.NewPCG(8, uint64(seed)))
		s := newStack(t)
		s.history(r)
		d := s.live(func(d *deltas, m string) {
			for range 5 {
				for range r.IntN(15) {
					act(r, m)
				}
				var between func()
				if r.IntN(3) > 0 {
					between = func() {
						for range r.IntN(8) {
							act(r, m)
						}
					}
				}
				d.seal(m, between)
			}
		})
		d.check(fmt.Sprintf("seed %d", seed))
	}
}

// TestCopyDeltaIsSmall: what did not change is not copied, also in the second pass.
func TestCopyDeltaIsSmall(t *testing.T) {
	needOverlay(t)
	s := newStack(t)
	s.grow()
	d := s.live(func(d *deltas, m string) {
		for i := range 200 {
			must(t, steps(os.MkdirAll(fmt.Sprintf("%s/d%d", m, i%10), 0o755), write(fmt.Sprintf("%s/d%d/f%d", m, i%10, i), "same")))
		}
		d.seal(m, nil)
		// The clock that files are stamped with must go on, or what was just made looks racy.
		wait(t, 20*time.Millisecond)
		must(t, write(m+"/d1/f1", "other"))
		wait(t, 20*time.Millisecond)
		dst := d.dir + "/small"
		must(t, os.Mkdir(dst, 0o700))
		from := Root{Path: d.upper}
		manifest, delta, err := CopyDelta(t.Context(), from, d.manifest, dst, DeltaOptions{})
		must(t, err)
		if delta.Files != 1 || delta.Whole || !slices.Equal(delta.Names, []string{"d1", "d1/f1"}) {
			t.Errorf("first pass: %+v", delta)
		}
		wait(t, 20*time.Millisecond)
		must(t, steps(write(m+"/d2/f2", "more"), os.Remove(m+"/d3/f3")))
		_, delta, err = CopyDelta(t.Context(), from, manifest, dst, DeltaOptions{Resume: &delta, Always: []string{"d4/f4"}})
		must(t, err)
		want := []string{"d1", "d1/f1", "d2", "d2/f2", "d3", "d3/f3", "d4", "d4/f4"}
		if delta.Files != 2 || !slices.Equal(delta.Names, want) {
			t.Errorf("second pass: %+v", delta)
		}
	})
	d.check("small")
}

// wait lets the clock go on that files are stamped with.
func wait(t testing.TB, d time.Duration) {
	t.Helper()
	<-time.After(d)
}

// TestCopyDeltaRenamed: a directory of lower layers that was renamed cannot be told on top of earlier copies.
func TestCopyDeltaRenamed(t *testing.T) {
	needOverlay(t)
	s := newStack(t)
	must(t, steps(os.MkdirAll(s.layers[0]+"/d/e", 0o755), write(s.layers[0]+"/d/e/f", "f"), write(s.layers[0]+"/d/g", "g")))
	s.grow()
	d := s.live(func(d *deltas, m string) {
		must(t, write(m+"/d/g", "mine"))
		d.seal(m, nil)
		must(t, os.Rename(m+"/d", m+"/x"))
		d.seal(m, nil)
		must(t, write(m+"/x/e/f", "mine, too"))
		d.seal(m, func() { must(t, steps(os.Rename(m+"/x", m+"/y"), os.Mkdir(m+"/x", 0o700))) })
		must(t, steps(os.Remove(m+"/x"), os.Rename(m+"/y", m+"/d")))
		d.seal(m, nil)
	})
	d.check("renamed")
}

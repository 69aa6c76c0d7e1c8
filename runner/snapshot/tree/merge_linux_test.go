package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// merged puts one layer in the place of from up to (without) to of a stack.
func (s *stack) merged(from, to int) {
	s.Helper()
	roots := s.roots()
	below, err := OpenView(roots[to:])
	must(s, err)
	defer below.Close()
	dst := fmt.Sprintf("%s/merged%d-%d-%d", s.dir, from, to, len(s.layers))
	must(s, os.Mkdir(dst, 0o700))
	must(s, Merge(s.Context(), roots[from:to], below, dst))
	s.layers = slices.Replace(slices.Clone(s.layers), from, to, dst)
}

// TestMerge makes one layer of random runs of random stacks: the kernel shows the same, also after the workspace was
// edited.
func TestMerge(t *testing.T) {
	for seed := range rounds(25) {
		r := rand.New(rand.NewPCG(4, uint64(seed)))
		s := newStack(t)
		for range 60 {
			act(r, s.layers[0])
		}
		for range 2 + r.IntN(16) {
			s.sandbox(func(m string) error {
				for range 1 + r.IntN(12) {
					act(r, m)
				}
				return nil
			})
		}
		s.checkMerge(r, fmt.Sprintf("seed %d", seed))
	}
}

// TestMergeAnything merges layers with marks where no overlay would put them.
func TestMergeAnything(t *testing.T) {
	for seed := range rounds(120) {
		r := rand.New(rand.NewPCG(5, uint64(seed)))
		s := newStack(t)
		s.userXattr = s.userXattr || seed%3 == 0
		for range 3 + r.IntN(6) {
			s.grow()
		}
		for i, l := range s.layers {
			for range 25 {
				act(r, l)
			}
			strew(r, l, s.roots()[i].mark(), s.userXattr)
		}
		s.checkMerge(r, fmt.Sprintf("seed %d", seed))
	}
}

func (s *stack) checkMerge(r *rand.Rand, what string) {
	s.Helper()
	// The kernel needs two layers.
	s.grow()
	want := s.kernelShows()
	all := s.layers
	from := r.IntN(len(all) - 2)
	to := from + 1 + r.IntN(len(all)-from-1)
	s.merged(from, to)
	what = fmt.Sprintf("%s: layers %d to %d of %d", what, from, to, len(all))
	if d := kernel.Differences(want, s.kernelShows()); d != "" {
		s.Fatalf("%s: before (-), merged (+):\n%s", what, d)
	}
	for range 20 { // others edit the workspace
		act(r, all[len(all)-1])
	}
	squashed := s.layers
	s.layers = all
	want = s.kernelShows()
	s.layers = squashed
	if d := kernel.Differences(want, s.kernelShows()); d != "" {
		s.Fatalf("%s, workspace edited: before (-), merged (+):\n%s", what, d)
	}
}

package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// restored restores what match selects of the state that began with layer old of the stack (from the newest) onto the
// newest, and returns what changed.
func (s *stack) restored(old int, match func(string) bool) []string {
	s.Helper()
	onto := s.view()
	from, err := OpenView(s.roots()[old:])
	must(s, err)
	defer from.Close()
	upper := s.grow()
	paths, err := Restore(s.Context(), from, onto, upper, RestoreOptions{Match: match, UserXattr: s.userXattr})
	must(s, err)
	return paths
}

// TestRestoreAll puts a whole earlier state back: the kernel then shows exactly that.
func TestRestoreAll(t *testing.T) {
	for seed := range rounds(30) {
		r := rand.New(rand.NewPCG(6, uint64(seed)))
		s := newStack(t)
		s.history(r)
		all := s.layers
		old := 1 + r.IntN(len(all)-2)
		s.layers = all[old:]
		want := s.kernelShows()
		s.layers = all
		s.restored(old, nil)
		if d := kernel.Differences(want, s.kernelShows()); d != "" {
			t.Fatalf("seed %d, %d of %d: wanted (-), restored (+):\n%s", seed, old, len(all), d)
		}
	}
}

// history makes a random stack of at least three layers.
func (s *stack) history(r *rand.Rand) {
	s.Helper()
	for range 60 {
		act(r, s.layers[0])
	}
	for range 2 + r.IntN(6) {
		s.sandbox(func(m string) error {
			for range 1 + r.IntN(12) {
				act(r, m)
			}
			return nil
		})
	}
}

// TestRestorePaths puts one name with everything below it back: that is as it was, and everything else as it is.
func TestRestorePaths(t *testing.T) {
	for seed := range rounds(50) {
		r := rand.New(rand.NewPCG(7, uint64(seed)))
		s := newStack(t)
		s.history(r)
		all := s.layers
		old := 1 + r.IntN(len(all)-2)
		s.layers = all[old:]
		before := s.kernelShows()
		s.layers = all
		now := s.kernelShows()
		top := "/" + string(rune('a'+r.IntN(5)))
		if r.IntN(2) == 0 {
			top += "/" + string(rune('a'+r.IntN(5)))
		}
		paths := s.restored(old, func(p string) bool { return Below(p, top[1:]) })
		got := s.kernelShows()
		want := map[string]string{}
		for path, line := range now {
			if !Below(path, top) {
				want[path] = line
			}
		}
		for path, line := range before {
			if Below(path, top) {
				want[path] = line
			}
		}
		if d := kernel.Differences(noLinks(want, parentsOf(top)), noLinks(got, parentsOf(top))); d != "" {
			t.Fatalf("seed %d, %s of %d of %d: wanted (-), restored (+):\n%s", seed, top, old, len(all), d)
		}
		for path := range got {
			if Below(path, top) && got[path] != now[path] && !slices.Contains(paths, path[1:]) {
				t.Fatalf("seed %d: %s changed, and is not in %q", seed, path, paths)
			}
		}
	}
}

// parentsOf is the directories above a path: one that had to be made is no difference.
func parentsOf(path string) []string {
	var all []string
	for i := len(path) - 1; i > 0; i-- {
		if path[i] == '/' {
			all = append(all, path[:i])
		}
	}
	return all
}

// noLinks is a listing without the names of hard links, which a group that was restored in part does not keep, and
// without some paths.
func noLinks(all map[string]string, without []string) map[string]string {
	out := map[string]string{}
	for path, line := range all {
		if slices.Contains(without, path) {
			continue
		}
		if head, tail, ok := strings.Cut(line, " = "); ok {
			line = head + tail[strings.IndexByte(tail, ' '):]
		}
		out[path] = line
	}
	return out
}

// TestRestoreByHand: what has to be there for a selected path comes along, and what is in the way goes.
func TestRestoreByHand(t *testing.T) {
	needOverlay(t)
	s := newStack(t)
	ws := s.layers[0]
	must(t, steps(os.MkdirAll(ws+"/d/e", 0o751), write(ws+"/d/e/f", "f"), write(ws+"/d/g", "g"), write(ws+"/h", "h"), os.Link(ws+"/h", ws+"/i")))
	s.sandbox(func(string) error { return nil })
	s.sandbox(func(m string) error {
		return steps(os.RemoveAll(m+"/d"), write(m+"/d", "in the way"), write(m+"/h", "changed"), os.Mkdir(m+"/new", 0o700), write(m+"/new/x", "x"))
	})
	got := s.restored(1, func(p string) bool { return slices.Contains([]string{"d/e/f", "h", "new"}, p) })
	if want := []string{"d/e/f", "h", "new", "new/x"}; !slices.Equal(got, want) {
		t.Errorf("restored %q, want %q", got, want)
	}
	shows := s.kernelShows()
	for _, path := range []string{"/d/e/f", "/h", "/i"} {
		if shows[path] == "" {
			t.Errorf("%s is not there", path)
		}
	}
	if shows["/new"] != "" || shows["/d/g"] != "" {
		t.Errorf("too much: %q, %q", shows["/new"], shows["/d/g"])
	}
	if !strings.Contains(shows["/i"], "= h") {
		t.Errorf("not linked any more: %s", fmt.Sprint(shows["/h"], "\n", shows["/i"]))
	}
}

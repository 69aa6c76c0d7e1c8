package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestCompareOnly compares states of which others changed the base meanwhile: what is said of the paths that were asked for is
// the same as when everything is looked at, and so is all that other paths depend on.
func TestCompareOnly(t *testing.T) {
	needOverlay(t)
	met := 0
	for seed := range rounds(15) {
		r := rand.New(rand.NewPCG(11, uint64(seed)))
		s := newStack(t)
		for range 60 {
			act(r, s.layers[0])
		}
		o := begun(t)
		for range 1 + r.IntN(4) {
			s.sandbox(func(m string) error {
				for range 1 + r.IntN(25) {
					act(r, m)
				}
				return nil
			})
		}
		ws := len(s.layers) - 1
		for range r.IntN(8) {
			act(r, s.layers[ws])
		}
		all := s.layers
		now := s.view()
		s.layers = all[ws:]
		base := s.view()
		s.layers = all[r.IntN(ws):]
		other := s.view()
		for _, c := range []struct {
			old, new *View
			o        CompareOptions
		}{{base, now, o}, {now, other, CompareOptions{}}, {now, other, CompareOptions{Strict: true}}, {other, now, CompareOptions{Strict: true}}} {
			met += onlyAsAll(t, seed, r, c.old, c.new, c.o)
		}
	}
	if met == 0 {
		t.Error("there was nothing that others removed")
	}
}

func onlyAsAll(t *testing.T, seed int, r *rand.Rand, old, now *View, o CompareOptions) int {
	t.Helper()
	all, err := Compare(t.Context(), old, now, o)
	must(t, err)
	for range 6 {
		a, b := string(rune('a'+r.IntN(5))), string(rune('a'+r.IntN(5)))
		o.Only = func(p string) bool { return Below(p, a) && p != a+"/"+b }
		some, err := Compare(t.Context(), old, now, o)
		must(t, err)
		if d := diff(told(all, o.Only), told(some, o.Only)); d != "" {
			t.Fatalf("seed %d, %+v, of %s without %s: all (-), some (+):\n%s", seed, o, a, b, d)
		}
	}
	return len(all.Found())
}

// told is what a change says of some paths, and everything that has to be the same, whatever is selected.
func told(c *Change, only func(string) bool) []string {
	var out []string
	for i := range c.Entries {
		e := c.Entries[i]
		if only(e.Path) || e.Type != File || e.OldType == Dir || e.detail.New.Nlink > 1 {
			d := *e.detail
			d.text, d.oldText = nil, nil
			d.New.Atim, d.Old.Atim = unix.Timespec{}, unix.Timespec{}
			e.detail = nil
			out = append(out, fmt.Sprintf("%+v %+v", e, d))
		}
	}
	for _, x := range c.Found() {
		if only(x.Path) {
			out = append(out, fmt.Sprintf("%+v", x))
		}
	}
	for p, first := range c.Linked() {
		out = append(out, p+" = "+first)
	}
	slices.Sort(out)
	return out
}

func diff(a, b []string) string {
	var out strings.Builder
	for _, x := range a {
		if !slices.Contains(b, x) {
			fmt.Fprintln(&out, "-", x)
		}
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			fmt.Fprintln(&out, "+", x)
		}
	}
	return out.String()
}

// TestOnlyRenamed: what a file that is asked for was renamed from is known, also when another file has that name now.
func TestOnlyRenamed(t *testing.T) {
	s := newStack(t)
	ws := s.layers[0]
	must(t, steps(write(ws+"/old", "x"), write(ws+"/there", "x")))
	o := begun(t)
	s.sandbox(func(m string) error {
		return steps(os.Rename(m+"/old", m+"/new"), write(m+"/old", "y"))
	})
	must(t, write(ws+"/others", ""))
	all := s.layers
	now := s.view()
	s.layers = all[1:]
	base := s.view()
	for _, only := range []func(string) bool{nil, func(p string) bool { return p == "new" }} {
		o.Only = only
		c, err := Compare(t.Context(), base, now, o)
		must(t, err)
		if len(c.Found()) > 0 {
			t.Errorf("only %v: %v", only != nil, c.Found())
		}
	}
}

// begun are the options of a feature that begins now: what was written before has an earlier ctime, what is written from now
// on a later one. The kernel takes ctimes from a clock of its own, which has to move on.
func begun(t *testing.T) CompareOptions {
	t.Helper()
	clock := func() time.Time {
		var now unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now))
		return time.Unix(now.Unix())
	}
	o := CompareOptions{Since: time.Now(), RootMode: 0o755}
	for !clock().After(o.Since) {
		runtime.Gosched()
	}
	return o
}

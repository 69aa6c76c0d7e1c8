package tree

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// loose is a line of a listing without what is no part of a change: owners, times, and links.
func loose(line string) string {
	f := strings.SplitN(line, " ", 4)
	mode, rest := f[0], f[3]
	if head, tail, ok := strings.Cut(rest, " = "); ok {
		rest = head
		if i := strings.IndexByte(tail, ' '); i >= 0 {
			rest += tail[i:]
		}
	}
	return mode + " " + rest
}

// expected is the change between two listings, one line per path.
func expected(old, now map[string]string, strict bool) []string {
	var want []string
	for path, line := range now {
		was, had := old[path]
		switch {
		case !had:
			want = append(want, path+" added")
		case strict && was != line, !strict && loose(was) != loose(line):
			want = append(want, path+" changed")
		}
	}
	for path := range old {
		if _, there := now[path]; !there {
			want = append(want, path+" deleted")
		}
	}
	slices.Sort(want)
	return want
}

// found is a change in the same form.
func changed(c *Change) []string {
	var got []string
	for i := range c.Entries {
		e := &c.Entries[i]
		path, kind := "/"+e.Path, "changed"
		if e.Path == "." {
			path = "/"
		}
		if e.Kind == Added || e.Kind == Deleted {
			kind = string(e.Kind)
		}
		got = append(got, path+" "+kind)
	}
	slices.Sort(got)
	return got
}

// TestCompareAny compares any two states of random stacks, and what Compare finds with what the kernel shows of both.
func TestCompareAny(t *testing.T) {
	for seed := range rounds(30) {
		r := rand.New(rand.NewPCG(10, uint64(seed)))
		s := newStack(t)
		s.history(r)
		all := s.layers
		var views []*View
		var shows []map[string]string
		for n := range len(all) - 1 {
			s.layers = all[n:]
			views, shows = append(views, s.view()), append(shows, s.kernelShows())
		}
		for range 6 {
			a, b := r.IntN(len(views)), r.IntN(len(views))
			strict := r.IntN(2) == 0
			c, err := Compare(t.Context(), views[a], views[b], CompareOptions{Strict: strict})
			must(t, err)
			want := expected(shows[a], shows[b], strict)
			got := changed(c)
			if !strict {
				// Equal files that became links of each other are a change that listings do not show.
				got = slices.DeleteFunc(got, func(line string) bool {
					path, _, _ := strings.Cut(line, " ")
					return linkOnly(c, path) && !slices.Contains(want, line)
				})
			}
			if strict {
				got, want = withoutLinks(got, want, c, shows[a], shows[b])
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, %d to %d, strict %v: got\n%s\nwant\n%s", seed, a, b, strict, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		for _, v := range views {
			must(t, v.Close())
		}
	}
}

func linkOnly(c *Change, path string) bool {
	for i := range c.Entries {
		if e := &c.Entries[i]; "/"+e.Path == path {
			return e.HardLink != ""
		}
	}
	return false
}

// withoutLinks leaves out what differs in the names or the number of links only: a listing says who is a link of whom
// by the first name, and Compare by inodes and counts.
func withoutLinks(got, want []string, c *Change, old, now map[string]string) ([]string, []string) {
	same := func(line string) bool {
		path, kind, _ := strings.Cut(line, " ")
		a, b := old[path], now[path]
		return kind == "changed" && noLink(a) == noLink(b)
	}
	return slices.DeleteFunc(got, same), slices.DeleteFunc(want, same)
}

func noLink(line string) string {
	head, tail, ok := strings.Cut(line, " = ")
	if !ok {
		return line
	}
	if i := strings.IndexByte(tail, ' '); i >= 0 {
		head += tail[i:]
	}
	return head
}

// TestCompareStrict: what an alias may not differ in.
func TestCompareStrict(t *testing.T) {
	needRoot(t)
	for name, c := range map[string]struct {
		do   func(u string) error
		want string
	}{
		"same":  {func(u string) error { return nil }, ""},
		"mtime": {func(u string) error { return unix.UtimesNano(u+"/f", []unix.Timespec{{Sec: 1}, {Sec: 7, Nsec: 1}}) }, "f"},
		"owner": {func(u string) error { return os.Lchown(u+"/f", 4, 5) }, "f"},
		"links": {func(u string) error { return os.Link(u+"/f", u+"/g") }, "f g"},
		"dir":   {func(u string) error { return unix.UtimesNano(u+"/d", []unix.Timespec{{Sec: 1}, {Sec: 7}}) }, "d"},
		"link":  {func(u string) error { return os.Lchown(u+"/l", 4, 5) }, "l"},
	} {
		s := newStack(t)
		fill := func(dir string) {
			at := []unix.Timespec{{Sec: 5}, {Sec: 6}}
			must(t, steps(write(dir+"/f", "f"), os.Mkdir(dir+"/d", 0o755), os.Symlink("x", dir+"/l"),
				unix.UtimesNano(dir+"/f", at), unix.UtimesNano(dir+"/d", at), unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/l", at, unix.AT_SYMLINK_NOFOLLOW)))
		}
		fill(s.layers[0])
		s.grow()
		fill(s.layers[0])
		must(t, c.do(s.layers[0]))
		at := []unix.Timespec{{Sec: 5}, {Sec: 6}}
		must(t, steps(unix.UtimesNano(s.layers[0], at), unix.UtimesNano(s.layers[1], at)))
		old, err := OpenView(s.roots()[1:])
		must(t, err)
		got := []string{}
		for _, ids := range []func(a, b uint32) (uint32, uint32){nil, func(a, b uint32) (uint32, uint32) { return a, b }} {
			found, err := Compare(t.Context(), old, s.view(), CompareOptions{Strict: true, Map: ids})
			must(t, err)
			got = got[:0]
			for i := range found.Entries {
				got = append(got, found.Entries[i].Path)
			}
			if ids == nil && strings.Contains(name, "owner") || ids == nil && name == "link" {
				if len(got) > 0 {
					t.Errorf("%s: owners of the host's files were compared: %q", name, got)
				}
			}
		}
		must(t, old.Close())
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// memory is Sums of one layer.
type memory struct {
	sync.Mutex
	all  map[string][32]byte
	hits int
}

func (m *memory) Get(path string, s Seen) ([32]byte, bool) {
	m.Lock()
	defer m.Unlock()
	sum, ok := m.all[fmt.Sprint(path, s)]
	if ok {
		m.hits++
	}
	return sum, ok
}

func (m *memory) Put(path string, s Seen, sum [32]byte) {
	m.Lock()
	defer m.Unlock()
	m.all[fmt.Sprint(path, s)] = sum
}

// TestSums: what was read once is not read again, and the digest is the same.
func TestSums(t *testing.T) {
	s := newStack(t)
	must(t, write(s.layers[0]+"/big", strings.Repeat("x", 2<<20)))
	s.grow()
	must(t, steps(write(s.layers[0]+"/big", strings.Repeat("y", 2<<20)), write(s.layers[0]+"/small", "s")))
	old, err := OpenView(s.roots()[1:])
	must(t, err)
	defer old.Close()
	m := &memory{all: map[string][32]byte{}}
	var digests []string
	for _, sums := range []func(int) Sums{nil, func(int) Sums { return m }, func(int) Sums { return m }} {
		c, err := Compare(t.Context(), old, s.view(), CompareOptions{Sums: sums})
		must(t, err)
		digests = append(digests, c.Digest)
	}
	if digests[0] != digests[1] || digests[1] != digests[2] || m.hits != 1 {
		t.Errorf("%q, %d hits", digests, m.hits)
	}
}

// TestCancel ends everything that takes long.
func TestCancel(t *testing.T) {
	s := newStack(t)
	must(t, write(s.layers[0]+"/f", "f"))
	upper := s.grow()
	must(t, write(upper+"/f", "g"))
	old, err := OpenView(s.roots()[1:])
	must(t, err)
	defer old.Close()
	v := s.view()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dst := t.TempDir()
	_, err = Compare(ctx, old, v, CompareOptions{})
	_, err2 := Restore(ctx, old, v, dst, RestoreOptions{})
	_, _, err3 := CopyDelta(ctx, Root{Path: upper}, nil, dst, DeltaOptions{})
	for i, err := range []error{err, err2, err3, Merge(ctx, s.roots()[:1], old, dst), v.Walk(ctx, func(string, Stat) error { return nil })} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

package overlay

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// checkpoint mounts a checkpoint as a gate does, and reads it.
func (b *box) checkpoint(id string) string {
	b.Helper()
	stacks, err := b.l.StacksAt(id)
	must(b, err)
	paths, fds := mountAll(b, stacks)
	got := read(b, paths[0]) + " | " + read(b, paths[1])
	for _, fd := range fds {
		unix.Close(fd)
	}
	return got
}

func (b *box) now() string { return read(b, b.mounts[0]) + " | " + read(b, b.mounts[1]) }

// TestCopySeals seals while the workspace is held, after each of many kinds of changes, and looks whether each checkpoint is
// what showed then, whatever comes later.
func TestCopySeals(t *testing.T) {
	b := newBox(t)
	for _, dir := range []string{"/lower", "/lower/deep", "/kept", "/swap"} {
		must(t, os.Mkdir(b.ws+dir, 0o755))
		must(t, os.WriteFile(b.ws+dir+"/x", []byte("base"), 0o644))
	}
	b.create()
	steps := []struct {
		name string
		do   func() error
	}{
		{"add", func() error { return os.WriteFile(b.path("a"), []byte("1"), 0o644) }},
		{"nothing", func() error { return nil }},
		{"same size", func() error { return os.WriteFile(b.path("a"), []byte("2"), 0o644) }},
		{"copy up", func() error { return os.WriteFile(b.path("lower/x"), []byte("new"), 0o644) }},
		{"home", func() error { return os.WriteFile(b.home("rc"), []byte("rc"), 0o644) }},
		{"whiteout", func() error { return os.Remove(b.path("lower/deep/x")) }},
		{"vanished", func() error { return os.Remove(b.path("a")) }},
		{"another type", func() error { return os.Mkdir(b.path("a"), 0o755) }},
		{"and in it", func() error { return os.WriteFile(b.path("a/b"), []byte("b"), 0o644) }},
		{"a lower directory made anew", func() error {
			if err := os.RemoveAll(b.path("swap")); err != nil {
				return err
			}
			return os.Mkdir(b.path("swap"), 0o755)
		}},
		{"and filled", func() error { return os.WriteFile(b.path("swap/y"), []byte("y"), 0o644) }},
		{"an upper directory made anew", func() error {
			if err := os.RemoveAll(b.path("a")); err != nil {
				return err
			}
			return os.Mkdir(b.path("a"), 0o755)
		}},
		{"rename of a file", func() error { return os.Rename(b.path("lower/x"), b.path("moved")) }},
		{"rename of a lower directory", func() error { return os.Rename(b.path("kept"), b.path("kept2")) }},
		{"after the rename", func() error { return os.WriteFile(b.path("kept2/z"), []byte("z"), 0o644) }},
		{"a rename back", func() error { return os.Rename(b.path("kept2"), b.path("kept")) }},
		{"everything goes", func() error {
			for _, name := range []string{"a", "lower", "kept", "swap", "moved"} {
				if err := os.RemoveAll(b.path(name)); err != nil {
					return err
				}
			}
			return nil
		}},
		{"hard links", func() error {
			if err := os.WriteFile(b.path("one"), []byte("1"), 0o644); err != nil {
				return err
			}
			return os.Link(b.path("one"), b.path("two"))
		}},
		{"through a link", func() error { return os.WriteFile(b.path("two"), []byte("22"), 0o644) }},
	}
	want := map[string]string{}
	for i, s := range steps {
		must(t, s.do())
		id := fmt.Sprintf("c%d", i)
		sealed := b.sealLive(id)
		if sealed.Rotated || sealed.Alias && s.name != "nothing" {
			t.Errorf("%s: %+v", s.name, sealed)
		}
		want[id] = b.now()
		for before := range i + 1 {
			id := fmt.Sprintf("c%d", before)
			if got := b.checkpoint(id); got != want[id] {
				t.Fatalf("after %q, the checkpoint after %q shows\n%s\nwant\n%s", s.name, steps[before].name, got, want[id])
			}
		}
	}
	b.write("last", "rotation")
	rotated := b.seal("rotated")
	if !rotated.Rotated || rotated.Depth != 1 {
		t.Errorf("the rotation after copies: %+v", rotated)
	}
	want["rotated"] = b.now()
	collect(b)
	b.reopen()
	b.write("a fresh", "start") // of which nothing is known in memory
	b.sealLive("again")
	want["again"] = b.now()
	b.write("a fresh", "START")
	b.sealLive("more")
	want["more"] = b.now()
	for id := range want {
		if got := b.checkpoint(id); got != want[id] {
			t.Errorf("%s shows\n%s\nwant\n%s", id, got, want[id])
		}
		b.reset(id)
		if got := b.now(); got != want[id] {
			t.Errorf("reset to %s shows\n%s\nwant\n%s", id, got, want[id])
		}
	}
}

// TestNothingCopied: once what was written is older than the clock is coarse, a seal of nothing is an alias.
func TestNothingCopied(t *testing.T) {
	b := newBox(t).create()
	b.write("a", "1")
	first := b.sealLive("first")
	for i := range 1000 {
		s := b.sealLive(fmt.Sprintf("c%d", i))
		if !s.Alias {
			first = s
			continue
		}
		if s.AliasOf != first.ID || s.Copied != 0 || b.checkpoint(s.ID) != "a=1 | " {
			t.Errorf("%+v", s)
		}
		return
	}
	t.Error("no seal of nothing was an alias")
}

// TestCopyAndSquash: copies go on on top of what a squash made of the earlier ones.
func TestCopyAndSquash(t *testing.T) {
	b := newBox(t).create()
	want := map[string]string{}
	for i := range 40 {
		id := fmt.Sprintf("c%d", i)
		b.write(fmt.Sprintf("f%d", i%5), fmt.Sprint(i))
		if i == 30 {
			b.seal(id)
		} else {
			b.sealLive(id)
		}
		want[id] = b.now()
		_, err := b.l.Squash(b.Context(), i%10 == 9)
		must(t, err)
		collect(b)
		if _, err := b.l.Index(b.Context(), id); err != nil {
			t.Error(err)
		}
	}
	for id := range want {
		if got := b.checkpoint(id); got != want[id] {
			t.Errorf("%s shows\n%s\nwant\n%s", id, got, want[id])
		}
	}
}

// TestMappedFile: what is stored through a shared mapping leaves no trace in ctime until the kernel writes it back.
func TestMappedFile(t *testing.T) {
	b := newBox(t).create()
	b.write("db", "0123456789")
	f, err := os.OpenFile(b.path("db"), os.O_RDWR, 0)
	must(t, err)
	m, err := unix.Mmap(int(f.Fd()), 0, 10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	must(t, f.Close())
	m[0] = 'a'
	b.sealLive("one", snapshot.WorkspaceTarget+"/db")
	m[0] = 'b' // the page is dirty and mapped writable already: no fault, no new ctime
	b.sealLive("two", snapshot.WorkspaceTarget+"/db")
	m[0] = 'c'
	must(t, unix.Munmap(m)) // gone before the seal, but it was there at the one before
	b.sealLive("three")
	for id, first := range map[string]string{"one": "a", "two": "b", "three": "c"} {
		if got, want := b.checkpoint(id), "db="+first+"123456789 | "; got != want {
			t.Errorf("%s shows %q, want %q", id, got, want)
		}
	}
}

// TestRacyChanges writes as fast as it can, always the same size, and seals in between.
func TestRacyChanges(t *testing.T) {
	b := newBox(t).create()
	b.write("f", "0000")
	f, err := os.OpenFile(b.path("f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	for i := range 50 {
		_, err := f.WriteAt(fmt.Appendf(nil, "%04d", i), 0)
		must(t, err)
		b.sealLive(fmt.Sprintf("c%d", i))
	}
	for i := range 50 {
		if got, want := b.checkpoint(fmt.Sprintf("c%d", i)), fmt.Sprintf("f=%04d | ", i); got != want {
			t.Errorf("checkpoint %d shows %q", i, got)
		}
	}
}

// TestCopyPause: a pause costs by what changed meanwhile, not by what is in the upper.
func TestCopyPause(t *testing.T) {
	files := 2000
	if long() {
		files = 10_000
	}
	b := newBox(t).create()
	fill(t, b.mounts[0], 0, files, "content")
	b.sealLive("all")
	best := time.Hour
	for i := range 5 {
		fill(t, b.mounts[0], 0, 100, fmt.Sprintf("changed %d", i))
		s := b.sealLive(fmt.Sprintf("c%d", i))
		if s.Copied < 100 || s.Copied > 300 {
			t.Errorf("%d files copied, 100 changed", s.Copied)
		}
		best = min(best, s.Pause)
	}
	t.Logf("%d files, 100 changed: paused for %v", files, best)
	if long() && best > 60*time.Millisecond { // a figure for a machine that has nothing else to do
		t.Errorf("paused for %v", best)
	}
}

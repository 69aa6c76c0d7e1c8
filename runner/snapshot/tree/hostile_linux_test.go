package tree

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

// onSmall mounts a tmpfs with a limit where only f sees it.
func onSmall(t *testing.T, at, limit string, f func()) {
	t.Helper()
	needRoot(t)
	must(t, kernel.InNamespace(func() error {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, limit); err != nil {
			return err
		}
		f()
		return unix.Unmount(at, unix.MNT_DETACH)
	}))
}

// TestNoSpace lets everything that writes run out of space at each of its writes. The error says so, and what is read
// stays as it was.
func TestNoSpace(t *testing.T) {
	needOverlay(t)
	s := newStack(t)
	r := rand.New(rand.NewPCG(11, 0))
	for range 3 {
		s.history(r)
	}
	for i := range 8 {
		must(t, write(fmt.Sprintf("%s/big%d", s.layers[0], i), strings.Repeat("x", 64<<10)))
	}
	all := s.layers
	before := s.kernelShows()
	old, err := OpenView(s.roots()[3:])
	must(t, err)
	defer old.Close()
	top := s.view()
	at := t.TempDir()
	for name, do := range map[string]func() error{
		"merge":   func() error { return Merge(t.Context(), s.roots()[:3], old, at) },
		"restore": func() error { _, err := Restore(t.Context(), top, old, at, RestoreOptions{}); return err },
		"delta": func() error {
			_, _, err := CopyDelta(t.Context(), Root{Path: all[0]}, nil, at, DeltaOptions{})
			return err
		},
	} {
		refused := 0
		for n := 1; n < 400; n++ {
			var err error
			onSmall(t, at, fmt.Sprintf("size=16m,nr_inodes=%d", n), func() { err = do() })
			if err == nil {
				break
			}
			if refused++; !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("%s with %d inodes: %v", name, n, err)
			}
		}
		for n := 1; n < 400; n++ {
			var err error
			onSmall(t, at, fmt.Sprintf("size=%dk", 4*n), func() { err = do() })
			if err == nil {
				break
			}
			if refused++; !errors.Is(err, unix.ENOSPC) {
				t.Fatalf("%s with %d KiB: %v", name, 4*n, err)
			}
		}
		if refused < 10 {
			t.Errorf("%s was refused only %d times", name, refused)
		}
	}
	if d := kernel.Differences(before, s.kernelShows()); d != "" {
		t.Errorf("the layers changed:\n%s", d)
	}
}

// TestExchangedInALoop reads a workspace in which somebody exchanges a directory with a link that leads out, again and
// again: nothing from outside is ever read, nothing outside is written.
func TestExchangedInALoop(t *testing.T) {
	s := newStack(t)
	ws, outside := s.layers[0], t.TempDir()
	const secret = "from outside"
	must(t, steps(os.MkdirAll(ws+"/dir/sub", 0o755), write(ws+"/dir/a", "a"), write(ws+"/dir/sub/c", "c"),
		os.Mkdir(outside+"/sub", 0o755), write(outside+"/a", secret), write(outside+"/sub/c", secret), os.Symlink(outside, ws+"/trap")))
	before, err := kernel.List(outside)
	must(t, err)
	old := s.grow()
	must(t, steps(os.MkdirAll(old+"/dir/sub", 0o755), write(old+"/dir/sub/new", "new")))
	upper := s.grow()
	must(t, steps(os.Mkdir(upper+"/x", 0o755), unix.Setxattr(upper+"/x", s.roots()[0].mark()+"redirect", []byte("/dir"), 0)))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, ws+"/dir", unix.AT_FDCWD, ws+"/trap", unix.RENAME_EXCHANGE)
			}
		}
	}()
	for n := range rounds(200) {
		s.raced(n, outside, secret)
	}
	close(stop)
	<-done
	after, err := kernel.List(outside)
	must(t, err)
	if d := kernel.Differences(before, after); d != "" {
		t.Errorf("written outside:\n%s", d)
	}
}

// raced reads and restores once; that may fail, because the workspace is not what it was a moment ago.
func (s *stack) raced(n int, outside, secret string) {
	s.Helper()
	v, base := s.view(), func() *View { v, err := OpenView(s.roots()[2:]); must(s, err); return v }()
	defer func() { must(s, errors.Join(v.Close(), base.Close())) }()
	for _, path := range []string{"dir/a", "dir/sub/c", "x/a", "x/sub/c", "trap/a", "trap/sub/c"} {
		f, err := v.Open(path)
		if err != nil {
			continue
		}
		data := make([]byte, 64)
		size, _ := f.Read(data)
		must(s, f.Close())
		if string(data[:size]) == secret {
			s.Fatalf("round %d: read %s", n, path)
		}
	}
	if c, err := Compare(s.Context(), base, v, CompareOptions{}); err == nil {
		for i := range c.Entries {
			if d := c.Entries[i].detail; d.New.Size == int64(len(secret)) && c.Entries[i].Type == File {
				s.Fatalf("round %d: %s comes from outside", n, c.Entries[i].Path)
			}
		}
	}
	dst := fmt.Sprintf("%s/restored%d", s.dir, n)
	must(s, os.Mkdir(dst, 0o755))
	_, _ = Restore(s.Context(), v, base, dst, RestoreOptions{})
	all, err := kernel.List(dst)
	must(s, err)
	for path, line := range all {
		if strings.HasPrefix(line, "10") && strings.Contains(line, fmt.Sprintf("size %d ", len(secret))) {
			s.Fatalf("round %d: restored %s from outside: %s", n, path, line)
		}
	}
}

// TestTooDeep: a chain of directories whose path is longer than anybody needs is refused by name, and not followed.
func TestTooDeep(t *testing.T) {
	s := newStack(t)
	upper := s.grow()
	name := strings.Repeat("d", 100)
	fd, err := unix.Open(upper, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 200 { // 20 KB
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	below, err := OpenView(s.roots()[1:])
	must(t, err)
	defer below.Close()
	v := s.view()
	_, err = Compare(t.Context(), below, v, CompareOptions{})
	_, err2 := Restore(t.Context(), v, below, mkdir(t, s, "restored"), RestoreOptions{})
	_, _, err3 := CopyDelta(t.Context(), Root{Path: upper}, nil, mkdir(t, s, "copied"), DeltaOptions{})
	err4 := Merge(t.Context(), s.roots()[:1], below, mkdir(t, s, "merged"))
	for i, err := range []error{err, err2, err3, err4, v.Walk(t.Context(), func(string, Stat) error { return nil })} {
		if !errors.Is(err, ErrPathTooLong) || len(err.Error()) > 1000 {
			t.Errorf("%d: %v", i, err)
		}
	}
}

package tree

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func steps(errs ...error) error { return errors.Join(errs...) }

func write(path, content string) error { return os.WriteFile(path, []byte(content), 0o644) }

func needRoot(t testing.TB) {
	t.Helper()
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("not root")
	}
	testenv.Need(t, "root", err)
}

var overlayWorks = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "caisson-overlay")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"l", "u", "w", "m"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			return err
		}
	}
	s := kernel.Stack{Lower: []string{dir + "/l"}, Upper: dir + "/u", Work: dir + "/w"}
	return kernel.Show(dir+"/m", s, func() error { return nil })
})

func needOverlay(t testing.TB) {
	t.Helper()
	needRoot(t)
	testenv.Need(t, "overlay", overlayWorks())
}

// line is a Stat as kernel.List prints it.
func line(t testing.TB, v *View, path string, s *Stat, inodes map[object]string) string {
	t.Helper()
	st := unix.Stat_t{Mode: typeBits(s.Type) | UnixMode(s.Mode), Uid: s.UID, Gid: s.GID, Mtim: unix.NsecToTimespec(s.Mtime.UnixNano())}
	if s.Type == Dir {
		return kernel.Dir(&st, s.Xattrs)
	}
	text := fmt.Sprintf("%o %d:%d %d.%09d size %d rdev %d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, s.Size, s.Rdev)
	if s.Nlink > 1 {
		key := object{s.Dev, s.Ino}
		if first, ok := inodes[key]; ok {
			text += " = " + first
		} else {
			inodes[key] = path
		}
	}
	switch s.Type {
	case File:
		f, err := v.Open(path)
		must(t, err)
		defer f.Close()
		content, err := kernel.Text(f)
		must(t, err)
		text += content
	case Symlink:
		text += " -> " + s.Link
	}
	return text
}

// listed lists a view as kernel.List lists a mount.
func listed(t testing.TB, v *View) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[object]string{}
	must(t, v.Walk(t.Context(), func(path string, s Stat) error {
		key := "/" + path
		if path == "." {
			key = "/"
		}
		all[key] = line(t, v, path, &s, inodes)
		return nil
	}))
	return all
}

// stack is layers, newest first; the last is the workspace.
type stack struct {
	testing.TB
	dir       string
	layers    []string
	userXattr bool
}

func newStack(t testing.TB) *stack {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/ws", 0o755))
	t.Cleanup(func() { must(t, Remove(context.Background(), dir)) })
	return &stack{TB: t, dir: dir, layers: []string{dir + "/ws"}, userXattr: os.Geteuid() != 0}
}

func (s *stack) roots() []Root {
	all := make([]Root, len(s.layers))
	for i, path := range s.layers {
		all[i] = Root{Path: path, UserXattr: s.userXattr, Layer: len(s.layers) - 1 - i, Base: i == len(s.layers)-1}
	}
	return all
}

func (s *stack) view() *View {
	s.Helper()
	v, err := OpenView(s.roots())
	must(s, err)
	s.Cleanup(func() { _ = v.Close() }) // again, perhaps
	return v
}

// grow makes an empty layer on top whose root looks like the one below.
func (s *stack) grow() string {
	s.Helper()
	upper := fmt.Sprintf("%s/l%d", s.dir, len(s.layers))
	var st unix.Stat_t
	must(s, unix.Stat(s.layers[0], &st))
	must(s, steps(os.Mkdir(upper, 0o755), os.Chmod(upper, os.FileMode(st.Mode&0o777)), os.Chtimes(upper, time.Time{}, beneath.TimeOf(st.Mtim))))
	s.layers = append([]string{upper}, s.layers...)
	return upper
}

// sandbox runs f in the kernel's mount of the stack with a new layer on top.
func (s *stack) sandbox(f func(m string) error) {
	s.Helper()
	needOverlay(s)
	lower := s.layers
	upper := s.grow()
	work, m := s.TempDir(), s.TempDir()
	k := kernel.Stack{Lower: lower, Upper: upper, Work: work, UserXattr: s.userXattr}
	must(s, kernel.Show(m, k, func() error { return f(m) }))
}

// kernelShows lists the kernel's read-only mount of the stack.
func (s *stack) kernelShows() (all map[string]string) {
	s.Helper()
	needOverlay(s)
	m := s.TempDir()
	lower := s.layers
	if len(lower) == 1 {
		lower = append([]string{s.TempDir()}, lower...)
		must(s, unix.Chmod(lower[0], 0o755))
		s.Fatal("a stack of one layer is no mount")
	}
	must(s, kernel.Show(m, kernel.Stack{Lower: lower, UserXattr: s.userXattr}, func() (err error) {
		all, err = kernel.List(m)
		return err
	}))
	return all
}

func (s *stack) wantKernels(what string) {
	s.Helper()
	if d := kernel.Differences(s.kernelShows(), listed(s, s.view())); d != "" {
		s.Fatalf("%s: the kernel shows (-), the view (+):\n%s", what, d)
	}
}

// act does one random thing to a tree; what fails (a missing name, a directory that is not empty) is part of the fun.
func act(r *rand.Rand, m string) {
	path := func() string {
		p := m
		for range 1 + r.IntN(3) {
			p += "/" + string(rune('a'+r.IntN(5)))
		}
		return p
	}
	a, b := path(), path()
	switch r.IntN(16) {
	case 0, 1, 2:
		_ = write(a, fmt.Sprint(r.IntN(4)))
	case 3, 4, 5:
		_ = os.Mkdir(a, 0o755)
	case 6:
		_ = os.RemoveAll(a)
	case 7, 8, 9:
		_ = unix.Rename(a, b)
	case 10:
		_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	case 11:
		_ = os.Link(a, b)
	case 12:
		_ = os.Symlink(fmt.Sprint(r.IntN(3)), a)
	case 13:
		if info, err := os.Lstat(a); err == nil && info.Mode()&os.ModeSymlink == 0 {
			_ = unix.Chmod(a, []uint32{0o755, 0o700, 0o644, 0o4711}[r.IntN(4)])
		}
	case 14:
		_ = unix.Lsetxattr(a, "user.x", []byte(fmt.Sprint(r.IntN(3))), 0)
	case 15:
		_ = os.Chtimes(a, time.Time{}, time.Unix(int64(r.IntN(5)), int64(r.IntN(1e9))))
	}
}

// rounds is how often a random test goes round: usually, with -short (a fifth), and with CAISSON_TEST_LONG=1 (five times).
func rounds(usually int) int {
	switch {
	case testing.Short():
		return max(1, usually/5)
	case os.Getenv("CAISSON_TEST_LONG") != "":
		return 5 * usually
	}
	return usually
}

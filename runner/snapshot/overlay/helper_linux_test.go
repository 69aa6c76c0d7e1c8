package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// box is a workspace with a feature on it.
type box struct {
	testing.TB
	dir, ws string
	l       *layers
	feature string
	mounts  []string // /proc/self/fd/N of the workspace and HOME
	fds     []int
}

func newBox(t testing.TB) *box {
	t.Helper()
	needOverlay(t)
	dir, err := os.MkdirTemp("", "caisson-overlay")
	must(t, err)
	b := &box{TB: t, dir: dir, ws: filepath.Join(dir, "ws"), feature: "f"}
	must(t, os.Mkdir(b.ws, 0o755))
	t.Cleanup(func() {
		b.unmount()
		must(t, snapshot.Remove(context.Background(), dir))
	})
	return b
}

func (b *box) options() snapshot.CreateOptions {
	return snapshot.CreateOptions{
		Dir: b.at(b.feature), Workspace: b.ws, Feature: b.feature, Bases: filepath.Join(b.dir, "bases"),
		Owner: snapshot.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())},
	}
}

func (b *box) at(feature string) string { return filepath.Join(b.dir, "features", feature) }

func (b *box) open() snapshot.OpenOptions {
	return snapshot.OpenOptions{
		Dir: b.at(b.feature), Feature: b.feature, Bases: filepath.Join(b.dir, "bases"),
		Resolve: func(f string) (string, error) {
			if _, err := os.Stat(b.at(f)); err != nil {
				return "", err
			}
			return b.at(f), nil
		},
	}
}

// create makes the feature and mounts it.
func (b *box) create() *box {
	b.Helper()
	l, err := Create(b.options())
	must(b, err)
	b.l = l.(*layers)
	b.mount()
	b.Cleanup(b.unmount)
	return b
}

// reopen is what a new process does.
func (b *box) reopen() {
	b.Helper()
	b.unmount()
	l, err := Open(b.open())
	must(b, err)
	b.l = l.(*layers)
	b.mount()
}

// fork makes another feature of the same workspace.
func (b *box) fork(at, name string) *box {
	b.Helper()
	c := &box{TB: b.TB, dir: b.dir, ws: b.ws, feature: name}
	l, err := Fork(context.Background(), b.open(), at, c.options())
	must(b, err)
	c.l = l.(*layers)
	c.mount()
	b.Cleanup(c.unmount)
	return c
}

func (b *box) mount() {
	b.Helper()
	b.unmount()
	must(b, b.l.Prepare())
	b.mounts, b.fds = mountAll(b, b.l.Stacks())
}

func (b *box) unmount() {
	for _, fd := range b.fds {
		unix.Close(fd)
	}
	b.fds, b.mounts = nil, nil
}

func mountAll(t testing.TB, stacks []snapshot.Stack) (paths []string, fds []int) {
	t.Helper()
	for _, s := range stacks {
		fd, err := mountStack(&s)
		must(t, err)
		fds = append(fds, fd)
		paths = append(paths, fmt.Sprintf("/proc/self/fd/%d", fd))
	}
	return paths, fds
}

// mountStack mounts a stack with the engine's options and attaches it nowhere.
func mountStack(s *snapshot.Stack) (int, error) {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fsopen: %w", err)
	}
	defer unix.Close(fd)
	set := func(key, value string) {
		if err == nil {
			if err = unix.FsconfigSetString(fd, key, value); err != nil {
				err = fmt.Errorf("%s=%s: %w", key, value, err)
			}
		}
	}
	for _, l := range s.Lower {
		set("lowerdir+", l.Path)
	}
	for _, o := range []string{"index=off", "metacopy=off", "xino=auto", "redirect_dir=on"} {
		key, value, _ := strings.Cut(o, "=")
		set(key, value)
	}
	if s.Upper != "" {
		set("upperdir", s.Upper)
		set("workdir", s.Work)
		if err == nil {
			err = unix.FsconfigSetFlag(fd, "volatile")
		}
	}
	if err == nil {
		if err = unix.FsconfigCreate(fd); err != nil {
			err = fmt.Errorf("overlay of %+v: %w", s, err)
		}
	}
	if err != nil {
		return -1, err
	}
	return unix.Fsmount(fd, unix.FSMOUNT_CLOEXEC, 0)
}

var overlayWorks = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	dir, err := os.MkdirTemp("", "caisson-probe")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"l", "u", "w"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	fd, err := mountStack(&snapshot.Stack{Lower: []snapshot.Layer{{Path: dir + "/l"}}, Upper: dir + "/u", Work: dir + "/w"})
	if err == nil {
		unix.Close(fd)
	}
	return err
})

func needOverlay(t testing.TB) {
	t.Helper()
	testenv.Need(t, "overlay", overlayWorks())
}

// Shorthands for a program in the sandbox.

func (b *box) path(name string) string { return filepath.Join(b.mounts[0], name) }
func (b *box) home(name string) string { return filepath.Join(b.mounts[1], name) }

func (b *box) write(name, content string) {
	b.Helper()
	must(b, os.WriteFile(b.path(name), []byte(content), 0o644))
}

func (b *box) seal(id string) snapshot.Sealed {
	b.Helper()
	s, err := b.l.Seal(context.Background(), snapshot.SealOptions{ID: id})
	must(b, err)
	if s.Rotated {
		b.mount()
	}
	return s
}

func (b *box) reset(to string, paths ...string) *snapshot.ResetReport {
	b.Helper()
	r, err := b.l.Reset(context.Background(), snapshot.ResetOptions{To: to, Paths: paths})
	must(b, err)
	b.mount()
	return r
}

// want compares the content of the mounted workspace: "name=content", in one string.
func (b *box) want(what string) {
	b.Helper()
	if got := read(b, b.mounts[0]); got != what {
		b.Fatalf("the workspace shows %q, want %q", got, what)
	}
}

func read(t testing.TB, dir string) string {
	t.Helper()
	var all []string
	root := os.DirFS(dir)
	must(t, fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if d.IsDir() {
			all = append(all, path+"/")
			return nil
		}
		data, err := fs.ReadFile(root, path)
		all = append(all, path+"="+string(data))
		return err
	}))
	slices.Sort(all)
	return strings.Join(all, " ")
}

// state is everything that a feature's directory says about itself.
func (b *box) state() string {
	b.Helper()
	s := b.l.book.State()
	all, err := b.l.Records()
	must(b, err)
	out := fmt.Sprintf("head %s ground %s current %d\n", s.Head, s.Ground, s.Current)
	for i := range all {
		r := &all[i]
		out += fmt.Sprintf("%s parent=%s alias=%s layer=%d depth=%d damaged=%s\n", r.ID, r.Parent, r.AliasOf, r.Layer, len(r.Stack), r.Damaged)
	}
	return out
}

// sealLive seals as if processes held the workspace.
func (b *box) sealLive(id string, mapped ...string) snapshot.Sealed {
	b.Helper()
	s, err := b.l.Seal(context.Background(), snapshot.SealOptions{ID: id, Live: &snapshot.Live{
		Pause: func(context.Context) (snapshot.Paused, error) {
			return snapshot.Paused{Mapped: mapped, Resume: func() error { return nil }}, nil
		},
	}})
	must(b, err)
	return s
}

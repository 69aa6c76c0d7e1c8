package snapshottest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// image is how a filesystem is made in a file.
type image struct {
	feature string // that testenv knows
	size    int64  // bytes; those of a full one are as small as can be
	mkfs    []string
}

var images = map[string]image{
	"ext4":       {"loop", 512 << 20, []string{"mkfs.ext4", "-q", "-F", "-m", "0"}},
	"ext4-small": {"loop", 24 << 20, []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-N", "800"}},
	"xfs":        {"xfs", 512 << 20, []string{"mkfs.xfs", "-q", "-m", "reflink=1"}},
	"btrfs":      {"btrfs", 512 << 20, []string{"mkfs.btrfs", "-q"}},
}

// OnImage makes a filesystem of its own the place of a test's files: ext4, xfs (with reflinks), btrfs, or ext4-small, with
// few blocks and inodes.
func OnImage(t *testing.T, fs string) {
	t.Helper()
	kind, ok := images[fs]
	if !ok {
		t.Fatalf("no image %q", fs)
	}
	if os.Geteuid() != 0 {
		testenv.Need(t, kind.feature, errors.New("only root mounts images"))
	}
	_, err := exec.LookPath(kind.mkfs[0])
	testenv.Need(t, kind.feature, err)
	dir, err := os.MkdirTemp("/dev/shm", "caisson-image") // nobody waits for a disk there
	if err != nil {
		dir, err = os.MkdirTemp("", "caisson-image")
	}
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	file, at := dir+"/image", dir+"/mnt"
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, kind.size))
	must(t, os.Mkdir(at, 0o755))
	out, err := exec.Command(kind.mkfs[0], append(kind.mkfs[1:], file)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", kind.mkfs[0], err, out)
	}
	out, err = exec.Command("mount", "-o", "loop", file, at).CombinedOutput()
	if err != nil {
		testenv.Need(t, kind.feature, fmt.Errorf("mount: %w: %s", err, out))
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) }) // the loop device goes with it
	must(t, os.Chmod(at, 0o777))
	t.Setenv("TMPDIR", at)
}

// Limited makes a directory that may hold few bytes the place of a test's files: writing more is EDQUOT.
func Limited(t *testing.T, bytes int64) {
	t.Helper()
	OnImage(t, "btrfs")
	at := os.TempDir()
	for _, args := range [][]string{
		{"quota", "enable", at}, {"subvolume", "create", at + "/sub"}, {"qgroup", "limit", fmt.Sprint(bytes), at + "/sub"},
	} {
		if out, err := exec.Command("btrfs", args...).CombinedOutput(); err != nil {
			testenv.Need(t, "btrfs", fmt.Errorf("btrfs %s: %w: %s", strings.Join(args, " "), err, out))
		}
	}
	t.Setenv("TMPDIR", at+"/sub")
}

// Full does everything that writes while there is less and less room: it works, or it fails with an error that says why,
// and then nothing has changed. The test's files lie on a filesystem of their own. unit is how much room there is more of
// in each attempt: bytes, or 0 for one inode.
func Full(t *testing.T, h Harness, unit int64) {
	for name, do := range fills {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, h)
			w.file("a", strings.Repeat("a", 20000))
			w.file("dir/b", strings.Repeat("b", 20000))
			f := w.create()
			f.write("a", strings.Repeat("A", 30000))
			must(w, os.Remove(f.m.Workspace+"/dir/b"))
			one, v := f.seal().ID, f.view()
			f.write("dir/c", strings.Repeat("c", 10000))
			f.seal()
			rooms := []int64{0, 1, 2, 4, 8, 16}
			if os.Getenv("CAISSON_TEST_LONG") != "" {
				rooms = []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 24, 28, 33}
			}
			for _, room := range rooms {
				f.write("dir/d", fmt.Sprint(room))
				if f.tight(room, unit, one, do) && room > 3 {
					break
				}
				f.reset(one)
				f.wantView(v, "a checkpoint, after it was full")
				_, err := f.l.Collect(w.Context(), nil)
				must(w, err)
			}
		})
	}
}

// fills are what Full does.
var fills = map[string]func(f *feature, one, id string) error{
	"seal": func(f *feature, _, id string) error {
		_, err := f.l.Seal(f.Context(), snapshot.SealOptions{ID: id})
		return err
	},
	"live": func(f *feature, _, id string) error {
		_, err := f.l.Seal(f.Context(), snapshot.SealOptions{ID: id, Live: standing})
		return err
	},
	"reset": func(f *feature, one, _ string) error {
		_, err := f.l.Reset(f.Context(), snapshot.ResetOptions{To: one})
		return err
	},
	"paths": func(f *feature, one, id string) error {
		_, err := f.l.Reset(f.Context(), snapshot.ResetOptions{To: snapshot.Base, Paths: []string{"**"}})
		return err
	},
	"fork": func(f *feature, one, _ string) error {
		l, err := f.h.Fork(f.Context(), f.openOptions(f.id), one, f.createOptions(f.next("f")))
		if err == nil {
			err = l.Close() // a mount would need room, too
		}
		return err
	},
	"squash": func(f *feature, _, _ string) error {
		_, err := f.l.Squash(f.Context(), true)
		return err
	},
	"collect": func(f *feature, _, _ string) error {
		_, err := f.l.Collect(f.Context(), nil)
		return err
	},
	"promote": func(f *feature, one, _ string) error {
		c, err := f.l.Change(f.Context(), snapshot.Base, one)
		if err == nil {
			_, err = f.l.Promote(f.Context(), c, snapshot.PromoteOptions{})
		}
		if errors.Is(err, snapshot.ErrConflict) {
			err = nil // was promoted in an attempt before this one
		}
		return err
	},
}

// tight does something with little room and reports whether that worked. If it did not, nothing has changed.
func (f *feature) tight(room, unit int64, one string, do func(f *feature, one, id string) error) bool {
	f.Helper()
	if os.Geteuid() != 0 {
		f.mount()
	}
	before, base := f.view(), f.base()
	head, id := f.l.Info().Head, f.next("c")
	empty := fill(f, f.dir, room, unit)
	err := do(f, one, id)
	empty()
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		f.Fatalf("with room for %d: %v", room, err)
	}
	f.reopen()
	if err == nil {
		return true
	}
	f.wantView(before, fmt.Sprintf("after %v with room for %d", err, room))
	if d := base.Differ(f.base(), plain.Exact); d != "" {
		f.Fatalf("with room for %d, the workspace changed:\n%s", room, d)
	}
	if now := f.l.Info().Head; now != head {
		f.Fatalf("with room for %d: the head is %q, not %q", room, now, head)
	}
	if _, err := f.l.Change(f.Context(), snapshot.Base, id); !errors.Is(err, snapshot.ErrCheckpoint) {
		f.Fatalf("with room for %d: %s: %v", room, id, err)
	}
	return false
}

func (f *feature) base() plain.Listing {
	f.Helper()
	l, err := plain.List(f.ws)
	must(f, err)
	return l
}

// fill uses up a filesystem but for some room, and returns what gives it back.
func fill(t testing.TB, dir string, room, unit int64) (empty func()) {
	t.Helper()
	at := filepath.Join(dir, "filler")
	must(t, os.Mkdir(at, 0o755))
	empty = func() { must(t, os.RemoveAll(at)) }
	n := 0
	write := func(b []byte) {
		for ; ; n++ {
			path := fmt.Sprint(at, "/", n)
			err := os.WriteFile(path, b, 0o600)
			if err == nil && len(b) > 0 {
				err = syncFile(path) // delayed allocation promises too much
			}
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
				_ = os.Remove(path)
				return
			}
			must(t, err)
		}
	}
	if unit > 0 {
		write([]byte(strings.Repeat("filler..", 1<<17)))
		write([]byte(strings.Repeat("filler..", 1<<13)))
	}
	write([]byte(strings.Repeat("x", int(unit))))
	for ; room > 0 && n > 0; room-- {
		n--
		must(t, os.Remove(fmt.Sprint(at, "/", n)))
	}
	return empty
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// standing is a live sandbox in which nobody does anything.
var standing = &snapshot.Live{Pause: func(context.Context) (snapshot.Paused, error) {
	return snapshot.Paused{Resume: func() error { return nil }}, nil
}}

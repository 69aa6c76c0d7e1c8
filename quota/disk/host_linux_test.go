package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
	"github.com/caisson-dev/caisson/quota/disk/internal/loop"
)

// hostOn makes a file system for a state directory, and returns a path to it.
func hostOn(t testing.TB, kind string, size quota.Bytes) string {
	t.Helper()
	feature := map[string]string{"ext4": "loop", "xfs": "xfs", "btrfs": "btrfs", "tmpfs": "root"}[kind]
	if os.Geteuid() != 0 {
		testenv.Need(t, feature, errors.New("only root mounts"))
	}
	const attributes = unix.MOUNT_ATTR_NOATIME
	if kind == "tmpfs" {
		m, err := mount(kind, attributes, fmt.Sprint("size=", int64(size)))
		if err != nil {
			t.Fatal(err)
		}
		return reachable(t, m)
	}
	program, err := ext4.Tool("mkfs." + kind)
	testenv.Need(t, feature, err)
	image, err := os.Create(filepath.Join(t.TempDir(), imageName))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := image.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	args := map[string][]string{"ext4": {"-q", "-F", "-b", "4096"}, "xfs": {"-q", "-s", "size=4096"}, "btrfs": {"-q"}}[kind]
	if out, err := exec.Command(program, append(args, image.Name())...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := loop.Attach(image)
	testenv.Need(t, "loop", err)
	defer l.Close()
	m, err := mount(kind, attributes, "source="+l.Name())
	testenv.Need(t, feature, err)
	return reachable(t, m)
}

// reachable returns a path to a detached mount; kernels before 6.15 mount units in it, so there it is attached.
func reachable(t testing.TB, m *os.File) string {
	t.Helper()
	t.Cleanup(func() { m.Close() })
	if detachedUppers() {
		return procPath(m)
	}
	dir := t.TempDir()
	if err := unix.MoveMount(int(m.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func freeOf(t testing.TB, dir string) (part float64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return float64(st.Bavail) / float64(st.Blocks)
}

// TestHost: on every file system units are made until the host has 5 % left, never more; and every one of them can be
// filled to its limit, which is what it was promised.
func TestHost(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs", "btrfs", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			size := 400 * quota.MiB
			dir := hostOn(t, kind, size)
			needs(t, Ext4, dir)
			s := openStore(t, dir)
			l := Limits{Bytes: 60 * quota.MiB, Inodes: count(200)}
			room, err := s.Room(l)
			if err != nil || room.Units != 0 || room.More < 3 {
				t.Fatalf("%+v, %v", room, err)
			}
			var units []*Unit
			for n := range 20 {
				u, err := s.Create(t.Context(), fmt.Sprint(n), Ext4, l)
				var none *RoomError
				if errors.As(err, &none) && errors.Is(err, ErrNoRoom) && none.Remedy != "" {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				defer u.Close()
				units = append(units, u)
			}
			t.Logf("%d units, %.1f %% of the host free", len(units), freeOf(t, dir)*100)
			if kind != "tmpfs" && freeOf(t, dir) < 0.05 || len(units) < 3 || len(units) > 6 {
				t.Errorf("%d units; %.1f %% of the host are free", len(units), freeOf(t, dir)*100)
			}
			if after, err := s.Room(l); err != nil || after.More != 0 || after.Units != len(units) || after.Promised != quota.Bytes(len(units))*l.Bytes {
				t.Errorf("%+v, %v", after, err)
			}
			for _, u := range units {
				if n, err := fill(filepath.Join(u.Dir(), "big")); !full(err) || !within(int64(n), int64(l.Bytes)) {
					t.Errorf("%d bytes, %v", n, err)
				}
			}
			for _, u := range units {
				if err := u.Sync(); err != nil { // an image that is not allocated fails here
					t.Error(err)
				}
			}
			if freeOf(t, dir) < 0.05 {
				t.Errorf("filled: %.1f %% of the host are free", freeOf(t, dir)*100)
			}
		})
	}
}

// TestIdle: units that nobody has open count with what they take, and get it back when they are opened.
func TestIdle(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	l := Limits{Bytes: 40 * quota.MiB, Inodes: count(100), Total: 100 * quota.MiB}
	a, b := create(t, s, "a", Ext4, l), create(t, s, "b", Ext4, l)
	if err := os.WriteFile(filepath.Join(a.Dir(), "x"), make([]byte, 3*quota.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	var none *RoomError
	if _, err := s.Create(t.Context(), "c", Ext4, l); !errors.As(err, &none) || none.Left != 20*quota.MiB {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(filepath.Join(dir, "features", "c")); len(entries) != 0 {
		t.Fatal("left of what was refused:", entries)
	}
	image := filepath.Join(dir, "features/a", imageName)
	whole := allocated(image)
	deleted := filepath.Join(a.Dir(), "deleted") // never written parts come back at once, these only under pressure
	if err := errors.Join(os.WriteFile(deleted, make([]byte, 20*quota.MiB), 0o600), a.Sync(), os.Remove(deleted), a.Close()); err != nil {
		t.Fatal(err)
	}
	before := allocated(image)
	c := create(t, s, "c", Ext4, l)
	after := allocated(image)
	t.Logf("idle: %s became %s, then %s", whole, before, after)
	if whole < 40*quota.MiB || before > 30*quota.MiB || before < 20*quota.MiB || after > 10*quota.MiB || after < 3*quota.MiB {
		t.Errorf("%s became %s, then %s", whole, before, after)
	}
	if v, err := s.View(t.Context(), "a"); err != nil {
		t.Error(err)
	} else if err := v.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Open(t.Context(), "a"); !errors.Is(err, ErrNoRoom) {
		t.Fatal(err)
	}
	if err := errors.Join(b.Close(), c.Discard()); err != nil {
		t.Fatal(err)
	}
	a, err := s.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if got := allocated(image); got < whole {
		t.Errorf("opened again: only %s are allocated, it had %s", got, whole)
	}
	if info, err := os.Stat(filepath.Join(a.Dir(), "x")); err != nil || info.Size() != int64(3*quota.MiB) {
		t.Error(info, err)
	}
	if n, err := fill(filepath.Join(a.Dir(), "big")); !full(err) || !within(int64(n), int64(37*quota.MiB)) {
		t.Error(n, err)
	}
	if u, err := a.Usage(); err != nil || !u.Full() {
		t.Errorf("%+v, %v", u, err)
	}
}

// TestBtrfs: a subvolume with a qgroup, for features without a limit of inodes; else an image, on btrfs too.
func TestBtrfs(t *testing.T) {
	dir := hostOn(t, "btrfs", 800*quota.MiB)
	off := Probe(t.Context(), dir)[1]
	if off.Mechanism != Btrfs || off.Bytes || off.Remedy == "" {
		t.Errorf("quotas are not on yet: %+v", off)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	enable := exec.Command("btrfs", "quota", "enable", ext4.Inherited)
	enable.ExtraFiles = []*os.File{root}
	if out, err := enable.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all := Probe(t.Context(), dir)
	for _, c := range []struct {
		l    Limits
		want Mechanism
	}{{Limits{Bytes: quota.GiB}, Btrfs}, {Limits{Bytes: quota.GiB, Inodes: count(200_000)}, Ext4}} {
		if m, err := Choose(all, c.l, true, false); err != nil || m != c.want {
			t.Errorf("%+v: %s, %v; want %s", c.l, m, err, c.want)
		}
	}
	s := openStore(t, dir)
	if _, err := s.Create(t.Context(), "x", Btrfs, Limits{Bytes: 20 * quota.MiB, Inodes: count(100)}); err == nil {
		t.Error("a limit of inodes was taken")
	}
	limit := 60 * quota.MiB
	u := create(t, s, "a", Btrfs, Limits{Bytes: limit})
	checkBytes(t, u, limit)
	if err := u.Resize(t.Context(), Limits{Bytes: 2 * limit}); err != nil {
		t.Fatal(err)
	}
	if n, err := fill(filepath.Join(u.Dir(), "more")); !full(err) || !within(int64(n), int64(limit)) {
		t.Errorf("after growing: %d bytes, %v", n, err)
	}
	if err := u.Resize(t.Context(), Limits{Bytes: limit}); !errors.Is(err, ErrResize) {
		t.Error(err)
	}
	if err := errors.Join(u.Close(), s.Remove(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

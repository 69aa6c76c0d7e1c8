package copytree

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

// TestTwoPasses changes a tree between the passes in every way that leaves the second one something to get wrong.
func TestTwoPasses(t *testing.T) {
	dir := t.TempDir()
	src, dst := dir+"/src", dir+"/dst"
	for _, p := range []string{"same", "changed", "gone", "dir/in", "dir2/in", "link1", "other", "turns", "deep/a/b/c"} {
		write(t, src+"/"+p, p)
	}
	must(t, os.Link(src+"/link1", src+"/link2"))
	must(t, os.Link(src+"/other", src+"/zz"))
	must(t, os.Mkdir(dst, 0o700))
	old := time.Now().Add(-time.Hour)
	must(t, os.Chtimes(src+"/same", old, old))

	v, err := tree.OpenView([]tree.Root{{Path: src, Plain: true}})
	must(t, err)
	defer v.Close()
	m, err := newMirror(v, dst, nil)
	must(t, err)
	must(t, m.pass(t.Context(), never))
	first := m.to.Files

	write(t, src+"/changed", "CHANGED")
	must(t, os.Remove(src+"/gone"))
	must(t, os.RemoveAll(src+"/dir"))
	write(t, src+"/dir", "a file now")
	must(t, os.Remove(src+"/turns"))
	write(t, src+"/turns/into", "dir")
	must(t, os.Link(src+"/link1", src+"/a-link0")) // sorted before the names that were copied
	write(t, src+"/link1", "linked and changed")
	must(t, os.Rename(src+"/other", src+"/another"))
	must(t, os.Rename(src+"/deep/a", src+"/moved"))
	must(t, unix.Setxattr(src+"/dir2", "user.x", []byte("y"), 0))
	must(t, os.Chmod(src+"/dir2", 0o711))
	must(t, m.pass(t.Context(), never))
	must(t, m.finish(nil))

	copied, err := tree.OpenView([]tree.Root{{Path: dst, Plain: true}})
	must(t, err)
	defer copied.Close()
	c, err := tree.Compare(t.Context(), v, copied, tree.CompareOptions{Strict: true})
	must(t, err)
	for i := range c.Entries {
		t.Errorf("%s %s", c.Entries[i].Kind, c.Entries[i].Path)
	}
	if m.to.Files <= first {
		t.Error("the second pass copied nothing")
	}
}

func create(t *testing.T, dir string, owner snapshot.Owner) *layers {
	t.Helper()
	l, err := Create(snapshot.CreateOptions{Dir: dir + "/f", Workspace: dir + "/ws", Feature: "f", Bases: dir + "/bases", Owner: owner})
	must(t, err)
	t.Cleanup(func() { must(t, snapshot.Remove(context.Background(), dir+"/f")) })
	return l.(*layers)
}

func me() snapshot.Owner { return snapshot.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())} }

// TestNoSharing: no two layers share an inode, on a filesystem with reflinks the blocks.
func TestNoSharing(t *testing.T) {
	snapshottest.OnImage(t, "xfs")
	dir := t.TempDir()
	write(t, dir+"/ws/large", strings.Repeat("large file\n", 2<<20))
	free := func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		return st.Bfree * uint64(st.Bsize)
	}
	before := free()
	l := create(t, dir, me())
	write(t, l.Stacks()[0].Upper+"/small", "x")
	for _, id := range []string{"a", "b", "c"} {
		write(t, l.Stacks()[0].Upper+"/"+id, id)
		_, err := l.Seal(t.Context(), snapshot.SealOptions{ID: id})
		must(t, err)
	}
	must(t, l.Sync(t.Context()))
	if used := int64(before) - int64(free()); used > 8<<20 {
		t.Errorf("five copies of 22 MiB take %d bytes", used)
	}
	inodes := map[uint64]string{}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if other, ok := inodes[st.Ino]; ok {
			t.Errorf("%s and %s are one file", path, other)
		}
		inodes[st.Ino] = path
		return nil
	}))
}

// TestOwners: the workspace's owner becomes the sandbox's user, and everything else lies in its range.
func TestOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", errors.New("only root gives files away"))
	}
	dir := t.TempDir()
	for path, uid := range map[string]int{"mine": 0, "user": 1000, "other": 7, "far": 1 << 20} {
		write(t, dir+"/ws/"+path, path)
		must(t, os.Chown(dir+"/ws/"+path, uid, uid))
	}
	const first = 1 << 30
	l := create(t, dir, snapshot.Owner{UID: first + 1000, GID: first + 1000})
	for path, want := range map[string]uint32{"mine": first + 1000, "user": first, "other": first + 7, "far": first + 65534, ".": first + 1000} {
		var st unix.Stat_t
		must(t, unix.Lstat(l.Stacks()[0].Upper+"/"+path, &st))
		if st.Uid != want || st.Gid != want {
			t.Errorf("%s belongs to %d:%d, not %d", path, st.Uid, st.Gid, want)
		}
	}
}

// TestPlantedHome: what the sandbox puts where HOME's mount points go is neither followed nor in the way.
func TestPlantedHome(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/ws", 0o755))
	must(t, os.Mkdir(dir+"/outside", 0o755))
	l := create(t, dir, me())
	must(t, os.Symlink(dir+"/outside", l.Stacks()[1].Upper+"/go"))
	_, err := l.Seal(t.Context(), snapshot.SealOptions{ID: "planted"})
	must(t, err)
	if err := l.HomeMountpoint("go/pkg", true, me()); err == nil {
		t.Error("made a mount point through a link")
	}
	_, err = l.Reset(t.Context(), snapshot.ResetOptions{To: snapshot.Base})
	must(t, err)
	must(t, l.HomeMountpoint("go/pkg", true, me()))
	_, err = l.Reset(t.Context(), snapshot.ResetOptions{To: "planted"})
	must(t, err)
	if list, err := os.ReadDir(dir + "/outside"); err != nil || len(list) > 0 {
		t.Errorf("outside: %v, %v", list, err)
	}
}

package promote

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// TestOwners: whatever ids an upper holds, promote gives new objects to the owner of their directory and leaves others.
func TestOwners(t *testing.T) {
	needRoot(t)
	b := newBox(t, func(ws string) {
		project(t)(ws)
		must(t, steps(os.Lchown(ws, 1, 2), os.Lchown(ws+"/dir", 3, 4), os.Lchown(ws+"/edit", 5, 6), os.Lchown(ws+"/mode", 5, 6)))
	})
	u := b.w.dir + "/upper/"
	must(t, steps(write(u+"edit", "mine"), os.Mkdir(u+"dir", 0o755), write(u+"dir/new", "n"), os.MkdirAll(u+"tree/sub", 0o755),
		os.Symlink("x", u+"tree/l"), unix.Mkfifo(u+"tree/p", 0o600), write(u+"tree/sub/f", ""), os.Mkdir(u+"mode", 0o755), write(u+"mode/f", "")))
	must(t, filepath.WalkDir(u, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, sandboxID, sandboxID))
	}))
	must(t, unix.Chmod(u+"tree/sub/f", 0o6755))
	b.promote()
	for path, want := range map[string]string{
		"edit": "5:6", "dir": "3:4", "dir/new": "3:4", "tree": "1:2", "tree/sub": "1:2", "tree/l": "1:2", "tree/p": "1:2",
		"tree/sub/f": "1:2", "mode": "5:6", "mode/f": "5:6",
	} {
		var st unix.Stat_t
		must(t, unix.Lstat(b.ws+"/"+path, &st))
		if got := fmt.Sprintf("%d:%d", st.Uid, st.Gid); got != want {
			t.Errorf("%s belongs to %s, want %s", path, got, want)
		}
		if path == "tree/sub/f" && st.Mode&0o7777 != 0o6755 {
			t.Errorf("%s has mode %o", path, st.Mode)
		}
	}
}

// TestHandMade reads layers as an unprivileged overlay and newer kernels write them, and as hostile programs do.
func TestHandMade(t *testing.T) {
	b := newBox(t, project(t))
	b.w.state.UserXattr = true
	u := b.w.dir + "/upper/"
	set := func(path, name, value string) error {
		return unix.Setxattr(u+path, "user.overlay."+name, []byte(value), 0)
	}
	must(t, steps(
		write(u+"gone", ""), set("gone", "whiteout", "y"),
		os.Mkdir(u+"dir", 0o755), set("dir", "opaque", "y"), write(u+"dir/z", "z"),
		os.Mkdir(u+"moved", 0o755), set("moved", "redirect", "/dir/sub"),
		os.Mkdir(u+"empty", 0o755), set("empty", "opaque", "x"), write(u+"empty/e", "e"),
	))
	b.wantChange("deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c", "added dir/z",
		"added empty/e", "deleted gone", "added moved", "added moved/c")
	f, err := b.w.open("moved/c")
	must(t, err)
	f.Close()
	for _, path := range []string{"dir/a", "gone/x", "nowhere/at/all", "moved/nothing", "../x", "dir"} {
		if f, err := b.w.open(path); err == nil {
			f.Close()
			t.Errorf("opened %s", path)
		}
	}
	// In layers of root these are the user's own attributes and mean nothing; nor are they promoted.
	b.w.state.UserXattr = false
	b.wantChange("added dir/z", "added empty/e", "modified gone", "added moved")
	b.promote()
	if _, err := unix.Getxattr(b.ws+"/moved", "user.overlay.redirect", nil); !errors.Is(err, unix.ENODATA) {
		t.Errorf("promoted overlay mark: %v", err)
	}
	u = b.w.dir + "/upper/"
	b.w.state.UserXattr = true
	must(t, steps(write(u+"m", "x"), set("m", "metacopy", "")))
	if _, err := b.w.change(t.Context()); !errors.Is(err, tree.ErrUnusableLayers) {
		t.Errorf("metacopy: %v", err)
	}
}

func TestHostileRedirect(t *testing.T) {
	b := newBox(t, project(t))
	b.w.state.UserXattr = true
	must(t, write(filepath.Dir(b.ws)+"/secret", "s"))
	must(t, os.Mkdir(b.w.dir+"/upper/d", 0o755))
	must(t, unix.Setxattr(b.w.dir+"/upper/d", "user.overlay.redirect", []byte("/../"), 0))
	if c, err := b.w.change(t.Context()); err == nil && len(c.Entries) != 1 {
		t.Errorf("escaped: %s", summary(c))
	}
}

func TestSkipped(t *testing.T) {
	needRoot(t)
	b := newBox(t, project(t))
	u := b.w.dir + "/upper/"
	must(t, steps(unix.Mknod(u+"sock", unix.S_IFSOCK|0o600, 0), unix.Mknod(u+"keep", unix.S_IFCHR|0o600, 0x103),
		os.Mkdir(u+"t", 0o755), unix.Mknod(u+"t/blk", unix.S_IFBLK|0o600, 0x801), write(u+"t/f", "f")))
	b.wantChange("type keep file>char", "added sock", "added t", "added t/blk", "added t/f")
	r := b.promote()
	if len(r.Notes) != 3 || r.Added != 2 || r.Modified != 0 {
		t.Errorf("%+v", r)
	}
	if data, err := os.ReadFile(b.ws + "/keep"); err != nil || string(data) != "same\n" {
		t.Errorf("keep: %q %v", data, err)
	}
	if exists(b.ws+"/sock") || exists(b.ws+"/t/blk") || !exists(b.ws+"/t/f") {
		t.Error("the wrong objects were promoted")
	}
}

// deep makes a chain of directories below an open one.
func deep(t testing.TB, path, name string, levels int) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	f, err := unix.Openat(fd, "bottom", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	must(t, err)
	unix.Close(f)
	unix.Close(fd)
}

func TestDeep(t *testing.T) {
	b := newBox(t, project(t))
	name := strings.Repeat("d", 100)
	deep(t, b.w.dir+"/upper", name, 120) // 12 KB
	c := b.change()
	if last := c.Entries[len(c.Entries)-1]; len(c.Entries) != 121 || !strings.HasSuffix(last.Path, name+"/bottom") {
		t.Fatalf("%d entries", len(c.Entries))
	}
	b.promote()
	must(t, os.Chmod(b.ws+"/"+name, 0o755))
	root, err := beneath.OpenRoot(b.ws)
	must(t, err)
	defer root.Close()
	fd, err := root.Open(c.Entries[120].Path, beneath.ReadFile)
	must(t, err)
	unix.Close(fd)
	deep(t, b.w.dir+"/upper", name, 200)
	if _, err := b.w.change(t.Context()); !errors.Is(err, tree.ErrPathTooLong) || len(err.Error()) > 1000 {
		t.Errorf("20 KB of path: %v", err)
	}
	deep(t, b.w.dir+"/work", "d", 20000)
	must(t, tree.Remove(t.Context(), b.w.dir))
	if exists(b.w.dir) {
		t.Error("not discarded")
	}
	must(t, tree.Remove(t.Context(), b.w.dir))
}

func TestMany(t *testing.T) {
	b := newBox(t, nil)
	const files = 1000
	dirs := rounds(20)
	for i := range dirs {
		d := fmt.Sprintf("%s/upper/%d", b.w.dir, i)
		must(t, os.Mkdir(d, 0o755))
		at, err := unix.Open(d, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		for n := range files {
			must(t, unix.Mknodat(at, fmt.Sprint(n), unix.S_IFREG|0o644, 0))
		}
		unix.Close(at)
	}
	begin := time.Now()
	c := b.change()
	if c.Added != dirs*(files+1) {
		t.Fatalf("%d added", c.Added)
	}
	t.Logf("change of %d files: %v", dirs*files, time.Since(begin))
	begin = time.Now()
	_, err := b.w.apply(t.Context(), c, nil)
	must(t, err)
	t.Logf("promote: %v", time.Since(begin))
	begin = time.Now()
	must(t, tree.Remove(t.Context(), b.ws))
	t.Logf("remove: %v", time.Since(begin))
	must(t, os.Mkdir(b.ws, 0o755))
}

func TestHuge(t *testing.T) {
	b := newBox(t, project(t))
	path := b.w.dir + "/upper/huge"
	must(t, steps(write(path, "begin"), os.Truncate(path, 1<<40), appendAt(path, 1<<39, "middle"), appendAt(path, 1<<40-3, "end")))
	b.wantChange("added huge")
	digest := b.change().Digest
	b.promote()
	var st unix.Stat_t
	must(t, unix.Stat(b.ws+"/huge", &st))
	if st.Size != 1<<40 || st.Blocks > 1000 {
		t.Fatalf("size %d, %d blocks", st.Size, st.Blocks)
	}
	must(t, steps(write(path, "begin"), os.Truncate(path, 1<<40), appendAt(path, 1<<39, "middle"), appendAt(path, 1<<40-3, "end")))
	b.wantChange()
	must(t, appendAt(path, 1<<30, "\x00\x01"))
	b.wantChange("modified huge")
	if b.change().Digest == digest {
		t.Error("equal digests")
	}
}

// TestMountPoint: an overlay shows what lies beneath a mount in the workspace; promote must not write above it.
func TestMountPoint(t *testing.T) {
	needRoot(t)
	b := newBox(t, project(t))
	b.upper("edit", "mine")
	must(t, steps(os.Mkdir(b.w.dir+"/upper/dir", 0o755), write(b.w.dir+"/upper/dir/a", "mine")))
	must(t, kernel.InNamespace(func() error {
		if err := unix.Mount("tmpfs", b.ws+"/dir", "tmpfs", 0, ""); err != nil {
			return err
		}
		defer func() { _ = unix.Unmount(b.ws+"/dir", unix.MNT_DETACH) }()
		if _, err := b.w.change(t.Context()); !errors.Is(err, tree.ErrMountPoint) || !strings.Contains(err.Error(), "dir") {
			t.Errorf("change: %v", err)
		}
		return nil
	}))
}

// TestIdmapped makes a real change as a sandbox does: lower idmapped, upper owned by the sandbox's range.
func TestIdmapped(t *testing.T) {
	needOverlay(t)
	b := newBox(t, project(t))
	must(t, tree.Remove(t.Context(), b.w.dir))
	w, err := create(b.w.dir, b.ws, true)
	must(t, err)
	b.w = w
	// The range, with the owner (root) and 1000 exchanged.
	ids := []syscall.SysProcIDMap{
		{ContainerID: 0, HostID: 1<<30 + 1000, Size: 1}, {ContainerID: 1, HostID: 1<<30 + 1, Size: 999},
		{ContainerID: 1000, HostID: 1 << 30, Size: 1},
	}
	cmd := helperCommand("wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	must(t, err)
	defer ns.Close()
	_, err = stdin.Write([]byte{0})
	must(t, errors.Join(err, cmd.Wait()))
	m := t.TempDir()
	must(t, kernel.InNamespace(func() error {
		s := w.stack()
		clone, err := unix.OpenTree(unix.AT_FDCWD, s.Lower[0], unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(clone)
		err = unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
		testenv.Need(t, "idmap", err)
		// Attached, for this thread alone: kernels before 6.15 take no detached layer.
		if err := unix.MoveMount(clone, "", unix.AT_FDCWD, s.Lower[0], unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return err
		}
		if err := kernel.Mount(m, s); err != nil {
			return err
		}
		defer func() { _ = unix.Unmount(m, unix.MNT_DETACH) }()
		var st unix.Stat_t
		if err := unix.Stat(m+"/edit", &st); err != nil || st.Uid != 1<<30+1000 {
			t.Errorf("edit belongs to %d (%v)", st.Uid, err)
		}
		return steps(everything(m), os.Rename(m+"/mode", m+"/edom"))
	}))
	b.wantChange("modified dir x", "modified dir/a x", "added dir/h", "deleted dir/sub", "deleted dir/sub/c", "modified edit",
		"added edom", "type empty dir>file", "deleted gone", "type keep file>dir", "added keep/in", "link link keep>nowhere",
		"deleted mode", "added new", "added new/g =dir/h", "added new/pipe", "added new/tree", "added new/tree/f =dir/h")
	// Others are busy in the same directory: the renamed file is still no conflict.
	must(t, write(b.ws+"/other", "x"))
	b.promote()
	for path, line := range listing(t, b.ws) {
		if !strings.Contains(line, " 0:0 ") {
			t.Errorf("%s: %s", path, line)
		}
	}
}

// TestUnprivileged runs this package's tests again as a user without privileges, and a real overlay of such a user.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() != 0 {
		testUnprivileged(t)
		return
	}
	home := t.TempDir()
	for dir := home; dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o1 == 0 && strings.HasPrefix(dir, os.TempDir()+"/") {
			must(t, os.Chmod(dir, 0o711))
		}
	}
	exe := home + "/snapshot.test"
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	must(t, steps(os.WriteFile(exe, self, 0o755), os.Mkdir(home+"/tmp", 0o755), os.Chown(home+"/tmp", 12345, 12345)))
	cmd := exec.Command(exe, "-test.v", "-test.run=^(TestUnprivileged|TestHandMade|TestDeep|TestHuge|"+
		"TestStart|TestSecondFeature|TestTwoPromotes|TestGenerations)$")
	cmd.Env = append(os.Environ(), "TMPDIR="+home+"/tmp", "HOME="+home)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnprivileged") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func testUnprivileged(t *testing.T) {
	b := newBox(t, project(t))
	overlay := helperCommand("overlay", b.w.dir, t.TempDir())
	overlay.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_CHOWN, unix.CAP_MKNOD},
	}
	testenv.Need(t, "userns", overlay.Start())
	must(t, overlay.Wait())
	b.wantChange("modified dir x", "modified dir/a x", "added dir/h", "deleted dir/sub", "deleted dir/sub/c", "modified edit",
		"type empty dir>file", "deleted gone", "type keep file>dir", "added keep/in", "link link keep>nowhere", "mode mode 0644>0711",
		"added new", "added new/g =dir/h", "added new/pipe", "added new/tree", "added new/tree/f =dir/h",
		"added zd", "added zd/f", "added zero")
	must(t, write(b.ws+"/other", "x"))
	b.promote()
	b.wantChange()
	must(t, tree.Remove(t.Context(), b.w.dir))
}

// helpOverlay is the sandbox of an unprivileged user.
func helpOverlay(dir, m string) error {
	w, err := open(dir)
	if err != nil {
		return err
	}
	if err := kernel.Mount(m, w.stack()); err != nil {
		return err
	}
	err = errors.Join(everything(m), write(m+"/zero", "x"), os.Chmod(m+"/zero", 0), os.Mkdir(m+"/zd", 0o755), write(m+"/zd/f", "f"),
		os.Chmod(m+"/zd", 0))
	if os.Rename(m+"/dir", m+"/rid") == nil {
		err = errors.Join(err, errors.New("a lower directory was renamed"))
	}
	return err
}

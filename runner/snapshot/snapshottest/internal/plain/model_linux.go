package plain

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CloneTree makes dst a copy of src in everything that list sees. dst must not exist.
func CloneTree(src, dst string) error {
	return (&cloner{src: src, dst: dst, links: map[[2]uint64]string{}}).clone(".")
}

type cloner struct {
	src, dst string
	links    map[[2]uint64]string
}

func (c *cloner) clone(path string) error {
	from, to := c.src+"/"+path, filepath.Join(c.dst, path)
	var st unix.Stat_t
	if err := unix.Lstat(from, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: from, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		key := [2]uint64{st.Dev, st.Ino}
		if first, ok := c.links[key]; ok {
			return os.Link(first, to)
		}
		if st.Nlink > 1 {
			c.links[key] = to
		}
		return cloneNode(from, to, &st)
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := c.clone(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return cloneMeta(from, to, &st)
}

// cloneNode copies anything but a directory.
func cloneNode(from, to string, st *unix.Stat_t) error {
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = cloneFile(from, to, st)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	default:
		err = unix.Mknod(to, st.Mode, int(st.Rdev))
	}
	if err != nil {
		return err
	}
	return cloneMeta(from, to, st)
}

func cloneFile(from, to string, st *unix.Stat_t) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if err := dst.Truncate(st.Size); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	for off := int64(0); off < st.Size; off += int64(len(buf)) {
		n, err := src.ReadAt(buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if strings.Trim(string(buf[:n]), "\x00") == "" {
			continue
		}
		if _, err := dst.WriteAt(buf[:n], off); err != nil {
			return err
		}
	}
	return nil
}

func cloneMeta(from, to string, st *unix.Stat_t) error {
	if err := unix.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return &os.PathError{Op: "chown", Path: to, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: to, Err: err}
		}
	}
	names, err := xattrNames(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		buf := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(from, name, buf)
		if err == nil {
			err = unix.Lsetxattr(to, name, buf[:n], 0)
		}
		if err != nil {
			return err
		}
	}
	ts := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// Model is the plain directory that everything is done to as well.
type Model struct {
	Root  string // w and h lie below
	Links bool   // hard links break as an overlay's do

	// sealed are the files with several names of the layers below, held open so that their numbers stay theirs.
	sealed map[[2]uint64]int
}

// Tree returns the model of the workspace (0) or of HOME (1).
func (m *Model) Tree(i int) string { return filepath.Join(m.Root, []string{"w", "h"}[i]) }

// Mounted notes which hard links lie in lower layers now.
func (m *Model) Mounted() error {
	m.Release()
	if !m.Links {
		return nil
	}
	return filepath.WalkDir(m.Root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil || st.Nlink < 2 {
			return err
		}
		key := [2]uint64{st.Dev, st.Ino}
		if _, ok := m.sealed[key]; ok {
			return nil
		}
		fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		m.sealed[key] = fd
		return err
	})
}

// Copied notes that what lies in an upper layer of the workspace has been copied up, and that its links hold.
func (m *Model) Copied(upper string) error {
	return filepath.WalkDir(upper, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(m.Tree(0), path[len(upper):]), &st) != nil {
			return nil //nolint:nilerr // a whiteout
		}
		key := [2]uint64{st.Dev, st.Ino}
		if fd, ok := m.sealed[key]; ok {
			unix.Close(fd)
			delete(m.sealed, key)
		}
		return nil
	})
}

// Release closes what Mounted keeps open.
func (m *Model) Release() {
	for _, fd := range m.sealed {
		unix.Close(fd)
	}
	m.sealed = map[[2]uint64]int{}
}

// breakLink makes path a file of its own, as copying it up does, when it is a hard link of a sealed file.
func (m *Model) breakLink(path string) error {
	var st, above unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if _, ok := m.sealed[[2]uint64{st.Dev, st.Ino}]; !ok || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	dir := filepath.Dir(path)
	if err := unix.Stat(dir, &above); err != nil {
		return err
	}
	tmp := filepath.Join(m.Root, "break")
	if err := cloneNode(path, tmp, &st); err != nil {
		return err
	}
	if err := unix.Rename(tmp, path); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, dir, []unix.Timespec{above.Atim, above.Mtim}, 0)
}

// Replace makes the model a copy of two trees.
func (m *Model) Replace(workspace, home string) error {
	m.Release()
	if err := os.RemoveAll(m.Root); err != nil {
		return err
	}
	if err := os.MkdirAll(m.Root, 0o700); err != nil {
		return err
	}
	for i, src := range []string{workspace, home} {
		if err := CloneTree(src, m.Tree(i)); err != nil {
			return err
		}
	}
	return m.Mounted()
}

// Apply does an action to a mounted tree and to the model, and tells when they answer differently.
func (m *Model) Apply(mounted string, i int, a Action) error {
	got := errno((&Site{Root: mounted}).Run(a))
	if got == unix.EXDEV {
		return nil // a documented difference: the sandbox's program copies then
	}
	if got == 0 {
		for _, path := range a.writes {
			err := (&Site{Root: m.Tree(i)}).Run(Action{do: on(path, m.breakLink)})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("model of %q: %w", a.Text, err)
			}
		}
	}
	if want := errno((&Site{Root: m.Tree(i)}).Run(a)); got != want {
		return fmt.Errorf("%q: %w, and a plain directory says %w", a.Text, got, want)
	}
	return nil
}

// errno is what a call failed with. Two numbers say that a directory is not empty.
func errno(err error) unix.Errno {
	var e unix.Errno
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &e):
		return unix.EIO
	case e == unix.ENOTEMPTY:
		return unix.EEXIST
	}
	return e
}

// CloneMetaOf gives a directory another's attributes.
func CloneMetaOf(from, to string) error {
	var st unix.Stat_t
	if err := unix.Stat(from, &st); err != nil {
		return err
	}
	return cloneMeta(from, to, &st)
}

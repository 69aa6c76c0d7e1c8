package layertar

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// meta are the attributes of one object, with the ids of the layer.
type meta struct {
	mode     uint32
	uid, gid uint32
	mtime    time.Time
	xattrs   []beneath.Xattr
	size     int64
	sparse   bool
}

// placer writes a layer.
type placer struct {
	o      Options
	root   *beneath.Root
	at     beneath.Cursor
	placed map[string]sort
	dirs   []dirMeta
	holes  int64 // bytes that sparse files may still have
	buf    []byte
}

// dirMeta are attributes that a directory gets when everything in it is there.
type dirMeta struct {
	path string
	meta meta
}

// parent opens the directory that a path is to lie in, made if the archive did not.
func (w *placer) parent(ctx context.Context, name string) (fd int, last string, err error) {
	dir, last := beneath.Split(name)
	if dir != "" {
		if err := w.ensure(ctx, dir); err != nil {
			return -1, "", err
		}
	}
	fd, err = w.at.Dir(dir)
	return fd, last, err
}

// ensure makes a directory that the archive puts something into and does not name.
func (w *placer) ensure(ctx context.Context, dir string) error {
	switch w.placed[dir] {
	case directory, opaqueDir, implied:
		return nil
	case other:
		return &EntryError{dir, "is no directory, and another entry lies in it"}
	}
	m := meta{mode: 0o755, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), mtime: time.Unix(0, 0)}
	if w.o.Whole {
		var st unix.Stat_t
		fd, last, err := w.parent(ctx, dir)
		if err != nil {
			return err
		}
		if err := beneath.StatAt(fd, last, &st); err == nil {
			if !beneath.IsDir(&st) {
				return &EntryError{dir, "goes through something that is no directory"}
			}
			w.placed[dir] = implied
			return nil
		}
		return w.mkdir(ctx, dir, m, implied)
	}
	if w.o.Below != nil && w.placed[dir] != covered {
		s, err := w.o.Below.Lstat(dir)
		switch {
		case err == nil && s.Type != tree.Dir:
			return &EntryError{dir, "goes through something that is no directory"}
		case err == nil:
			m = meta{mode: tree.UnixMode(s.Mode), uid: s.UID, gid: s.GID, mtime: s.Mtime, xattrs: s.Xattrs}
			if ids := w.o.BaseIDs; ids != nil && w.o.Below.Layers()[s.Root].Base {
				m.uid, m.gid = ids(s.UID, s.GID)
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return w.mkdir(ctx, dir, m, implied)
}

// mkdir makes a directory, opaque where the archive had a whiteout.
func (w *placer) mkdir(ctx context.Context, name string, m meta, what sort) error {
	hidden := w.placed[name] == covered && !w.o.Whole
	fd, last, err := w.vacate(ctx, name)
	if err != nil {
		return err
	}
	if err := unix.Mkdirat(fd, last, 0o700); err != nil {
		return err
	}
	w.placed[name] = what
	w.dirs = append(w.dirs, dirMeta{name, m})
	if hidden {
		return w.opaque(ctx, name)
	}
	return nil
}

// dir places a directory of the archive.
func (w *placer) dir(ctx context.Context, name string, m meta) error {
	switch was := w.placed[name]; {
	case was == directory || was == opaqueDir || was == implied:
		if was == implied {
			w.placed[name] = directory
		}
		w.dirs = append(w.dirs, dirMeta{name, m})
		return nil
	case name == ".":
		w.placed[name] = directory
		w.dirs = append(w.dirs, dirMeta{name, m})
		return nil
	case was == nothing && w.o.Whole:
		fd, last, err := w.parent(ctx, name)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := beneath.StatAt(fd, last, &st); err == nil && beneath.IsDir(&st) {
			w.placed[name] = directory
			w.dirs = append(w.dirs, dirMeta{name, m})
			return nil
		}
	}
	return w.mkdir(ctx, name, m, directory)
}

// vacate makes room for an object and returns where it goes.
func (w *placer) vacate(ctx context.Context, name string) (fd int, last string, err error) {
	switch w.placed[name] {
	case nothing, covered:
	default:
		return -1, "", &EntryError{name, "is in the archive twice"}
	}
	fd, last, err = w.parent(ctx, name)
	if err != nil {
		return -1, "", err
	}
	switch {
	case w.o.Whole:
		err = w.remove(ctx, fd, last)
	case w.placed[name] == covered:
		err = unix.Unlinkat(fd, last, 0)
	}
	return fd, last, err
}

// remove removes whatever lies at a name.
func (w *placer) remove(ctx context.Context, dir int, name string) error {
	r := &beneath.Root{FD: dir, Path: w.root.Path, Ours: true}
	return r.RemoveAll(ctx, name)
}

// cover hides or removes a name.
func (w *placer) cover(ctx context.Context, name string) error {
	if was := w.placed[name]; was != nothing {
		if was == covered {
			return nil
		}
		return &EntryError{name, "is deleted and made by the same archive"}
	}
	fd, last, err := w.parent(ctx, name)
	if err != nil {
		return err
	}
	w.placed[name] = covered
	if w.o.Whole {
		return w.remove(ctx, fd, last)
	}
	return unix.Mknodat(fd, last, unix.S_IFCHR, 0)
}

// opaque hides or removes everything that a directory has from below.
func (w *placer) opaque(ctx context.Context, dir string) error {
	if dir != "." {
		if err := w.ensure(ctx, dir); err != nil {
			return err
		}
	}
	w.placed[dir] = opaqueDir
	fd, err := w.at.Dir(unroot(dir))
	if err != nil {
		return err
	}
	if w.o.Whole {
		return w.clear(ctx, fd, dir)
	}
	if dir == "." {
		return nil // overlayfs asks the root for nothing: Result.Full says it
	}
	mark := "trusted.overlay.opaque"
	if w.o.UserXattr {
		mark = "user.overlay.opaque"
	}
	return unix.Fsetxattr(fd, mark, []byte("y"), 0)
}

// clear removes what the archive did not put into a directory.
func (w *placer) clear(ctx context.Context, fd int, dir string) error {
	names, err := beneath.ReadNames(fd, w.buf[:64<<10], nil)
	if err != nil {
		return err
	}
	for _, name := range names {
		if was := w.placed[path.Join(dir, name)]; was == nothing || was == covered {
			if err := w.remove(ctx, fd, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// file places a regular file.
func (w *placer) file(ctx context.Context, name string, m meta, content io.Reader) error {
	fd, last, err := w.vacate(ctx, name)
	if err != nil {
		return err
	}
	out, err := unix.Openat(fd, last, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(out), last)
	w.placed[name] = other
	err = w.fill(f, m, content)
	if err == nil {
		err = m.apply(out)
	}
	return errors.Join(err, f.Close())
}

// fill writes a file's content; a sparse one gets holes for zeros.
func (w *placer) fill(f *os.File, m meta, content io.Reader) error {
	if !m.sparse {
		n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, w.buf)
		if err == nil && n != m.size {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if w.holes -= m.size; w.holes < 0 {
		return ErrTooLarge
	}
	for off := int64(0); off < m.size; {
		n, err := io.ReadFull(content, w.buf[:min(int64(len(w.buf)), m.size-off)])
		if err != nil {
			return err
		}
		for b := 0; b < n; b += hole {
			part := w.buf[b:min(b+hole, n)]
			if isZero(part) {
				continue
			}
			if _, err := f.WriteAt(part, off+int64(b)); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	return f.Truncate(m.size)
}

func (w *placer) symlink(ctx context.Context, name string, m meta, target string) error {
	if target == "" || len(target) >= beneath.PathMax || strings.IndexByte(target, 0) >= 0 {
		return &EntryError{name, "is a link to no possible path"}
	}
	fd, last, err := w.vacate(ctx, name)
	if err != nil {
		return err
	}
	w.placed[name] = other
	if err := unix.Symlinkat(target, fd, last); err != nil {
		return err
	}
	return m.applyAt(fd, last)
}

func (w *placer) fifo(ctx context.Context, name string, m meta) error {
	fd, last, err := w.vacate(ctx, name)
	if err != nil {
		return err
	}
	w.placed[name] = other
	if err := unix.Mknodat(fd, last, unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	if err := m.applyAt(fd, last); err != nil {
		return err
	}
	// By descriptor: there is no call that sets a mode and follows no link before Linux 6.6. Nobody else is here.
	at, err := beneath.OpenAt(fd, last, beneath.PathOnly)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Chmod(beneath.ProcFD(at), m.mode)
}

// link places a hard link to what the archive had before.
func (w *placer) link(ctx context.Context, name, target string) error {
	if w.placed[target] != other {
		return &EntryError{name, "is a hard link to what the archive does not hold"}
	}
	fd, last, err := w.vacate(ctx, name)
	if err != nil {
		return err
	}
	from := beneath.Cursor{Root: w.root}
	defer from.Close()
	dir, first, err := from.Parent(target)
	if err != nil {
		return err
	}
	w.placed[name] = other
	return unix.Linkat(dir, first, fd, last, 0)
}

// finish gives the directories their attributes, those below before those above. Of a directory that came twice the
// last entry counts.
func (w *placer) finish() error {
	last := map[string]meta{}
	for _, d := range w.dirs {
		last[d.path] = d.meta
	}
	paths := slices.SortedFunc(maps.Keys(last), func(a, b string) int { return tree.ComparePaths(unroot(b), unroot(a)) })
	for _, path := range paths {
		fd, err := w.at.Dir(unroot(path))
		if err == nil {
			m := last[path]
			err = m.apply(fd)
		}
		if err != nil {
			return w.root.Fail("set attributes", path, err)
		}
	}
	return nil
}

// apply sets the attributes of an open file or directory.
func (m *meta) apply(fd int) error {
	return errors.Join(
		beneath.Chown(fd, m.uid, m.gid),
		beneath.SetXattrs(fd, m.xattrs),
		unix.Fchmod(fd, m.mode), // after chown, which clears setuid
		beneath.SetMtime(fd, timespec(m.mtime)),
	)
}

// applyAt sets owner and time of what cannot be opened.
func (m *meta) applyAt(dir int, name string) error {
	err := unix.Fchownat(dir, name, int(m.uid), int(m.gid), unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		err = nil // as beneath.Chown
	}
	return errors.Join(err, beneath.SetMtimeAt(dir, name, timespec(m.mtime), unix.AT_SYMLINK_NOFOLLOW))
}

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

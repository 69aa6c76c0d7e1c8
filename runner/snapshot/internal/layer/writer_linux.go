package layer

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Writer makes objects below a directory. It is for one goroutine, and Finish ends it.
type Writer struct {
	Root *beneath.Root
	Mark string // prefix of overlayfs' marks: trusted.overlay. or user.overlay.

	// Map translates the ids of what comes from the host. nil: they stay.
	Map func(uid, gid uint32) (uint32, uint32)

	Files int   // regular files copied
	Bytes int64 // their sizes

	at, first beneath.Cursor
	data      beneath.Copier
	links     map[linkKey]string // → where the file's first copy is
	white     string             // where a whiteout is; "" if there is none yet
	attribute bool               // it is an empty file with a mark
	dirs      []pending
}

// linkKey is one file of one source.
type linkKey struct {
	root *beneath.Root
	ino  uint64
}

// pending is a directory whose time and mode are set when everything below it is there.
type pending struct {
	path  string
	mode  uint32
	mtime unix.Timespec
	acl   []byte // the default one, which what is made below would inherit
}

// Source is an object to copy: a name in an open directory below a root.
type Source struct {
	Root *beneath.Root
	Base bool   // holds the host's ids and may change at any time
	Mark string // prefix of the marks in it, which are not copied; "" if none are
	Dir  int
	Name string
	Stat unix.Stat_t
}

// NewWriter begins to write below root, which the caller closes after Finish.
func NewWriter(root *beneath.Root, mark string) *Writer {
	w := &Writer{Root: root, Mark: mark, links: map[linkKey]string{}}
	w.data.Buf = make([]byte, 1<<20)
	w.at.Root, w.first.Root = root, root
	return w
}

// Finish sets what has to wait until everything is there: the directories' times and modes.
func (w *Writer) Finish() error {
	w.Abandon()
	done := make(map[string]bool, len(w.dirs))
	for _, d := range slices.Backward(w.dirs) {
		if done[d.path] { // looked different first
			continue
		}
		done[d.path] = true
		fd, err := w.Root.Open(d.path, beneath.ReadDir)
		if err == nil {
			err = unix.Fchmod(fd, d.mode)
		}
		if err == nil && d.acl != nil {
			err = unix.Fsetxattr(fd, defaultACL, d.acl, 0)
		}
		if err == nil {
			err = beneath.SetMtime(fd, d.mtime)
		}
		if fd >= 0 {
			unix.Close(fd)
		}
		if err != nil {
			return w.Root.Fail("set attributes", d.path, err)
		}
	}
	w.dirs = nil
	return nil
}

// Abandon ends the writer after an error.
func (w *Writer) Abandon() {
	w.at.Close()
	w.first.Close()
}

// Forget makes the writer forget what it was to do at path and below, which is removed.
func (w *Writer) Forget(ctx context.Context, path string) error {
	below := func(p string) bool { return p == path || strings.HasPrefix(p, path+"/") }
	for key, p := range w.links {
		if below(p) {
			delete(w.links, key)
		}
	}
	if below(w.white) {
		w.white = ""
	}
	w.dirs = slices.DeleteFunc(w.dirs, func(d pending) bool { return below(d.path) })
	parent, name := beneath.Split(path)
	for _, c := range []*beneath.Cursor{&w.at, &w.first} {
		if c.Holds(path) {
			c.Close()
		}
	}
	dir, err := w.at.Dir(parent)
	if err != nil {
		return w.Root.Fail("remove", path, err)
	}
	at := &beneath.Root{FD: dir, Path: w.Root.Path + "/" + beneath.Quote(parent), Ours: true}
	return at.RemoveAll(ctx, name)
}

// Exists reports whether there is something at path, and whether it is a directory.
func (w *Writer) Exists(path string) (exists, dir bool, err error) {
	var st unix.Stat_t
	parent, name, err := w.at.Parent(path)
	if err == nil {
		err = beneath.StatAt(parent, name, &st)
	}
	if beneath.Gone(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, w.Root.Fail("stat", path, err)
	}
	return true, beneath.IsDir(&st), nil
}

// SetMark writes one of overlayfs' marks to a directory.
func (w *Writer) SetMark(path, mark, value string) error {
	fd, err := w.Root.Open(path, beneath.ReadDir)
	if err == nil {
		err = unix.Fsetxattr(fd, w.Mark+mark, []byte(value), 0)
		unix.Close(fd)
	}
	if err != nil {
		return w.Root.Fail("mark "+mark, path, err)
	}
	return nil
}

// Dir makes a directory that looks like an open one, or makes the one that is there look like it. Its time and mode
// come with Finish.
func (w *Writer) Dir(path string, from int, s *Source) error {
	if path != "" {
		parent, name, err := w.at.Parent(path)
		if err == nil {
			err = unix.Mkdirat(parent, name, 0o700)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return w.Root.Fail("mkdir", path, err)
		}
	}
	fd, err := w.Root.Open(path, beneath.ReadDir)
	if err != nil {
		return w.Root.Fail("open", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return s.Root.Fail("stat", s.Name, err)
	}
	if err = w.own(fd, &st, s); err == nil {
		err = w.clearXattrs(fd, from, s)
	}
	if err == nil {
		err = copyXattrs(fd, from, s)
	}
	if err != nil {
		return w.Root.Fail("set attributes", path, err)
	}
	d := pending{path: path, mode: st.Mode & 0o7777, mtime: st.Mtim}
	if acl, err := beneath.GetXattr(from, defaultACL); err == nil {
		d.acl = []byte(acl)
	}
	w.dirs = append(w.dirs, d)
	return nil
}

// defaultACL is the attribute that new files inherit.
const defaultACL = "system.posix_acl_default"

// own gives a file to the owner of what it is a copy of.
func (w *Writer) own(fd int, st *unix.Stat_t, s *Source) error {
	uid, gid := w.owner(st, s)
	return beneath.Chown(fd, uid, gid)
}

func (w *Writer) owner(st *unix.Stat_t, s *Source) (uid, gid uint32) {
	if s.Base && w.Map != nil {
		return w.Map(st.Uid, st.Gid)
	}
	return st.Uid, st.Gid
}

// Copy makes a copy of anything but a directory. Copies of hard links of one file are hard links of each other.
func (w *Writer) Copy(ctx context.Context, s *Source, path string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	dir, name, err := w.at.Parent(path)
	if err != nil {
		return w.Root.Fail("open", path, err)
	}
	key := linkKey{s.Root, s.Stat.Ino}
	if first, ok := w.links[key]; ok && s.Stat.Nlink > 1 {
		from, base, err := w.first.Parent(first)
		if err == nil {
			err = unix.Linkat(from, base, dir, name, 0)
		}
		if err != nil {
			return w.Root.Fail("link", path, err)
		}
		return nil
	}
	if beneath.IsFile(&s.Stat) {
		err = w.file(ctx, s, dir, name)
	} else {
		err = w.node(s, dir, name)
	}
	if err != nil {
		return w.Root.Fail("copy", path, err)
	}
	if s.Stat.Nlink > 1 {
		w.links[key] = path
	}
	return nil
}

func (w *Writer) file(ctx context.Context, s *Source, dir int, name string) error {
	src, err := s.Root.OpenFile(s.Dir, s.Name)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	if err := unix.Fstat(src, &s.Stat); err != nil { // others may have replaced it
		return err
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dst, err := beneath.Retry(func() (int, error) { return unix.Openat(dir, name, flags, 0o600) })
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	if err := w.data.Copy(ctx, dst, src, &s.Stat); err != nil {
		return err
	}
	w.Files++
	w.Bytes += s.Stat.Size
	if err := w.own(dst, &s.Stat, s); err != nil {
		return err
	}
	if err := copyXattrs(dst, src, s); err != nil {
		return err
	}
	if err := unix.Fchmod(dst, s.Stat.Mode&0o7777); err != nil {
		return err
	}
	return beneath.SetMtime(dst, s.Stat.Mtim)
}

// node copies what has no content: links, fifos, sockets, devices.
func (w *Writer) node(s *Source, dir int, name string) error {
	if beneath.IsLink(&s.Stat) {
		target, err := beneath.ReadLink(s.Dir, s.Name)
		if err == nil {
			err = unix.Symlinkat(target, dir, name)
		}
		if err != nil {
			return err
		}
	} else if err := unix.Mknodat(dir, name, s.Stat.Mode&unix.S_IFMT|0o600, int(s.Stat.Rdev)); err != nil {
		return err
	}
	uid, gid := w.owner(&s.Stat, s)
	err := unix.Fchownat(dir, name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && (!errors.Is(err, unix.EPERM) || os.Geteuid() == 0) {
		return err
	}
	if !beneath.IsLink(&s.Stat) {
		if err := unix.Fchmodat(dir, name, s.Stat.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	return beneath.SetMtimeAt(dir, name, s.Stat.Mtim, unix.AT_SYMLINK_NOFOLLOW)
}

// copied reports the attributes that belong to the object itself and not to its place in a stack. overlayfs writes the
// marks of an overlay in an overlay with a prefix of their own.
func (s *Source) copied(name string) bool {
	if name == defaultACL {
		return false
	}
	if s.Base {
		return !strings.HasPrefix(name, "trusted.") && !strings.HasPrefix(name, "user.overlay.")
	}
	mark, ours := strings.CutPrefix(name, s.Mark)
	return s.Mark == "" || !ours || mark == "origin" || strings.HasPrefix(mark, "overlay.")
}

// clearXattrs removes the attributes that a directory has from looking like something else before. Its marks stay.
func (w *Writer) clearXattrs(dst, src int, s *Source) error {
	var buf, buf2 [1024]byte
	have, err := beneath.ListXattrs(dst, buf[:])
	if err != nil || len(have) == 0 {
		return err
	}
	want, err := beneath.ListXattrs(src, buf2[:])
	if err != nil {
		return err
	}
	for _, name := range have {
		if strings.HasPrefix(name, w.Mark) || !s.copied(name) || slices.Contains(want, name) {
			continue
		}
		if err := unix.Fremovexattr(dst, name); err != nil {
			return err
		}
	}
	return nil
}

// copyXattrs makes the attributes of dst those of src.
func copyXattrs(dst, src int, s *Source) error {
	var buf [1024]byte
	names, err := beneath.ListXattrs(src, buf[:])
	if err != nil {
		return err
	}
	for _, name := range names {
		if !s.copied(name) {
			continue
		}
		value, err := beneath.GetXattr(src, name)
		if err != nil {
			return err
		}
		err = unix.Fsetxattr(dst, name, []byte(value), 0)
		if err != nil && !(os.Geteuid() != 0 && errors.Is(err, unix.EPERM) && !strings.HasPrefix(name, "user.")) {
			return err
		}
	}
	return nil
}

package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// openDir opens a directory of the view by its path; unix.ENOENT.
func (v *View) openDir(path string) (*dir, error) {
	d, err := v.openTop()
	if err != nil || path == "" || path == "." {
		return d, err
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			d.close()
			return nil, v.roots[0].Fail("open", path, unix.ENOENT)
		}
		next, err := v.resolve(d.places, part)
		d.close()
		if err != nil {
			return nil, err
		}
		if len(next.fds) == 0 {
			return nil, v.roots[0].Fail("open", path, unix.ENOENT)
		}
		d = next
	}
	return d, nil
}

// lookup finds a path, and the directory that holds it, which the caller closes.
func (v *View) lookup(path string) (*dir, side, string, error) {
	var s side
	above, name := beneath.Split(path)
	d, err := v.openDir(above)
	if err != nil {
		return nil, s, "", err
	}
	if name == "" || name == "." || name == ".." {
		err = unix.ENOENT
	} else {
		err = v.find(d, name, &s)
	}
	if err == nil && !s.ok {
		err = v.roots[0].Fail("open", path, unix.ENOENT)
	}
	if err != nil {
		d.close()
		return nil, s, "", err
	}
	return d, s, name, nil
}

// Open opens a regular file for reading. It never follows a link and never blocks. Errors are fs.ErrNotExist, also for
// what is no regular file, and *fs.PathError.
func (v *View) Open(path string) (*os.File, error) {
	d, s, name, err := v.lookup(path)
	if err != nil {
		return nil, err
	}
	defer d.close()
	r := v.roots[s.root]
	if !beneath.IsFile(&s.st) {
		return nil, r.Fail("open", path, unix.ENOENT)
	}
	fd, err := r.OpenFile(s.dir, name)
	if err != nil {
		return nil, r.Fail("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Lstat describes a path; "." is the root. Errors are fs.ErrNotExist and *fs.PathError.
func (v *View) Lstat(path string) (Stat, error) {
	if path == "" || path == "." {
		d, err := v.openTop()
		if err != nil {
			return Stat{}, err
		}
		defer d.close()
		return v.statDir(d)
	}
	d, s, name, err := v.lookup(path)
	if err != nil {
		return Stat{}, err
	}
	defer d.close()
	return v.stat(d, &s, name)
}

// Readlink returns what a symbolic link says. Errors are fs.ErrNotExist, also for what is no link, and *fs.PathError.
func (v *View) Readlink(path string) (string, error) {
	s, err := v.Lstat(path)
	if err == nil && s.Type != Symlink {
		err = &fs.PathError{Op: "readlink", Path: path, Err: fs.ErrNotExist}
	}
	return s.Link, err
}

// Walk calls do for the root (".") and everything below it: a directory, then what it holds, sorted by name. Errors of
// do end it.
func (v *View) Walk(ctx context.Context, do func(path string, s Stat) error) error {
	d, err := v.openTop()
	if err != nil {
		return err
	}
	return v.walk(ctx, d, "", do)
}

// walk visits a directory and what is below it, and closes it.
func (v *View) walk(ctx context.Context, d *dir, path string, do func(path string, s Stat) error) error {
	if ctx.Err() != nil {
		d.close()
		return context.Cause(ctx)
	}
	st, err := v.statDir(d)
	if err == nil && path == "" {
		err = do(".", st)
	} else if err == nil {
		err = do(path, st)
	}
	var names []string
	if err == nil {
		names, err = v.names(d)
	}
	var dirs []string // of what is to come; descriptors of one directory at a time are enough
	kept := names[:0]
	stats := make(map[string]Stat, len(names))
	for _, name := range names {
		if err != nil || ctx.Err() != nil {
			break
		}
		var s side
		if err = v.find(d, name, &s); err != nil || !s.ok {
			continue
		}
		kept = append(kept, name)
		if beneath.IsDir(&s.st) {
			dirs = append(dirs, name)
			continue
		}
		if st, err = v.stat(d, &s, name); beneath.Gone(err) {
			err = nil // removed a moment ago
			continue
		}
		stats[name] = st
	}
	places := d.places
	d.close()
	for _, name := range kept {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		sub := beneath.Join(path, name)
		if st, plain := stats[name]; plain {
			err = do(sub, st)
		} else if slices.Contains(dirs, name) {
			var next *dir
			if next, err = v.resolve(places, name); err == nil && len(next.fds) > 0 {
				err = v.walk(ctx, next, sub, do)
			}
		}
	}
	return err
}

// names lists what a directory's places hold, sorted, whiteouts too.
func (v *View) names(d *dir) ([]string, error) {
	var names []string
	buf := make([]byte, 64<<10)
	for i, fd := range d.fds {
		var err error
		if names, err = beneath.ReadNames(fd, buf, names); err != nil {
			return nil, v.roots[d.places[i].layer].Fail("read", d.places[i].path, err)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// statDir describes an open directory: as its first place.
func (v *View) statDir(d *dir) (Stat, error) {
	p := d.places[0]
	r := v.roots[p.layer]
	var st unix.Stat_t
	if err := unix.Fstat(d.fds[0], &st); err != nil {
		return Stat{}, r.Fail("stat", p.path, err)
	}
	s := statOf(&st)
	s.Root, s.Source = p.layer, p.path
	var err error
	if s.Xattrs, err = beneath.ReadXattrs(d.fds[0], beneath.IsUserXattr); err != nil {
		return s, r.Fail("getxattr", p.path, err)
	}
	return s, nil
}

// stat describes what find found.
func (v *View) stat(d *dir, n *side, name string) (Stat, error) {
	s := statOf(&n.st)
	s.Root, s.Source = n.root, beneath.Join(d.places[n.at].path, name)
	r := v.roots[n.root]
	var err error
	switch s.Type {
	case Symlink:
		s.Link, err = beneath.ReadLink(n.dir, name)
	case Dir:
		s.Xattrs, err = userXattrsOf(r.Open(s.Source, beneath.ReadDir))
	case File:
		if beneath.HasUserXattrs(n.dir, name, make([]byte, 1024)) {
			s.Xattrs, err = userXattrsOf(r.OpenListed(n.dir, name))
		}
	}
	if err != nil {
		return s, r.Fail("read", s.Source, err)
	}
	return s, nil
}

func statOf(st *unix.Stat_t) Stat {
	return Stat{
		Type: TypeOf(st), Mode: FileMode(st.Mode), Size: st.Size, Blocks: st.Blocks, UID: st.Uid, GID: st.Gid,
		Rdev: st.Rdev, Mtime: beneath.TimeOf(st.Mtim), Ctime: beneath.TimeOf(st.Ctim), Dev: st.Dev, Ino: st.Ino,
		Nlink: uint64(st.Nlink), //nolint:unconvert // 32 bits on arm64
	}
}

// userXattrsOf reads the user's attributes of a file that was just opened, and closes it.
func userXattrsOf(fd int, err error) ([]Xattr, error) {
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return beneath.ReadXattrs(fd, beneath.IsUserXattr)
}

// Remove removes a feature's directory with everything in it, whatever the modes and the depth, also one that was
// never completed; a missing one is no error. With keep, names directly in it, those and the directory itself stay.
func Remove(ctx context.Context, dir string, keep ...string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	at, names := filepath.Dir(dir), []string{filepath.Base(dir)}
	if len(keep) > 0 {
		at = dir
	}
	r, err := beneath.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if len(keep) > 0 {
		if names, err = beneath.ReadNames(r.FD, make([]byte, 64<<10), nil); err != nil {
			return r.Fail("read", ".", err)
		}
	}
	for _, name := range names {
		if slices.Contains(keep, name) {
			continue
		}
		if err := r.RemoveAll(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

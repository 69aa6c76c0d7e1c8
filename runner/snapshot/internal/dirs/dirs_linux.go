package dirs

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Look is what shows of a directory itself.
type Look struct {
	Owner  Owner
	Mode   uint32
	Mtime  unix.Timespec
	Xattrs []beneath.Xattr // the user's
}

// LookOf reads how an open directory looks.
func LookOf(fd int) (Look, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Look{}, err
	}
	attrs, err := beneath.ReadXattrs(fd, beneath.IsUserXattr)
	return Look{Owner{st.Uid, st.Gid}, st.Mode & 0o7777, st.Mtim, attrs}, err
}

// Usage is what a directory takes, with everything below.
type Usage struct {
	Bytes  int64 // allocated
	Inodes int64
}

// Measure adds up a tree of ours. What disappears meanwhile is not counted.
func Measure(ctx context.Context, dir string) (Usage, error) {
	r, err := beneath.OpenRoot(dir)
	if err != nil {
		return Usage{}, err
	}
	defer r.Close()
	r.Ours = true
	m := measurer{root: r, links: map[uint64]bool{}, buf: make([]byte, 64<<10)}
	for todo := []string{""}; len(todo) > 0; {
		path := todo[len(todo)-1]
		if ctx.Err() != nil {
			return m.used, context.Cause(ctx)
		}
		more, err := m.dir(path)
		if err != nil && !beneath.Gone(err) {
			return m.used, r.Fail("measure", path, err)
		}
		todo = append(todo[:len(todo)-1], more...)
	}
	return m.used, nil
}

type measurer struct {
	root  *beneath.Root
	links map[uint64]bool
	buf   []byte
	used  Usage
}

// dir counts a directory and what is in it, and returns the directories among that.
func (m *measurer) dir(path string) (below []string, err error) {
	fd, err := m.root.Open(path, beneath.ReadDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	m.add(&st)
	names, err := beneath.ReadNames(fd, m.buf, nil)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if err := beneath.StatAt(fd, name, &st); beneath.Gone(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		if beneath.IsDir(&st) {
			below = append(below, beneath.Join(path, name))
			continue
		}
		m.add(&st)
	}
	return below, nil
}

func (m *measurer) add(st *unix.Stat_t) {
	if !beneath.IsDir(st) && st.Nlink > 1 {
		if m.links[st.Ino] {
			return
		}
		m.links[st.Ino] = true
	}
	m.used.Bytes += st.Blocks * 512
	m.used.Inodes++
}

// Point makes an empty directory or file at a path below root for something to be mounted on, with its parents, all owned
// by o. What exists already with the right type is left. The error is a *fs.PathError.
func Point(root, path string, dir bool, o Owner) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) == "." {
		return &fs.PathError{Op: "mount point", Path: path, Err: fs.ErrInvalid}
	}
	r, err := beneath.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	parts := strings.Split(filepath.Clean(path), "/")
	for i := range parts {
		sub := strings.Join(parts[:i+1], "/")
		if err := point(r, sub, dir || i < len(parts)-1, o); err != nil {
			return r.Fail("mount point", sub, err)
		}
	}
	return nil
}

func point(r *beneath.Root, path string, dir bool, o Owner) error {
	at := beneath.Cursor{Root: r}
	defer at.Close()
	parent, name, err := at.Parent(path)
	if err != nil {
		return err
	}
	flags, mode, made := beneath.ReadFile, uint32(0o644), false
	if dir {
		flags, mode = beneath.ReadDir, 0o755
		err = unix.Mkdirat(parent, name, 0o700)
	} else {
		var fd int
		if fd, err = unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|beneath.ReadFile, 0o600); err == nil {
			unix.Close(fd)
		}
	}
	if made = err == nil; !made && !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := beneath.OpenAt(parent, name, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if beneath.IsDir(&st) != dir || !dir && !beneath.IsFile(&st) {
		return unix.EEXIST
	}
	if !made {
		return nil
	}
	return errors.Join(beneath.Chown(fd, o.UID, o.GID), unix.Fchmod(fd, mode))
}

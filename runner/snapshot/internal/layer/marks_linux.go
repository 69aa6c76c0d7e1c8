package layer

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Marks is what overlayfs wrote into a directory's or a file's extended attributes.
type Marks struct {
	Opaque, Origin, Metacopy, Redirected bool

	Redirect string
	User     bool // there are attributes of the user, too
}

// ReadMarks reads overlayfs' marks of a file or directory; prefix is that of their names.
func ReadMarks(fd int, prefix string) (Marks, error) {
	var m Marks
	var buf [1024]byte
	names, err := beneath.ListXattrs(fd, buf[:])
	if err != nil {
		return m, err
	}
	for _, name := range names {
		m.User = m.User || beneath.IsUserXattr(name)
		mark, ours := strings.CutPrefix(name, prefix)
		if !ours {
			continue
		}
		switch mark {
		case "origin":
			m.Origin = true
		case "opaque":
			value, err := beneath.GetXattr(fd, name)
			if err != nil {
				return m, err
			}
			m.Opaque = value == "y" // "x": only holds whiteouts in attributes
		case "redirect":
			if m.Redirect, err = beneath.GetXattr(fd, name); err != nil {
				return m, err
			}
			m.Redirected = true
		case "metacopy":
			m.Metacopy = true
		}
	}
	m.Redirected = m.Redirected && !m.Opaque
	return m, nil
}

// ValidRedirect reports a name, or a path from the root.
func ValidRedirect(s string) bool {
	path, absolute := strings.CutPrefix(s, "/")
	if !absolute && strings.Contains(path, "/") {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// Whiteout hides a name of the layers below. Whiteouts are links of one inode, as overlayfs itself makes them: they
// would use up a quota otherwise.
func (w *Writer) Whiteout(path string) error {
	dir, name, err := w.at.Parent(path)
	if err != nil {
		return w.Root.Fail("whiteout", path, err)
	}
	if w.white != "" {
		from, base, err := w.first.Parent(w.white)
		if err == nil {
			err = unix.Linkat(from, base, dir, name, 0)
		}
		if err == nil {
			if w.attribute {
				err = w.announce(dir)
			}
			return w.failed("whiteout", path, err)
		}
	}
	w.white = path // there is none yet, or it has as many links as the filesystem allows
	err = unix.Mknodat(dir, name, unix.S_IFCHR, 0)
	if w.attribute = errors.Is(err, unix.EPERM); w.attribute {
		err = w.whiteFile(dir, name)
	}
	return w.failed("whiteout", path, err)
}

// whiteFile makes a whiteout in the form for a filesystem that is itself an overlay, which lets nobody make the device: an
// empty file with a mark. Kernels understand it since 6.7.
func (w *Writer) whiteFile(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(unix.Fsetxattr(fd, w.Mark+"whiteout", []byte("y"), 0), unix.Close(fd))
	if err != nil {
		return err
	}
	return w.announce(dir)
}

// announce has overlayfs look for such whiteouts: in their directory, and in this layer at all.
func (w *Writer) announce(dir int) error {
	for _, fd := range []int{dir, w.Root.FD} {
		err := unix.Setxattr(beneath.ProcFD(fd), w.Mark+"opaque", []byte("x"), unix.XATTR_CREATE)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

func (w *Writer) failed(op, path string, err error) error {
	if err != nil {
		return w.Root.Fail(op, path, err)
	}
	return nil
}

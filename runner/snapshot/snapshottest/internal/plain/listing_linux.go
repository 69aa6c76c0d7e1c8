package plain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Node is everything that can be observed of one path, but for times of access and of change.
type Node struct {
	Mode     uint32 // type and permissions
	uid, gid uint32
	size     int64 // of files
	Rdev     uint64
	Mtime    unix.Timespec
	Link     string // target of a symbolic link
	Xattrs   string
	Sum      string // of a file's content
	Group    string // the first path that is the same file, when there are several
	sparse   bool   // a file with less than half of it allocated
}

// Listing is a tree: relative path → Node; "." is the root.
type Listing map[string]Node

// Compared says what a comparison leaves out.
type Compared int

// What a comparison leaves out, from nothing to most.
const (
	Exact    Compared = iota
	Imported          // but for how files are stored
	Modelled          // times that nobody set, and how files are stored
	Promoted          // also sockets, owners, times and links
)

// set reports a time that an operation set, and not the clock.
func set(t unix.Timespec) bool { return t.Sec < 1e9 }

// Reduce returns what is compared.
func (n Node) Reduce(how Compared) Node {
	switch how {
	case Imported, Modelled:
		n.sparse = false
	case Promoted:
		n.sparse, n.Group, n.uid, n.gid, n.Mtime = false, "", 0, 0, unix.Timespec{}
	}
	return n
}

func (n Node) equal(o Node, how Compared) bool {
	if how == Modelled && !set(n.Mtime) && !set(o.Mtime) {
		n.Mtime = o.Mtime
	}
	return n.Reduce(how) == o.Reduce(how)
}

func (n Node) String() string {
	s := fmt.Sprintf("%o %d:%d size %d mtime %d.%09d", n.Mode, n.uid, n.gid, n.size, n.Mtime.Sec, n.Mtime.Nsec)
	if n.Link != "" {
		s += " -> " + n.Link
	}
	if n.Xattrs != "" {
		s += fmt.Sprintf(" %q", n.Xattrs)
	}
	if n.Sum != "" {
		s += " " + n.Sum[:8]
	}
	if n.Group != "" {
		s += " = " + n.Group
	}
	if n.sparse {
		s += " sparse"
	}
	return s
}

// Differ describes how o differs, "" if it does not.
func (l Listing) Differ(o Listing, how Compared) string {
	var out []string
	for path, n := range l {
		m, ok := o[path]
		switch {
		case ok && n.equal(m, how), how == Promoted && n.Mode&unix.S_IFMT == unix.S_IFSOCK:
		case !ok:
			out = append(out, fmt.Sprintf("%q\n  - %v\n  + nothing", path, n))
		default:
			out = append(out, fmt.Sprintf("%q\n  - %v\n  + %v", path, n, m))
		}
	}
	for path, m := range o {
		if _, ok := l[path]; !ok && (how != Promoted || m.Mode&unix.S_IFMT != unix.S_IFSOCK) {
			out = append(out, fmt.Sprintf("%q\n  - nothing\n  + %v", path, m))
		}
	}
	slices.Sort(out)
	if len(out) > 12 {
		out = append(out[:12], fmt.Sprintf("and %d more", len(out)-12))
	}
	return strings.Join(out, "\n")
}

// List reads a tree that nobody changes.
func List(root string) (Listing, error) {
	l := Listing{}
	groups := map[[2]uint64][]string{}
	if err := l.add(root, ".", groups); err != nil {
		return nil, err
	}
	for _, paths := range groups {
		if len(paths) < 2 {
			continue
		}
		slices.Sort(paths)
		for _, path := range paths {
			n := l[path]
			n.Group = paths[0]
			l[path] = n
		}
	}
	return l, nil
}

func (l Listing) add(root, path string, groups map[[2]uint64][]string) error {
	full := root + "/" + path
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	n := Node{Mode: st.Mode, uid: st.Uid, gid: st.Gid, Rdev: st.Rdev, Mtime: st.Mtim}
	var err error
	if n.Xattrs, err = userXattrs(full); err != nil {
		return &os.PathError{Op: "xattr", Path: path, Err: err}
	}
	isDir := false
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		isDir, n.Rdev = true, 0
	case unix.S_IFLNK:
		n.Link, err = os.Readlink(full)
	case unix.S_IFREG:
		n.size = st.Size
		n.sparse = st.Size >= 256<<10 && st.Blocks*512 < st.Size/2
		n.Sum, err = sum(full)
	}
	if err != nil {
		return err
	}
	l[path] = n
	if !isDir {
		key := [2]uint64{st.Dev, st.Ino} // an overlay's count of links is not to be had
		groups[key] = append(groups[key], path)
		return nil
	}
	dir, err := os.Open(full)
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, name := range names {
		if err := l.add(root, filepath.Join(path, name), groups); err != nil {
			return err
		}
	}
	return nil
}

func sum(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:]), nil
}

// userXattrs are a file's user.* attributes but for overlayfs' own, in one string.
func userXattrs(path string) (string, error) {
	names, err := xattrNames(path)
	var all []string
	for _, name := range names {
		buf := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, buf)
		if err != nil {
			return "", err
		}
		all = append(all, name+"="+string(buf[:n]))
	}
	return strings.Join(all, " "), err
}

func xattrNames(path string) ([]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

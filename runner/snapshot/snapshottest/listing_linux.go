package snapshottest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// node is everything that can be observed of one path, but for times of access and of change.
type node struct {
	mode     uint32 // type and permissions
	uid, gid uint32
	size     int64 // of files
	rdev     uint64
	mtime    unix.Timespec
	link     string // target of a symbolic link
	xattrs   string
	sum      string // of a file's content
	group    string // the first path that is the same file, when there are several
	sparse   bool   // a file with less than half of it allocated
}

// listing is a tree: relative path → node; "." is the root.
type listing map[string]node

// view is what a feature shows: the workspace and HOME.
type view [2]listing

// compared says what a comparison leaves out.
type compared int

const (
	exact    compared = iota
	imported          // but for how files are stored
	modelled          // times that nobody set, and how files are stored
	promoted          // also sockets, owners, times and links
)

// set reports a time that an operation set, and not the clock.
func set(t unix.Timespec) bool { return t.Sec < 1e9 }

func (n node) reduce(how compared) node {
	switch how {
	case imported, modelled:
		n.sparse = false
	case promoted:
		n.sparse, n.group, n.uid, n.gid, n.mtime = false, "", 0, 0, unix.Timespec{}
	}
	return n
}

func (n node) equal(o node, how compared) bool {
	if how == modelled && !set(n.mtime) && !set(o.mtime) {
		n.mtime = o.mtime
	}
	return n.reduce(how) == o.reduce(how)
}

func (n node) String() string {
	s := fmt.Sprintf("%o %d:%d size %d mtime %d.%09d", n.mode, n.uid, n.gid, n.size, n.mtime.Sec, n.mtime.Nsec)
	if n.link != "" {
		s += " -> " + n.link
	}
	if n.xattrs != "" {
		s += fmt.Sprintf(" %q", n.xattrs)
	}
	if n.sum != "" {
		s += " " + n.sum[:8]
	}
	if n.group != "" {
		s += " = " + n.group
	}
	if n.sparse {
		s += " sparse"
	}
	return s
}

// differ describes how o differs, "" if it does not.
func (v view) differ(o view, how compared) string {
	var b strings.Builder
	for i, name := range []string{"workspace", "home"} {
		if d := v[i].differ(o[i], how); d != "" {
			fmt.Fprintf(&b, "%s: - expected, + found\n%s\n", name, d)
		}
	}
	return b.String()
}

func (l listing) differ(o listing, how compared) string {
	var out []string
	for path, n := range l {
		m, ok := o[path]
		switch {
		case ok && n.equal(m, how), how == promoted && n.mode&unix.S_IFMT == unix.S_IFSOCK:
		case !ok:
			out = append(out, fmt.Sprintf("%q\n  - %v\n  + nothing", path, n))
		default:
			out = append(out, fmt.Sprintf("%q\n  - %v\n  + %v", path, n, m))
		}
	}
	for path, m := range o {
		if _, ok := l[path]; !ok && (how != promoted || m.mode&unix.S_IFMT != unix.S_IFSOCK) {
			out = append(out, fmt.Sprintf("%q\n  - nothing\n  + %v", path, m))
		}
	}
	slices.Sort(out)
	if len(out) > 12 {
		out = append(out[:12], fmt.Sprintf("and %d more", len(out)-12))
	}
	return strings.Join(out, "\n")
}

// apply is what a workspace holds after a promote of what shows.
func (l listing) apply(c *snapshot.Change, shows listing) listing {
	out := maps.Clone(l)
	for i := range c.Entries {
		path := c.Entries[i].Path
		if n, ok := shows[path]; ok {
			out[path] = n
		} else {
			delete(out, path)
		}
	}
	return out
}

func listPair(workspace, home string) (v view, err error) {
	if v[0], err = list(workspace); err != nil {
		return v, err
	}
	v[1], err = list(home)
	return v, err
}

// list reads a tree that nobody changes.
func list(root string) (listing, error) {
	l := listing{}
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
			n.group = paths[0]
			l[path] = n
		}
	}
	return l, nil
}

func (l listing) add(root, path string, groups map[[2]uint64][]string) error {
	full := root + "/" + path
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	n := node{mode: st.Mode, uid: st.Uid, gid: st.Gid, rdev: st.Rdev, mtime: st.Mtim}
	var err error
	if n.xattrs, err = userXattrs(full); err != nil {
		return &os.PathError{Op: "xattr", Path: path, Err: err}
	}
	isDir := false
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		isDir, n.rdev = true, 0
	case unix.S_IFLNK:
		n.link, err = os.Readlink(full)
	case unix.S_IFREG:
		n.size = st.Size
		n.sparse = st.Size >= 256<<10 && st.Blocks*512 < st.Size/2
		n.sum, err = sum(full)
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

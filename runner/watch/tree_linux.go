package watch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// root is one upper.
type root struct {
	stack, path string
	fd          int // O_PATH
	top         *node
}

// node is what was last seen under a name.
type node struct {
	root   *root
	parent *node
	name   string
	wd     int              // its watch; -1: none
	kids   map[string]*node // of a directory
	seen   seen
}

// seen is what of an object tells that it has changed.
type seen struct {
	ino               uint64
	size              int64
	mtime, ctime      int64 // nanoseconds
	mode, uid, gid    uint32
	links             uint32
	isDir, isWhiteout bool
}

func look(st *unix.Stat_t) seen {
	t := st.Mode & unix.S_IFMT
	s := seen{
		ino: st.Ino, mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(), mode: st.Mode, uid: st.Uid, gid: st.Gid,
		links: uint32(st.Nlink), isDir: t == unix.S_IFDIR, isWhiteout: t == unix.S_IFCHR && st.Rdev == 0,
	}
	if t == unix.S_IFREG {
		s.size = st.Size
	}
	return s
}

func openRoot(stack, path string) (*root, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", stack, &os.PathError{Op: "open", Path: path, Err: err})
	}
	r := &root{stack: stack, path: path, fd: fd}
	r.top = &node{root: r, wd: -1, kids: map[string]*node{}}
	return r, nil
}

// path is relative to the root; "." for itself.
func (n *node) path() string {
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	if len(names) == 0 {
		return "."
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteString(names[i])
		if i > 0 {
			b.WriteByte('/')
		}
	}
	return b.String()
}

// open opens a directory by its path, of which no part may be a link: the task may exchange any of them.
func (n *node) open() (*os.File, error) {
	fd, err := unix.Openat2(n.root.fd, n.path(), &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOATIME,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.EPERM) { // not ours: O_NOATIME is for the owner
		fd, err = unix.Openat2(n.root.fd, n.path(), &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
		})
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), n.name), nil
}

// how is what a look at a directory is for.
type how int

const (
	quiet how = iota // to know what is there
	fresh            // a directory that is new: all in it is, too
	again            // all of it, to find what was not announced
)

// enter watches a directory and then looks at all in it: what comes later is announced, what came before is found. One
// that cannot be opened is not ours to see, or gone; the seal will say.
func (l *loop) enter(n *node, h how) {
	f, err := n.open()
	if err != nil {
		return
	}
	defer f.Close()
	if l.ino != nil && n.wd < 0 {
		if err := l.ino.add(n, int(f.Fd())); errors.Is(err, errTooMany) {
			l.scan()
		}
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return
	}
	there := map[string]bool{}
	for _, name := range names {
		there[name] = true
		l.visit(n, int(f.Fd()), name, h)
	}
	for name, kid := range n.kids {
		if !there[name] {
			l.gone(kid)
		}
	}
}

// visitAll looks at some names of a directory.
func (l *loop) visitAll(n *node, names map[string]bool) {
	if n.dropped() {
		return
	}
	f, err := n.open()
	if err != nil {
		return // its parent tells
	}
	defer f.Close()
	for name := range names {
		l.visit(n, int(f.Fd()), name, fresh)
	}
}

// dropped says whether a directory is not of the tree any more.
func (n *node) dropped() bool {
	for ; n.parent != nil; n = n.parent {
		if n.parent.kids[n.name] != n {
			return true
		}
	}
	return false
}

// visit compares a name with what was seen there before.
func (l *loop) visit(dir *node, fd int, name string, h how) {
	var st unix.Stat_t
	kid := dir.kids[name]
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if kid != nil && errors.Is(err, unix.ENOENT) {
			l.gone(kid)
		}
		return
	}
	now := look(&st)
	if kid != nil && (kid.seen.isDir != now.isDir || now.isDir && kid.seen.ino != now.ino) {
		l.gone(kid) // replaced; a file's number may be a directory's now
		kid = nil
	}
	if kid == nil {
		l.found(&node{root: dir.root, parent: dir, name: name, wd: -1, seen: now}, fd, h)
		return
	}
	kind := compare(kid.seen, now)
	kid.seen = now
	if kind != "" && h != quiet {
		l.record(kid, kind)
	}
	if now.isDir && (h == again || l.ino != nil && kid.wd < 0) {
		l.enter(kid, h)
	}
}

// found takes in what was not there before. A directory that was copied up is the way to a change and none itself.
func (l *loop) found(n *node, dir int, h how) {
	n.parent.kids[n.name] = n
	if h != quiet {
		switch origin := n.copiedUp(dir); {
		case n.seen.isWhiteout:
			l.record(n, Deleted)
		case origin && !n.seen.isDir:
			l.record(n, Modified)
		case !origin:
			l.record(n, Added)
		}
	}
	if n.seen.isDir {
		n.kids = map[string]*node{}
		if h == again {
			h = fresh
		}
		l.enter(n, h)
	}
}

// gone forgets a name and all below it.
func (l *loop) gone(n *node) {
	for _, kid := range n.kids {
		l.gone(kid)
	}
	if !n.seen.isWhiteout {
		l.record(n, Deleted)
	}
	if l.ino != nil {
		l.ino.remove(n)
	}
	delete(l.dirty, n)
	delete(n.parent.kids, n.name)
}

// compare says what kind of change lies between two looks at one name; "" is none.
func compare(old, now seen) string {
	switch {
	case now.isWhiteout && !old.isWhiteout:
		return Deleted
	case !now.isWhiteout && old.isWhiteout:
		return Added
	case !now.isDir && (old.ino != now.ino || old.size != now.size || old.mtime != now.mtime):
		return Modified
	case old.mode != now.mode, old.uid != now.uid, old.gid != now.gid,
		!now.isDir && old.ctime != now.ctime && old.links == now.links: // a name more or less is that name's event
		return Mode
	}
	return ""
}

// copiedUp says whether overlay made an object as a copy of one in a layer below.
func (n *node) copiedUp(dir int) bool {
	if t := n.seen.mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
		return false
	}
	fd, err := unix.Openat(dir, n.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	for _, attr := range []string{"trusted.overlay.origin", "user.overlay.origin"} {
		if _, err := unix.Getxattr("/proc/self/fd/"+strconv.Itoa(fd), attr, nil); err == nil {
			return true
		}
	}
	return false
}

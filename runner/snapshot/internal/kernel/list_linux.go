package kernel

import (
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// List describes a tree completely, by path from its root ("/"): types, content, modes, owners, times, attributes of
// the user, links.
func List(dir string) (map[string]string, error) {
	r, err := beneath.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	l := &lister{root: r, all: map[string]string{}, inodes: map[uint64]string{}}
	return l.all, l.list("")
}

type lister struct {
	root   *beneath.Root
	all    map[string]string
	inodes map[uint64]string
}

func (l *lister) list(path string) error {
	fd, err := l.root.Open(path, beneath.ReadDir)
	if err != nil {
		return l.root.Fail("open", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	attrs, err := beneath.ReadXattrs(fd, beneath.IsUserXattr)
	if err != nil {
		return err
	}
	l.all["/"+path] = Dir(&st, attrs)
	names, err := beneath.ReadNames(fd, make([]byte, 1<<16), nil)
	if err != nil {
		return l.root.Fail("read", path, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := beneath.StatAt(fd, name, &st); err != nil {
			if beneath.Gone(err) {
				continue // a whiteout in an attribute: listed, and not there
			}
			return l.root.Fail("stat", beneath.Join(path, name), err)
		}
		sub := beneath.Join(path, name)
		if beneath.IsDir(&st) {
			err = l.list(sub)
		} else {
			err = l.other(fd, name, sub, &st)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Dir is a directory's line.
func Dir(st *unix.Stat_t, attrs []beneath.Xattr) string {
	return fmt.Sprintf("%o %d:%d %d.%09d %q", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, attrs)
}

func (l *lister) other(dir int, name, path string, st *unix.Stat_t) error {
	line := fmt.Sprintf("%o %d:%d %d.%09d size %d rdev %d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Size, st.Rdev)
	if st.Nlink > 1 {
		if first, ok := l.inodes[st.Ino]; ok {
			line += " = " + first
		} else {
			l.inodes[st.Ino] = path
		}
	}
	switch {
	case beneath.IsFile(st):
		text, err := Content(dir, name)
		if err != nil {
			return l.root.Fail("read", path, err)
		}
		line += text
	case beneath.IsLink(st):
		target, err := beneath.ReadLink(dir, name)
		if err != nil {
			return l.root.Fail("readlink", path, err)
		}
		line += " -> " + target
	}
	l.all["/"+path] = line
	return nil
}

// Content is what a file's line says of its attributes and content.
func Content(dir int, name string) (string, error) {
	fd, err := beneath.OpenAt(dir, name, beneath.ReadFile)
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return Text(f)
}

// Text is Content of an open file.
func Text(f *os.File) (string, error) {
	attrs, err := beneath.ReadXattrs(int(f.Fd()), beneath.IsUserXattr)
	if err != nil {
		return "", err
	}
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if info.Size() > 64<<20 {
		return fmt.Sprintf(" %q (large)", attrs), nil
	}
	data := make([]byte, info.Size())
	n, err := beneath.ReadFull(int(f.Fd()), data)
	return fmt.Sprintf(" %q %x", attrs, sha256.Sum256(data[:n])), err
}

// Differences of two listings, one line each, sorted; "" for none.
func Differences(a, b map[string]string) string {
	var out []string
	for path, x := range a {
		if y, ok := b[path]; !ok {
			out = append(out, fmt.Sprintf("- %s: %s", beneath.Quote(path), x))
		} else if x != y {
			out = append(out, fmt.Sprintf("- %s: %s\n+ %s: %s", beneath.Quote(path), x, beneath.Quote(path), y))
		}
	}
	for path, y := range b {
		if _, ok := a[path]; !ok {
			out = append(out, fmt.Sprintf("+ %s: %s", beneath.Quote(path), y))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

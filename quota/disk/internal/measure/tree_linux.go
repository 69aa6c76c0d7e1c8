package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sum is what was found.
type Sum struct {
	Bytes  int64 // allocated
	Inodes int64
}

func (s *Sum) add(st *unix.Stat_t) {
	s.Bytes += st.Blocks * 512
	s.Inodes++
}

// deepest is how deep a tree may be: each level takes a file descriptor. A path that the kernel takes has 2,048.
const deepest = 3000

// errEnough ends a count that need not go on.
var errEnough = errors.New("enough")

// counter adds up a tree. It follows no link, opens nothing by more than one name, and stays on the file system.
type counter struct {
	Sum
	enough func(Sum) bool
	dev    uint64
	linked map[uint64]bool // inodes with several names that were counted
}

// Tree adds up what lies below a directory, without that itself, about 2 µs a file. It stops early when enough says so. The
// mode of a directory that its owner, who we are, shut is widened while it is looked through. An error means that the sum is
// less than what there is: a tree that is too deep (unix.ENAMETOOLONG), a directory that cannot be read.
func Tree(root *os.File, enough func(Sum) bool) (Sum, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return Sum{}, os.NewSyscallError("fstat", err)
	}
	c := counter{enough: enough, dev: st.Dev, linked: map[uint64]bool{}}
	err := c.count(root, 0)
	if errors.Is(err, errEnough) {
		err = nil
	}
	return c.Sum, err
}

func (c *counter) count(dir *os.File, depth int) error {
	if depth > deepest {
		return fmt.Errorf("more than %d directories in each other: %w", deepest, unix.ENAMETOOLONG)
	}
	for {
		entries, err := dir.ReadDir(256)
		for _, e := range entries {
			if err := c.entry(dir, e.Name(), depth); err != nil {
				return err
			}
		}
		if err != nil || len(entries) == 0 {
			return nil //nolint:nilerr // the end, or it was removed
		}
		if c.enough(c.Sum) {
			return errEnough
		}
	}
}

func (c *counter) entry(dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case gone(err):
		return nil
	case err != nil:
		return &fs.PathError{Op: "stat", Path: dir.Name() + "/" + name, Err: err}
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && st.Nlink > 1 {
		if c.linked[st.Ino] {
			return nil
		}
		c.linked[st.Ino] = true
	}
	c.add(&st)
	if !isDir || st.Dev != c.dev {
		return nil
	}
	below, restore, err := open(dir, name)
	if gone(err) {
		return nil // or another thing by now
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	err = c.count(below, depth+1)
	return errors.Join(err, restore(), below.Close())
}

func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// open opens a directory, whatever its mode is; restore gives it that again.
func open(dir *os.File, name string) (f *os.File, restore func() error, err error) {
	nothing := func() error { return nil }
	at, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = unix.Close(at) }()
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return nil, nil, err
	}
	restore = nothing
	if euid := os.Geteuid(); euid != 0 && st.Mode&0o500 != 0o500 && int(st.Uid) == euid {
		if err := unix.Chmod(procPath(at), st.Mode&0o7777|0o500); err != nil {
			return nil, nil, err
		}
		restore = func() error { return unix.Fchmod(int(f.Fd()), st.Mode&0o7777) }
	}
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(err, unix.Chmod(procPath(at), st.Mode&0o7777))
	}
	f = os.NewFile(uintptr(fd), name)
	return f, restore, nil
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

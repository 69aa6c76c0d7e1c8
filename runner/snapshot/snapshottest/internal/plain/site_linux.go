package plain

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Site is a tree that actions are done to. No symbolic link in a path is followed, so that nothing leaves the tree.
type Site struct {
	Root string
	fds  []int
}

// at returns a path for calls that do not follow the last component.
func (s *Site) at(path string) (string, error) {
	root, err := unix.Open(s.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(root, filepath.Dir(path), &how)
	if err != nil {
		return "", err
	}
	s.fds = append(s.fds, fd)
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), nil
}

// Run does an action and frees what it opened.
func (s *Site) Run(a Action) error {
	err := a.do(s)
	closeAll(s.fds)
	s.fds = nil
	return err
}

// on makes an operation of a call on one path.
func on(path string, call func(full string) error) func(*Site) error {
	return func(s *Site) error {
		full, err := s.at(path)
		if err != nil {
			return err
		}
		return call(full)
	}
}

// onTwo makes an operation of a call on two paths.
func onTwo(a, b string, call func(a, b string) error) func(*Site) error {
	return func(s *Site) error {
		x, err := s.at(a)
		if err != nil {
			return err
		}
		y, err := s.at(b)
		if err != nil {
			return err
		}
		return call(x, y)
	}
}

// withFile opens a regular file and nothing else.
func withFile(flags int, use func(fd int) error) func(full string) error {
	return func(full string) error {
		fd, err := unix.Open(full, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EINVAL
		}
		return use(fd)
	}
}

// writeAll writes at an offset; -1 is wherever the descriptor stands.
func writeAll(b []byte, off int64) func(fd int) error {
	return func(fd int) error {
		var err error
		if off < 0 {
			_, err = unix.Write(fd, b)
		} else {
			_, err = unix.Pwrite(fd, b, off)
		}
		return err
	}
}

func bindSocket(full string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: full})
}

func chmod(full string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return unix.EOPNOTSUPP
	case unix.S_IFDIR:
		mode |= 0o700 // a model that nobody can enter is no use
	}
	return unix.Chmod(full, mode)
}

// removeTree removes whatever lies at a path; that nothing does is an error.
func removeTree(full string) error {
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlink(full)
	}
	return os.RemoveAll(full)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

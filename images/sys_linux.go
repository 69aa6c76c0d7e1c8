package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bootID names this boot of the kernel.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("which boot this is: %w", err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "-", ""), nil
}

// inode is what the kernel says about a file that package os has looked at.
func inode(fi fs.FileInfo) *syscall.Stat_t {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st
	}
	panic(fmt.Sprintf("images: %T is not from a filesystem of this system", fi))
}

// stamp identifies a state of a file: content that changes changes ctime, which only the kernel sets.
func stamp(fi fs.FileInfo) string {
	st := inode(fi)
	return fmt.Sprintf("%d:%d:%d:%o:%d.%09d:%d.%09d", st.Dev, st.Ino, st.Size, st.Mode, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
}

// changed is a file's ctime.
func changed(fi fs.FileInfo) time.Time {
	st := inode(fi)
	return time.Unix(st.Ctim.Unix())
}

// lock takes the flock of a file, which it makes and nobody ever removes. Without wait, errLocked says that
// another process has it.
func lock(name string, wait bool) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), how)
	}
	if err == nil {
		return func() { f.Close() }, nil
	}
	f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

// syncTree makes everything below dir durable, with whatever else is dirty on its filesystem.
func syncTree(dir string) error {
	return syncDir(dir, unix.Syncfs)
}

// syncEntry makes the names in dir durable.
func syncEntry(dir string) error {
	return syncDir(dir, unix.Fsync)
}

func syncDir(dir string, how func(int) error) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := how(int(f.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// openRegular opens a file and never waits, as a fifo would.
func openRegular(name string, follow bool) (*os.File, fs.FileInfo, error) {
	flags := os.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC
	if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// identity says which file it is, whatever it holds.
func identity(fi fs.FileInfo) string {
	st := inode(fi)
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

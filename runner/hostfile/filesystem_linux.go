package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FilesystemOf asks which file system a path lies on, following links.
func FilesystemOf(path string) (Filesystem, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return Filesystem{}, err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Filesystem{}, err
	}
	return Filesystem{Type: uint64(fs.Type), Device: st.Dev, ID: uint64(uint32(fs.Fsid.Val[0]))<<32 | uint64(uint32(fs.Fsid.Val[1]))}, nil
}

// Plain reports whether a file system can always do what it could once: overlay, FUSE and those of networks depend on what is
// behind them.
func (f Filesystem) Plain() bool {
	switch f.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// Proc reports whether it is a proc file system, whose links to open files are no names of them.
func (f Filesystem) Proc() bool { return f.Type == unix.PROC_SUPER_MAGIC }

// OneName says that a file has no other name.
func OneName(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 1
}

// Identity tells what is at a path below root from what may be there later, following no link in its last element: the same text
// means the same object with the same content. "" is not known, also of what has only just been changed.
func Identity(root *os.Root, path string) string {
	info, err := root.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "absent"
	}
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !Settled(time.Unix(st.Ctim.Unix())) {
		return ""
	}
	return fmt.Sprint(st.Dev, st.Ino, st.Mode, st.Rdev, st.Size, st.Mtim, st.Ctim)
}

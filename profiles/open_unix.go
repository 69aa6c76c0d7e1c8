//go:build unix

package profiles

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

var errNotADirectory error = syscall.ENOTDIR

// openFile opens for reading without waiting for a fifo's writer.
func openFile(path string, noFollow bool) (*os.File, error) {
	flags := os.O_RDONLY | syscall.O_NONBLOCK
	if noFollow {
		flags |= syscall.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if noFollow && errors.Is(err, syscall.ELOOP) {
		return nil, &Error{Source: path, Message: "is a symbolic link in the workspace, or into it; name the file itself"}
	}
	return f, err
}

func writableByAll(info fs.FileInfo) bool { return info.Mode().Perm()&0o002 != 0 }

//go:build unix

package hostfile

import (
	"errors"
	"os"
	"syscall"
)

// Owner returns the user and group that own path, following links.
func Owner(path string) (uid, gid uint32, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, &os.PathError{Op: "owner", Path: path, Err: errors.ErrUnsupported}
	}
	return st.Uid, st.Gid, nil
}

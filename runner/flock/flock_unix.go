//go:build unix

package flock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const nofollow = unix.O_NOFOLLOW

func lock(f *os.File, m Mode, block bool) error {
	how := unix.LOCK_EX
	if m == Shared {
		how = unix.LOCK_SH
	}
	if !block {
		how |= unix.LOCK_NB
	}
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EWOULDBLOCK):
			return ErrLocked
		case err != nil:
			return &os.PathError{Op: "flock", Path: f.Name(), Err: err}
		default:
			return nil
		}
	}
}

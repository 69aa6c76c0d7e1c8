package hostfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// SetWinsize tells a terminal its size in characters. It leaves the file pollable, which File.Fd would not.
func SetWinsize(f *os.File, rows, cols uint16) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var ioctl error
	err = conn.Control(func(fd uintptr) {
		ioctl = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
	if err == nil {
		err = ioctl
	}
	return err
}

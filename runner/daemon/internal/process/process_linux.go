package process

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// OwnSession starts a process in a session of its own: no terminal's signals reach it.
func OwnSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// KeepFiles has no file of ours be inherited but those that are given by name. What a shell left open in us (a pipe, a
// lock) would else stay open as long as the supervisor runs.
func KeepFiles() error { return unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) }

// Redirect makes f this process's standard output and error.
func Redirect(f *os.File) error {
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(f.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return nil
}

package quota

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// strikeInterval bounds one wait for killed processes; then those that were born meanwhile are killed.
	strikeInterval = 50 * time.Millisecond
	// maxPidfds bounds the file descriptors of one round.
	maxPidfds = 256
	// settle is the pause where the kernel has no event to wait for.
	settle = 200 * time.Microsecond
)

// awaitExits waits until the processes have ended, at most for strikeInterval. It returns an error only when ctx
// has ended.
func awaitExits(ctx context.Context, pids []int) error {
	deadline := time.Now().Add(strikeInterval)
	waited := false
	for _, pid := range pids[:min(len(pids), maxPidfds)] {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		waited = waited || !readable(fd, 0)
		readable(fd, time.Until(deadline))
		unix.Close(fd)
		if ctx.Err() != nil {
			break
		}
	}
	if !waited {
		// All have ended, and still the group counts them: since Linux 6.19 a task leaves its group a moment after
		// its pidfd says that it has ended, and version 1 has no event for an empty group at all.
		return pause(ctx, settle)
	}
	return context.Cause(ctx)
}

// readable waits until fd is readable.
func readable(fd int, timeout time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(timeout); ; {
		ms := max(0, (time.Until(end)+time.Millisecond-1)/time.Millisecond)
		n, err := unix.Poll(fds, int(ms))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

// pause sleeps for d or until ctx ends. It is for states of which the kernel tells nobody.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// signalAll sends SIGKILL to the processes that list names. A pid is signalled through a pidfd that was opened before
// the second look at the list, so that one which was reused in between is left alone.
func signalAll(list func() ([]int, error)) error {
	pids, err := list()
	if err != nil {
		return err
	}
	for chunk := range slices.Chunk(pids, maxPidfds) {
		if err := signalChunk(chunk, list); err != nil {
			return err
		}
	}
	return nil
}

func signalChunk(pids []int, list func() ([]int, error)) error {
	fds := make(map[int]int, len(pids))
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			fds[pid] = fd
		} else if !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("pidfd_open", err)
		}
	}
	still, err := list()
	if err != nil {
		return err
	}
	for _, pid := range still {
		fd, ok := fds[pid]
		if !ok {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return os.NewSyscallError("pidfd_send_signal", err)
		}
	}
	return nil
}

// watchOOM sends to kills whenever the count of kills grows, until ctx ends or the node is gone. It owns f.
func watchOOM(ctx context.Context, f *os.File, kills chan<- struct{}, count func(seen int64) (int64, error)) {
	stop := context.AfterFunc(ctx, func() { f.Close() })
	defer func() {
		stop()
		f.Close()
	}()
	buf := make([]byte, 4096)
	for seen, before := int64(0), int64(-1); ; before = seen { // at first there is nothing to wait for
		n, err := count(before)
		if err != nil {
			return
		}
		if n > seen {
			seen = n
			select {
			case kills <- struct{}{}:
			default: // the last one has not been received yet
			}
		}
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}

// eventFile makes an os.File of an event descriptor that the runtime's poller can wait for and Close can wake.
func eventFile(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

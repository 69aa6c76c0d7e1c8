package live

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// pollTime is how long one wait for the death of a process lasts before the context is looked at, in milliseconds.
const pollTime = 100

// killOthers kills every process but PID 1, and returns when all have ended.
func (f *Feature) killOthers(ctx context.Context) error {
	for {
		pids, err := f.box.Processes(ctx)
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := f.kill(ctx, pids); err != nil {
			return err
		}
	}
}

// kill kills processes by descriptors, which stand for the right ones: those that are still listed after they were
// opened.
func (f *Feature) kill(ctx context.Context, pids []int) error {
	open := map[int]int{}
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return err
		}
		open[pid] = fd
	}
	now, err := f.box.Processes(ctx)
	if err != nil {
		return err
	}
	for pid, fd := range open {
		if !slices.Contains(now, pid) {
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	if err := f.box.Thaw(ctx); err != nil { // version 1 of cgroups: what is frozen does not die
		return err
	}
	for pid, fd := range open {
		if slices.Contains(now, pid) {
			if err := awaitExit(ctx, fd); err != nil {
				return err
			}
		}
	}
	return nil
}

func awaitExit(ctx context.Context, fd int) error {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, pollTime)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case n > 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
	}
}

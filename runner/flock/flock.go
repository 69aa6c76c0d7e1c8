// Package flock locks files. A lock is an open file description, so the kernel frees it with its holder, however
// that ends: liveness needs no pid and no heartbeat. Two locks of one process exclude each other like two processes'.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"
)

// ErrLocked says that somebody else holds the lock.
var ErrLocked = errors.New("locked by somebody else")

// Lock is a held lock.
type Lock struct{ f *os.File }

// Mode says how a lock is shared.
type Mode int

// The modes.
const (
	Exclusive Mode = iota
	Shared
)

// Try takes the lock of the file path, making the file (0600) when it is missing; its directory must exist.
// It answers ErrLocked without waiting.
func Try(path string, m Mode) (*Lock, error) {
	for {
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		if err := lock(f, m, false); err != nil {
			_ = f.Close()
			return nil, err
		}
		if same(f, path) {
			return &Lock{f: f}, nil
		}
		_ = f.Close()
	}
}

// dying is how long Inherit waits for what a dead holder left behind.
const dying = 3 * time.Second

// Inherit is Try for a lock whose holder may have died an instant ago. A child that had not executed yet shares the
// holder's descriptors, and keeps the lock until it has died too: that is waited for. A holder that lives is ErrLocked.
func Inherit(ctx context.Context, path string, m Mode) (*Lock, error) {
	l, err := Try(path, m)
	if !errors.Is(err, ErrLocked) || !abandoned(path) {
		return l, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dying, ErrLocked)
	defer cancel()
	return acquire(ctx, path, m)
}

// Acquire waits for the lock until ctx is done; then it returns context.Cause(ctx). Waiting is a system call that
// cannot be taken back: a wait that was given up ends, on its own goroutine, when the lock is free, and frees it.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	if l, err := Try(path, Exclusive); !errors.Is(err, ErrLocked) {
		return l, err
	}
	return acquire(ctx, path, Exclusive)
}

func acquire(ctx context.Context, path string, m Mode) (*Lock, error) {
	type answer struct {
		l   *Lock
		err error
	}
	got := make(chan answer)
	go func() {
		l, err := wait(ctx, path, m)
		select {
		case got <- answer{l, err}:
		case <-ctx.Done():
			_ = l.Release()
		}
	}()
	select {
	case a := <-got:
		return a.l, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// wait has no end but the lock's. Who has given up by then makes no new file in the place of one that is gone.
func wait(ctx context.Context, path string, m Mode) (*Lock, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		if err := lock(f, m, true); err != nil {
			_ = f.Close()
			return nil, err
		}
		if same(f, path) {
			return &Lock{f: f}, nil
		}
		_ = f.Close()
	}
}

// Release frees the lock; the file stays. A nil Lock and a second call do nothing.
func (l *Lock) Release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}

// open never follows a link, and needs no permission to write: a lock is no data.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nofollow, 0)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = os.OpenFile(path, os.O_RDONLY|os.O_CREATE|nofollow, 0o600)
	}
	return f, err
}

// same reports whether path still names f: who removes a locked file holds its lock, and whoever waited for it
// then holds the lock of nothing.
func same(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

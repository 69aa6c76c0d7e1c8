package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native/internal/holders"
)

// Freeze stops every process, by the cgroup where there is one. It never meets an Exec half way: a vfork child
// that freezes would keep us waiting.
func (b *sandbox) Freeze(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return os.ErrClosed
	}
	if err := b.stop(ctx); err != nil {
		return err
	}
	b.frozen = true
	return nil
}

// Thaw lets them go on, unless somebody holds the sandbox.
func (b *sandbox) Thaw(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return os.ErrClosed
	}
	if b.holds == 0 {
		if err := b.resume(ctx); err != nil {
			return err
		}
	}
	b.frozen = false
	return nil
}

// Hold keeps the sandbox still. With nobody but PID 1 alive there is nobody to freeze.
func (b *sandbox) Hold(ctx context.Context) (func() error, error) {
	b.mu.Lock() // waits for an Exec in progress
	defer b.mu.Unlock()
	if b.closed {
		return nil, os.ErrClosed
	}
	pids, err := b.processes()
	if err == nil && len(pids) > 0 {
		err = b.stop(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("hold sandbox %s: %w", b.id, err)
	}
	if b.holds++; b.holds == 1 {
		b.released = make(chan struct{})
	}
	return sync.OnceValue(func() error { return b.unhold(context.WithoutCancel(ctx)) }), nil
}

func (b *sandbox) unhold(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed { // and thawed by that
		return nil
	}
	if b.holds--; b.holds > 0 {
		return nil
	}
	close(b.released)
	if b.frozen {
		return nil
	}
	return b.resume(ctx)
}

// stop stops whoever lives, unless they stand still already. b.mu is held.
func (b *sandbox) stop(ctx context.Context) error {
	if b.still {
		return nil
	}
	err := error(nil)
	if b.spec.Cgroup != nil {
		err = b.spec.Cgroup.Freeze(ctx)
	} else if err = b.stopAll(ctx); err != nil {
		err = errors.Join(err, b.signalAll(unix.SIGCONT))
	}
	b.still = err == nil
	return err
}

// resume undoes stop. b.mu is held.
func (b *sandbox) resume(ctx context.Context) error {
	if !b.still {
		return nil
	}
	err := error(nil)
	if b.spec.Cgroup != nil {
		err = b.spec.Cgroup.Thaw(ctx)
	} else {
		err = b.signalAll(unix.SIGCONT)
	}
	b.still = err != nil
	return err
}

// stopAll stops everybody by signals, again and again until nobody is left who could run: what a process forks before
// it stops is found in the next round, and what is stopped forks no more.
func (b *sandbox) stopAll(ctx context.Context) error {
	const first, most = 100 * time.Microsecond, 10 * time.Millisecond
	for delay := first; ; delay = min(2*delay, most) {
		pids, err := b.processes()
		if err != nil {
			return err
		}
		if len(holders.Running(pids)) == 0 {
			return nil
		}
		if err := b.signalAll(unix.SIGSTOP); err != nil {
			return err
		}
		if err := rest(ctx, delay); err != nil { // a stop is announced to parents only, and we are not the parent
			return err
		}
	}
}

// rest waits a while, or until ctx ends.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// signalAll sends a signal to every process inside but PID 1, from inside: kill(-1) knows no other way to mean
// "this pid namespace". Without a cgroup it is not atomic: what forks meanwhile may be missed.
func (b *sandbox) signalAll(sig unix.Signal) error {
	child, release, err := b.rendezvous()
	if err != nil {
		return err
	}
	defer release()
	p := &plan{}
	b.enter(p, &isolation.Process{}, nil, child)
	p.soft("signal all", unix.SYS_KILL, -1, int(sig)) // ESRCH: nobody is there
	s, err := p.compile()
	if err != nil {
		return err
	}
	defer s.free()
	_, pidfd, err := b.fork(s, nil, child)
	if err != nil {
		return err
	}
	_, err = reap(pidfd)
	_ = unix.Close(pidfd)
	return errors.Join(s.err(), err)
}

// Processes returns the live processes but PID 1.
func (b *sandbox) Processes(context.Context) ([]int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, os.ErrClosed
	}
	return b.processes()
}

// processes asks the cgroup, where there is one; nobody can leave it. b.mu is held.
func (b *sandbox) processes() ([]int, error) {
	if b.holds > 0 && !b.still {
		return nil, nil // nobody lived who had to be stopped, and nobody was started since
	}
	if b.spec.Cgroup == nil {
		return holders.Namespace(b.pid)
	}
	pids, err := b.spec.Cgroup.Procs()
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == b.pid }), err
}

// Holders returns who uses the targets' mounts, as far as /proc tells; when that is nobody and all stand still, the
// kernel is asked, too.
func (b *sandbox) Holders(ctx context.Context, targets ...string) ([]isolation.Holder, error) {
	b.exchanging.Lock()
	defer b.exchanging.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, os.ErrClosed
	}
	held, err := b.holders(ctx, targets)
	if err != nil || len(held) > 0 || b.holds == 0 || !b.still {
		return held, err
	}
	err = b.references(ctx, targets)
	var unseen *isolation.HeldError
	if errors.As(err, &unseen) {
		return unseen.Holders, nil
	}
	return nil, err
}

func (b *sandbox) holders(ctx context.Context, targets []string) ([]isolation.Holder, error) {
	pids, err := b.processes()
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	table, names, err := b.mounts(targets)
	if err != nil {
		return nil, err
	}
	want := map[uint64]bool{}
	for id := range names {
		want[id] = true
	}
	var out []isolation.Holder
	for _, pid := range pids {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		uses, err := holders.Scan(pid, table, want)
		if err != nil {
			return nil, err
		}
		for _, u := range uses {
			h := isolation.Holder{PID: u.PID, Command: u.Command, Target: names[u.Mount], What: u.What, Path: u.Path}
			if u.What == holders.Unknown {
				h.Target = targets[0] // of all of them, for what we know
			}
			out = append(out, h)
		}
	}
	return out, nil
}

// mounts finds the targets' mounts in the sandbox.
func (b *sandbox) mounts(targets []string) (*holders.Table, map[uint64]string, error) {
	table, err := holders.ReadTable(b.pid)
	if err != nil {
		return nil, nil, err
	}
	names := map[uint64]string{}
	for _, target := range targets {
		m, ok := table.Mounted(target)
		if !ok {
			return nil, nil, fmt.Errorf("sandbox %s: nothing is mounted at %s", b.id, target)
		}
		names[m.ID] = target
	}
	return table, names, nil
}

// Mapped returns the targets' files that are mapped shared.
func (b *sandbox) Mapped(ctx context.Context, targets ...string) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, os.ErrClosed
	}
	pids, err := b.processes()
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	table, names, err := b.mounts(targets)
	if err != nil {
		return nil, err
	}
	want := map[uint64]bool{}
	for id := range names {
		want[id] = true
	}
	var out []string
	for _, pid := range pids {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		files, err := holders.Shared(pid, table, want)
		if err != nil {
			return nil, err
		}
		out = append(out, files...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

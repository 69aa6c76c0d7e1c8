package native

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneArgs is struct clone_args of clone3(2), up to cgroup (version 2, 88 bytes).
type cloneArgs struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

const cloneIntoCgroup = 0x200000000 // CLONE_INTO_CGROUP, kernel 5.7

//go:noescape
func cloneRun(args *cloneArgs, size uintptr, ops *op, n uintptr, res *result) (r uintptr)

// spawner forks from threads that never exit: PR_SET_PDEATHSIG follows the thread that forked, and only a
// thread of its own may stand in another network or pid namespace for a moment.
type spawner struct{ jobs chan func() }

// newSpawner starts n threads. close ends them, and with them (PDEATHSIG) every sandbox still alive.
func newSpawner(n int) *spawner {
	s := &spawner{jobs: make(chan func())}
	for range n {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			for job := range s.jobs {
				job()
			}
		}()
	}
	return s
}

func (s *spawner) close() { close(s.jobs) }

// do runs f on one of the threads and waits for it.
func (s *spawner) do(f func() error) error {
	done := make(chan error, 1)
	s.jobs <- func() { done <- f() }
	return <-done
}

// spawnOptions say how a script's child is made.
type spawnOptions struct {
	flags  uintptr // CLONE_NEW*, CLONE_VM, CLONE_VFORK
	netns  int     // the child starts in this network namespace; -1: ours
	pidns  int     // a pidfd in whose pid namespace the child is made; -1: ours
	cgroup int     // a cgroup v2 directory; -1: none
}

// spawn makes the child on a spawner thread. It returns its pid (of our pid namespace) and pidfd; the child
// may still be running its script when the pid is returned, except with CLONE_VFORK.
func (e *Engine) spawn(s *script, o spawnOptions) (pid, pidfd int, err error) {
	err = e.spawner.do(func() error {
		if o.netns >= 0 {
			if err := unix.Setns(o.netns, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace: %w", err)
			}
			defer e.leave(e.netns, unix.CLONE_NEWNET)
		}
		if o.pidns >= 0 {
			if err := unix.Setns(o.pidns, unix.CLONE_NEWPID); err != nil {
				return fmt.Errorf("enter pid namespace: %w", err)
			}
			defer e.leave(e.pidns, unix.CLONE_NEWPID)
		}
		pid, pidfd, err = clone(s, o, e.patience)
		return err
	})
	return pid, pidfd, err
}

// leave returns the spawner thread to our own namespace. A thread that cannot would fork the next sandbox into
// the wrong one, so there is no going on.
func (e *Engine) leave(fd, kind int) {
	if err := unix.Setns(fd, kind); err != nil {
		panic(fmt.Sprintf("native: cannot return from a sandbox's namespace: %v", err))
	}
}

// clone calls the assembly with every signal blocked: a Go signal handler must never run in the child.
func clone(s *script, o spawnOptions, patience time.Duration) (pid, pidfd int, err error) {
	fd := int32(-1)
	args := &cloneArgs{
		flags:      uint64(o.flags) | unix.CLONE_PIDFD | unix.CLONE_CLEAR_SIGHAND,
		pidFD:      uint64(uintptr(unsafe.Pointer(&fd))),
		exitSignal: uint64(unix.SIGCHLD),
	}
	if o.cgroup >= 0 {
		args.flags |= cloneIntoCgroup
		args.cgroup = uint64(o.cgroup)
	}
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, -1, fmt.Errorf("block signals: %w", err)
	}
	if o.flags&unix.CLONE_VFORK != 0 {
		watchdog := time.AfterFunc(patience, func() { killStopped(&fd) })
		defer watchdog.Stop()
	}
	r := cloneWaiting(args, s)
	err = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	runtime.KeepAlive(s.plan)
	runtime.KeepAlive(&fd)
	if r > ^uintptr(4095) {
		return 0, -1, fmt.Errorf("clone3: %w", syscall.Errno(-r))
	}
	if err != nil {
		return int(r), int(fd), fmt.Errorf("unblock signals: %w", err)
	}
	return int(r), int(fd), nil
}

// killStopped ends a vfork child that somebody inside has stopped, so that we go on. The kernel wrote the pidfd
// before the child ran.
func killStopped(pidfd *int32) {
	if fd := atomic.LoadInt32(pidfd); fd >= 0 {
		_ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) // ended meanwhile: as well
	}
}

// cloneWaiting tells the scheduler that this thread may wait in the kernel (CLONE_VFORK): without that, garbage
// collection would wait with it, and a child stopped from inside would stop the whole supervisor.
//
//go:nosplit
//go:norace
func cloneWaiting(args *cloneArgs, s *script) uintptr {
	ops, n, res := &s.ops[0], uintptr(len(s.ops)), s.res
	entersyscall()
	r := cloneRun(args, unsafe.Sizeof(*args), ops, n, res)
	exitsyscall()
	return r
}

//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

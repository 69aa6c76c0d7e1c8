package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// Exec enters the sandbox with a new process. It is a direct child of the supervisor, so that its status comes from
// the kernel and nothing trusted lives inside.
func (b *sandbox) Exec(ctx context.Context, p *isolation.Process) (isolation.Execution, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("exec in sandbox %s: %w", b.id, err)
	}
	if err := checkProcess(p); err != nil {
		return nil, fmt.Errorf("exec in sandbox %s: %w", b.id, err)
	}
	if err := b.lockForExec(ctx); err != nil {
		return nil, err
	}
	defer b.mu.Unlock()
	x := &execution{done: make(chan struct{})}
	if err := b.exec(p, x); err != nil {
		if x.terminal != nil {
			_ = x.terminal.Close()
		}
		var user *isolation.ExecError
		if errors.As(err, &user) {
			return nil, user
		}
		return nil, fmt.Errorf("exec in sandbox %s: %w", b.id, err)
	}
	b.running.Add(1)
	go func() {
		defer b.running.Done()
		x.reap()
	}()
	return x, nil
}

// lockForExec takes b.mu when nobody holds the sandbox any more.
func (b *sandbox) lockForExec(ctx context.Context) error {
	for {
		b.mu.Lock()
		switch {
		case b.closed:
			b.mu.Unlock()
			return os.ErrClosed
		case b.frozen:
			b.mu.Unlock()
			return fmt.Errorf("exec in sandbox %s: %w", b.id, isolation.ErrFrozen)
		case b.holds == 0:
			return nil
		}
		released := b.released
		b.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return fmt.Errorf("exec in sandbox %s: %w", b.id, context.Cause(ctx))
		}
	}
}

func checkProcess(p *isolation.Process) error {
	if len(p.Args) == 0 || p.Args[0] == "" {
		return &isolation.ExecError{Path: "", Errno: unix.ENOENT}
	}
	for _, s := range append(append([]string{p.Cwd}, p.Args...), p.Env...) {
		if strings.ContainsRune(s, 0) {
			return &isolation.ExecError{Path: p.Args[0], Errno: unix.EINVAL}
		}
	}
	if p.Cwd == "" || p.Cwd[0] != '/' {
		return &isolation.ExecError{Path: p.Cwd, Errno: unix.ENOENT}
	}
	return nil
}

// exec runs the script and fills x. b.mu is held: the sandbox cannot be closed meanwhile.
func (b *sandbox) exec(p *isolation.Process, x *execution) error {
	var entry *quota.Entry
	if p.Cgroup != nil {
		var err error
		if entry, err = p.Cgroup.Entry(); err != nil {
			return err
		}
		defer func() { _ = entry.Close() }()
	}
	stdio, slave, err := b.stdio(p, x)
	if err != nil {
		return err
	}
	if slave != nil {
		defer func() { _ = slave.Close() }()
	}
	filter, err := b.e.filter(b.spec.OCI.Linux.Seccomp)
	if err != nil {
		return err
	}
	plan := &plan{}
	child, release, err := b.rendezvous()
	if err != nil {
		return err
	}
	defer release()
	b.enter(plan, p, entry, child)
	first, candidates := b.become(plan, p, stdio, filter)
	script, err := plan.compile()
	if err != nil {
		return err
	}
	defer script.free()
	pid, pidfd, err := b.fork(script, entry, child)
	if err != nil {
		return err
	}
	if err := script.err(); err != nil {
		_, werr := reap(pidfd)
		_ = unix.Close(pidfd)
		return errors.Join(execFailure(err, script, first, p, candidates), werr)
	}
	return x.start(pid, pidfd)
}

// enter plans the way into the sandbox.
func (b *sandbox) enter(plan *plan, p *isolation.Process, entry *quota.Entry, child *sharedPID) {
	if entry != nil {
		plan.enter(entry.Tasks)
	}
	kinds := unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET
	if b.e.root {
		// The network namespace is the host's to give, so we enter it before the user namespace.
		plan.add("enter network namespace", unix.SYS_SETNS, hostFD{"PID 1", b.pidfd}, unix.CLONE_NEWNET)
		plan.add("enter namespaces", unix.SYS_SETNS, hostFD{"PID 1", b.pidfd}, kinds&^unix.CLONE_NEWNET)
	} else {
		// Processes of our own uid live inside: this copy of our memory must not be theirs to read. Their pid
		// namespace needs a fork of its own, whose child is ours again (CLONE_PARENT).
		plan.add("undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		plan.add("enter namespaces", unix.SYS_SETNS, hostFD{"PID 1", b.pidfd}, kinds|unix.CLONE_NEWPID)
		plan.add("fork", unix.SYS_CLONE, unix.CLONE_PARENT|unix.CLONE_PARENT_SETTID, nil, child, nil, nil)
		plan.flag(opLeave)
	}
	plan.add("new cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	plan.add("new session", unix.SYS_SETSID)
	plan.add("new keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, nil)
	plan.add("umask", unix.SYS_UMASK, 0o022)
}

// become plans what makes the process the task's. It returns the number of the first execve step, and the paths.
func (b *sandbox) become(plan *plan, p *isolation.Process, stdio [3]any, filter *unix.SockFprog) (int, []string) {
	for i, f := range stdio {
		if f == nil {
			f = plan.add("open /dev/null", unix.SYS_OPENAT, unix.AT_FDCWD, "/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
		plan.add("stdio "+string(rune('0'+i)), unix.SYS_DUP3, f, i, 0)
	}
	if p.Terminal {
		plan.add("controlling terminal", unix.SYS_IOCTL, 0, uintptr(unix.TIOCSCTTY), 0)
	}
	plan.defaultSignals(b.e.ignored())
	plan.dropBounding(b.e.lastCap)
	plan.become(p.UID, p.GID, b.spec.IDs.Single)
	b.closeDescriptors(plan)
	// Not before: until here the child has as many descriptors as we have.
	plan.setRlimits(append(append([]specs.POSIXRlimit{}, b.spec.OCI.Process.Rlimits...), p.Rlimits...))
	plan.add(stepChdir, unix.SYS_CHDIR, p.Cwd)
	plan.seal(filter)
	paths := candidates(p.Args[0], p.Env)
	first := len(plan.steps)
	argv, env := strv(p.Args), strv(p.Env)
	for i, path := range paths {
		plan.add("execve "+path, unix.SYS_EXECVE, path, argv, env)
		if i < len(paths)-1 {
			plan.flag(opSoft)
		}
	}
	return first, paths
}

// closeDescriptors closes what the child has of ours, before the task's first word (its working directory, its
// program) is looked up: /proc/self/fd/N would be a way to the host (CVE-2024-21626). Unprivileged, the pipe whose end
// of file says that we have executed stays as fd 3.
func (b *sandbox) closeDescriptors(plan *plan) {
	first := 3
	if !b.e.root {
		plan.add("keep the pipe", unix.SYS_DUP3, hostFD{"pipe", b.pipe[1]}, 3, unix.O_CLOEXEC)
		first = 4
	}
	plan.add("close descriptors", unix.SYS_CLOSE_RANGE, first, uintptr(^uint32(0)), 0)
}

const stepChdir = "chdir to the working directory"

// execFailure tells the user's mistakes (no such command, directory) from ours.
func execFailure(err error, s *script, first int, p *isolation.Process, paths []string) error {
	var step *StepError
	if !errors.As(err, &step) {
		return err
	}
	if step.Step == stepChdir {
		return &isolation.ExecError{Path: "working directory " + p.Cwd, Errno: step.Errno}
	}
	if step.Index < first {
		return err
	}
	// As execvp does: a candidate that is there but cannot be executed says more than those that are not there.
	worst := &isolation.ExecError{Path: p.Args[0], Errno: step.Errno}
	for i := range paths {
		errno := syscall.Errno(-s.ops[first+i].ret)
		if errno != unix.ENOENT && errno != unix.ENOTDIR {
			return &isolation.ExecError{Path: paths[i], Errno: errno}
		}
	}
	return worst
}

// fork makes the child. As root it shares our memory until it executes, and we wait (CLONE_VFORK): an OOM in the
// sandbox's cgroup passes over a vfork child, and would kill every process that shares memory with another one.
func (b *sandbox) fork(s *script, entry *quota.Entry, child *sharedPID) (pid, pidfd int, err error) {
	o := spawnOptions{netns: -1, pidns: -1, cgroup: -1}
	if entry != nil && entry.V2 != nil {
		o.cgroup = int(entry.V2.Fd())
	}
	if b.e.root {
		o.flags, o.pidns = unix.CLONE_VM|unix.CLONE_VFORK, b.pidfd
		return b.e.spawn(s, o)
	}
	pid, pidfd, err = b.e.spawn(s, o)
	_ = unix.Close(b.pipe[1])
	b.pipe[1] = -1
	if err != nil {
		return 0, -1, err
	}
	if !b.e.waitEOF(b.pipe[0]) { // both children have executed, ended or failed
		for _, victim := range []int{pid, int(child.pid)} {
			if victim > 0 {
				_ = unix.Kill(victim, unix.SIGKILL) // our own children, not yet reaped
			}
		}
	}
	if child.pid == 0 {
		return pid, pidfd, nil // failed before the second fork: the script says where
	}
	_, err = reap(pidfd)
	_ = unix.Close(pidfd)
	if err != nil {
		return 0, -1, err
	}
	fd, err := unix.PidfdOpen(int(child.pid), 0) // our own child, not yet reaped: the pid is its
	if err != nil {
		return 0, -1, fmt.Errorf("pidfd of the command: %w", err)
	}
	return int(child.pid), fd, nil
}

// rendezvous makes what an unprivileged child and we share: the pid of its own child, and a pipe whose end of file
// says that both have executed or ended. As root the child shares everything. b.mu is held.
func (b *sandbox) rendezvous() (*sharedPID, func(), error) {
	if b.e.root {
		return &sharedPID{}, func() {}, nil
	}
	mem, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(sharedPID{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, nil, fmt.Errorf("shared memory: %w", err)
	}
	if err := unix.Pipe2(b.pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("pipe: %w", err), unix.Munmap(mem))
	}
	return (*sharedPID)(unsafe.Pointer(&mem[0])), func() {
		_ = unix.Munmap(mem) // our own mapping
		for _, fd := range b.pipe {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
	}, nil
}

// execution is a command that runs, or has run.
type execution struct {
	pid      int
	pidfd    *os.File
	terminal *os.File

	done   chan struct{}
	status isolation.ExitStatus
	err    error
	mu     sync.Mutex // guards signalling against reaping
	ended  bool
}

// start makes the pidfd pollable, so that waiting costs no thread.
func (x *execution) start(pid, pidfd int) error {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_, werr := reap(pidfd)
		_ = unix.Close(pidfd)
		return errors.Join(fmt.Errorf("pidfd: %w", err), werr)
	}
	x.pid, x.pidfd = pid, os.NewFile(uintptr(pidfd), "pidfd")
	return nil
}

// reap waits for the end and takes the status.
func (x *execution) reap() {
	defer close(x.done)
	conn, err := x.pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.status, x.err, x.ended = waitid(int(fd), unix.WNOHANG)
			return x.ended
		})
	}
	if x.err == nil {
		x.err = err
	}
	_ = x.pidfd.Close()
}

func (x *execution) PID() int { return x.pid }

func (x *execution) Terminal() *os.File { return x.terminal }

func (x *execution) Wait(ctx context.Context) (isolation.ExitStatus, error) {
	select {
	case <-x.done:
		return x.status, x.err
	case <-ctx.Done():
		return isolation.ExitStatus{}, context.Cause(ctx)
	}
}

func (x *execution) Signal(sig syscall.Signal) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return os.ErrProcessDone
	}
	conn, err := x.pidfd.SyscallConn()
	if err != nil {
		return os.ErrProcessDone
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return os.ErrProcessDone
	}
	if errors.Is(serr, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return serr
}

// reap waits for a child by its pidfd.
func reap(pidfd int) (isolation.ExitStatus, error) {
	for {
		if st, err, ended := waitid(pidfd, 0); ended {
			return st, err
		}
	}
}

// waitid takes the status of an ended child; ended is false when it still runs (WNOHANG).
func waitid(pidfd, options int) (st isolation.ExitStatus, err error, ended bool) { //nolint:revive // the error is part of the result, ended says whether there is one
	var info unix.Siginfo
	var ru unix.Rusage
	err = unix.Waitid(unix.P_PIDFD, pidfd, &info, unix.WEXITED|options, &ru)
	switch {
	case errors.Is(err, unix.EINTR):
		return st, nil, false
	case err != nil:
		return st, fmt.Errorf("wait: %w", err), true
	case info.Signo == 0:
		return st, nil, false
	}
	status := *(*int32)(unsafe.Pointer(&(*[128]byte)(unsafe.Pointer(&info))[24])) // si_status, after pid and uid
	st.User, st.System = time.Duration(ru.Utime.Nano()), time.Duration(ru.Stime.Nano())
	st.MaxRSS = ru.Maxrss * 1024
	const exited = 1 // CLD_EXITED; the others are CLD_KILLED and CLD_DUMPED
	if info.Code == exited {
		st.Code = int(status)
	} else {
		st.Signal = syscall.Signal(status)
	}
	return st, nil, true
}

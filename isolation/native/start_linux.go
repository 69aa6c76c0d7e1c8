package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// Start makes a sandbox: namespaces, mounts and PID 1, and nothing else running in it.
func (e *Engine) Start(ctx context.Context, s *isolation.Spec) (isolation.Sandbox, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", s.ID, err)
	}
	if err := e.check(s); err != nil {
		return nil, err
	}
	st := &starter{e: e, s: s, netns: -1, lifeline: [2]int{-1, -1}, errors: [2]int{-1, -1}}
	defer st.release()
	box, err := st.start()
	if err != nil {
		return nil, fmt.Errorf("start sandbox %s: %w", s.ID, err)
	}
	return box, nil
}

// check refuses what this engine cannot enforce.
func (e *Engine) check(s *isolation.Spec) error {
	if s.OCI.Linux.Seccomp == nil {
		return &isolation.UnsupportedError{Control: isolation.ControlSeccomp, Reason: "the spec has no filter"}
	}
	if (s.Cgroup == nil || s.Init == nil) && !slices.Contains(s.Weaker, isolation.ControlCgroups) {
		return &isolation.UnsupportedError{Control: isolation.ControlCgroups, Reason: "the spec has no cgroup"}
	}
	if s.IDs.Single == e.root {
		return fmt.Errorf("sandbox %s: single-id mapping is for unprivileged supervisors, and only for them", s.ID)
	}
	for _, l := range s.OCI.Process.Rlimits {
		if _, ok := rlimitNumbers[l.Type]; !ok {
			return fmt.Errorf("sandbox %s: unknown limit %s", s.ID, l.Type)
		}
	}
	return nil
}

// starter is one start in progress: what it holds is released when it ends.
type starter struct {
	e        *Engine
	s        *isolation.Spec
	now      immediate // mounts made by the supervisor
	dirs     []int     // layers held open
	fixed    int       // descriptors of the child's own
	entry    *quota.Entry
	attached bool // idmapped layers are attached, on this thread
	netns    int
	lifeline [2]int // the supervisor holds [1] as long as the sandbox lives
	errors   [2]int // end of file says that the child has executed, or failed
}

func (st *starter) release() {
	st.now.close()
	for _, fd := range append(st.dirs, st.netns, st.lifeline[0], st.lifeline[1], st.errors[0], st.errors[1]) {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was written through them
		}
	}
	if st.entry != nil {
		_ = st.entry.Close()
	}
}

func (st *starter) start() (*sandbox, error) {
	if err := unix.Pipe2(st.lifeline[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	if err := unix.Pipe2(st.errors[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	if st.s.Init != nil {
		entry, err := st.s.Init.Entry()
		if err != nil {
			return nil, err
		}
		st.entry = entry
	}
	p, err := st.planMounts()
	if err != nil {
		return nil, err
	}
	script, err := p.compile()
	if err != nil {
		return nil, err
	}
	defer script.free()
	return st.run(script)
}

// run makes the child, gives it its ids, and waits until it is the pause program or has failed.
func (st *starter) run(script *script) (*sandbox, error) {
	o := spawnOptions{
		flags: unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		netns: -1, pidns: -1, cgroup: -1,
	}
	if st.e.root { // a child that shares memory costs nothing, whatever our size
		o.flags |= unix.CLONE_VM
		fd, err := st.e.pool.get()
		if err != nil {
			return nil, err
		}
		st.netns, o.netns = fd, fd
	} else {
		o.flags |= unix.CLONE_NEWNET
	}
	if st.entry != nil && st.entry.V2 != nil {
		o.cgroup = int(st.entry.V2.Fd())
	}
	pid, pidfd, err := st.e.spawn(script, o)
	if err != nil {
		return nil, userNamespaceError(err)
	}
	_ = unix.Close(st.errors[1]) // ours; the child holds the other
	st.errors[1] = -1
	linux := st.s.OCI.Linux
	err = writeMaps(pid, linux.UIDMappings, linux.GIDMappings, st.s.IDs.Single)
	if err == nil {
		_, err = unix.Write(st.lifeline[1], []byte{1})
	}
	if err != nil {
		_ = unix.Close(st.lifeline[1]) // the child reads end of file and leaves
		st.lifeline[1] = -1
	}
	if !st.e.waitEOF(st.errors[0]) && err == nil {
		err = fmt.Errorf("the set-up took longer than %v", st.e.patience)
	}
	if serr := script.err(); serr != nil && err == nil {
		err = serr
	}
	if err != nil {
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		_, werr := reap(pidfd)
		_ = unix.Close(pidfd)
		return nil, errors.Join(err, werr)
	}
	lifeline := st.lifeline[1]
	st.lifeline[1] = -1 // the sandbox's now
	return newSandbox(st.e, st.s, pid, pidfd, lifeline)
}

// userNamespaceError names the control when the kernel or a container around us denies namespaces.
func userNamespaceError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EUSERS):
		return usernsUnsupported(err)
	}
	return err
}

// scriptTimeout is how long a child may take for its script, which waits for nothing: a child that takes longer
// has been stopped by somebody inside (SIGSTOP, between taking the command's uid and execve), and is killed.
const scriptTimeout = 10 * time.Second

// waitEOF blocks until every writer of a pipe is gone, and tells whether that came in time.
func (e *Engine) waitEOF(fd int) bool {
	deadline := time.Now().Add(e.patience)
	for {
		left := max(time.Until(deadline), 0)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0:
			return false
		default:
			return true // nothing is ever written: POLLHUP
		}
	}
}

// open holds a layer's directory, by whoever mounts it: an overlay takes only directories of the mounter's own
// mount namespace. The child's descriptors get numbers that are known beforehand.
func (st *starter) open(p *plan, name, dir string) (fdPath, error) {
	if !st.e.root {
		st.fixed++
		return p.open(name, dir, childFDs()+st.fixed), nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fdPath{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	st.dirs = append(st.dirs, fd)
	return fdPath{name, fd}, nil
}

// childFDs is where the child's own descriptors begin: beyond what a supervisor has open, below its limit.
func childFDs() int {
	const most, room = 8192, 96
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return most - room
	}
	return int(min(own.Cur, most)) - room
}

func (p *plan) open(name, dir string, number int) fdPath {
	fd := p.add("open "+name, unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	p.add("keep "+name, unix.SYS_DUP3, fd, number, unix.O_CLOEXEC)
	return fdPath{name, number}
}

package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
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
	st := &starter{mounter: mounter{e: e, ids: s.IDs}, s: s, netns: -1, lifeline: [2]int{-1, -1}, errors: [2]int{-1, -1}}
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
	mounter
	s        *isolation.Spec
	entry    *quota.Entry
	netns    int
	lifeline [2]int // the supervisor holds [1] as long as the sandbox lives
	errors   [2]int // end of file says that the child has executed, or failed
}

func (st *starter) release() {
	st.mounter.release()
	for _, fd := range []int{st.netns, st.lifeline[0], st.lifeline[1], st.errors[0], st.errors[1]} {
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
	p, err := st.planned(st.plan)
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
		fd, err := st.e.pool.Get()
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

// formatMap writes mappings as /proc/PID/uid_map reads them.
func formatMap(m []specs.LinuxIDMapping) string {
	var b strings.Builder
	for _, x := range m {
		fmt.Fprintf(&b, "%d %d %d\n", x.ContainerID, x.HostID, x.Size)
	}
	return b.String()
}

// writeMaps gives a child that waits in its fresh user namespace its ids. An unprivileged writer must give up
// setgroups first.
func writeMaps(pid int, uid, gid []specs.LinuxIDMapping, single bool) error {
	proc := "/proc/" + strconv.Itoa(pid) + "/"
	if single {
		if err := writeFile(proc+"setgroups", "deny"); err != nil {
			return err
		}
	}
	if err := writeFile(proc+"uid_map", formatMap(uid)); err != nil {
		return err
	}
	return writeFile(proc+"gid_map", formatMap(gid))
}

func writeFile(name, data string) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	_, err = unix.Write(fd, []byte(data))
	_ = unix.Close(fd) // written or not is known already
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

// mapKeeper holds the user namespaces that idmapped mounts refer to, one per pair of maps.
type mapKeeper struct {
	mu sync.Mutex
	ns map[string]int
}

// userns returns a namespace with these maps, made by a child that only waits until it may end.
func (e *Engine) mountUserns(uid, gid []specs.LinuxIDMapping) (int, error) {
	key := formatMap(uid) + "/" + formatMap(gid)
	e.maps.mu.Lock()
	defer e.maps.mu.Unlock()
	if fd, ok := e.maps.ns[key]; ok {
		return fd, nil
	}
	var line [2]int
	if err := unix.Pipe2(line[:], unix.O_CLOEXEC); err != nil {
		return -1, fmt.Errorf("pipe: %w", err)
	}
	defer func() { _ = unix.Close(line[0]) }()
	p := &plan{}
	p.add("close lifeline", unix.SYS_CLOSE, hostFD{"lifeline", line[1]})
	p.soft("wait", unix.SYS_READ, hostFD{"lifeline", line[0]}, make([]byte, 1), 1)
	s, err := p.compile()
	if err != nil {
		_ = unix.Close(line[1])
		return -1, err
	}
	defer s.free()
	pid, pidfd, err := e.spawn(s, spawnOptions{flags: unix.CLONE_VM | unix.CLONE_NEWUSER, netns: -1, pidns: -1, cgroup: -1})
	if err != nil {
		_ = unix.Close(line[1])
		return -1, fmt.Errorf("user namespace for an idmapped mount: %w", err)
	}
	fd := -1
	if err = writeMaps(pid, uid, gid, false); err == nil {
		fd, err = unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	_ = unix.Close(line[1]) // end of file: the child leaves
	_, werr := reap(pidfd)
	_ = unix.Close(pidfd)
	if err == nil {
		err = werr
	}
	if err != nil {
		return -1, fmt.Errorf("user namespace for an idmapped mount: %w", err)
	}
	e.maps.ns[key] = fd
	return fd, nil
}

func (k *mapKeeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, fd := range k.ns {
		_ = unix.Close(fd)
		delete(k.ns, key)
	}
}

// idmap applies maps to a detached tree.
func (e *Engine) idmap(tree any, name string, uid, gid []specs.LinuxIDMapping) error {
	ns, err := e.mountUserns(uid, gid)
	if err != nil {
		return err
	}
	return setattr(&immediate{}, tree, name, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns)})
}

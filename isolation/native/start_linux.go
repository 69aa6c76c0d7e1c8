package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
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

// plan is the whole life of PID 1 until it is the pause program, in the order in which it happens.
func (st *starter) plan() (*plan, error) {
	p := &plan{stop: st.e.stop}
	single := st.s.IDs.Single
	// Children that start at the same time hold each other's lifelines: until they have their ids this alone ends them.
	p.add("die with the supervisor", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, unix.SIGKILL, 0, 0, 0)
	p.add("close lifeline", unix.SYS_CLOSE, hostFD{"lifeline out", st.lifeline[1]})
	p.add("wait for ids", unix.SYS_READ, hostFD{"lifeline", st.lifeline[0]}, make([]byte, 1), 1)
	p.flag(opNonzero)
	st.enterCgroup(p)
	p.become(0, 0, single)
	p.add("new session", unix.SYS_SETSID)
	p.add("new keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, nil)
	if !st.e.root {
		p.raiseLoopback()
	}
	if err := st.mounts(p); err != nil {
		return nil, err
	}
	p.add("pivot_root", unix.SYS_PIVOT_ROOT, ".", ".")
	p.add("leave the host's root", unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	p.add("chdir /", unix.SYS_CHDIR, "/")
	p.add("set hostname", unix.SYS_SETHOSTNAME, st.s.OCI.Hostname, len(st.s.OCI.Hostname))
	p.dropBounding(st.e.lastCap)
	p.add("ignore SIGCHLD", unix.SYS_RT_SIGACTION, unix.SIGCHLD, ignoreAction(), nil, 8)
	p.add("lifeline is stdin", unix.SYS_DUP3, hostFD{"lifeline", st.lifeline[0]}, 0, 0)
	filter, err := st.e.filter(st.s.OCI.Linux.Seccomp)
	if err != nil {
		return nil, err
	}
	p.add("close descriptors", unix.SYS_CLOSE_RANGE, 1, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	p.seal(filter)
	p.add("die with the supervisor", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, unix.SIGKILL, 0, 0, 0) // a change of credentials clears it
	p.add("execute pause", unix.SYS_EXECVEAT, hostFD{"pause", int(st.e.pause.Fd())}, "", strv{"caisson-init"}, strv{}, unix.AT_EMPTY_PATH)
	return p, nil
}

// ignoreAction is a struct kernel_sigaction with SIG_IGN: the kernel then reaps the children of PID 1 by itself.
func ignoreAction() []byte {
	b := make([]byte, 32)
	b[0] = 1 // SIG_IGN, little-endian like every architecture that we have assembly for
	return b
}

// enterCgroup puts the child into its cgroup by itself: moved from outside it would wait for the kernel.
// On v2 it was born there.
func (st *starter) enterCgroup(p *plan) {
	if st.entry != nil {
		p.enter(st.entry.Tasks)
	}
	p.add("new cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
}

func (p *plan) enter(tasks []*os.File) {
	for i, f := range tasks {
		p.add("enter cgroup", unix.SYS_WRITE, hostFD{"tasks " + strconv.Itoa(i), int(f.Fd())}, "0", 1)
	}
}

// mounts builds the new root under the working directory.
func (st *starter) mounts(p *plan) error {
	p.add("private mounts", unix.SYS_MOUNT, "none", "/", nil, unix.MS_REC|unix.MS_PRIVATE, nil)
	root, err := st.root(p)
	if err != nil {
		return err
	}
	// On top of "/": the only path that exists, and can be reached, on every host.
	p.add("attach root", unix.SYS_MOVE_MOUNT, root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH)
	p.add("enter root", unix.SYS_FCHDIR, root)
	stacks := st.s.Stacks
	for _, m := range st.s.OCI.Mounts {
		for len(stacks) > 0 && anyBelow(m.Destination, stacks) {
			if err := st.attachStack(p, stacks[0]); err != nil {
				return err
			}
			stacks = stacks[1:]
		}
		if err := st.mount(p, m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	for _, s := range stacks {
		if err := st.attachStack(p, s); err != nil {
			return err
		}
	}
	for _, path := range st.s.OCI.Linux.MaskedPaths {
		if fi, err := st.e.lstat(path); err == nil { // the same kernel, so the same files in /proc
			p.mask(path, fi.IsDir())
		}
	}
	for _, path := range st.s.OCI.Linux.ReadonlyPaths {
		if _, err := st.e.lstat(path); err == nil {
			p.protect(path)
		}
	}
	return nil
}

func anyBelow(target string, stacks []isolation.Stack) bool {
	for _, s := range stacks {
		if below(target, s.Target) {
			return true
		}
	}
	return false
}

const readonlyRoot = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// root is the root filesystem: a read-only bind of its only layer, or a read-only overlay of several.
func (st *starter) root(p *plan) (any, error) {
	c := st.maker(p)
	if len(st.s.Layers) == 1 && st.s.Layers[0].Map == isolation.MapNone {
		return cloneTree(c, st.s.Layers[0].Path, "root", readonlyRoot)
	}
	lower, err := st.lower(p, "root", st.s.Layers)
	if err != nil {
		return nil, err
	}
	return mountOverlay(c, overlaySpec{name: "root", lower: lower, userxattr: !st.e.root, attrs: readonlyRoot})
}

func (st *starter) attachStack(p *plan, s isolation.Stack) error {
	tree, err := st.stack(p, s)
	if err != nil {
		return err
	}
	p.attach(tree, s.Target)
	return nil
}

// mount plans one mount of the OCI spec.
func (st *starter) mount(p *plan, m specs.Mount) error {
	switch m.Type {
	case "bind":
		return st.bind(p, m)
	case "proc":
		p.mountNew(m)
		// No user namespace inside this one: seccomp denies it too, but this the kernel itself holds.
		f := p.add("find max_user_namespaces", unix.SYS_OPENAT, unix.AT_FDCWD, "proc/sys/user/max_user_namespaces", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		p.add("no nested user namespace", unix.SYS_WRITE, f, "0", 1)
		p.add("close", unix.SYS_CLOSE, f)
		p.userLimits()
	case "tmpfs", "devpts", "mqueue":
		p.mountNew(m)
		if m.Destination == "/dev" {
			p.populateDev(st.s.OCI.Linux.Devices)
		}
	default:
		return fmt.Errorf("mounts of type %q are not for this engine", m.Type)
	}
	return nil
}

// userLimits bounds what is otherwise counted only against whoever made the user namespace: root.
func (p *plan) userLimits() {
	for _, l := range [][2]string{{"max_inotify_instances", "64"}, {"max_inotify_watches", "65536"}} {
		f := p.add("find "+l[0], unix.SYS_OPENAT, unix.AT_FDCWD, "proc/sys/user/"+l[0], unix.O_WRONLY|unix.O_CLOEXEC, 0)
		p.flag(opSoft) // a kernel without inotify
		p.soft("limit "+l[0], unix.SYS_WRITE, f, l[1], len(l[1]))
		p.soft("close", unix.SYS_CLOSE, f)
	}
}

var bindAttrs = map[string]uint64{
	"ro": unix.MOUNT_ATTR_RDONLY, "nosuid": unix.MOUNT_ATTR_NOSUID, "nodev": unix.MOUNT_ATTR_NODEV, "noexec": unix.MOUNT_ATTR_NOEXEC,
}

func (st *starter) bind(p *plan, m specs.Mount) error {
	var attrs uint64
	for _, o := range m.Options {
		attrs |= bindAttrs[o]
	}
	tree, err := cloneTree(st.maker(p), m.Source, m.Source, attrs)
	if err != nil {
		return err
	}
	if len(m.UIDMappings) > 0 {
		if err := st.e.idmap(tree, m.Source, m.UIDMappings, m.GIDMappings); err != nil {
			return idmapUnsupported(m.Source, err)
		}
	}
	p.attach(tree, m.Destination)
	return nil
}

package native

import (
	"fmt"
	"os"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

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

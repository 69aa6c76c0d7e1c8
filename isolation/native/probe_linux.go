package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// Probe tries every control in a child that has all namespaces and does what a start does, and says what the kernel
// answered. It leaves nothing behind.
func (e *Engine) Probe(ctx context.Context) isolation.Features {
	got := e.try(ctx)
	got[isolation.ControlCgroups] = probeCgroups()
	got[isolation.ControlIDMap] = e.probeIDMap()
	later := "not in this version"
	got[isolation.ControlDiskQuota] = isolation.Feature{Support: isolation.Unsupported, Detail: later,
		Remedy: "leave disk and inodes out of the profile"}
	var out isolation.Features
	for _, c := range isolation.Controls() {
		f, ok := got[c]
		if !ok {
			f = isolation.Feature{Support: isolation.Unknown, Detail: "the probe did not get that far"}
		}
		f.Control = c
		out = append(out, f)
	}
	return out
}

func available(detail string) isolation.Feature {
	return isolation.Feature{Support: isolation.Available, Detail: detail}
}

func unsupported(c isolation.Control, reason string) isolation.Feature {
	return isolation.Feature{Support: isolation.Unsupported, Detail: reason, Remedy: remedies[c]}
}

// remedies tell what the user can do about a control that the host denies.
var remedies = map[isolation.Control]string{
	isolation.ControlUserNS: "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000 (Ubuntu: also " +
		"kernel.apparmor_restrict_unprivileged_userns=0); inside a container: give it --privileged, or --security-opt seccomp=unconfined",
	isolation.ControlProcMasked:   "inside a container whose /proc is masked: run it with --security-opt systempaths=unconfined",
	isolation.ControlOverlay:      "put the state directory (CAISSON_STATE) on ext4, xfs, btrfs or tmpfs; unprivileged needs kernel 5.11 or later",
	isolation.ControlNetworkRules: "modprobe tun, and as root chmod 0666 /dev/net/tun, for others than root; inside a container: give it --device /dev/net/tun; or use --network none",
	isolation.ControlIDMap:        "kernel 5.19 or later, and a filesystem that can be idmapped (ext4, xfs, btrfs, tmpfs)",
}

func probeCgroups() isolation.Feature {
	c, err := quota.Probe()
	if err == nil {
		return available("cgroup " + string(c.Mode()) + " at " + c.Root())
	}
	f := isolation.Feature{Support: isolation.Unknown, Detail: err.Error()}
	var u *quota.UnavailableError
	if errors.As(err, &u) {
		f.Support, f.Detail, f.Remedy, f.Scope = isolation.Unsupported, u.Reason, u.Remedy, u.Scope
	}
	return f
}

// namespaceControls are the namespaces in the order in which they are blamed when all together are refused.
var namespaceControls = []struct {
	control isolation.Control
	flag    uintptr
}{
	{isolation.ControlUserNS, unix.CLONE_NEWUSER}, {isolation.ControlPIDNS, unix.CLONE_NEWPID},
	{isolation.ControlMountNS, unix.CLONE_NEWNS}, {isolation.ControlNetNS, unix.CLONE_NEWNET},
	{isolation.ControlIPCNS, unix.CLONE_NEWIPC}, {isolation.ControlUTSNS, unix.CLONE_NEWUTS},
}

// try runs the trials and returns what each gave.
func (e *Engine) try(ctx context.Context) map[isolation.Control]isolation.Feature {
	got := map[isolation.Control]isolation.Feature{}
	if context.Cause(ctx) != nil {
		return got
	}
	dir, err := os.MkdirTemp(e.scratch, "caisson-probe-")
	if err != nil {
		got[isolation.ControlOverlay] = isolation.Feature{Support: isolation.Unknown, Detail: err.Error()}
		return got
	}
	defer removeLayers(dir)
	p := newProber(e.root)
	var now immediate
	defer now.close()
	overlay := isolation.ControlOverlay
	if err := e.probeOverlay(p.on(overlay, "in the sandbox's user namespace"), &now, dir, ""); err != nil {
		got[overlay] = unsupported(overlay, err.Error())
	} else if e.root {
		got[overlay] = available("made by the supervisor, moved in")
	}
	p.finish(e.lastCap)
	var flags uintptr
	for _, n := range namespaceControls {
		flags |= n.flag
	}
	s, err := e.attempt(&p.plan, flags)
	if s != nil {
		defer s.free()
	}
	if err != nil {
		e.blame(got, err)
		return got
	}
	for _, n := range namespaceControls {
		got[n.control] = available("clone3")
	}
	got[isolation.ControlNonRoot] = available("uid 1000 inside")
	collect(got, p.trials, s)
	return got
}

// collect takes the first refusal of every control, or that all its steps worked.
func collect(got map[isolation.Control]isolation.Feature, trials []trial, s *script) {
	for _, t := range trials {
		if got[t.control].Support == isolation.Unsupported {
			continue
		}
		if errno := s.refusal(t.step); errno != 0 {
			got[t.control] = unsupported(t.control, fmt.Sprintf("%s: %v", s.plan.steps[t.step].name, errno))
		} else {
			got[t.control] = available(t.detail)
		}
	}
}

// refusal is what the kernel answered to a soft step, 0 when it did it.
func (s *script) refusal(step int) syscall.Errno {
	if ret := s.ops[step].ret; ret > ^uintptr(4095) {
		return syscall.Errno(-ret)
	}
	return 0
}

// attempt runs a plan of soft steps in a child with these namespaces, and waits for its end.
func (e *Engine) attempt(body *plan, flags uintptr) (*script, error) {
	var line [2]int
	if err := unix.Pipe2(line[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	defer func() { _ = unix.Close(line[0]) }()
	body.steps[0] = step{name: "close lifeline", nr: unix.SYS_CLOSE, args: []any{hostFD{"lifeline", line[1]}}}
	body.steps[1] = step{name: "wait for ids", nr: unix.SYS_READ, flags: opNonzero,
		args: []any{hostFD{"lifeline", line[0]}, make([]byte, 1), 1}}
	s, err := body.compile()
	if err != nil {
		_ = unix.Close(line[1])
		return nil, err
	}
	// No shared memory: the maps of an unprivileged child can be written only while it is dumpable.
	pid, pidfd, err := e.spawn(s, spawnOptions{flags: flags, netns: -1, pidns: -1, cgroup: -1})
	if err != nil {
		_ = unix.Close(line[1])
		return s, err
	}
	uid, gid := e.probeIDs()
	err = writeMaps(pid, uid, gid, !e.root)
	if err == nil {
		_, err = unix.Write(line[1], []byte{1})
	}
	_ = unix.Close(line[1])
	_, werr := reap(pidfd)
	_ = unix.Close(pidfd)
	if err == nil {
		err = errors.Join(s.err(), werr)
	}
	return s, err
}

const probeBase, probeRange = 1 << 30, 65536

func (e *Engine) probeIDs() (uid, gid []specs.LinuxIDMapping) {
	if e.root {
		m := []specs.LinuxIDMapping{{ContainerID: 0, HostID: probeBase, Size: probeRange}}
		return m, m
	}
	one := func(id int) []specs.LinuxIDMapping {
		return []specs.LinuxIDMapping{{ContainerID: 1000, HostID: uint32(id), Size: 1}}
	}
	return one(os.Geteuid()), one(os.Getegid())
}

// blame finds the first namespace that is refused by itself.
func (e *Engine) blame(got map[isolation.Control]isolation.Feature, all error) {
	for _, n := range namespaceControls {
		p := &plan{}
		p.steps = make([]step, 2)
		s, err := e.attempt(p, unix.CLONE_NEWUSER|n.flag)
		if s != nil {
			s.free()
		}
		if err != nil {
			got[n.control] = unsupported(n.control, denied(err))
			return // the others need this one
		}
		got[n.control] = available("clone3")
	}
	got[isolation.ControlUserNS] = unsupported(isolation.ControlUserNS, denied(all))
}

// denied explains a refusal with what the host says about user namespaces.
func denied(err error) string {
	reason := err.Error()
	for _, name := range []string{"kernel/unprivileged_userns_clone", "user/max_user_namespaces"} {
		if b, rerr := os.ReadFile(filepath.Join("/proc/sys", name)); rerr == nil && strings.TrimSpace(string(b)) == "0" {
			reason += "; " + strings.ReplaceAll(name, "/", ".") + " is 0"
		}
	}
	return reason
}

func usernsUnsupported(err error) error {
	return &isolation.UnsupportedError{Control: isolation.ControlUserNS, Reason: denied(err), Remedy: remedies[isolation.ControlUserNS]}
}

func idmapUnsupported(path string, err error) error {
	return &isolation.UnsupportedError{Control: isolation.ControlIDMap,
		Reason: fmt.Sprintf("%s cannot be idmapped: %v", path, err), Remedy: remedies[isolation.ControlIDMap]}
}

// idmappable are filesystems that could be idmapped before overlay could take an idmapped layer (kernel 5.19): to try
// would cost as much as a start.
var idmappable = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC}

// kernelAtLeast compares the running kernel's version.
func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}

// CanIDMap says why the filesystem of path cannot be idmapped here, nil when it can; never unprivileged. Whether an error is
// the host's answer, or the question itself failed, isolation.Refused tells.
func (e *Engine) CanIDMap(path string) error {
	if !e.root {
		return fmt.Errorf("needs root: %w", syscall.EPERM)
	}
	if !kernelAtLeast(5, 19) {
		return fmt.Errorf("this kernel's overlay takes no idmapped layer (5.19 does): %w", syscall.EINVAL)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err == nil && slices.Contains(idmappable, fs.Type) {
		return nil
	}
	var now immediate
	defer now.close()
	tree, err := now.call("open_tree", unix.SYS_OPEN_TREE, unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	m := []specs.LinuxIDMapping{{ContainerID: 0, HostID: probeBase, Size: probeRange}}
	return e.idmap(tree, path, m, m)
}

func (e *Engine) probeIDMap() isolation.Feature {
	if !e.root {
		return available("one id: 1000 inside is the user outside")
	}
	if err := e.CanIDMap(os.TempDir()); err != nil {
		return unsupported(isolation.ControlIDMap, err.Error())
	}
	return available("private range, idmapped workspace")
}

// trial is one step that the probing child tries, and the control that depends on it.
type trial struct {
	control isolation.Control
	step    int
	detail  string // the mechanism, said when it works
}

// prober records soft steps on behalf of one control after the other. It is a caller, so that what Start mounts
// is what the probe mounts.
type prober struct {
	plan
	trials  []trial
	control isolation.Control
	detail  string
}

func (p *prober) on(c isolation.Control, detail string) *prober {
	p.control, p.detail = c, detail
	return p
}

func (p *prober) try(name string, nr uintptr, args ...any) ref {
	r := p.add(name, nr, args...)
	p.flag(opSoft)
	p.trials = append(p.trials, trial{p.control, int(r), p.detail})
	return r
}

func (p *prober) call(name string, nr uintptr, args ...any) (any, error) {
	return p.try(name, nr, args...), nil
}

// newProber plans the trials. The first two steps are attempt's: waiting for the ids.
func newProber(asRoot bool) *prober {
	p := &prober{plan: plan{steps: make([]step, 2)}}
	p.tryNetwork()
	p.become(0, 0, !asRoot)
	p.on(isolation.ControlCgroupNS, "unshare").try("new cgroup namespace", unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
	p.on(isolation.ControlSession, "setsid, TIOCSTI filtered").try("new session", unix.SYS_SETSID)
	p.on(isolation.ControlKeyring, "new session keyring").try("new keyring", unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, nil)
	p.on(isolation.ControlMountNS, "clone3").try("private mounts", unix.SYS_MOUNT, "none", "/", nil, unix.MS_REC|unix.MS_PRIVATE, nil)
	p.on(isolation.ControlReadonlyRoot, "read-only bind or overlay")
	fs := p.try("fsopen tmpfs", unix.SYS_FSOPEN, "tmpfs", unix.FSOPEN_CLOEXEC)
	p.try("create tmpfs", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, nil, nil, 0)
	root := p.try("fsmount tmpfs", unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, 0)
	p.try("attach root", unix.SYS_MOVE_MOUNT, root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH)
	p.try("enter root", unix.SYS_FCHDIR, root)
	p.on(isolation.ControlProcMasked, "masked and read-only paths")
	p.try("mkdir proc", unix.SYS_MKDIRAT, unix.AT_FDCWD, "proc", 0o755)
	p.try("mount proc", unix.SYS_MOUNT, "proc", "proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, nil)
	p.on(isolation.ControlPrivateDev, "tmpfs, six nodes, devpts")
	p.try("mkdir dev", unix.SYS_MKDIRAT, unix.AT_FDCWD, "dev", 0o755)
	f := p.try("create dev/null", unix.SYS_OPENAT, unix.AT_FDCWD, "dev/null", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o666)
	p.soft("close", unix.SYS_CLOSE, f)
	p.try("bind dev/null", unix.SYS_MOUNT, "/dev/null", "dev/null", nil, unix.MS_BIND, nil)
	p.try("mkdir dev/pts", unix.SYS_MKDIRAT, unix.AT_FDCWD, "dev/pts", 0o755)
	p.try("mount devpts", unix.SYS_MOUNT, "devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance")
	return p
}

// finish adds what cannot be taken back: pivot_root, capabilities, no_new_privs, the filter.
func (p *prober) finish(last int) {
	p.on(isolation.ControlReadonlyRoot, "read-only bind or overlay").try("pivot_root", unix.SYS_PIVOT_ROOT, ".", ".")
	p.on(isolation.ControlCapabilities, fmt.Sprintf("all %d dropped, also from the bounding set", last+1))
	p.try("drop from the bounding set", unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0)
	p.try("securebits", unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, secureNoRoot, 0, 0, 0)
	p.try("drop capabilities", unix.SYS_CAPSET, &capHeader{version: capVersion3}, &capData{})
	p.on(isolation.ControlNoNewPrivs, "prctl").try("no new privileges", unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	p.on(isolation.ControlFDs, "close_range").try("close descriptors", unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), unix.CLOSE_RANGE_CLOEXEC)
	allow := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}}
	p.on(isolation.ControlSeccomp, "BPF filter, Docker's list and more denied").try("seccomp", unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER, 0, &unix.SockFprog{Len: 1, Filter: &allow[0]})
}

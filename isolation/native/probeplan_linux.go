package native

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

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

// probeOverlay mounts a workspace's kind of overlay below dir, as Start would.
func (e *Engine) probeOverlay(p *prober, now *immediate, dir string) error {
	var paths [3]fdPath
	c := caller(p)
	for i, name := range []string{"lower", "upper", "work"} {
		d := filepath.Join(dir, name)
		if err := os.Mkdir(d, 0o700); err != nil {
			return fmt.Errorf("overlay probe: %w", err)
		}
		if !e.root {
			paths[i] = p.open(name, d, childFDs()+i)
			continue
		}
		c = now
		fd, err := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("overlay probe: %w", err)
		}
		now.fds = append(now.fds, fd)
		paths[i] = fdPath{name, fd}
	}
	_, err := mountOverlay(c, overlaySpec{name: "probe", lower: paths[:1], upper: paths[1], work: paths[2], userxattr: !e.root})
	return err
}

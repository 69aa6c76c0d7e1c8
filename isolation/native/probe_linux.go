package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
		Remedy: "leave disk and inodes out of the profile, or use --allow-weaker disk_quota"}
	got[isolation.ControlNetworkRules] = isolation.Feature{Support: isolation.Unsupported, Detail: later,
		Remedy: "use --network none"}
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
	isolation.ControlProcMasked: "inside a container whose /proc is masked: run it with --security-opt systempaths=unconfined",
	isolation.ControlOverlay:    "put the state directory (CAISSON_STATE) on ext4, xfs, btrfs or tmpfs; unprivileged needs kernel 5.11 or later",
	isolation.ControlIDMap:      "kernel 5.19 or later, and a filesystem that can be idmapped (ext4, xfs, btrfs, tmpfs)",
}

func probeCgroups() isolation.Feature {
	c, err := quota.Probe()
	if err == nil {
		return available("cgroup " + string(c.Mode()) + " at " + c.Root())
	}
	f := isolation.Feature{Support: isolation.Unknown, Detail: err.Error()}
	var u *quota.UnavailableError
	if errors.As(err, &u) {
		f.Support, f.Detail, f.Remedy = isolation.Unsupported, u.Reason, u.Remedy
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
	defer func() { _ = os.RemoveAll(dir) }()
	p := newProber(e.root)
	var now immediate
	defer now.close()
	overlay := isolation.ControlOverlay
	if err := e.probeOverlay(p.on(overlay, "in the sandbox's user namespace"), &now, dir); err != nil {
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
		if ret := s.ops[t.step].ret; ret > ^uintptr(4095) {
			got[t.control] = unsupported(t.control, fmt.Sprintf("%s: %v", s.plan.steps[t.step].name, syscall.Errno(-ret)))
		} else {
			got[t.control] = available(t.detail)
		}
	}
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

// CanIDMap says whether the filesystem of path can be idmapped here; false unprivileged.
func (e *Engine) CanIDMap(path string) error {
	if !e.root {
		return errors.New("needs root")
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

// Package rootfs is what a sandbox sees besides its workspace and HOME: the root file system, and what a profile mounts into
// it.
package rootfs

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/images"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// resolver is the gateway's. While there is none the kernel knows no way to it, so that a look-up fails at once.
var resolver = "nameserver " + egress.Gateway4.String() + "\noptions timeout:2 attempts:2\n"

// Feedback is the directory in which a feature finds what gates say of it.
const Feedback = "/run/caisson"

// Make makes the root file system of a profile: its directory of mount points, and what is bound over it. Cache is the
// state directory's place for unpacked ones.
func Make(p *profiles.Effective, mounts []isolation.Bind, cache, hostname string) (isolation.Rootfs, error) {
	r, err := rootOf(p, cache)
	if err != nil {
		return isolation.Rootfs{}, err
	}
	targets := []images.Target{{Path: "/etc/machine-id"}, {Path: Feedback, Dir: true}}
	for _, m := range mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return isolation.Rootfs{}, err
		}
		targets = append(targets, images.Target{Path: m.Target, Dir: info.IsDir()})
	}
	uid, gid := p.IDs()
	etc := images.EtcFiles(hostname, "user", uid, gid, "")
	etc["etc/resolv.conf"] = []byte(resolver)
	skeleton, err := r.Skeleton(cache, targets, etc)
	if err != nil {
		return isolation.Rootfs{}, err
	}
	root := isolation.Rootfs{Layers: []isolation.Layer{{Path: skeleton}}}
	if r.Lower != "" {
		root.Layers = append(root.Layers, isolation.Layer{Path: r.Lower, Map: isolation.MapRange})
	}
	for _, b := range r.Binds {
		root.Binds = append(root.Binds, isolation.Bind{Source: b.Source, Target: b.Target})
	}
	return root, nil
}

func rootOf(p *profiles.Effective, cache string) (images.Root, error) {
	kind, arg, err := images.Parse(p.Rootfs)
	if err != nil {
		return images.Root{}, err
	}
	switch kind {
	case images.KindDir:
		r, err := images.Dir(arg)
		if state := filepath.Dir(cache); err == nil && overlap(r.Lower, state) {
			err = &images.UnusableError{Err: fmt.Errorf("%s holds or lies in caisson's own state, %s", r.Lower, state)}
		}
		return r, err
	case images.KindTar:
		return images.Tar(arg, cache)
	}
	list := images.HostList{Paths: p.HostRoot.Paths, Etc: p.HostRoot.Etc}
	if len(list.Paths) == 0 && len(list.Etc) == 0 {
		list = images.DefaultHostList()
	}
	return images.Host(list)
}

// overlap says whether one of two directories is, or holds, the other.
func overlap(a, b string) bool {
	if resolved, err := filepath.EvalSymlinks(b); err == nil {
		b = resolved
	}
	return strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/")
}

// Mounts are what a profile shows inside, checked on this host. The errors are *profiles.MountError and the system's.
func Mounts(p *profiles.Effective, workspace, stateDir string, mapping func(source string) isolation.Mapping) ([]isolation.Bind, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // then ~ stands for nothing
	}
	check := profiles.MountCheck{StateDir: stateDir, Workspace: workspace, Home: home}
	var binds []isolation.Bind
	for _, m := range slices.Concat(p.CacheMounts(home), p.Mounts) {
		source, err := profiles.CheckMount(m, check)
		if err != nil {
			return nil, err
		}
		target := path.Clean(m.Target)
		if rest, ok := strings.CutPrefix(target, snapshot.WorkspaceTarget+"/"); ok {
			if err := presentIn(workspace, rest, source); err != nil {
				return nil, err
			}
		}
		uid, gid, err := hostfile.Owner(source)
		if err != nil {
			return nil, err
		}
		binds = append(binds, isolation.Bind{Source: source, Target: target, Writable: !m.ReadOnly,
			Map: mapping(source), Owner: uid, Group: gid})
	}
	return binds, nil
}

// presentIn refuses a mount into the workspace whose mount point is not there: making it would write to the workspace.
func presentIn(workspace, rest, source string) error {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	point, err := root.Lstat(rest)
	if err == nil {
		var from os.FileInfo
		if from, err = os.Stat(source); err == nil && point.IsDir() == from.IsDir() && point.Mode()&fs.ModeSymlink == 0 {
			return nil
		}
	}
	return &profiles.MountError{Source: source, Reason: "the workspace has nothing of that kind at " + rest,
		Remedy: "make an empty directory or file there, or mount it elsewhere"}
}

package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/images"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/seccomp"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

// hostname is every sandbox's name for itself.
const hostname = "caisson"

// queue waits for a slot.
func (t *task) queue(ctx context.Context) (err error) {
	if t.slot != nil {
		return nil
	}
	if t.slot, err = t.s.slots.Wait(ctx); err != nil {
		return err
	}
	return t.to(ctx, StatePreparing, "a slot is free", nil)
}

// prepare makes the layers, the root file system and the cgroup, and starts the sandbox on them.
func (t *task) prepare(ctx context.Context) (err error) {
	t.res.Started = time.Now()
	if t.ids, err = t.s.idsOf(&t.feature); err != nil {
		return err
	}
	var init *quota.Leaf
	var g errgroup.Group
	g.Go(func() (err error) { init, err = t.makeGroup(ctx); return err })
	if err := errors.Join(t.makeLayers(), g.Wait(), t.rooting.Wait()); err != nil {
		return err
	}
	spec, err := t.spec(t.root, stacks(t.layers.Stacks()))
	if err != nil {
		return err
	}
	spec.Cgroup, spec.Init = t.group, init
	if err := context.Cause(ctx); err != nil {
		return err
	}
	t.sandbox, err = t.s.opt.Engine.Start(ctx, spec)
	t.steps.Sandbox, t.steps.Group = t.sandbox, t.group
	return err
}

// makeLayers makes a new feature's layers, or readies those of an old one.
func (t *task) makeLayers() (err error) {
	uid, gid := t.ids.Host(inside, inside)
	owner := snapshot.Owner{UID: uid, GID: gid}
	if t.fresh {
		t.layers, err = snapshot.Create(snapshot.CreateOptions{Dir: t.dir, Workspace: t.feature.Workspace, Owner: owner})
	} else if t.layers, err = snapshot.Open(t.dir); err == nil {
		err = t.layers.Prepare()
	}
	if err != nil {
		return err
	}
	for _, m := range t.mounts {
		rest, ok := strings.CutPrefix(m.Target, snapshot.HomeTarget+"/")
		if !ok {
			continue
		}
		info, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		if err := t.layers.HomeMountpoint(rest, info.IsDir(), owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(t.dir, "log"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return writeOnce(machineID(t.dir), t.feature.ID)
}

func machineID(dir string) string { return filepath.Join(dir, "machine-id") }

// writeOnce makes a feature's machine-id: its own, and the same for each of its tasks.
func writeOnce(path, id string) error {
	sum := sha256.Sum256([]byte("caisson machine-id " + id))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o444)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(hex.EncodeToString(sum[:16]) + "\n")
	return errors.Join(err, f.Close())
}

// makeGroup makes the feature's cgroup, unless there are none here and that was accepted.
func (t *task) makeGroup(ctx context.Context) (*quota.Leaf, error) {
	c := t.s.opt.Cgroups
	if c == nil {
		return nil, nil
	}
	g, err := c.New(t.feature.ID, t.req.Profile.Limits)
	if errors.Is(err, fs.ErrExist) { // left by a process that died; the feature's lock says that it is ours
		if err = t.s.killGroup(ctx, t.feature.ID, &GCReport{}); err == nil {
			g, err = c.New(t.feature.ID, t.req.Profile.Limits)
		}
	}
	if err != nil {
		return nil, err
	}
	t.group = g
	return g.Leaf("init", nil)
}

// makeRoot is what of prepare can be done before there is a place for the task.
func (t *task) makeRoot() (err error) {
	t.root, err = t.s.rootfs(t.req.Profile, t.mounts)
	return err
}

// rootfs makes the root file system: its directory of mount points, and what is bound over it.
func (s *Supervisor) rootfs(p *profiles.Effective, mounts []isolation.Bind) (isolation.Rootfs, error) {
	cache := filepath.Join(s.state, "roots")
	r, err := rootOf(p, cache)
	if err != nil {
		return isolation.Rootfs{}, err
	}
	targets := []images.Target{{Path: "/etc/machine-id"}}
	for _, m := range mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return isolation.Rootfs{}, err
		}
		targets = append(targets, images.Target{Path: m.Target, Dir: info.IsDir()})
	}
	uid, gid := p.IDs()
	skeleton, err := r.Skeleton(cache, targets, images.EtcFiles(hostname, "user", uid, gid, ""))
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
		return images.Dir(arg)
	case images.KindTar:
		return images.Tar(arg, cache)
	}
	list := images.HostList{Paths: p.HostRoot.Paths, Etc: p.HostRoot.Etc}
	if len(list.Paths) == 0 && len(list.Etc) == 0 {
		list = images.DefaultHostList()
	}
	return images.Host(list)
}

// mounts are what the profile and the caller show inside, checked on this host.
func (s *Supervisor) mounts(r *Request) ([]isolation.Bind, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // then ~ stands for nothing
	}
	check := profiles.MountCheck{StateDir: s.state, Workspace: r.Workspace, Home: home}
	var binds []isolation.Bind
	for _, m := range slices.Concat(r.Profile.CacheMounts(home), r.Profile.Mounts) {
		source, err := profiles.CheckMount(m, check)
		if err != nil {
			return nil, err
		}
		target := path.Clean(m.Target)
		if rest, ok := strings.CutPrefix(target, snapshot.WorkspaceTarget+"/"); ok {
			if err := presentIn(r.Workspace, rest, source); err != nil {
				return nil, err
			}
		}
		uid, gid, err := hostfile.Owner(source)
		if err != nil {
			return nil, err
		}
		binds = append(binds, isolation.Bind{Source: source, Target: target, Writable: !m.ReadOnly,
			Map: s.mountMapping(source), Owner: uid, Group: gid})
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
	return refuse(CodeMount, "make an empty directory or file there, or mount it elsewhere",
		"cannot mount at %s/%s: the workspace has nothing of that kind there", snapshot.WorkspaceTarget, rest)
}

// spec describes the sandbox.
func (t *task) spec(root isolation.Rootfs, s []isolation.Stack) (*isolation.Spec, error) {
	first := &t.req.Steps[0]
	uid, gid := t.user(first)
	mounts := append([]isolation.Bind{{Source: machineID(t.dir), Target: "/etc/machine-id"}}, t.mounts...)
	return isolation.Build(isolation.BuildOptions{
		ID: t.feature.ID, Hostname: hostname, Root: root, Mounts: mounts, Stacks: s, IDs: t.ids,
		Limits: t.req.Profile.Limits, Weaker: t.weaker, Seccomp: seccomp.Default(),
		Args: first.Args, Env: t.env(first, 1), Cwd: cwd(first.Cwd), UID: uid, GID: gid, Terminal: t.req.TTY,
	})
}

func stacks(list []snapshot.Stack) []isolation.Stack {
	out := make([]isolation.Stack, len(list))
	for i, s := range list {
		out[i] = isolation.Stack{Target: s.Target, Upper: s.Upper, Work: s.Work}
		for _, l := range s.Lower {
			layer := isolation.Layer{Path: l.Path}
			if l.Base {
				layer.Map = isolation.MapOwner
			}
			out[i].Lower = append(out[i].Lower, layer)
		}
	}
	return out
}

// Spec is the sandbox that Run would make for r, without making it.
func (s *Supervisor) Spec(ctx context.Context, r Request) (*isolation.Spec, error) {
	t, err := s.admit(ctx, &r)
	if err != nil {
		return nil, err
	}
	t.res.TaskID, t.feature.Name = "TASK", cmp.Or(t.feature.Name, "FEATURE")
	return s.describe(t)
}

// SpecOf is the sandbox of a feature's newest task.
func (s *Supervisor) SpecOf(ctx context.Context, ref string) (*isolation.Spec, error) {
	f, l, err := s.hold(ctx, ref, flock.Shared)
	if CodeOf(err) == CodeBusy { // a description needs nobody's leave
		f, err = s.opt.Journal.Feature(ctx, ref)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Release() }()
	tasks, err := s.opt.Journal.Tasks(ctx, f.ID)
	if err != nil {
		return nil, err
	}
	p, err := s.policy(ctx, &f)
	if err != nil {
		return nil, typed(err, "reading the profile")
	}
	r := Request{Workspace: f.Workspace, Feature: f.Name, Profile: p}
	last := tasks[len(tasks)-1]
	for _, st := range last.Steps {
		r.Steps = append(r.Steps, Step{Args: st.Args})
	}
	t, err := s.admit(ctx, &r)
	if err != nil {
		return nil, err
	}
	t.res.TaskID = last.ID
	return s.describe(t)
}

func (s *Supervisor) describe(t *task) (*isolation.Spec, error) {
	var err error
	if t.ids, err = s.idsOf(&t.feature); err != nil {
		return nil, typed(err, "mapping ids")
	}
	t.dir = s.featureDir(t.feature.ID)
	root, err := s.rootfs(t.req.Profile, t.mounts)
	if err != nil {
		return nil, typed(err, "describing the root file system")
	}
	list := []isolation.Stack{
		{Target: snapshot.WorkspaceTarget, Lower: []isolation.Layer{{Path: t.feature.Workspace, Map: isolation.MapOwner}},
			Upper: filepath.Join(t.dir, "upper"), Work: filepath.Join(t.dir, "work")},
		{Target: snapshot.HomeTarget, Lower: []isolation.Layer{{Path: filepath.Join(t.dir, "home/lower")}},
			Upper: filepath.Join(t.dir, "home/upper"), Work: filepath.Join(t.dir, "home/work")},
	}
	if ws, err := snapshot.Open(t.dir); err == nil { // it exists: then as it is
		list = stacks(ws.Stacks())
	}
	spec, err := t.spec(root, list)
	return spec, typed(err, "describing the sandbox")
}

// stop ends everything of the task that runs, and begins to take its cgroup away. It is idempotent.
func (t *task) stop(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	var errs []error
	if t.sandbox != nil {
		errs = append(errs, t.sandbox.Close(ctx))
		t.sandbox = nil
	}
	if t.group != nil {
		if u, err := t.group.Usage(); err == nil {
			t.res.Usage = steps.UsageOf(u)
		}
		g := t.group
		t.group = nil
		t.removing.Go(func() error {
			ctx, cancel := detached(ctx)
			defer cancel()
			return errors.Join(g.Kill(ctx), g.Remove(ctx))
		})
	}
	if t.steps.Budget != nil {
		t.res.Usage.Output = t.steps.Budget.Used()
	}
	if t.steps.Log != nil {
		_ = t.steps.Log.Close() // that the log is not whole is no failure of the task's
		t.res.Truncated = t.res.Truncated || t.steps.Log.Lost() > 0
	}
	return errors.Join(errs...)
}

// judge runs the gates on a change.
func judge(ctx context.Context, p *profiles.Effective, ws *snapshot.Workspace, c *snapshot.Change, allow []string) ([]gates.Verdict, error) {
	config := p.PathsConfig(allow)
	gate, err := gates.Paths(config)
	if err != nil {
		return nil, refuse(CodeConfiguration, "correct the globs", "%v", err)
	}
	root, err := os.OpenRoot(ws.Path())
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	change := &gates.Change{
		Entries: make([]gates.Entry, len(c.Entries)), Digest: c.Digest,
		Open: func(path string) (io.ReadCloser, error) { return ws.OpenChanged(path) },
		Readlink: func(path string) (string, bool) {
			target, err := root.Readlink(path)
			return target, err == nil
		},
	}
	for i, e := range c.Entries {
		change.Entries[i] = gates.Entry{
			Path: e.Path, Kind: gates.Kind(e.Kind), Type: gates.FileType(e.Type), OldType: gates.FileType(e.OldType),
			Mode: e.Mode, OldMode: e.OldMode, Size: e.Size, OldSize: e.OldSize, Link: e.Link, OldLink: e.OldLink,
			Binary: e.Binary, Xattrs: e.Xattrs,
		}
	}
	return gates.Run(ctx, []gates.Configured{{Gate: gate, Mode: config.Mode}}, change), nil
}

func summary(c *snapshot.Change) *ChangeSummary {
	return &ChangeSummary{Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Bytes: c.Bytes, Digest: c.Digest}
}

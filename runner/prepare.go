package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/seccomp"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/rootfs"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// hostname is every sandbox's name for itself.
const hostname = "caisson"

// queue waits for a slot.
func (t *task) queue(ctx context.Context) (err error) {
	if t.slot != nil {
		return nil
	}
	t.isReady() // Start does not wait for a place
	if t.slot, err = t.s.slots.Wait(ctx); err != nil {
		return err
	}
	t.place()
	return t.to(ctx, StatePreparing, "a slot is free", nil)
}

// prepare makes the layers, the root file system and the cgroup, and starts the sandbox on them; or joins those that live.
func (t *task) prepare(ctx context.Context) (err error) {
	t.res.Started = time.Now()
	defer t.isReady()
	if t.owner {
		err = t.bringUp(ctx)
	} else {
		err = t.joinUp(ctx)
	}
	if err == nil {
		err = t.goOnline(ctx)
	}
	if err != nil {
		return t.shortage(ctx, err)
	}
	t.steps.Sandbox, t.steps.Group = t.live.Sandbox(), t.group
	t.res.Layers = &Layering{Driver: t.feature.Driver, Reason: t.copies}
	t.enter(t)
	t.arrive(nil)
	return nil
}

// joinUp makes sure that the session which the task joined still lives, and takes it back to where a resumed task goes on.
func (t *task) joinUp(ctx context.Context) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	if t.live == nil {
		return refuse(CodeNotLive, "try again", "the feature %s has just ended", t.feature.Name)
	}
	if err := t.alone(); err != nil { // somebody came in between
		return err
	}
	if err := t.mindReserve(ctx); err != nil {
		return err
	}
	return t.rewind(ctx)
}

// bringUp makes what a session consists of, at the same time where it can.
func (t *task) bringUp(ctx context.Context) (err error) {
	if t.ids, err = t.s.idsOf(&t.feature); err != nil {
		return err
	}
	var init *quota.Leaf
	var g errgroup.Group
	g.Go(func() (err error) { init, err = t.makeGroup(ctx); return err })
	g.Go(func() (err error) { t.session.told, err = t.s.holding(ctx, t.feature.ID); return err })
	if err := errors.Join(t.make(ctx), g.Wait(), t.rooting.Wait()); err != nil {
		return err
	}
	if !t.fresh {
		if err := t.mindReserve(ctx); err != nil {
			return err
		}
	}
	if err := t.makeFeedback(); err != nil {
		return err
	}
	spec, err := t.spec(t.root, live.Stacks(t.layers.Stacks()))
	if err != nil {
		return err
	}
	spec.Cgroup, spec.Init = t.group, init
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := t.rewind(ctx); err != nil {
		return err
	}
	if t.req.Detach {
		t.todo, t.alarms = make(chan string, maxTodo), make(chan bool, 1)
	}
	return t.start(ctx, spec, t.watchOptions())
}

// holding tells whoever wants to know that a feature is about to live here.
func (s *Supervisor) holding(ctx context.Context, id string) (release func(), err error) {
	if s.opt.Holding == nil {
		return func() {}, nil
	}
	return s.opt.Holding(ctx, id)
}

// homeMountpoint makes the place for what is mounted below HOME.
func (x *session) homeMountpoint(m isolation.Bind, o snapshot.Owner) error {
	rest, ok := strings.CutPrefix(m.Target, snapshot.HomeTarget+"/")
	if !ok {
		return nil
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	return x.layers.HomeMountpoint(rest, info.IsDir(), o)
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
func (x *session) makeGroup(ctx context.Context) (*quota.Leaf, error) {
	c := x.s.opt.Cgroups
	if c == nil {
		return nil, nil
	}
	g, err := c.New(x.feature.ID, x.policy.Limits)
	if errors.Is(err, fs.ErrExist) { // left by a process that died; the feature's lock says that it is ours
		if err = x.s.killGroup(ctx, x.feature.ID, &GCReport{}); err == nil {
			g, err = c.New(x.feature.ID, x.policy.Limits)
		}
	}
	if err != nil {
		return nil, err
	}
	x.group = g
	return g.Leaf("init", nil)
}

// makeRoot is what of prepare can be done before there is a place for the task.
func (t *task) makeRoot() (err error) {
	t.root, err = t.s.rootfs(t.req.Profile, t.mounts)
	return err
}

// rootfs makes the root file system.
func (s *Supervisor) rootfs(p *profiles.Effective, mounts []isolation.Bind) (isolation.Rootfs, error) {
	return rootfs.Make(p, mounts, filepath.Join(s.state, "roots"), hostname)
}

// mounts are what the profile and the caller show inside, checked on this host.
func (s *Supervisor) mounts(r *Request) ([]isolation.Bind, error) {
	return rootfs.Mounts(r.Profile, r.Workspace, s.state, s.mountMapping)
}

// spec describes the sandbox.
func (t *task) spec(root isolation.Rootfs, s []isolation.Stack) (*isolation.Spec, error) {
	first := &Step{Args: []string{"true"}} // of a sandbox in which nothing runs yet
	if len(t.req.Steps) > 0 {
		first = &t.req.Steps[0]
	}
	uid, gid := t.user(first)
	mounts := append([]isolation.Bind{{Source: machineID(t.dir), Target: "/etc/machine-id"}, t.feedbackBind()}, t.mounts...)
	return isolation.Build(isolation.BuildOptions{
		ID: t.feature.ID, Hostname: hostname, Root: root, Mounts: mounts, Stacks: s, IDs: t.ids,
		Limits: t.req.Profile.Limits, Weaker: t.weaker, Seccomp: seccomp.Default(),
		Args: first.Args, Env: t.env(first, 1), Cwd: cwd(first.Cwd), UID: uid, GID: gid, Terminal: t.req.TTY,
	})
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
	last := TaskRecord{Steps: []StepRecord{{Args: []string{"true"}}}} // of a fork in which nothing has run
	if len(tasks) > 0 {
		last = tasks[len(tasks)-1]
	}
	for _, st := range last.Steps {
		r.Steps = append(r.Steps, Step{Args: st.Args})
	}
	t, err := s.admit(ctx, &r)
	if err != nil {
		return nil, err
	}
	t.res.TaskID = cmp.Or(last.ID, "TASK")
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
	base := plainBase(t.dir)
	list := []isolation.Stack{
		{Target: snapshot.WorkspaceTarget, Lower: []isolation.Layer{{Path: t.feature.Workspace, Map: isolation.MapOwner}},
			Upper: filepath.Join(base, "layers/1/w"), Work: filepath.Join(base, "layers/1/ww")},
		{Target: snapshot.HomeTarget, Lower: []isolation.Layer{{Path: filepath.Join(base, "home/lower")}},
			Upper: filepath.Join(base, "layers/1/h"), Work: filepath.Join(base, "layers/1/hw")},
	}
	defer s.know(t.req)()
	spec, err := t.spec(root, list)
	if err != nil {
		return nil, typed(err, "describing the sandbox")
	}
	process := spec.OCI.Process
	process.Args, process.Env = s.opt.Redact.Args(process.Args), s.opt.Redact.Env(process.Env)
	return spec, nil
}

func summary(c *snapshot.Change) *ChangeSummary {
	return &ChangeSummary{Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Bytes: c.Bytes, Digest: c.Digest}
}

// mountMapping has a mount's owner be the command's user inside, where its filesystem can be idmapped; elsewhere it is seen
// with the host's ids, as nobody's.
func (s *Supervisor) mountMapping(source string) isolation.Mapping {
	if s.canIDMap(source) != nil {
		return isolation.MapNone
	}
	return isolation.MapOwner
}

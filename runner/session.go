package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
	"github.com/caisson-dev/caisson/runner/watch"
)

// session is a feature in this process's hands: its lock is held, its disk unit and its layers are open, and perhaps a
// sandbox lives on them. One that lives is registered in the Supervisor, so that other tasks and commands find it.
type session struct {
	s       *Supervisor
	feature FeatureRecord
	fresh   bool // the feature is being made
	dir     string
	ids     isolation.IDs
	mounts  []isolation.Bind
	weaker  []isolation.Control
	policy  *profiles.Effective // that the sandbox enforces
	root    isolation.Rootfs

	lock   *flock.Lock
	told   func() // Options.Holding's
	layers snapshot.Layers
	unit   *disk.Unit
	others []*disk.Unit // of features whose layers these ones lie on
	group  *quota.Group
	live   *live.Feature

	lifetime sync.RWMutex   // held by whoever uses the session but the tasks in it; locked to close it
	changing sync.Mutex     // one that makes or forgets checkpoints, or ends the sandbox, at a time; after lifetime
	removing errgroup.Group // of cgroups

	todo      chan string // checkpoints to be looked at
	attending sync.WaitGroup
	dismiss   context.CancelCauseFunc // ends what attends

	mu    sync.Mutex
	tasks []*task // that run in it, oldest first
	leafs int     // how many cgroups steps have had
}

// access is what a session is opened for.
type access int

const (
	reading access = iota // beside others that read
	writing
)

// use opens a feature for do: the live one of this process, else what lies on disk under its lock. CodeBusy when another
// process has it.
func (s *Supervisor) use(ctx context.Context, ref string, a access, do func(*session) error) error {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return explain(err, "feature", ref)
	}
	if x := s.session(f.ID); x != nil {
		if used, err := x.used(a, do); used {
			return err
		}
	}
	mode := flock.Shared
	if a == writing {
		mode = flock.Exclusive
	}
	f, l, err := s.hold(ctx, ref, mode)
	if err != nil {
		return err
	}
	x := &session{s: s, feature: f, dir: s.featureDir(f.ID), lock: l}
	err = x.open(ctx, a)
	if err == nil {
		err = do(x)
	}
	return errors.Join(err, x.close(ctx, false))
}

// used lets do use a session that lives, unless it has ended meanwhile.
func (x *session) used(a access, do func(*session) error) (used bool, err error) {
	x.lifetime.RLock()
	defer x.lifetime.RUnlock()
	if a == writing {
		x.changing.Lock()
		defer x.changing.Unlock()
	}
	if x.s.session(x.feature.ID) != x {
		return false, nil
	}
	return true, do(x)
}

// session is a feature that lives in this process, or nil.
func (s *Supervisor) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// register makes a session that lives known, or forgets it.
func (s *Supervisor) register(x *session, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.sessions[x.feature.ID] = x
	} else if s.sessions[x.feature.ID] == x {
		delete(s.sessions, x.feature.ID)
	}
}

// Live lists the ids of the features that are live in this process, sorted.
func (s *Supervisor) Live() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.sessions))
	for id := range s.sessions {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// open opens what lies on disk of a feature whose lock is held.
func (x *session) open(ctx context.Context, a access) (err error) {
	if err := x.openUnit(ctx); err != nil {
		return err
	}
	x.layers, err = openLayers(x.feature.Driver, x.openOptions(ctx, a == reading))
	if err != nil {
		return damaged(err, x.feature.Name)
	}
	if a == writing {
		return x.reconcile(ctx, false)
	}
	return nil
}

func (x *session) openOptions(ctx context.Context, readOnly bool) snapshot.OpenOptions {
	return snapshot.OpenOptions{Dir: x.base(), Feature: x.feature.ID, Bases: x.s.bases(), ReadOnly: readOnly, Journal: x.dir, Sync: x.syncer(),
		Resolve: func(id string) (string, error) { return x.resolve(ctx, id) }}
}

func (s *Supervisor) bases() string { return filepath.Join(s.state, "bases") }

// syncer makes a unit durable; nil where its file system does that itself.
func (x *session) syncer() func() error {
	if x.unit == nil {
		return nil
	}
	return x.unit.Sync
}

// base is where the layers lie.
func (x *session) base() string {
	if x.unit != nil {
		return x.unit.Dir()
	}
	return plainBase(x.dir)
}

// plainBase is where the layers of a feature without a disk unit lie.
func plainBase(dir string) string { return filepath.Join(dir, "disk") }

func (x *session) openUnit(ctx context.Context) (err error) {
	if x.feature.Mechanism == "" {
		return nil
	}
	d, err := x.s.disks()
	if err == nil {
		x.unit, err = d.Open(ctx, x.feature.ID)
	}
	return err
}

// resolve finds the layers of another feature.
func (x *session) resolve(ctx context.Context, id string) (string, error) {
	d, err := x.s.disks()
	if err != nil {
		return plainBase(x.s.featureDir(id)), nil //nolint:nilerr // without disk units there are plain directories
	}
	u, err := d.Open(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return plainBase(x.s.featureDir(id)), nil
	}
	if err != nil {
		return "", err
	}
	x.others = append(x.others, u)
	return u.Dir(), nil
}

// disks is the store of the disk units.
func (s *Supervisor) disks() (*disk.Store, error) {
	if s.opt.Disk == nil {
		return nil, refuse(CodeUnsupported, "", "this supervisor has no disk units")
	}
	return s.opt.Disk, nil
}

// make makes a new feature's layers, or readies those of an old one, and what is mounted into them.
func (x *session) make(ctx context.Context) (err error) {
	owner := x.owner()
	if x.fresh {
		if err := x.makeUnit(ctx); err != nil {
			return err
		}
		x.layers, err = createLayers(x.feature.Driver, snapshot.CreateOptions{Dir: x.base(), Workspace: x.feature.Workspace,
			Feature: x.feature.ID, Bases: x.s.bases(), Owner: owner, UserXattr: !x.s.privileged(), Journal: x.dir, Sync: x.syncer()})
	} else {
		err = x.open(ctx, writing)
	}
	if err != nil {
		return err
	}
	for _, m := range x.mounts {
		if err := x.homeMountpoint(m, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(x.dir, "log"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return writeOnce(machineID(x.dir), x.feature.ID)
}

func (x *session) owner() snapshot.Owner {
	uid, gid := x.ids.Host(inside, inside)
	return snapshot.Owner{UID: uid, GID: gid}
}

func (x *session) makeUnit(ctx context.Context) error {
	if x.feature.Mechanism == "" {
		return nil
	}
	d, err := x.s.disks()
	if err != nil {
		return err
	}
	x.unit, err = d.Create(ctx, x.feature.ID, disk.Mechanism(x.feature.Mechanism), x.limits())
	return err
}

func (x *session) limits() disk.Limits {
	l := disk.Limits{Bytes: x.feature.Disk}
	if x.feature.Inodes > 0 {
		l.Inodes = &x.feature.Inodes
	}
	if x.policy != nil {
		l.Total = x.policy.DiskTotal
	}
	return l
}

// start makes the cgroup and the sandbox of a session whose layers are there.
func (x *session) start(ctx context.Context, spec *isolation.Spec, w *watch.Options) error {
	f, err := live.Start(ctx, live.Options{Layers: x.layers, Engine: x.s.opt.Engine, Spec: spec, Watch: w})
	if err != nil {
		return err
	}
	x.setLive(f)
	x.s.register(x, true)
	if w != nil || x.unit != nil || x.todo != nil {
		x.attend(ctx)
	}
	return nil
}

func (x *session) setLive(f *live.Feature) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.live = f
}

// sandbox is what lives of the session, or nil, for whoever does not hold changing.
func (x *session) sandbox() *live.Feature {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.live
}

// stop ends everything of the session that runs, and begins to take its cgroup away. It is idempotent.
func (x *session) stop(ctx context.Context) (usage *quota.Usage, err error) {
	x.leaveAlone()
	x.changing.Lock()
	defer x.changing.Unlock()
	x.s.register(x, false)
	if x.live != nil {
		err = x.live.Close(ctx)
		x.setLive(nil)
	}
	if g := x.group; g != nil {
		if u, err := g.Usage(); err == nil {
			usage = &u
		}
		x.group = nil
		x.removing.Go(func() error {
			ctx, cancel := detached(ctx)
			defer cancel()
			return errors.Join(g.Kill(ctx), g.Remove(ctx))
		})
	}
	return usage, err
}

// close gives everything back, the lock last. With discard, what the unit holds is not written to disk any more.
func (x *session) close(ctx context.Context, discard bool) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	_, err := x.stop(ctx)
	x.lifetime.Lock()
	defer x.lifetime.Unlock()
	errs := []error{err, x.removing.Wait()}
	if x.layers != nil {
		errs = append(errs, x.layers.Close())
		x.layers = nil
	}
	for _, u := range x.others {
		errs = append(errs, u.Close())
	}
	x.others = nil
	if x.unit != nil {
		if discard {
			errs = append(errs, x.unit.Discard())
		} else {
			errs = append(errs, x.unit.Close())
		}
		x.unit = nil
	}
	if x.told != nil {
		x.told()
		x.told = nil
	}
	return errors.Join(append(errs, x.lock.Release())...)
}

// enter and leave count the tasks that run in a session.
func (x *session) enter(t *task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tasks = append(x.tasks, t)
}

func (x *session) leave(t *task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tasks = slices.DeleteFunc(x.tasks, func(o *task) bool { return o == t })
}

// running are the tasks that run now, oldest first.
func (x *session) running() []*task {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.tasks)
}

// leaf names the cgroup of one more step.
func (x *session) leaf() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leafs++
	return fmt.Sprintf("step-%d", x.leafs)
}

// cancel cancels the tasks that run, but not the one that asks, and waits until none of them runs anything any more.
func (x *session) cancel(ctx context.Context, asks *task, why error) error {
	tasks := x.running()
	for _, t := range tasks {
		if t != asks {
			t.cancel(why)
		}
	}
	for _, t := range tasks {
		if t == asks {
			continue
		}
		select {
		case <-t.over:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// The drivers of layers.

func openLayers(_ string, o snapshot.OpenOptions) (snapshot.Layers, error) { return overlay.Open(o) }

func createLayers(_ string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	return overlay.Create(o)
}

func forkLayers(ctx context.Context, _ string, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	return overlay.Fork(ctx, from, at, o)
}

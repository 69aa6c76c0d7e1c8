package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/uplink"
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
	copies  string // why its layers are copies, where they could not be overlays; "" otherwise

	lock   *flock.Lock
	told   func() // Options.Holding's
	layers snapshot.Layers
	unit   *disk.Unit   // once opening is over
	others []*disk.Unit // of features whose layers these ones lie on
	group  *quota.Group
	live   *live.Feature

	environ []string // of whoever began it: its proxies and secrets
	forgets []func() // what it hides is forgotten with it; under mu
	up      *uplink.Uplink
	network networkLog

	lifetime sync.RWMutex   // held by whoever uses the session but the tasks in it; locked to close it
	changing sync.Mutex     // one that makes or forgets checkpoints, or ends the sandbox, at a time; after lifetime
	removing errgroup.Group // of cgroups
	opening  errgroup.Group // of a new unit
	begun    bool           // opening has

	todo      chan string   // checkpoints to be looked at
	grown     chan struct{} // there are many more checkpoints
	recorded  atomic.Int64  // how many
	alarms    chan bool     // feedback that waits for an acknowledgement: there is some, or none any more
	attending sync.WaitGroup
	dismiss   context.CancelCauseFunc // ends what attends

	turn    chan struct{} // taken by a task that goes back because of its verdicts; made under mu
	pausing sync.Mutex    // one that pauses or unpauses at a time; after changing

	mu     sync.Mutex
	sealed disk.Usage // at the last checkpoint of this session
	tasks  []*task    // that run in it, oldest first
	still  bool       // it is paused
	leafs  int        // how many cgroups steps have had
}

// access is what a session is opened for.
type access int

const (
	reading access = iota // beside others that read
	sharing               // likewise, while nothing of it may go: for a fork
	writing
)

// use opens a feature for do: the live one of this process, else what lies on disk under its lock. CodeBusy when another
// process has it. Who writes waits for one that is being prepared here, but not for its place.
func (s *Supervisor) use(ctx context.Context, ref string, a access, do func(*session) error) error {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return explain(err, "feature", ref)
	}
	x := s.session(f.ID)
	if a != reading {
		if x, err = s.await(ctx, f.ID, nil); err != nil {
			return err
		}
		if x != nil && x.sandbox() != nil && x.sandbox().Closed(ctx) { // it failed, and was ended: the state is safe
			if err := x.shutDown(ctx, StopOptions{}); err != nil {
				return err
			}
			x = nil
		}
	}
	if x != nil {
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
	x = &session{s: s, feature: f, dir: s.featureDir(f.ID), lock: l}
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
	if a != reading {
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

// Live lists the ids of the features that are live in this process or being prepared, sorted.
func (s *Supervisor) Live() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]string, 0, len(s.sessions))
	for id := range s.sessions {
		ids = append(ids, id)
	}
	for id := range s.coming {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// start makes the cgroup and the sandbox of a session whose layers are there.
func (x *session) start(ctx context.Context, spec *isolation.Spec, w *watch.Options) error {
	f, err := live.Start(ctx, live.Options{Layers: x.layers, Engine: x.s.opt.Engine, Spec: spec, Watch: w, Room: x.room})
	if err != nil {
		if u, ok := x.usage(); ok && u.Full() {
			err = x.fullError(err)
		}
		return err
	}
	x.setLive(f)
	x.up = x.newUplink()
	x.grown = make(chan struct{}, 1)
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
	_ = x.opening.Wait() // if it mattered, make has said so
	x.changing.Lock()
	defer x.changing.Unlock()
	x.s.register(x, false)
	if x.live != nil {
		err = errors.Join(x.live.Close(ctx), x.up.Close(), x.network.flush())
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
	errs := []error{err, x.removing.Wait(), x.shut(discard)}
	x.forgetAll()
	if x.told != nil {
		x.told()
		x.told = nil
	}
	return errors.Join(append(errs, x.lock.Release())...)
}

// shut closes the layers and the disk unit, once nobody uses them any more.
func (x *session) shut(discard bool) error {
	_ = x.opening.Wait() // if it mattered, make has said so
	x.lifetime.Lock()
	defer x.lifetime.Unlock()
	var errs []error
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
	return errors.Join(errs...)
}

// enter and leave count the tasks that run in a session.
func (x *session) enter(t *task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tasks = append(x.tasks, t)
	t.steps.Pause(x.still)
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

package runner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/redact"
	"github.com/caisson-dev/caisson/runner/slots"
)

// The defaults of Options.
const (
	DefaultMaxTasks = 5
	DefaultMaxQueue = 1000
)

// maxMaxTasks bounds Options.MaxTasks: who waits for a slot watches each with a thread.
const maxMaxTasks = 1024

// cleanupTime bounds what is done after a task was cancelled.
const cleanupTime = 30 * time.Second

// Options is what a Supervisor works with.
type Options struct {
	StateDir string // made when missing: 0711, its contents 0700
	Memory   bool   // --state-persistence memory: nothing outlives Close
	MaxTasks int    // tasks at once, over all processes of this state directory; 0 means DefaultMaxTasks
	MaxQueue int    // tasks that may wait; 0 means DefaultMaxQueue, negative none

	Engine     isolation.Engine // nil for a Supervisor that runs nothing
	Cgroups    *quota.Cgroups   // nil where there are none; then
	CgroupsErr error            // says why
	Journal    Journal          // the Supervisor closes it, also when New fails
	Disk       *disk.Store      // nil where there are no disk units
	Daemon     Dialer           // asks the holders of other live features; nil: nobody can be asked

	// Redact takes secrets out of what is kept and told; the Supervisor tells it those of its tasks. The Journal has the same
	// one. nil: one of its own.
	Redact *redact.Redactor

	// Holding is told that a feature is about to live in this process; release is called just before its lock goes. nil:
	// nobody is told.
	Holding func(ctx context.Context, featureID string) (release func(), err error)
	NewID   func() string // ids of features and tasks; nil: monotonic ULIDs
}

// Supervisor owns the sandboxes of one process. Several, in one process or in many, share a state directory:
//
//	store.db            the journal
//	features/ID/        a feature: lock, identity, layers (see snapshot), machine-id, log/TASK, exports/CHECKPOINT.tar.zst
//	probed/             where overlays have been seen to work since the last boot
//	slots/              locks that bound how much runs at once
//	locks/              locks that keep promotions into one workspace apart
//	roots/              unpacked root file systems and their mount points
//	tmp/                what is being removed, and the features of supervisors without persistence
//
// It is safe for concurrent use.
type Supervisor struct {
	opt   Options
	state string // the state directory, absolute
	dir   string // what holds features/: the state directory, or with Memory one of our own in tmp/
	slots *slots.Slots
	own   *flock.Lock // of dir, with Memory

	mu       sync.Mutex
	sessions map[string]*session // that live, by feature
	tasks    map[string]*task    // that have not ended, by id
	coming   map[string]*task    // that make a session, by feature
	timings  []Timing            // to be recorded
	found    GCReport            // what New cleaned up
}

// New opens the state directory and finishes what a dead supervisor left: no process, cgroup or half-made directory of
// it stays, its task becomes interrupted, a promotion is finished or undone. Errors: CodeState, CodeStore….
func New(ctx context.Context, o Options) (*Supervisor, error) {
	s, err := open(ctx, o)
	if err != nil && o.Journal != nil {
		err = errors.Join(err, o.Journal.Close())
	}
	return s, err
}

func open(ctx context.Context, o Options) (*Supervisor, error) {
	if runtime.GOOS != "linux" {
		return nil, refuse(CodePlatform, "run caisson on Linux, for example in a virtual machine", "caisson needs a Linux kernel; this is %s", runtime.GOOS)
	}
	if o.MaxTasks == 0 {
		o.MaxTasks = DefaultMaxTasks
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = DefaultMaxQueue
	}
	if o.MaxTasks < 1 || o.MaxTasks > maxMaxTasks {
		return nil, refuse(CodeConfiguration, "", "%d tasks at once: must be 1 to %d", o.MaxTasks, maxMaxTasks)
	}
	if o.NewID == nil {
		o.NewID = newIDs()
	}
	if o.Redact == nil {
		o.Redact = &redact.Redactor{}
	}
	state, err := filepath.Abs(o.StateDir)
	if err != nil {
		return nil, stateFailure(err)
	}
	s := &Supervisor{opt: o, state: state, dir: state, sessions: map[string]*session{}, tasks: map[string]*task{}, coming: map[string]*task{}}
	if err := s.makeDirs(); err != nil {
		return nil, stateFailure(err)
	}
	s.slots = slots.New(filepath.Join(state, "slots"), o.MaxTasks)
	if o.Memory {
		return s, s.ownDir()
	}
	return s, s.recoverAll(ctx)
}

func (s *Supervisor) makeDirs() error {
	if err := os.MkdirAll(s.state, 0o711); err != nil {
		return err
	}
	for _, name := range []string{"features", "slots", "locks", "roots", "bases", "tmp"} {
		if err := os.Mkdir(filepath.Join(s.state, name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// ownDir is where a supervisor without persistence keeps its features. Its lock says that it lives.
func (s *Supervisor) ownDir() error {
	s.dir = filepath.Join(s.state, "tmp", memoryPrefix+s.opt.NewID())
	err := os.MkdirAll(filepath.Join(s.dir, "features"), 0o700)
	if err == nil {
		s.own, err = flock.Try(filepath.Join(s.dir, "lock"), flock.Exclusive)
	}
	if err == nil && s.opt.Disk != nil {
		s.opt.Disk, err = disk.OpenStore(s.dir)
	}
	return stateFailure(err)
}

// Close closes the journal; with Memory the features go too. Tasks must have ended. It does not close the engine.
func (s *Supervisor) Close() error {
	err := s.flushTimings(context.Background())
	if s.opt.Memory {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
		defer cancel()
		err = errors.Join(err, removeLast(ctx, s.dir), s.own.Release())
	}
	return errors.Join(err, s.opt.Journal.Close())
}

func (s *Supervisor) featureDir(id string) string { return filepath.Join(s.dir, "features", id) }

func lockFile(dir string) string { return filepath.Join(dir, "lock") }

// ErrElsewhere is why a feature is CodeBusy whose lock somebody else has. It is a matter of moments, unless that one serves it.
var ErrElsewhere = errors.New("another process works on the feature")

// lock takes a feature's lock, or answers CodeBusy with ErrElsewhere.
func (s *Supervisor) lock(ctx context.Context, f *FeatureRecord, m flock.Mode) (*flock.Lock, error) {
	l, err := flock.Inherit(ctx, lockFile(s.featureDir(f.ID)), m)
	switch {
	case errors.Is(err, flock.ErrLocked):
		return nil, &Error{Code: CodeBusy, Cause: ErrElsewhere.Error() + " " + f.Name, Exit: ExitRefused, Err: ErrElsewhere,
			Remedy: "wait until it has ended, or use another feature"}
	case errors.Is(err, fs.ErrNotExist):
		return nil, notFound("feature", f.Name)
	}
	return l, stateFailure(err)
}

// hold finds a feature and takes its lock. With flock.Exclusive it also finishes what a process that died since New
// left of it.
func (s *Supervisor) hold(ctx context.Context, ref string, m flock.Mode) (FeatureRecord, *flock.Lock, error) {
	f, err := s.opt.Journal.Feature(ctx, ref)
	if err != nil {
		return f, nil, explain(err, "feature", ref)
	}
	l, err := s.lock(ctx, &f, m)
	if err != nil {
		return f, nil, err
	}
	if m == flock.Exclusive {
		err = s.settle(ctx, &f, &GCReport{})
	} else if _, err = s.opt.Journal.Feature(ctx, f.ID); err != nil { // it may have gone while we took the lock
		err = explain(err, "feature", ref)
	}
	if err != nil {
		return f, nil, errors.Join(err, l.Release())
	}
	return f, l, nil
}

func notFound(what, ref string) error {
	return refuse(CodeNotFound, "see `caisson ps -a`", "there is no %s %q", what, ref)
}

// explain gives an error of a look-up its words.
func explain(err error, what, ref string) error {
	if errors.Is(err, ErrNotFound) {
		return notFound(what, ref)
	}
	return err
}

// stateFailure says that the state directory cannot be used.
func stateFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &Error{Code: CodeDisk, Cause: "the state directory's file system is full", Exit: ExitInternal, Err: err,
			Remedy: "free space, for example with `caisson gc` and `caisson rm`; or choose another directory: CAISSON_STATE=DIR"}
	}
	return &Error{Code: CodeState, Cause: "the state directory cannot be used", Exit: ExitRefused, Err: err,
		Remedy: "make it writable, or choose another: CAISSON_STATE=DIR"}
}

// newIDs returns a generator of ULIDs in lower case: unique, and in the order of their making.
func newIDs() func() string {
	var mu sync.Mutex
	entropy := ulid.Monotonic(rand.Reader, 0)
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		for {
			id, err := ulid.New(ulid.Now(), entropy)
			if err == nil { // otherwise a millisecond has run out of ids
				return strings.ToLower(id.String())
			}
		}
	}
}

// detached is ctx without its end, for what must be done all the same; bounded in time.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, fmt.Errorf("no end after %s", cleanupTime))
}

// Dialer asks the process that holds a feature's lock. One that the feature does not live in has nothing to move and no
// holders.
type Dialer interface {
	// Rebase has a live feature take up what a promote of another one took out of their workspace. The error is an *Error
	// with CodeHeld when a live process prevents it and stop is false.
	Rebase(ctx context.Context, featureID string, generation int, stop bool) error
	// Holders are the processes that hold its workspace or HOME.
	Holders(ctx context.Context, featureID string) ([]isolation.Holder, error)
}

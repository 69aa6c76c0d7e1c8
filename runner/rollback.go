package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Rollback goes back to a checkpoint. What was there before is sealed first, so that it can be taken back. In a live
// feature every process is stopped, or with Keep none is; nobody ever sees half of it.
func (s *Supervisor) Rollback(ctx context.Context, feature string, o RollbackOptions) (*RollbackResult, error) {
	var r *RollbackResult
	if err := o.check(); err != nil {
		return nil, err
	}
	a := writing
	err := s.use(ctx, feature, a, func(x *session) (err error) {
		r, err = x.rollback(ctx, o)
		return err
	})
	return r, typed(err, "rolling back "+feature)
}

func (o *RollbackOptions) check() error {
	switch {
	case o.LastGood && o.To != "":
		return refuse(CodeUsage, "choose one", "both a checkpoint and the last good one were asked for")
	case len(o.Paths) > 0 && len(o.Smart) > 0, o.Named && len(o.Paths)+len(o.Smart) > 0:
		return refuse(CodeUsage, "choose one", "both globs and a list of violations were given")
	}
	for _, list := range [][]string{o.Paths, o.Smart} {
		for _, p := range list {
			if rest := ofWorkspace(p); rest == "." || !filepath.IsLocal(rest) {
				return refuse(CodeUsage, "write them relative to the workspace", "%q names nothing in the workspace", p)
			}
		}
	}
	for _, glob := range o.Paths {
		if !doublestar.ValidatePattern(ofWorkspace(glob)) {
			return refuse(CodeUsage, "write a special character that is meant literally with \\ before it", "%q is no glob", glob)
		}
	}
	return nil
}

// ofWorkspace is a path or glob relative to the workspace, however it was written.
func ofWorkspace(p string) string { return strings.TrimPrefix(p, snapshot.WorkspaceTarget+"/") }

func (x *session) rollback(ctx context.Context, o RollbackOptions) (*RollbackResult, error) {
	return x.rollbackBy(ctx, o, nil)
}

// rollbackBy is rollback for a task that has to go on after it, or for nobody.
func (x *session) rollbackBy(ctx context.Context, o RollbackOptions, asks *task) (*RollbackResult, error) {
	start := time.Now()
	var to string
	var passed []PassedBy
	var err error
	if o.Named {
		to, passed, err = x.accuse(ctx, &o)
	} else {
		to, passed, err = x.target(ctx, &o)
	}
	if err != nil {
		return nil, err
	}
	r := &RollbackResult{To: Checkpoint{ID: to, Feature: x.feature.Name, FeatureID: x.feature.ID}, PassedBy: passed, DryRun: o.DryRun}
	if row, err := x.find(ctx, to, nil); err == nil {
		r.To = *row
	}
	reset := snapshot.ResetOptions{To: to, Paths: o.globs(), DryRun: o.DryRun}
	if o.DryRun {
		report, err := x.layers.Reset(ctx, reset)
		if err == nil {
			r.Report = *report
		}
		return r, err
	}
	if err := x.makeWay(ctx, o.Keep, r, asks); err != nil {
		return nil, err
	}
	_ = x.mindReserve(ctx) // what does not fit is told below
	err = x.rewound(ctx, reset, o, r)
	r.Took = time.Since(start)
	if err == nil {
		x.s.timed(Timing{FeatureID: x.feature.ID, Kind: TimingRollback, At: start, Took: r.Took})
	}
	return r, err
}

// target is the checkpoint that a rollback goes back to: the one that is named, the last good one that can be read, or the
// newest on the way back from what there is now that would change anything.
func (x *session) target(ctx context.Context, o *RollbackOptions) (string, []PassedBy, error) {
	if o.LastGood {
		return x.lastGood(ctx)
	}
	if o.To != "" {
		id, err := x.resolveID(ctx, o.To)
		return id, nil, err
	}
	records, err := x.layers.Records()
	if err != nil {
		return "", nil, err
	}
	for r := range wayBack(records, x.layers.Info().Head) {
		if differs, err := x.differs(ctx, r.ID, o); differs || err != nil {
			return r.ID, nil, err
		}
	}
	return "", nil, refuse(CodeNothingToDo, "caisson checkpoint ls "+x.feature.Name+"; --to "+RefBase+" is the workspace",
		"no earlier checkpoint of %s differs from what there is", x.feature.Name)
}

// wayBack goes from the head to its parent, and so on. Where there is no parent (it was dropped, or what came before was
// promoted), the checkpoint that was made before is the next. Damaged ones are passed by.
func wayBack(records []snapshot.Record, head string) iter.Seq[*snapshot.Record] {
	index := func(id string) int {
		return slices.IndexFunc(records, func(r snapshot.Record) bool { return r.ID == id && !r.Created.IsZero() })
	}
	return func(yield func(*snapshot.Record) bool) {
		i := index(head)
		if i < 0 {
			i = len(records) - 1
		}
		for i >= 0 {
			r := &records[i]
			if r.Damaged == "" && !yield(r) {
				return
			}
			if parent := index(cmp.Or(r.AliasOf, r.Parent)); parent >= 0 && parent < i {
				i = parent
			} else {
				i--
			}
		}
	}
}

// differs reports whether going back to a checkpoint would change anything.
func (x *session) differs(ctx context.Context, id string, o *RollbackOptions) (bool, error) {
	if globs := o.globs(); globs != nil {
		report, err := x.layers.Reset(ctx, snapshot.ResetOptions{To: id, Paths: globs, DryRun: true})
		return err == nil && len(report.Paths) > 0, err
	}
	same, err := x.layers.Same(ctx, id, snapshot.Current)
	return !same, err
}

// globs are the paths that are put back; nil means everything.
func (o *RollbackOptions) globs() []string {
	var globs []string
	for _, glob := range o.Paths {
		globs = append(globs, ofWorkspace(glob))
	}
	for _, p := range o.Smart {
		globs = append(globs, literal(path.Clean(ofWorkspace(p))))
	}
	return globs
}

// literal is a glob that matches one name alone.
func literal(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `{`, `\{`, `}`, `\}`).Replace(p)
}

// makeWay ends what runs in a live feature, or makes sure that with keep nothing is in the way.
func (x *session) makeWay(ctx context.Context, keep bool, r *RollbackResult, asks *task) error {
	if x.live == nil {
		return nil
	}
	holders, err := x.live.Holders(ctx)
	if err != nil {
		return err
	}
	if keep {
		if len(holders) > 0 {
			return heldError(x.feature.Name, holders)
		}
		return nil
	}
	r.Stopped = holders
	if err := x.pause(ctx, false); err != nil { // what stands still does not end
		return err
	}
	x.changing.Unlock() // the tasks seal what they leave
	defer x.changing.Lock()
	return x.cancel(ctx, asks, errRolledBack)
}

// errRolledBack is why the tasks of a feature were cancelled.
var errRolledBack = errors.New("the feature was rolled back")

// heldError is the refusal to take the workspace from under a process.
func heldError(feature string, holders []isolation.Holder) *Error {
	var names []string
	for _, h := range holders {
		name := fmt.Sprintf("%d (%s: %s %s)", h.PID, h.Command, h.What, cmp.Or(h.Path, h.Target))
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	const most = 8
	if len(names) > most {
		names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
	}
	return &Error{Code: CodeHeld, Exit: ExitRefused, Remedy: "leave --keep out, end them, or caisson stop " + feature,
		Cause: fmt.Sprintf("processes of %s hold its workspace or HOME: %s", feature, strings.Join(names, ", "))}
}

// rewound seals what is there and goes back.
func (x *session) rewound(ctx context.Context, reset snapshot.ResetOptions, o RollbackOptions, r *RollbackResult) error {
	ctx = context.WithoutCancel(ctx)
	if x.live != nil {
		hold := x.live.Quiet // what is frozen does not die on version 1 of cgroups: first the end, then the hold
		if o.Keep {
			hold = x.live.Hold
		}
		release, err := hold(ctx) // nobody sees the time between the seal and the exchange
		if errors.Is(err, os.ErrClosed) {
			return refuse(CodeNotLive, "try again", "the sandbox of %s has just ended", x.feature.Name)
		}
		if err != nil {
			return err
		}
		defer func() { _ = release() }()
	}
	if !o.NoUndo || len(reset.Paths) > 0 {
		c := &Checkpoint{Reason: ReasonRollback}
		if err := x.seal(ctx, c); err != nil {
			return err
		}
		if err := x.s.opt.Journal.AddCheckpoint(ctx, CheckpointRecord{*c}); err != nil {
			return err
		}
		r.Undo = c
	}
	err := x.evenFull(ctx, func() error {
		report, err := x.reset(ctx, reset, o.Keep)
		if err == nil {
			r.Report = *report
		}
		return err
	})
	if err != nil {
		return err
	}
	return x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "rollback", To: reset.To, Cause: strings.Join(reset.Paths, " ")})
}

func (x *session) reset(ctx context.Context, o snapshot.ResetOptions, keep bool) (*snapshot.ResetReport, error) {
	if x.live == nil {
		return x.layers.Reset(ctx, o)
	}
	policy := live.StopAll
	if keep {
		policy = live.KeepOthers
	}
	report, err := x.live.Reset(ctx, o, policy)
	if held, ok := errors.AsType[*isolation.HeldError](err); ok {
		err = heldError(x.feature.Name, held.Holders)
	}
	return report, err
}

// Fork begins a feature on a checkpoint of another, without copying. Without a checkpoint, the current state is sealed and
// is the one.
func (s *Supervisor) Fork(ctx context.Context, ref, name string) (*FeatureInfo, error) {
	r, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	if name != "" && !nameRule().MatchString(name) {
		return nil, refuse(CodeInvalidName, "use small letters, digits, and _ . - after the first; 63 at most", "%q cannot name a feature", name)
	}
	a := sharing
	if r.Checkpoint == "" {
		a = writing
	}
	var id string
	err = s.use(ctx, r.Feature, a, func(x *session) (err error) {
		at := ""
		if r.Checkpoint != "" {
			at, err = x.resolveID(ctx, r.Checkpoint)
		} else {
			var c *Checkpoint
			if c, err = x.checkpoint(ctx, ReasonManual, CheckpointOptions{}); err == nil {
				at = c.ID
			}
		}
		if err == nil {
			id, err = x.fork(ctx, at, name)
		}
		return err
	})
	if err != nil {
		return nil, typed(err, "forking "+ref)
	}
	return s.Feature(ctx, id)
}

// fork makes the new feature: its directory under its lock, its layers, then its record.
func (x *session) fork(ctx context.Context, at, name string) (id string, err error) {
	s := x.s
	f := x.feature
	f.ID, f.Name, f.Retired, f.Detached, f.Labels = s.opt.NewID(), name, false, false, nil
	f.Origin, f.Lineage = x.feature.ID, cmp.Or(x.feature.Lineage, x.feature.ID)
	n := &session{s: s, feature: f, dir: s.featureDir(f.ID), fresh: true, policy: x.policy}
	if n.ids, err = s.idsOf(&f); err != nil {
		return "", err
	}
	if n.lock, err = s.claim(ctx, n.dir); err != nil {
		return "", err
	}
	err = n.forkFrom(ctx, x, at)
	if err == nil {
		err = n.recordFork(ctx, x.feature.ID)
	}
	if err != nil {
		err = errors.Join(err, n.unmake(ctx))
	}
	return n.feature.ID, errors.Join(err, n.close(ctx, err != nil))
}

func (x *session) forkFrom(ctx context.Context, origin *session, at string) (err error) {
	if err := x.makeUnit(ctx); err != nil {
		return err
	}
	from := origin.openOptions(ctx, true)
	from.Resolve = func(id string) (string, error) { return x.resolve(ctx, id) }
	x.layers, err = forkLayers(ctx, x.feature.Driver, from, at, snapshot.CreateOptions{Dir: x.base(), Workspace: x.feature.Workspace,
		Feature: x.feature.ID, Bases: x.s.bases(), Owner: x.owner(), UserXattr: !x.s.privileged(), Journal: x.dir, Sync: x.syncer()})
	if err != nil {
		return err
	}
	return os.Mkdir(x.logDir(), 0o700)
}

func (x *session) recordFork(ctx context.Context, from string) error {
	named := x.feature.Name != ""
	for try := 0; ; try++ {
		if !named {
			x.feature.Name = freshName(try)
		}
		f, err := x.s.opt.Journal.Fork(ctx, x.feature, from)
		switch {
		case err == nil:
			x.feature = f
			_ = x.s.identify(ctx, &x.feature) // or its first task does
			return nil
		case errors.Is(err, ErrExists) && !named && try < maxNames:
		case errors.Is(err, ErrExists):
			return refuse(CodeExists, "choose another name", "there is a feature %s already", x.feature.Name)
		default:
			return err
		}
	}
}

// unmake takes back the directory of a feature that was not recorded.
func (x *session) unmake(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	if x.layers != nil {
		_ = x.layers.Close()
		x.layers = nil
	}
	if x.unit != nil {
		_ = x.unit.Discard()
		x.unit = nil
	}
	return x.s.removeDir(ctx, x.dir)
}

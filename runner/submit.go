package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
)

// findDisk chooses how a new feature's disk is bounded.
func (s *Supervisor) findDisk(ctx context.Context, t *task) error {
	p := t.req.Profile
	limits, asked := diskLimits(p)
	weaker := !required(p, isolation.ControlDiskQuota)
	if !asked && !weaker {
		return &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: "no limit is set", Remedy: "--disk SIZE"}
	}
	if !asked {
		return nil
	}
	if _, err := s.disks(); err != nil && weaker {
		t.res.Weaker = append(t.res.Weaker, Weakness{Control: isolation.ControlDiskQuota, Reason: err.Error()})
		return nil
	}
	m, err := s.chooseDisk(ctx, limits, weaker)
	if err != nil {
		return err
	}
	t.feature.Mechanism, t.feature.Disk = string(m), limits.Bytes
	if limits.Inodes != nil {
		t.feature.Inodes = *limits.Inodes
	}
	return nil
}

// chooseDisk chooses what bounds a feature's disk; *isolation.UnsupportedError where nothing does, and no watching will do.
func (s *Supervisor) chooseDisk(ctx context.Context, l disk.Limits, weaker bool) (disk.Mechanism, error) {
	if _, err := s.disks(); err != nil {
		return "", &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: err.Error()}
	}
	m, err := disk.Choose(s.supports(ctx), l, true, weaker)
	if none, ok := errors.AsType[*disk.UnavailableError](err); ok {
		return "", &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: none.Error(), Remedy: none.Remedy}
	}
	return m, err
}

// find looks for the feature that the request names, or makes up a new one.
func (s *Supervisor) find(ctx context.Context, t *task) error {
	t.fresh = true
	t.feature = FeatureRecord{ID: s.opt.NewID(), Name: t.req.Feature, Workspace: t.req.Workspace, Labels: t.req.Labels,
		Detached: t.req.Detach, TTL: cmp.Or(t.req.TTL, duration(t.req.Profile.TTL)), Idle: cmp.Or(t.req.Idle, duration(t.req.Profile.Idle)),
		Driver: driverOf(t.req.Profile)}
	if t.req.Feature != "" {
		f, err := s.opt.Journal.Feature(ctx, t.req.Feature)
		switch {
		case err == nil && f.Name == t.req.Feature:
			t.feature, t.fresh = f, false
		case err != nil && !errors.Is(err, ErrNotFound) && CodeOf(err) != CodeAmbiguous:
			return err // what only begins like the name is another feature
		}
	}
	if !t.fresh && t.feature.Workspace != t.req.Workspace {
		return refuse(CodeWorkspace, fmt.Sprintf("use --workspace %s, or another feature", t.feature.Workspace),
			"the feature %s belongs to the workspace %s, not %s", t.feature.Name, t.feature.Workspace, t.req.Workspace)
	}
	if t.fresh {
		err := s.canIDMap(t.feature.Workspace)
		if err != nil && !isolation.Refused(err) {
			return fmt.Errorf("trying whether %s can be idmapped: %w", t.feature.Workspace, err)
		}
		t.feature.Direct = err != nil
		if err := s.findDisk(ctx, t); err != nil {
			return err
		}
	} else if err := t.takeOver(ctx); err != nil {
		return err
	}
	if t.feature.Mechanism == string(disk.Watched) {
		t.res.Weaker = append(t.res.Weaker, Weakness{Control: isolation.ControlDiskQuota, Reason: "no mechanism enforces it here: the disk is watched, and who fills it is killed"})
	}
	if t.feature.Direct {
		t.weaker = append(t.weaker, isolation.ControlIDMap)
		t.res.Weaker = append(t.res.Weaker, Weakness{Control: isolation.ControlIDMap, Reason: "the workspace's file system cannot be idmapped: its owner is mapped directly"})
	}
	return nil
}

// takeOver makes a task of a feature that there is.
func (t *task) takeOver(ctx context.Context) error {
	if unbounded := t.feature.Mechanism == "" || t.feature.Mechanism == string(disk.Watched); unbounded && required(t.req.Profile, isolation.ControlDiskQuota) {
		return &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: "the feature " + t.feature.Name + " was made without",
			Remedy: "use another feature, where the host can enforce it"}
	}
	return t.join(ctx)
}

// join makes a task of a feature that lives in this process, or is about to, one more of its session's.
func (t *task) join(ctx context.Context) error {
	x, err := t.s.await(ctx, t.feature.ID, t.req.patient())
	if x == nil {
		return err
	}
	if x.paused() {
		return refuse(CodePaused, "caisson unpause "+x.feature.Name, "the feature %s is paused", x.feature.Name)
	}
	if x.policy.Digest != t.req.Profile.Digest {
		return refuse(CodeConfiguration, "caisson stop "+x.feature.Name+", or use the profile that it lives under",
			"the feature %s lives under the profile %s (%s), not %s (%s)", x.feature.Name, x.policy.Name, short(x.policy.Digest), t.req.Profile.Name, short(t.req.Profile.Digest))
	}
	t.session, t.owner = x, false
	return nil
}

// submit takes the feature's lock and records the task; with a slot when one is free.
func (t *task) submit(ctx context.Context) (err error) {
	s := t.s
	switch {
	case !t.owner: // the lock is the session's
	case t.fresh:
		t.lock, err = s.claim(ctx, s.featureDir(t.feature.ID))
	default:
		if t.lock, err = s.lock(ctx, &t.feature, flock.Exclusive); err == nil {
			err = s.settle(ctx, &t.feature, &GCReport{}) // somebody may have died in it since New
		}
	}
	if err != nil {
		return err
	}
	if t.slot, err = s.slots.Try(); err != nil {
		return errors.Join(stateFailure(err), t.unsubmit(ctx))
	}
	if t.owner { // before anybody can know of it
		t.policy, t.environ = t.req.Profile, environOf(t.req)
		s.expect(t)
	}
	if t.owner && t.fresh && t.slot != nil {
		t.beginUnit(ctx)
	}
	if t.resumed != nil {
		err = t.again(ctx)
	} else {
		err = t.enlist(ctx)
	}
	if err != nil {
		return errors.Join(err, t.unsubmit(ctx))
	}
	t.res.Feature, t.res.FeatureID, t.res.Workspace = t.feature.Name, t.feature.ID, t.feature.Workspace
	if t.resumed == nil {
		t.res.Created = time.Now()
	}
	t.res.Profile, t.res.ProfileDigest = t.req.Profile.Name, t.req.Profile.Digest
	if t.res.Unjudged = !t.req.Profile.Gates.On(); t.res.Unjudged { // before anything runs
		err := s.opt.Journal.Note(ctx, AuditRecord{FeatureID: t.feature.ID, TaskID: t.res.TaskID, Event: "gates-off", Cause: "gates.enabled is false in the profile " + t.res.Profile})
		if err != nil {
			return errors.Join(err, t.unsubmit(ctx))
		}
	}
	t.dir = s.featureDir(t.feature.ID)
	t.connect()
	t.tell(0, "")
	return nil
}

// claim makes the directory of a new feature and takes its lock. Until the feature is recorded, whoever sweeps may take the
// directory for an abandoned one and remove it before we have the lock.
func (s *Supervisor) claim(ctx context.Context, dir string) (*flock.Lock, error) {
	for {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, stateFailure(err)
		}
		l, err := flock.Acquire(ctx, lockFile(dir))
		if !errors.Is(err, fs.ErrNotExist) {
			return l, stateFailure(err)
		}
	}
}

// unsubmit takes the directory of a feature back that was not recorded.
func (t *task) unsubmit(ctx context.Context) error {
	if !t.owner || !t.fresh {
		return nil
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	return errors.Join(t.shut(true), t.s.removeDir(ctx, t.s.featureDir(t.feature.ID)))
}

// enlist writes the task into the journal. A made-up name that is taken is made up again.
func (t *task) enlist(ctx context.Context) error {
	named := t.req.Feature != ""
	sub, err := t.submission()
	if err != nil {
		return err
	}
	isNew := t.fresh && t.owner
	for try := 0; ; try++ {
		if isNew && !named {
			sub.Feature.Name = freshName(try)
		}
		f, err := t.s.opt.Journal.Submit(ctx, sub)
		switch {
		case err == nil:
			if t.owner {
				t.feature = f
			}
			t.state = StateQueued
			if sub.Admitted {
				t.state = StatePreparing
			}
			return nil
		case errors.As(err, new(*ClaimedError)):
			return err
		case errors.Is(err, ErrExists) && !named && try < maxNames:
		case errors.Is(err, ErrExists):
			return refuse(CodeExists, "try again: it is a feature now", "somebody else has just made the feature %s", t.feature.Name)
		case errors.Is(err, ErrQueueFull):
			return refuse(CodeQueueFull, "try again later, or allow more with --max-tasks", "%v", err)
		default:
			return explain(err, "feature", t.feature.Name)
		}
	}
}

// maxNames is how many names are made up before giving up.
const maxNames = 100

// submission is what the journal is told of the task.
func (t *task) submission() (Submission, error) {
	r := t.req
	t.res.TaskID = t.s.opt.NewID()
	sub := Submission{Feature: t.feature, NewFeature: t.fresh && t.owner, Admitted: t.slot != nil, MaxQueue: max(t.s.opt.MaxQueue, 0), Key: r.Key,
		Task: TaskRecord{ID: t.res.TaskID, FeatureID: t.feature.ID, Profile: t.profile, ProfileDigest: r.Profile.Digest, Remove: r.Remove}}
	var err error
	sub.Task.Options, err = json.Marshal(taskOptions{Promote: r.Promote, PatchFile: r.PatchFile, Branch: r.Branch, AllowProtected: r.AllowProtected, Consent: r.Consent, Checkpoints: r.Checkpoints, Learn: r.Learn, Publish: r.Publish})
	if err != nil {
		return sub, err
	}
	for i := range r.Steps {
		st := &r.Steps[i]
		options, shown, err := t.s.options(st)
		if err != nil {
			return sub, err
		}
		sub.Task.Steps = append(sub.Task.Steps, StepRecord{N: i + 1, State: StepNotStarted, Args: st.Args, Retry: st.Retry, Options: options})
		t.res.Steps = append(t.res.Steps, StepResult{N: i + 1, Name: st.Name, State: StepNotStarted, Args: shown})
	}
	if r.Key != "" {
		sub.KeyDigest = digestOf("task", r.Workspace, r.Feature, sub.Task.Steps, r.Profile.Digest, sub.Task.Options, r.Remove, r.Detach)
	}
	return sub, nil
}

var (
	adjectives = strings.Fields("amber ample azure bold brave brisk calm clear cool coral crisp deep eager fair fast firm fleet fresh glad gold grand green hale ivory jade keen kind light lively lucid mild neat noble pale plain proud quick quiet rapid ready sharp silent silver sleek smart solid steady still sunny swift tidy true vivid warm wide wise young")
	nouns      = strings.Fields("anchor arch basin bay beacon bight boat bridge brook buoy canal cape cliff cove creek current delta dock dune eddy ferry fjord ford gulf harbor haven inlet island jetty keel kelp lagoon lake levee lock marsh mast mill moor oar pier pond port quay raft rapids reef ridge river sail shoal shore sluice sound spring strait stream tide wave weir wharf")
)

// freshName makes a name up; the more tries, the longer.
func freshName(try int) string {
	name := adjectives[rand.IntN(len(adjectives))] + "-" + nouns[rand.IntN(len(nouns))]
	if try > 2 {
		name += fmt.Sprintf("-%d", rand.IntN(100*try))
	}
	return name
}

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
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// maxSteps is what the log's records can count.
const maxSteps = 1<<16 - 1

// nameRule is for names of features and keys of labels.
var nameRule = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// maxLabel is the longest value of a label, in bytes.
const maxLabel = 256

// validLabel says whether a label may have this value: one line of text.
func validLabel(value string) bool {
	return len(value) <= maxLabel && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// admit refuses what cannot be, before anything exists.
func (s *Supervisor) admit(ctx context.Context, r *Request) (*task, error) {
	if s.opt.Engine == nil {
		return nil, &Error{Code: CodeInternal, Cause: "this supervisor has no engine", Exit: ExitInternal}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	t := &task{session: &session{s: s}, owner: true, req: r, ready: make(chan struct{}), over: make(chan struct{}), ended: make(chan struct{})}
	if err := typed(s.enforceable(ctx, r, t), "admitting the task"); err != nil {
		return nil, err
	}
	var err error
	if r.Workspace, err = filepath.Abs(r.Workspace); err != nil {
		return nil, refuse(CodeWorkspace, "name it with an absolute path", "%v", err)
	}
	if err := typed(snapshot.Check(r.Workspace, s.state), "looking at the workspace"); err != nil {
		return nil, err
	}
	if r.Workspace, err = filepath.EvalSymlinks(r.Workspace); err != nil {
		return nil, refuse(CodeWorkspace, "name an existing directory with --workspace", "%v", err)
	}
	if t.mounts, err = s.mounts(r); err != nil {
		return nil, typed(err, "looking at the mounts")
	}
	if t.profile, err = json.Marshal(r.Profile); err != nil {
		return nil, typed(err, "recording the profile")
	}
	return t, typed(s.find(ctx, t), "admitting the task")
}

// check looks at the request alone.
func (r *Request) check() error {
	usage := func(format string, args ...any) error { return refuse(CodeUsage, "", format, args...) }
	if len(r.Steps) == 0 && !r.Detach || len(r.Steps) > maxSteps {
		return usage("a task has 1 to %d steps, not %d", maxSteps, len(r.Steps))
	}
	if r.Profile == nil {
		return usage("a task needs a profile")
	}
	for _, st := range r.Steps {
		if err := st.check(); err != nil {
			return usage("%v", err)
		}
	}
	if r.Feature != "" && !nameRule.MatchString(r.Feature) {
		return refuse(CodeInvalidName, "use small letters, digits, and _ . - after the first; 63 at most", "%q cannot name a feature", r.Feature)
	}
	for k, v := range r.Labels {
		if !nameRule.MatchString(k) || !validLabel(v) {
			return refuse(CodeInvalidName, "a key has small letters, digits, _ . and -; a value is one line of at most 256 bytes", "%q cannot be a label", k+"="+v)
		}
	}
	if len(r.Key) > maxLabel || r.TTL < 0 || r.Idle < 0 {
		return usage("a key has at most %d bytes, and no time is negative", maxLabel)
	}
	if r.Detach && r.Remove {
		return usage("a detached feature goes with `caisson rm`, not with its task")
	}
	r.Promote = cmp.Or(r.Promote, PromoteNone)
	if r.Promote == PromoteNone {
		return nil
	}
	return checkPromote(r.Promote, r.PatchFile)
}

func (st *Step) check() error {
	if len(st.Args) == 0 || st.Args[0] == "" {
		return errors.New("a step needs a command")
	}
	for _, text := range slices.Concat(st.Args, st.Env, []string{st.Cwd}) {
		if strings.Contains(text, "\x00") {
			return fmt.Errorf("%q holds a NUL byte", text)
		}
	}
	for _, kv := range st.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			return fmt.Errorf("%q is not NAME=VALUE", kv)
		}
	}
	if st.Timeout < 0 {
		return fmt.Errorf("a timeout of %s is negative", st.Timeout)
	}
	if st.Limits != nil {
		return st.Limits.Validate()
	}
	return nil
}

func checkPromote(kind, patchFile string) error {
	switch {
	case kind == PromoteApply && patchFile == "", kind == PromotePatch && patchFile != "":
		return nil
	case kind == PromotePatch:
		return refuse(CodeUsage, "name the file", "a patch needs a file to be written to")
	case kind == PromoteApply:
		return refuse(CodeUsage, "promote as patch", "a file is only written for a patch")
	}
	return refuse(CodeUsage, "one of none, apply, patch", "cannot promote as %q", kind)
}

// enforceable refuses what this host or this version cannot enforce, and notes what is missing because it was waived.
func (s *Supervisor) enforceable(ctx context.Context, r *Request, t *task) error {
	p := r.Profile
	if err := p.Unsupported(); err != nil {
		return err
	}
	for _, st := range r.Steps {
		if st.Network != "" && st.Network != "none" {
			return &isolation.UnsupportedError{Control: isolation.ControlNetworkRules,
				Reason: "network " + st.Network + ": this version has no egress gateway", Remedy: "--network none"}
		}
	}
	for i := range r.Steps {
		if err := s.mappable(t.user(&r.Steps[i])); err != nil {
			return err
		}
		if uid, gid := t.user(&r.Steps[i]); (uid == 0 || gid == 0) && required(p, isolation.ControlNonRoot) {
			return &isolation.UnsupportedError{Control: isolation.ControlNonRoot, Reason: "the command would run as root inside",
				Remedy: "use another id with -u, or --allow-weaker nonroot"}
		}
	}
	missing, err := s.missing(ctx, p)
	if err != nil {
		return err
	}
	for _, c := range isolation.Controls() {
		reason, gone := missing[c]
		if gone && !required(p, c) && (slices.Contains(p.AllowWeaker, c) || slices.Contains(p.Controls.Wanted, c)) {
			t.res.Weaker = append(t.res.Weaker, Weakness{Control: c, Reason: reason})
		}
		// Where there are cgroups they are used, waived or not.
		if !required(p, c) && (gone || c != isolation.ControlCgroups) {
			t.weaker = append(t.weaker, c)
		}
	}
	return nil
}

// mappable refuses ids that the sandbox does not have.
func (s *Supervisor) mappable(uid, gid uint32) error {
	switch {
	case !s.privileged() && (uid != inside || gid != inside):
		return refuse(CodeUsage, "leave -u out, or run caisson as root", "without root a sandbox has one id, %d; not %d:%d", inside, uid, gid)
	case uid >= rangeIDs-1 || gid >= rangeIDs-1: // the last one stands for an owner beyond the range
		return refuse(CodeUsage, fmt.Sprintf("use ids up to %d", rangeIDs-2), "a sandbox has no id %d:%d", uid, gid)
	}
	return nil
}

// required reports whether a control must be there.
func required(p *profiles.Effective, c isolation.Control) bool {
	return slices.Contains(p.Controls.Required, c) && !slices.Contains(p.AllowWeaker, c)
}

// missing finds what cannot be had, with reasons. What is required stays for the engine's Start to refuse, which costs
// nothing when all is well; only what is waived or merely wanted has to be probed, to be able to say so.
func (s *Supervisor) missing(ctx context.Context, p *profiles.Effective) (map[isolation.Control]string, error) {
	missing := map[isolation.Control]string{}
	var probe []isolation.Control
	for _, c := range isolation.Controls() {
		waived := !required(p, c) && (slices.Contains(p.AllowWeaker, c) || slices.Contains(p.Controls.Wanted, c))
		switch {
		case c == isolation.ControlCgroups:
			if s.opt.Cgroups != nil {
				continue
			}
			if required(p, c) {
				return nil, noCgroups(s.opt.CgroupsErr)
			}
			missing[c] = noCgroups(s.opt.CgroupsErr).Reason
		case c == isolation.ControlDiskQuota: // findDisk and the feature's unit say what is missing
		case c == isolation.ControlNetworkRules:
			if required(p, c) {
				return nil, &isolation.UnsupportedError{Control: c, Reason: "not available in this version", Remedy: "--allow-weaker " + string(c)}
			}
			missing[c] = "not available in this version"
		case waived:
			probe = append(probe, c)
		}
	}
	if len(probe) > 0 {
		features := s.opt.Engine.Probe(ctx)
		for _, c := range probe {
			if f := features.Get(c); f.Support != isolation.Available {
				missing[c] = f.Detail
			}
		}
	}
	return missing, nil
}

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
	if _, err := s.disks(); err != nil {
		if weaker {
			t.res.Weaker = append(t.res.Weaker, Weakness{Control: isolation.ControlDiskQuota, Reason: err.Error()})
			return nil
		}
		return &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: err.Error(), Remedy: "--allow-weaker disk_quota"}
	}
	m, err := disk.Choose(s.supports(ctx), limits, true, weaker)
	if none, ok := errors.AsType[*disk.UnavailableError](err); ok {
		return &isolation.UnsupportedError{Control: isolation.ControlDiskQuota, Reason: none.Error(), Remedy: cmp.Or(none.Remedy, "--allow-weaker disk_quota")}
	}
	if err != nil {
		return err
	}
	t.feature.Mechanism, t.feature.Disk = string(m), limits.Bytes
	if limits.Inodes != nil {
		t.feature.Inodes = *limits.Inodes
	}
	return nil
}

func noCgroups(err error) *isolation.UnsupportedError {
	u := &isolation.UnsupportedError{Control: isolation.ControlCgroups, Reason: "no cgroup can be made here", Remedy: "--allow-weaker cgroups"}
	if e, ok := errors.AsType[*quota.UnavailableError](err); ok {
		u.Reason, u.Remedy = e.Reason, cmp.Or(e.Remedy, u.Remedy)
	} else if err != nil {
		u.Reason = err.Error()
	}
	return u
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
		if reason := s.direct(t.feature.Workspace); reason != "" {
			t.feature.Direct = true
		}
		if err := s.findDisk(ctx, t); err != nil {
			return err
		}
	} else if err := t.join(); err != nil {
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

// join makes a task of a feature that lives in this process one more of its session's.
func (t *task) join() error {
	x := t.s.session(t.feature.ID)
	if x == nil {
		return nil
	}
	if x.policy.Digest != t.req.Profile.Digest {
		return refuse(CodeConfiguration, "caisson stop "+x.feature.Name+", or use the profile that it lives under",
			"the feature %s lives under the profile %s (%s), not %s (%s)", x.feature.Name, x.policy.Name, short(x.policy.Digest), t.req.Profile.Name, short(t.req.Profile.Digest))
	}
	t.session, t.owner = x, false
	return nil
}

// direct says why the workspace has to be used without idmapped mounts; "" when it has not.
func (s *Supervisor) direct(workspace string) string {
	e, ok := s.opt.Engine.(interface{ CanIDMap(path string) error })
	if !ok || !s.privileged() {
		return ""
	}
	if err := e.CanIDMap(workspace); err != nil {
		return err.Error()
	}
	return ""
}

// privileged reports whether sandboxes get an id range of their own.
func (s *Supervisor) privileged() bool {
	if e, ok := s.opt.Engine.(interface{ Root() bool }); ok {
		return e.Root()
	}
	return os.Geteuid() == 0
}

// The id ranges of features: from 1<<30 up to what 32 bits hold, without the last, which has the ids that mean "none".
const (
	firstID  = 1 << 30
	rangeIDs = 1 << 16
	inside   = 1000
	maxIndex = (1<<32-firstID)/rangeIDs - 2
)

// idsOf is the mapping of a feature's ids.
func (s *Supervisor) idsOf(f *FeatureRecord) (isolation.IDs, error) {
	if !s.privileged() {
		return isolation.IDs{Single: true, Owner: uint32(os.Geteuid()), OwnerGroup: uint32(os.Getegid()), Inside: inside}, nil
	}
	if f.Index > maxIndex {
		return isolation.IDs{}, refuse(CodeState, "remove some with `caisson rm`", "there are more than %d features", maxIndex)
	}
	uid, gid, err := hostfile.Owner(f.Workspace)
	return isolation.IDs{Base: firstID + uint32(f.Index)*rangeIDs, Size: rangeIDs, Owner: uid, OwnerGroup: gid, Inside: inside,
		Direct: f.Direct}, err
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
	return t.s.removeDir(ctx, t.s.featureDir(t.feature.ID))
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
	sub.Task.Options, err = json.Marshal(taskOptions{Promote: r.Promote, PatchFile: r.PatchFile, AllowProtected: r.AllowProtected, Checkpoints: r.Checkpoints})
	if err != nil {
		return sub, err
	}
	for i := range r.Steps {
		st := &r.Steps[i]
		options, err := st.options()
		if err != nil {
			return sub, err
		}
		sub.Task.Steps = append(sub.Task.Steps, StepRecord{N: i + 1, State: StepNotStarted, Args: st.Args, Retry: st.Retry, Options: options})
		t.res.Steps = append(t.res.Steps, StepResult{N: i + 1, State: StepNotStarted, Args: st.Args})
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

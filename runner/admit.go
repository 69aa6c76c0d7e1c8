package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// maxSteps is what the log's records can count.
const maxSteps = 1<<16 - 1

// nameRule is for names of features and keys of labels. It is made when it is needed: that takes 0.2 ms.
var nameRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`) })

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
	t := &task{session: &session{s: s}, owner: true, req: r, ready: make(chan struct{}), came: make(chan struct{}),
		over: make(chan struct{}), ended: make(chan struct{})}
	if err := s.enforceable(ctx, r, t); err != nil {
		return nil, typed(t.shortage(ctx, err), "admitting the task")
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
	if t.profile, err = s.keptProfile(r.Profile); err != nil {
		return nil, typed(err, "recording the profile")
	}
	return t, typed(t.shortage(ctx, s.find(ctx, t)), "admitting the task")
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
	if r.Feature != "" && !nameRule().MatchString(r.Feature) {
		return refuse(CodeInvalidName, "use small letters, digits, and _ . - after the first; 63 at most", "%q cannot name a feature", r.Feature)
	}
	for k, v := range r.Labels {
		if !nameRule().MatchString(k) || !validLabel(v) {
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
	o := promoteOptionsOf(r)
	err := checkPromote(&o)
	r.PatchFile = o.PatchFile // who resumes the task may be elsewhere
	return err
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

// checkPromote refuses what cannot be, and settles which file a patch is written to.
func checkPromote(o *PromoteOptions) error {
	switch o.Kind {
	case PromoteApply, PromotePatch, PromoteBranch:
	default:
		return refuse(CodeUsage, "one of none, apply, patch, branch", "cannot promote as %q", o.Kind)
	}
	switch {
	case o.Kind == PromotePatch && o.PatchFile == "":
		return refuse(CodeUsage, "name the file", "a patch needs a file to be written to")
	case o.Kind != PromotePatch && o.PatchFile != "":
		return refuse(CodeUsage, "promote as patch", "a file is only written for a patch")
	case o.Kind == PromotePatch:
		return o.settlePatchFile()
	}
	return o.Branch.check(o.Kind)
}

// settlePatchFile follows links, of which one would be replaced by the patch, and refuses what a file cannot be put in the place
// of: a directory, a device, which would be gone, and an open file, which only its own process could write to.
func (o *PromoteOptions) settlePatchFile() error {
	const remedy = "name a file in a directory that there is; `caisson diff` prints the patch"
	path, err := hostfile.Resolve(o.PatchFile)
	if err != nil {
		return refuse(CodeUsage, remedy, "the patch cannot be written to %s: %v", o.PatchFile, err)
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return refuse(CodeUsage, remedy, "the patch cannot be written to %s: it is there and not a file", o.PatchFile)
	}
	o.PatchFile = path
	return nil
}

// enforceable refuses what this host or this version cannot enforce, and notes what is missing because it was waived.
func (s *Supervisor) enforceable(ctx context.Context, r *Request, t *task) error {
	p := r.Profile
	var err error
	if t.rules, err = rulesOf(r); err != nil {
		return err
	}
	for i := range r.Steps {
		if err := s.mappable(t.user(&r.Steps[i])); err != nil {
			return err
		}
		if uid, gid := t.user(&r.Steps[i]); (uid == 0 || gid == 0) && required(p, isolation.ControlNonRoot) {
			return &isolation.UnsupportedError{Control: isolation.ControlNonRoot, Reason: "the command would run as root inside",
				Remedy: "use another id with -u"}
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
		case waived, c == isolation.ControlNetworkRules && required(p, c): // of which a sandbox without a rule has no need
			probe = append(probe, c)
		}
	}
	if len(probe) > 0 {
		features := s.opt.Engine.Probe(ctx)
		for _, c := range probe {
			f := features.Get(c)
			switch {
			case f.Support == isolation.Available:
			case required(p, c):
				return nil, &isolation.UnsupportedError{Control: c, Reason: f.Detail, Remedy: f.Remedy}
			default:
				missing[c] = f.Detail
			}
		}
	}
	return missing, nil
}

// canIDMap says why a directory has to be used without idmapped mounts, nil when it has not. isolation.Refused tells an answer
// from a question that failed.
func (s *Supervisor) canIDMap(dir string) error {
	e, ok := s.opt.Engine.(interface{ CanIDMap(path string) error })
	if !ok || !s.privileged() {
		return nil
	}
	return e.CanIDMap(dir)
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

// checkpointsOf is when a profile has checkpoints made by themselves.
func checkpointsOf(p *profiles.Effective) CheckpointPolicy {
	c := p.Checkpoints
	return CheckpointPolicy{Off: c.Off != nil && *c.Off, Every: time.Duration(c.Every), Files: int(c.Files), Debounce: time.Duration(c.Debounce)}
}

// duration is what a profile sets; nil is 0, which is never.
func duration(d *quota.Duration) time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(*d)
}

// diskLimits are what a profile lets a feature take; asked is whether it bounds that at all.
func diskLimits(p *profiles.Effective) (l disk.Limits, asked bool) {
	l = disk.Limits{Total: p.DiskTotal}
	if p.Limits.Disk == nil {
		return l, false
	}
	l.Bytes, l.Inodes = *p.Limits.Disk, p.Limits.Inodes
	return l, true
}

func (s *Supervisor) supports(ctx context.Context) []disk.Support { return disk.Probe(ctx, s.state) }

package runner

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/quota"
)

// shortage makes of an error that says of one control that it is missing one that says so of all that the task requires, so
// that its remedy is what makes it run. Any other error it leaves alone.
func (t *task) shortage(ctx context.Context, err error) error {
	first, ok := errors.AsType[*isolation.UnsupportedError](err)
	if !ok {
		return err
	}
	s, p := t.s, t.req.Profile
	missing := []*isolation.UnsupportedError{first}
	if s.opt.Cgroups == nil && required(p, isolation.ControlCgroups) {
		missing = append(missing, noCgroups(s.opt.CgroupsErr))
	}
	if limits, asked := diskLimits(p); asked && required(p, isolation.ControlDiskQuota) {
		_, err := s.chooseDisk(ctx, limits, false)
		if none, ok := errors.AsType[*isolation.UnsupportedError](err); ok {
			missing = append(missing, none)
		}
	}
	probed := s.opt.Engine.Probe(ctx)
	for _, c := range isolation.Controls() {
		f := probed.Get(c)
		if f.Support == isolation.Unsupported && engines(c) && (required(p, c) || c == isolation.ControlNetworkRules && t.online()) {
			missing = append(missing, &isolation.UnsupportedError{Control: c, Reason: f.Detail, Remedy: f.Remedy})
		}
	}
	return isolation.Shortage(missing, p.AllowWeaker, p.Controls.Waivable)
}

// engines reports whether the engine's word about a control is the last: of what lies on the host's file systems, and of
// cgroups, we know more.
func engines(c isolation.Control) bool {
	switch c {
	case isolation.ControlCgroups, isolation.ControlDiskQuota, isolation.ControlOverlay, isolation.ControlIDMap:
		return false
	}
	return true
}

func noCgroups(err error) *isolation.UnsupportedError {
	u := &isolation.UnsupportedError{Control: isolation.ControlCgroups, Reason: "no cgroup can be made here"}
	if e, ok := errors.AsType[*quota.UnavailableError](err); ok {
		u.Reason, u.Remedy, u.Scope = e.Reason, e.Remedy, e.Scope
	} else if err != nil {
		u.Reason = err.Error()
	}
	return u
}

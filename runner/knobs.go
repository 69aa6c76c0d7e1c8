package runner

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/steps"
)

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

// driverOf is the driver of a new feature's layers.
func driverOf(p *profiles.Effective) string {
	if p.Driver == snapshot.DriverCopy || p.Base == "copy" {
		return snapshot.DriverCopy
	}
	return snapshot.DriverOverlay
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

// full says whether the feature's disk is why a step failed.
func (t *task) full() *steps.LimitHit {
	if t.unit == nil {
		return nil
	}
	u, err := t.unit.Usage()
	if err != nil || !u.Full() {
		return nil
	}
	if u.InodeLimit > 0 && u.Inodes >= u.InodeLimit {
		return &steps.LimitHit{Name: "inodes", Limit: u.InodeLimit.String() + " inodes", Peak: u.Inodes.String(), Hint: "raise it with --inodes, or limits.inodes in a profile"}
	}
	return &steps.LimitHit{Name: "disk", Limit: u.Limit.String(), Peak: u.Used.String(), Hint: "raise it with --disk, or limits.disk in a profile"}
}

func (s *Supervisor) timed(Timing) {}

func (x *session) later(string) {}

func (x *session) settled(ctx context.Context, id string) (*Checkpoint, error) {
	return x.find(ctx, id, nil)
}

func (t *task) stepNow() int { return 0 }

func (x *session) logDir() string { return filepath.Join(x.dir, "log") }

func (t *task) removeFiles(ctx context.Context, gone string) error {
	return snapshot.Remove(ctx, gone, "lock")
}

// Copy copies a file or a tree between the host and a feature.
func (s *Supervisor) Copy(ctx context.Context, from, to CopyPath) error { return errLater }

// Stats measures features; none means those that are live in this process.
func (s *Supervisor) Stats(ctx context.Context, features []string) ([]Stats, error) {
	return nil, errLater
}

// Events calls do for each event, oldest first.
func (s *Supervisor) Events(ctx context.Context, o EventOptions, do func(Event) error) error {
	return errLater
}

// Repair makes the journal agree with what lies on disk, for every feature, and names what is damaged.
func (s *Supervisor) Repair(ctx context.Context) (*GCReport, error) { return nil, errLater }

// errLater is what methods answer that are not there yet.
var errLater = &Error{Code: CodeUnsupported, Cause: "not available yet", Exit: ExitRefused, Err: errors.ErrUnsupported}

// Dialer asks the process that holds a feature's lock.
type Dialer interface {
	// Rebase has a live feature take up what a promote of another one took out of their workspace. The error is an *Error
	// with CodeHeld when a live process prevents it and stop is false.
	Rebase(ctx context.Context, featureID string, generation int, stop bool) error
	// Holders are the processes that hold its workspace or HOME.
	Holders(ctx context.Context, featureID string) ([]isolation.Holder, error)
}

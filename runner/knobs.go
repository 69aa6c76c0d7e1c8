package runner

import (
	"context"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/snapshot"
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

func (x *session) logDir() string { return filepath.Join(x.dir, "log") }

func (t *task) removeFiles(ctx context.Context, gone string) error {
	return snapshot.Remove(ctx, gone, "lock")
}

// Dialer asks the process that holds a feature's lock.
type Dialer interface {
	// Rebase has a live feature take up what a promote of another one took out of their workspace. The error is an *Error
	// with CodeHeld when a live process prevents it and stop is false.
	Rebase(ctx context.Context, featureID string, generation int, stop bool) error
	// Holders are the processes that hold its workspace or HOME.
	Holders(ctx context.Context, featureID string) ([]isolation.Holder, error)
}

func (t *task) stepNow() int { return int(t.stepping.Load()) }

package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/copytree"
)

// driverAuto has this host decide.
const driverAuto = "auto"

// driverOf is the driver of a new feature's layers, as far as the profile says. With driverAuto it is overlay until its
// disk is there: see session.settleDriver.
func driverOf(p *profiles.Effective) string {
	if p.Driver == snapshot.DriverCopy || p.Base == "copy" {
		return snapshot.DriverCopy
	}
	return snapshot.DriverOverlay
}

// settleDriver makes sure that a new feature's layers can be stacked where they will lie. Where they cannot, a profile
// that leaves it to us gets copies; who asked for overlay by name is refused.
func (x *session) settleDriver(ctx context.Context) error {
	if x.feature.Driver != snapshot.DriverOverlay {
		return nil
	}
	at := x.dir
	if x.unit != nil {
		at = x.unit.Dir()
	}
	reason := x.s.canOverlay(at, x.feature.Workspace)
	if none := x.s.direct(x.s.bases()); reason == nil && none != "" && !x.feature.Direct {
		// What promotes take out of the workspace lies below the features, with the workspace's owners.
		reason = fmt.Errorf("the state directory cannot be idmapped: %s", none)
	}
	if reason == nil {
		return nil
	}
	if x.policy.Driver != driverAuto {
		return &isolation.UnsupportedError{Control: isolation.ControlOverlay, Reason: reason.Error(),
			Remedy: "--driver auto, which keeps whole copies here; or put the state directory (CAISSON_STATE) on ext4, xfs, btrfs or tmpfs"}
	}
	if err := copytree.Possible(at); err != nil {
		return &isolation.UnsupportedError{Control: isolation.ControlOverlay, Reason: fmt.Sprintf("%v; nor can files be copied: %v", reason, err),
			Remedy: "put the state directory (CAISSON_STATE) on ext4, xfs, btrfs or tmpfs"}
	}
	x.feature.Driver, x.copies = snapshot.DriverCopy, reason.Error()
	err := x.s.opt.Journal.UpdateFeature(ctx, x.feature.ID, FeatureUpdate{Driver: &x.feature.Driver})
	return errors.Join(err, x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "driver", From: snapshot.DriverOverlay,
		To: x.feature.Driver, Cause: x.copies}))
}

// canOverlay asks the engine whether layers in dir can be stacked on a workspace. A yes holds for these two types of file
// system until the machine is started anew, and saves the next start the question; a no is asked again.
func (s *Supervisor) canOverlay(dir, workspace string) error {
	e, ok := s.opt.Engine.(interface{ CanOverlay(dir, base string) error })
	if !ok {
		return nil
	}
	upper, err := hostfile.Filesystem(dir)
	base, baseErr := hostfile.Filesystem(workspace)
	if err := errors.Join(err, baseErr); err != nil {
		return err
	}
	known := filepath.Join(s.state, "probed", fmt.Sprintf("overlay-%x-%x", upper, base))
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err == nil {
		if was, err := os.ReadFile(known); err == nil && bytes.Equal(was, boot) {
			return nil
		}
	}
	if refused := e.CanOverlay(dir, workspace); refused != nil || err != nil {
		return refused
	}
	if err := os.Mkdir(filepath.Dir(known), 0o700); err == nil || errors.Is(err, os.ErrExist) {
		_ = os.WriteFile(known, boot, 0o600) // or it is asked again
	}
	return nil
}

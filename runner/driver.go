package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/hostfile"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/copytree"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
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
// that leaves it to us gets copies; who asked for overlay by name is refused. An error that says nothing about it, as of a disk
// that is broken, is no reason for copies.
func (x *session) settleDriver(ctx context.Context) error {
	if x.feature.Driver != snapshot.DriverOverlay {
		return nil
	}
	at := x.dir
	if x.unit != nil {
		at = x.unit.Dir()
	}
	reason := x.canStack(at)
	if reason == nil {
		return nil
	}
	if !isolation.Refused(reason) {
		return fmt.Errorf("trying whether layers can be stacked in %s: %w", at, reason)
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

// canStack says why layers in dir cannot be stacked on what lies below them, nil when they can.
func (x *session) canStack(dir string) error {
	if err := x.canOverlay(dir); err != nil {
		return err
	}
	if err := x.s.canIDMap(x.s.bases()); err != nil && !x.feature.Direct {
		// What promotes take out of the workspace lies below the features, with the workspace's owners.
		return fmt.Errorf("the state directory cannot be idmapped: %w", err)
	}
	if lasting(x.s.bases()) == "" {
		return overlay.CanKeep(x.s.bases())
	}
	return nil
}

// canOverlay asks the engine whether layers in dir can be stacked on the workspace. A yes is remembered until the machine is
// started anew, for these two file systems, and saves the next start the question; a no is asked again.
func (x *session) canOverlay(dir string) error {
	e, ok := x.s.opt.Engine.(interface{ CanOverlay(dir, base string) error })
	if !ok {
		return nil
	}
	known := x.probed()
	if known != "" {
		if _, err := os.Lstat(known); err == nil {
			return nil
		}
	}
	err := e.CanOverlay(dir, x.feature.Workspace)
	if err == nil && known != "" {
		_ = remember(known) // or it is asked again
	}
	return err
}

// probed is the file that is there when layers of this feature's kind are known to stack on its workspace, in a directory for
// this boot; "" is for file systems about which nothing can be known.
func (x *session) probed() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	upper, base := lasting(x.dir), lasting(x.feature.Workspace)
	if x.unit != nil && x.unit.Mechanism().Own() {
		upper = string(x.unit.Mechanism()) // they are all alike
	}
	if upper == "" || base == "" {
		return ""
	}
	return filepath.Join(x.s.state, "probed", strings.TrimSpace(string(boot)), "overlay-"+upper+"-"+base)
}

// lasting names the file system of a directory, if what it can do once it always can. Of others, overlay and FUSE above all,
// the kernel's answer depends on what lies behind the mount: "".
func lasting(dir string) string {
	at, err := hostfile.FilesystemOf(dir)
	if err != nil || !at.Plain() {
		return ""
	}
	return fmt.Sprintf("%x.%x.%x", at.Type, at.Device, at.ID)
}

// remember makes an empty file, and forgets what earlier boots knew.
func remember(known string) error {
	boot := filepath.Dir(known)
	all := filepath.Dir(boot)
	if err := os.Mkdir(all, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.Mkdir(boot, 0o700); err == nil {
		entries, err := os.ReadDir(all)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Name() != filepath.Base(boot) {
				_ = os.RemoveAll(filepath.Join(all, e.Name()))
			}
		}
	}
	return os.WriteFile(known, nil, 0o600)
}

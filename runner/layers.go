package runner

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/copytree"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// open opens what lies on disk of a feature whose lock is held.
func (x *session) open(ctx context.Context, a access) (err error) {
	if err := x.openUnit(ctx); err != nil {
		return err
	}
	x.layers, err = openLayers(x.feature.Driver, x.openOptions(ctx, a != writing))
	if err != nil || a != writing {
		return damaged(err, x.feature.Name)
	}
	return errors.Join(x.reconcile(ctx, false), x.afterBoot(ctx))
}

// resize gives an old feature's disk the limits that were asked for by name.
func (x *session) resize(ctx context.Context, p *profiles.Effective) error {
	limits, asked := diskLimits(p)
	now := x.limits()
	now.Total = limits.Total
	byName := func(key string) bool { return strings.HasPrefix(p.Origins[key], "flag") }
	if byName("limits.disk") && asked {
		now.Bytes = limits.Bytes
	}
	if byName("limits.inodes") {
		now.Inodes = limits.Inodes
	}
	if x.unit == nil || now.Bytes == x.feature.Disk && inodes(now) == x.feature.Inodes {
		return nil
	}
	if err := x.unit.Resize(ctx, now); err != nil {
		return err
	}
	n := inodes(now)
	x.feature.Disk, x.feature.Inodes = now.Bytes, n
	return x.s.opt.Journal.UpdateFeature(ctx, x.feature.ID, FeatureUpdate{Disk: &now.Bytes, Inodes: &n})
}

// inodes is a limit as the journal has it: 0 is none.
func inodes(l disk.Limits) quota.Count {
	if l.Inodes == nil {
		return 0
	}
	return *l.Inodes
}

// afterBoot looks, when the machine has been started anew, at the checkpoints that may not have been on disk by then.
func (x *session) afterBoot(ctx context.Context) error {
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil //nolint:nilerr // not this system's
	}
	file := filepath.Join(x.dir, bootFile)
	if then, err := os.ReadFile(file); err == nil && bytes.Equal(now, then) {
		return nil
	} else if err == nil {
		if err := x.verify(ctx); err != nil {
			return err
		}
	}
	return noteBoot(x.dir)
}

// bootFile says which run of the machine a feature was last written in. It is there from the first checkpoint on: for a task
// that leaves none, each file less is a third of a millisecond when many run at once.
const bootFile = "boot"

// noteFirstBoot writes it before the first checkpoint.
func noteFirstBoot(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, bootFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return noteBoot(dir)
}

func noteBoot(dir string) error {
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil //nolint:nilerr // not this system's
	}
	return os.WriteFile(filepath.Join(dir, bootFile), now, 0o600)
}

// verify reads the checkpoints that were not durable, and names those that lost something.
func (x *session) verify(ctx context.Context) error {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Durable || r.Lost || r.Damaged != "" || r.AliasOf != "" {
			continue
		}
		i, err := x.layers.Index(ctx, r.ID)
		why, yes := "", true
		u := CheckpointUpdate{Durable: &yes}
		if err != nil {
			why = err.Error()
		} else if r.Indexed && i.Digest != r.Digest {
			why = "it was not on disk when the machine went down"
		}
		if why != "" {
			u = CheckpointUpdate{Damaged: &why}
		}
		if err := x.s.opt.Journal.UpdateCheckpoint(ctx, r.ID, u); err != nil {
			return err
		}
	}
	return x.layers.Sync(ctx)
}

func (x *session) openOptions(ctx context.Context, readOnly bool) snapshot.OpenOptions {
	return snapshot.OpenOptions{Dir: x.base(), Feature: x.feature.ID, Bases: x.s.bases(), ReadOnly: readOnly, Journal: x.dir, Sync: x.syncer(),
		Resolve: func(id string) (string, error) { return x.resolve(ctx, id) }}
}

func (s *Supervisor) bases() string { return filepath.Join(s.state, "bases") }

// syncer makes a unit durable; nil where its file system does that itself.
func (x *session) syncer() func() error {
	if x.unit == nil {
		return nil
	}
	return x.unit.Sync
}

// base is where the layers lie.
func (x *session) base() string {
	if x.unit != nil {
		return x.unit.Dir()
	}
	return plainBase(x.dir)
}

// plainBase is where the layers of a feature without a disk unit lie.
func plainBase(dir string) string { return filepath.Join(dir, "disk") }

func (x *session) openUnit(ctx context.Context) (err error) {
	if x.feature.Mechanism == "" {
		return nil
	}
	d, err := x.s.disks()
	if err == nil {
		x.unit, err = d.Open(ctx, x.feature.ID)
	}
	return err
}

// resolve finds the layers of another feature.
func (x *session) resolve(ctx context.Context, id string) (string, error) {
	d, err := x.s.disks()
	if err != nil {
		return plainBase(x.s.featureDir(id)), nil //nolint:nilerr // without disk units there are plain directories
	}
	u, err := d.Open(ctx, id)
	if errors.Is(err, fs.ErrNotExist) {
		return plainBase(x.s.featureDir(id)), nil
	}
	if err != nil {
		return "", err
	}
	x.others = append(x.others, u)
	return u.Dir(), nil
}

// disks is the store of the disk units.
func (s *Supervisor) disks() (*disk.Store, error) {
	if s.opt.Disk == nil {
		return nil, refuse(CodeUnsupported, "", "this supervisor has no disk units")
	}
	return s.opt.Disk, nil
}

// make makes a new feature's layers, or readies those of an old one, and what is mounted into them.
func (x *session) make(ctx context.Context) (err error) {
	owner := x.owner()
	if x.fresh {
		if err := x.makeUnit(ctx); err != nil {
			return err
		}
		if err := x.settleDriver(ctx); err != nil {
			return err
		}
		x.layers, err = createLayers(x.feature.Driver, snapshot.CreateOptions{Dir: x.base(), Workspace: x.feature.Workspace,
			Feature: x.feature.ID, Bases: x.s.bases(), Owner: owner, UserXattr: !x.s.privileged(), Journal: x.dir, Sync: x.syncer()})
	} else {
		if err = x.open(ctx, writing); err == nil {
			x.shorten(ctx)
			err = x.resize(ctx, x.policy)
		}
	}
	if err == nil {
		err = x.s.identify(ctx, &x.feature)
	}
	if err != nil {
		return err
	}
	for _, m := range x.mounts {
		if err := x.homeMountpoint(m, owner); err != nil {
			return err
		}
	}
	return writeOnce(machineID(x.dir), x.feature.ID)
}

func (x *session) owner() snapshot.Owner {
	uid, gid := x.ids.Host(inside, inside)
	return snapshot.Owner{UID: uid, GID: gid}
}

// makeUnit makes a new feature's disk unit, if it has one.
func (x *session) makeUnit(ctx context.Context) error {
	x.beginUnit(ctx)
	return x.opening.Wait()
}

// beginUnit begins to make a new feature's disk unit, beside what else is done until it is needed: its file system is
// mounted, for which the kernel waits for the host's disk. It is idempotent.
func (x *session) beginUnit(ctx context.Context) {
	if x.begun || x.feature.Mechanism == "" {
		return
	}
	x.begun = true
	id, m, limits := x.feature.ID, disk.Mechanism(x.feature.Mechanism), x.limits()
	x.opening.Go(func() error {
		d, err := x.s.disks()
		if err == nil {
			x.unit, err = d.Create(ctx, id, m, limits)
		}
		return err
	})
}

func (x *session) limits() disk.Limits {
	l := disk.Limits{Bytes: x.feature.Disk}
	if x.feature.Inodes > 0 {
		l.Inodes = &x.feature.Inodes
	}
	if x.policy != nil {
		l.Total = x.policy.DiskTotal
	}
	return l
}

func openLayers(driver string, o snapshot.OpenOptions) (snapshot.Layers, error) {
	if driver == snapshot.DriverCopy {
		return copytree.Open(o)
	}
	return overlay.Open(o)
}

func createLayers(driver string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	if driver == snapshot.DriverCopy {
		return copytree.Create(o)
	}
	return overlay.Create(o)
}

func forkLayers(ctx context.Context, driver string, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	if driver == snapshot.DriverCopy {
		return copytree.Fork(ctx, from, at, o)
	}
	return overlay.Fork(ctx, from, at, o)
}

func repairLayers(ctx context.Context, driver string, o snapshot.OpenOptions) ([]snapshot.DamageError, error) {
	if driver == snapshot.DriverCopy {
		return copytree.Repair(ctx, o)
	}
	return overlay.Repair(ctx, o)
}

func (x *session) logDir() string { return filepath.Join(x.dir, "log") }

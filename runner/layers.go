package runner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/overlay"
)

// open opens what lies on disk of a feature whose lock is held.
func (x *session) open(ctx context.Context, a access) (err error) {
	if err := x.openUnit(ctx); err != nil {
		return err
	}
	x.layers, err = openLayers(x.feature.Driver, x.openOptions(ctx, a == reading))
	if err != nil {
		return damaged(err, x.feature.Name)
	}
	if a == writing {
		return x.reconcile(ctx, false)
	}
	return nil
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
		x.layers, err = createLayers(x.feature.Driver, snapshot.CreateOptions{Dir: x.base(), Workspace: x.feature.Workspace,
			Feature: x.feature.ID, Bases: x.s.bases(), Owner: owner, UserXattr: !x.s.privileged(), Journal: x.dir, Sync: x.syncer()})
	} else {
		err = x.open(ctx, writing)
	}
	if err != nil {
		return err
	}
	for _, m := range x.mounts {
		if err := x.homeMountpoint(m, owner); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(x.dir, "log"), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return writeOnce(machineID(x.dir), x.feature.ID)
}

func (x *session) owner() snapshot.Owner {
	uid, gid := x.ids.Host(inside, inside)
	return snapshot.Owner{UID: uid, GID: gid}
}

func (x *session) makeUnit(ctx context.Context) error {
	if x.feature.Mechanism == "" {
		return nil
	}
	d, err := x.s.disks()
	if err != nil {
		return err
	}
	x.unit, err = d.Create(ctx, x.feature.ID, disk.Mechanism(x.feature.Mechanism), x.limits())
	return err
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

func openLayers(_ string, o snapshot.OpenOptions) (snapshot.Layers, error) { return overlay.Open(o) }

func createLayers(_ string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	return overlay.Create(o)
}

func forkLayers(ctx context.Context, _ string, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	return overlay.Fork(ctx, from, at, o)
}

func (x *session) logDir() string { return filepath.Join(x.dir, "log") }

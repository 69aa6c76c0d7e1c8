package promote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// keeper makes a base layer: the old side of every op, whiteouts where the promote adds, and the directories above with
// the looks that they have before it.
type keeper struct {
	*promotion
	ctx   context.Context
	root  *beneath.Root
	to    *layer.Writer
	at    beneath.Cursor // in the workspace
	into  beneath.Cursor // in the base layer
	made  map[string]bool
	same  bool // both are on one filesystem
	lease bool // the filesystem can tell whether a file is open for writing
}

// keep makes the base layer of the promote's generation, complete but neither durable nor published.
func (p *promotion) keep(ctx context.Context) error {
	b := p.t.Bases
	if err := b.drop(ctx, p.plan.Generation); err != nil {
		return err
	}
	if p.t.Seen != nil {
		err := CanKeep(b.dir)
		if errors.Is(err, ErrCannotKeep) {
			return p.writeTouched() // then nobody's layers lie here: they are copies, as this feature's
		}
		if err != nil {
			return err
		}
	}
	dir := b.path(p.plan.Generation)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := beneath.OpenRoot(dir)
	if err != nil {
		return err
	}
	root.Ours = true
	k := &keeper{
		promotion: p, ctx: ctx, root: root, to: layer.NewWriter(root, markOf()), made: map[string]bool{}, lease: true,
		at: beneath.Cursor{Root: p.base}, into: beneath.Cursor{Root: root},
	}
	err = k.all()
	if err == nil {
		err = k.to.Finish()
	}
	k.to.Abandon()
	k.at.Close()
	k.into.Close()
	if err == nil {
		err = p.writeTouched()
	}
	return errors.Join(err, root.Close())
}

// ErrCannotKeep is what CanKeep says of a file system that takes no layers.
var ErrCannotKeep = errors.New("no layers can lie here")

// CanKeep says why base layers cannot lie in dir, nil when they can: before kernel 6.7 an overlay takes none of the marks that a
// layer needs, nor does a file system without extended attributes. That is ErrCannotKeep; any other error, as that of a full
// disk, says nothing about it. It leaves nothing behind.
func CanKeep(dir string) error {
	at, err := os.MkdirTemp(dir, "keep-probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(at) }()
	root, err := beneath.OpenRoot(at)
	if err != nil {
		return err
	}
	root.Ours = true
	defer root.Close()
	if err := mark(layer.NewWriter(root, markOf())); err != nil {
		for _, no := range []error{unix.EOPNOTSUPP, unix.EPERM, unix.EINVAL} {
			if errors.Is(err, no) {
				return fmt.Errorf("%w: %w", ErrCannotKeep, err)
			}
		}
		return err
	}
	return nil
}

// mark makes what CanKeep tries. Tests replace it.
var mark = func(w *layer.Writer) error {
	defer w.Abandon()
	if err := w.SetMark("", "opaque", "y"); err != nil {
		return err
	}
	return w.Whiteout("gone")
}

// markOf is the prefix of the marks that this user's overlays obey.
func markOf() string {
	if os.Geteuid() != 0 {
		return "user.overlay."
	}
	return "trusted.overlay."
}

// writeTouched writes the paths of the change beside the base layer.
func (p *promotion) writeTouched() error {
	paths := make([][]byte, len(p.c.Entries))
	for i := range p.c.Entries {
		paths[i] = []byte(p.c.Entries[i].Path)
	}
	data, err := json.Marshal(paths)
	if err != nil {
		return err
	}
	return journal.WriteFile(p.t.Bases.dir, p.t.Bases.list(p.plan.Generation), data)
}

func (k *keeper) all() error {
	var here, there unix.Stat_t
	if err := errors.Join(unix.Fstat(k.base.FD, &there), unix.Fstat(k.root.FD, &here)); err != nil {
		return k.root.Fail("stat", ".", err)
	}
	k.same = here.Dev == there.Dev
	for i := range k.plan.Dirs {
		if err := k.directory(string(k.plan.Dirs[i].Path)); err != nil {
			return err
		}
	}
	// What we do beside the workspace's own names is nobody else's business.
	if err := k.to.Whiteout(k.plan.Stage); err != nil {
		return err
	}
	for i := range k.plan.Ops {
		if err := k.op(i); err != nil {
			return err
		}
		journal.Step("kept")
	}
	return nil
}

// op keeps the old side of one op.
func (k *keeper) op(i int) error {
	from, to := k.entries[i].from, k.entries[i].to
	top := &k.c.Entries[from]
	if top.OldType == "" {
		return k.to.Whiteout(top.Path)
	}
	for n := from; n < to; n++ {
		if k.ctx.Err() != nil {
			return context.Cause(k.ctx)
		}
		e := &k.c.Entries[n]
		var err error
		switch e.OldType {
		case "":
			continue
		case tree.Dir:
			err = k.directory(e.Path)
			if err == nil && n == from {
				err = k.to.SetMark(e.Path, "opaque", "y")
			}
		default:
			err = k.object(n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// directory makes one that looks like the workspace's, with those above it.
func (k *keeper) directory(path string) error {
	if k.made[path] {
		return nil
	}
	k.made[path] = true
	if path != "" {
		if err := k.directory(parentOf(path)); err != nil {
			return err
		}
	}
	fd, err := k.base.Open(path, beneath.ReadDir)
	if err != nil {
		return k.base.Fail("keep", path, err)
	}
	defer unix.Close(fd)
	return k.to.Dir(path, fd, &layer.Source{Root: k.base, Base: true, Name: path})
}

// object keeps anything else: as a link where nobody can change it through another name or an open descriptor. Of a group
// of hard links what the promote takes is kept as a group; names that it leaves in the workspace are no links of those
// any more, because what is written to them must not change what is kept.
func (k *keeper) object(n int) error {
	e := &k.c.Entries[n]
	dir, name, err := k.at.Parent(e.Path)
	s := layer.Source{Root: k.base, Base: true, Dir: dir, Name: name}
	if err == nil {
		err = beneath.StatAt(dir, name, &s.Stat)
	}
	if err != nil {
		return k.base.Fail("keep", e.Path, err)
	}
	linked := false
	if k.same && beneath.IsFile(&s.Stat) && s.Stat.Nlink == 1 {
		if linked, err = k.link(e.Path, &s); err != nil {
			return k.base.Fail("keep", e.Path, err)
		}
	}
	if !linked {
		return k.to.Copy(k.ctx, &s, e.Path)
	}
	k.promotion.linked = append(k.promotion.linked, n)
	// The link gave it a new ctime.
	now := s.Stat
	if err := beneath.StatAt(dir, name, &now); err != nil {
		return k.base.Fail("keep", e.Path, err)
	}
	if seen := &k.seen[n]; seen.Same(journal.See(&now)) {
		seen.Ctime = journal.See(&now).Ctime
	}
	return nil
}

// unwritten takes a lease that the kernel gives only while nobody has the file open, or mapped, for writing: unix.EAGAIN.
// Who opens it from then on waits until fd is closed.
func unwritten(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	return err
}

// link links a file of the workspace into the base layer, if nobody has it open for writing.
func (k *keeper) link(path string, s *layer.Source) (bool, error) {
	fd, err := k.base.OpenFile(s.Dir, s.Name)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd) // ends the lease
	if !k.lease {
		return false, nil
	}
	if err := unwritten(fd); err != nil {
		k.lease = errors.Is(err, unix.EAGAIN) // otherwise the filesystem has none, or the file is another's
		return false, nil
	}
	dir, name, err := k.into.Parent(path)
	if err != nil {
		return false, err
	}
	err = unix.Linkat(unix.AT_FDCWD, beneath.ProcFD(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

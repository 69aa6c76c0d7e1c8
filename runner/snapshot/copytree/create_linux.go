package copytree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
)

// Possible says why trees cannot be copied into dir, nil when they can: its file system has to keep modes and symbolic links,
// which FAT and others do not. It leaves nothing behind.
func Possible(dir string) error {
	at, err := os.MkdirTemp(dir, "copy-probe-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(at) }()
	file := filepath.Join(at, "file")
	err = errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("file", filepath.Join(at, "link")))
	if err == nil {
		err = os.Chmod(file, 0o751)
	}
	if err != nil {
		return err
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o751 {
		return errors.Join(fmt.Errorf("the file system of %s keeps no modes", dir), err)
	}
	return nil
}

// Create copies the workspace twice: as the base and as the first current layer. Errors are *snapshot.WorkspaceError for
// the workspace and fs.ErrExist for a directory that holds layers already.
func Create(o snapshot.CreateOptions) (snapshot.Layers, error) {
	ctx := context.Background()
	l, s, err := begin(o)
	if err != nil {
		return nil, err
	}
	base, err := l.copyBase(ctx, &s)
	if err != nil {
		return nil, err
	}
	p := place{tree: base, base: base, generation: s.Generation, origin: s.Origin}
	return l.found(ctx, s, &p)
}

// Fork makes the layers of a new feature that begins with a copy of another's checkpoint, or of its base. The new feature
// needs the other's layers of both as long as it lives (Layers.Refs). The checkpoint is among its Records.
func Fork(ctx context.Context, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	if at == snapshot.Current {
		return nil, fmt.Errorf("fork of what is not sealed: %w", snapshot.ErrCheckpoint)
	}
	from.ReadOnly = true
	origin, err := open(from)
	if err != nil {
		return nil, err
	}
	p, err := origin.at(at)
	if err != nil {
		return nil, err
	}
	was := origin.book.State()
	o.Workspace, o.UserXattr = was.Workspace, was.UserXattr
	l, s, err := begin(o)
	if err != nil {
		return nil, err
	}
	l.places.Know(from.Feature, from.Dir)
	l.places.Find = from.Resolve
	s.Generation, s.Origin = p.generation, p.origin
	if p.id == "" {
		return l.found(ctx, s, &p)
	}
	r, err := origin.book.Record(p.id)
	if err != nil {
		return nil, err
	}
	s.Head, s.Ground = p.id, p.id
	made, err := l.found(ctx, s, &p)
	if err != nil {
		return nil, err
	}
	r.Parent = "" // it is not this feature's
	return made, l.book.Add(r)
}

// begin looks at the workspace and makes the feature's directory.
func begin(o snapshot.CreateOptions) (*layers, book.State, error) {
	dir, s, err := book.Begin(snapshot.DriverCopy, o)
	if err != nil {
		return nil, s, err
	}
	l := &layers{
		dir: dir, journal: cmp.Or(o.Journal, dir), durable: o.Sync, feature: o.Feature, next: 1,
		places: book.Places{Feature: o.Feature, Dir: dir},
	}
	if l.bases, err = promote.OpenBases(cmp.Or(o.Bases, filepath.Join(dir, "bases")), s.Workspace); err != nil {
		return nil, s, err
	}
	s.Generation = l.bases.Generation()
	return l, s, l.makePoints(s.Owner)
}

// makePoints makes the directory of HOME's mount points.
func (l *layers) makePoints(o snapshot.Owner) error {
	if err := os.MkdirAll(l.points(), 0o755); err != nil {
		return err
	}
	return own(l.points(), o)
}

// own gives one of our own directories to o, with mode 0755.
func own(path string, o snapshot.Owner) error {
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := errors.Join(beneath.Chown(r.FD, o.UID, o.GID), os.Chmod(path, 0o755)); err != nil {
		return r.Fail("create", ".", err)
	}
	return nil
}

// found makes the current layer, a copy of a state, and the book.
func (l *layers) found(ctx context.Context, s book.State, p *place) (snapshot.Layers, error) {
	n, err := l.take()
	if err != nil {
		return nil, err
	}
	if err := l.fill(ctx, n, p); err != nil {
		return nil, err
	}
	s.Current, s.Lower = n, []snapshot.LayerRef{p.base}
	if l.book, err = book.Create(l.dir, s); err != nil {
		return nil, err
	}
	return l, l.look(ctx, s.Head)
}

// Open opens what Create or Fork made, and finishes what was cut short. Errors are those of book.Open and
// *snapshot.DamageError.
func Open(o snapshot.OpenOptions) (snapshot.Layers, error) {
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		if err := l.recover(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func open(o snapshot.OpenOptions) (*layers, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	b, err := book.Open(dir)
	if err != nil {
		return nil, err
	}
	s := b.State()
	if s.Driver != snapshot.DriverCopy || len(s.Lower) == 0 {
		return nil, &snapshot.DamageError{Path: filepath.Join(dir, book.StateFile), Err: fmt.Errorf("is of driver %q", s.Driver)}
	}
	l := &layers{
		dir: dir, journal: cmp.Or(o.Journal, dir), durable: o.Sync, feature: s.Feature, readOnly: o.ReadOnly,
		places: book.Places{Feature: s.Feature, Dir: dir, Find: o.Resolve}, book: b, next: s.Next,
	}
	if l.bases, err = promote.OpenBases(cmp.Or(o.Bases, filepath.Join(dir, "bases")), s.Workspace); err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.book.Layer(s.Current)); err != nil {
		return nil, &snapshot.DamageError{Path: l.book.Layer(s.Current), Err: err}
	}
	for _, ref := range s.Lower {
		if _, err := l.places.Layer(ref); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// recover finishes what was cut short.
func (l *layers) recover() error {
	promoted, err := promote.Recover(l.journal, l.bases)
	if err != nil {
		return err
	}
	if promoted {
		if err := l.promoted(context.Background()); err != nil {
			return err
		}
	}
	// Layers that were never given away. What is below Next waits for Collect, which knows what others need.
	numbers, err := l.book.Numbers()
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if n >= l.next {
			if err := l.discard(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Repair makes a damaged feature usable as far as that goes, and names everything that cannot be used. A state that cannot be
// read is made anew on the newest checkpoint that can; what was not sealed is lost with it. It can be repeated.
func Repair(ctx context.Context, o snapshot.OpenOptions) ([]snapshot.DamageError, error) {
	o.ReadOnly = false
	var found []snapshot.DamageError
	l, err := open(o)
	if damage := (*snapshot.DamageError)(nil); errors.As(err, &damage) {
		found = append(found, *damage)
		if l, err = restore(ctx, o); err != nil {
			return found, err
		}
	}
	if err != nil {
		return nil, err
	}
	if err := l.recover(); err != nil {
		return found, err
	}
	more, err := l.book.Repair()
	if err != nil {
		return found, err
	}
	found = append(found, more...)
	all, err := l.Records()
	return book.Unusable(l.dir, all, found), err
}

// restore opens a feature whose state is lost. The new current layer is a copy of the newest checkpoint.
func restore(ctx context.Context, o snapshot.OpenOptions) (*layers, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	_, err = book.Restore(dir, func(b *book.Book) error {
		s := b.State()
		l := &layers{dir: dir, feature: s.Feature, book: b, places: book.Places{Feature: s.Feature, Dir: dir, Find: o.Resolve}, next: s.Current}
		r, err := b.Record(s.Head)
		if err != nil {
			return err
		}
		p, err := placeOf(&r)
		if err != nil {
			return err
		}
		n, err := l.take()
		if err != nil {
			return err
		}
		return l.fill(ctx, n, &p)
	})
	if err != nil {
		return nil, err
	}
	return open(o)
}

package overlay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Create makes the layers of a new feature. It does not wait for the disk: a feature that a power failure cut short is
// damaged or gone, as is what its sandbox wrote, because overlays are mounted volatile. Errors are
// *snapshot.WorkspaceError for the workspace and fs.ErrExist for a directory that holds layers already.
func Create(o snapshot.CreateOptions) (snapshot.Layers, error) {
	l, s, err := begin(o)
	if err != nil {
		return nil, err
	}
	return l.found(s)
}

// Fork makes the layers of a new feature that begins with a checkpoint of another, or with its base. Nothing is copied: the
// new feature needs the other's layers as long as it lives (Layers.Refs). The checkpoint is among its Records. o.Workspace
// and o.UserXattr are the other's, whatever they say.
func Fork(_ context.Context, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error) {
	from.ReadOnly = true
	origin, err := open(from)
	if err != nil {
		return nil, err
	}
	p, err := origin.at(at)
	if err == nil {
		err = origin.whole(&p)
	}
	if err != nil {
		return nil, err
	}
	if at == snapshot.Current {
		return nil, fmt.Errorf("fork of what is not sealed: %w", snapshot.ErrCheckpoint)
	}
	was := origin.book.State()
	o.Workspace, o.UserXattr = was.Workspace, was.UserXattr
	l, s, err := begin(o)
	if err != nil {
		return nil, err
	}
	l.places.Know(from.Feature, origin.dir)
	l.places.Find, l.homeOf = from.Resolve, origin.homeLower()
	s.Lower, s.Generation, s.Origin, s.Bare = p.stack, p.generation, p.origin, p.bare
	if p.id == "" {
		return l.found(s)
	}
	r, err := origin.book.Record(p.id)
	if err != nil {
		return nil, err
	}
	s.Head, s.Ground = p.id, p.id
	r.Parent = "" // it is not this feature's
	return l.found(s, r)
}

// begin looks at the workspace and makes the feature's directory.
func begin(o snapshot.CreateOptions) (*layers, book.State, error) {
	dir, s, err := book.Begin(snapshot.DriverOverlay, o)
	if err != nil {
		return nil, s, err
	}
	bases, err := promote.OpenBases(cmp.Or(o.Bases, filepath.Join(dir, "bases")), s.Workspace)
	if err != nil {
		return nil, s, err
	}
	l := &layers{
		dir: dir, journal: cmp.Or(o.Journal, dir), durable: o.Sync, feature: o.Feature, bases: bases, next: 2,
		busy: map[int]bool{}, places: book.Places{Feature: o.Feature, Dir: dir},
	}
	s.Generation, s.Current = bases.Generation(), 1
	return l, s, nil
}

// found makes HOME, the current layer and the book.
func (l *layers) found(s book.State, add ...snapshot.Record) (snapshot.Layers, error) {
	path := filepath.Join(l.dir, book.StateFile)
	if _, err := os.Lstat(path); err == nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	home := filepath.Dir(l.homeLower())
	if err := os.Mkdir(home, 0o755); errors.Is(err, fs.ErrExist) { // of an attempt that was cut short
		if err := l.empty(context.Background(), home); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	if err := os.Mkdir(l.homeLower(), 0o755); err != nil {
		return nil, err
	}
	if err := l.furnish(&s); err != nil {
		return nil, err
	}
	if err := l.make(book.LayerDir(l.dir, s.Current)); err != nil {
		return nil, err
	}
	if err := l.dress(&s, s.Current); err != nil {
		return nil, err
	}
	var err error
	l.book, err = book.Create(l.dir, s, add...)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// furnish makes the lowest layer of HOME: empty, or with the mount points of the feature that this one is forked from.
func (l *layers) furnish(s *book.State) error {
	if l.homeOf == "" {
		return (&look{Look: dirs.Look{Owner: dirs.Owner(s.Owner), Mode: 0o755}, keepMtime: true}).wear(l.homeLower())
	}
	nothing, err := tree.OpenView(nil)
	if err != nil {
		return err
	}
	return tree.Merge(context.Background(), []tree.Root{{Path: l.homeOf, UserXattr: s.UserXattr}}, nothing, l.homeLower())
}

// Open opens what Create or Fork made. Unless ReadOnly, a promote that was cut short is finished or undone first, and what
// other changes left behind is removed. Errors are fs.ErrNotExist, *snapshot.DamageError, snapshot.ErrUnsupported for
// another version's layout, and *snapshot.WorkspaceError for a workspace that a promote has to be finished in.
func Open(o snapshot.OpenOptions) (snapshot.Layers, error) {
	l, err := open(o)
	if err != nil {
		return nil, err
	}
	if o.ReadOnly {
		return l, nil
	}
	if err := l.recover(); err != nil {
		return nil, err
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
	l := &layers{
		dir: dir, journal: cmp.Or(o.Journal, dir), durable: o.Sync, feature: s.Feature, readOnly: o.ReadOnly, places: book.Places{Feature: s.Feature, Dir: dir, Find: o.Resolve},
		book: b, next: s.Next,
		busy: map[int]bool{},
	}
	// Without its workspace a feature can be looked at, repaired and removed.
	if l.baseErr = l.book.CheckWorkspace(); l.baseErr == nil {
		l.bases, l.baseErr = promote.OpenBases(cmp.Or(o.Bases, filepath.Join(dir, "bases")), s.Workspace)
	}
	if damage := (*snapshot.WorkspaceError)(nil); l.baseErr != nil && !errors.As(l.baseErr, &damage) {
		return nil, l.baseErr
	}
	if _, err := l.paths(s.Lower, "w"); err != nil {
		return nil, err
	}
	return l, nil
}

// Repair makes a damaged feature usable as far as that goes, and names everything that cannot be used. A state that cannot be
// read is made anew on the newest checkpoint that can; what was not sealed is lost with it. Checkpoints that are named
// can be dropped; the others are as they were. It can be repeated.
func Repair(_ context.Context, o snapshot.OpenOptions) ([]snapshot.DamageError, error) {
	o.ReadOnly = false
	var found []snapshot.DamageError
	l, err := open(o)
	if damage := (*snapshot.DamageError)(nil); errors.As(err, &damage) {
		found = append(found, *damage)
		if l, err = restore(o); err != nil {
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

// restore opens a feature whose state is lost.
func restore(o snapshot.OpenOptions) (*layers, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	_, err = book.Restore(dir, func(b *book.Book) error {
		s := b.State()
		l := &layers{dir: dir, feature: s.Feature, book: b, places: book.Places{Feature: s.Feature, Dir: dir, Find: o.Resolve}}
		if l.bases, err = promote.OpenBases(cmp.Or(o.Bases, filepath.Join(dir, "bases")), s.Workspace); err != nil {
			return err
		}
		if err := l.make(b.Layer(s.Current)); err != nil {
			return err
		}
		return l.dress(&s, s.Current)
	})
	if err != nil {
		return nil, err
	}
	return open(o)
}

// recover finishes what was cut short.
func (l *layers) recover() error {
	promoted, err := promote.Recover(l.journal, l.bases)
	if err != nil {
		return err
	}
	if promoted {
		if err := l.promoted(); err != nil {
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
			if err := snapshot.Remove(context.Background(), l.book.Layer(n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// HomeMountpoint makes an empty directory or file for something to be mounted on.
func (l *layers) HomeMountpoint(path string, dir bool, o snapshot.Owner) error {
	return dirs.Point(l.homeLower(), path, dir, dirs.Owner(o))
}

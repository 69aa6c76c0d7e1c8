package copytree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// layers is a feature's layers.
type layers struct {
	dir, feature string
	journal      string       // directory for a promote's journal
	durable      func() error // makes dir durable; nil: syncfs
	readOnly     bool
	bases        *promote.Bases
	book         *book.Book

	mu    sync.Mutex // held by what writes
	next  int        // the next number for a layer; what is between the book's Next and this is being made
	known *sealed    // how the current layer was when it was copied last

	reading sync.RWMutex // held for reading while a view is open: its layers stay

	places book.Places // of layers, also of other features
}

// The parts of a layer.
const (
	workspace = "w"
	home      = "h"
)

var parts = []struct{ name, target string }{{workspace, snapshot.WorkspaceTarget}, {home, snapshot.HomeTarget}}

// write locks what changes the layers.
func (l *layers) write() (unlock func(), err error) {
	if l.readOnly {
		return nil, &fs.PathError{Op: "write", Path: l.dir, Err: fs.ErrPermission}
	}
	l.mu.Lock()
	return l.mu.Unlock, nil
}

func (l *layers) Close() error { return nil }

func (l *layers) Info() snapshot.Info {
	s := l.book.State()
	return snapshot.Info{
		Driver: snapshot.DriverCopy, Workspace: s.Workspace, Feature: s.Feature, Head: s.Head,
		Generation: s.Generation, Depth: 1, Start: s.Origin.Start, Owner: s.Owner,
	}
}

func (l *layers) Records() ([]snapshot.Record, error) {
	all, err := l.book.Records()
	if err != nil {
		return nil, err
	}
	for i := range all {
		for _, ref := range all[i].Stack {
			if all[i].Damaged != "" {
				break
			}
			if _, err := l.places.Layer(ref); err != nil {
				all[i].Damaged = err.Error()
			}
		}
	}
	return all, nil
}

func (l *layers) Refs() ([]snapshot.LayerRef, error) { return l.book.Refs() }

func (l *layers) Pin(ctx context.Context) (func(), error) { return l.bases.Lock(ctx, false) }

// place is a state: a tree and the base that it began from.
type place struct {
	id         string // of the checkpoint, not of an alias; "" for the base and for the current state
	tree, base snapshot.LayerRef
	generation int
	origin     snapshot.Origin
}

// at finds a state by its name. The base is that of the current state.
func (l *layers) at(id string) (place, error) {
	s := l.book.State()
	if len(s.Lower) == 0 {
		return place{}, &snapshot.DamageError{Path: l.dir, Err: errors.New("has no base")}
	}
	p := place{base: s.Lower[len(s.Lower)-1], generation: s.Generation, origin: s.Origin}
	switch id {
	case snapshot.Base:
		p.tree = p.base
		return p, nil
	case snapshot.Current:
		p.tree = snapshot.LayerRef{Feature: s.Feature, Layer: s.Current}
		return p, nil
	}
	r, err := l.book.Record(id)
	if err != nil {
		return place{}, err
	}
	return placeOf(&r)
}

func placeOf(r *snapshot.Record) (place, error) {
	if len(r.Stack) != 2 {
		return place{}, &snapshot.DamageError{Path: r.ID, ID: r.ID, Err: fmt.Errorf("names %d layers", len(r.Stack))}
	}
	p := place{id: r.ID, tree: r.Stack[0], base: r.Stack[1], generation: r.Generation, origin: r.Origin}
	if r.AliasOf != "" {
		p.id = r.AliasOf
	}
	return p, nil
}

func (p *place) stack() []snapshot.LayerRef { return []snapshot.LayerRef{p.tree, p.base} }

// under is the state that a state began from.
func (p *place) under() place {
	return place{tree: p.base, base: p.base, generation: p.generation, origin: p.origin}
}

// view opens a part of a layer. The caller holds reading.
func (l *layers) view(ref snapshot.LayerRef, part string) (*tree.View, error) {
	dir, err := l.places.Layer(ref)
	if err != nil {
		return nil, err
	}
	return tree.OpenView([]tree.Root{{Path: filepath.Join(dir, part), Plain: true, Feature: ref.Feature, Layer: ref.Layer}})
}

// with opens the same part of two states.
func (l *layers) with(a, b *place, part string, do func(old, now *tree.View) error) error {
	l.reading.RLock()
	defer l.reading.RUnlock()
	old, err := l.view(a.tree, part)
	if err != nil {
		return err
	}
	now, err := l.view(b.tree, part)
	if err != nil {
		return errors.Join(err, old.Close())
	}
	return errors.Join(do(old, now), old.Close(), now.Close())
}

// Stacks describes binds of the current layer.
func (l *layers) Stacks() []snapshot.Stack {
	dir := l.book.Layer(l.book.State().Current)
	list := make([]snapshot.Stack, len(parts))
	for i, part := range parts {
		list[i] = snapshot.Stack{Target: part.target, Upper: filepath.Join(dir, part.name)}
	}
	return list
}

// StacksAt describes read-only binds of a state.
func (l *layers) StacksAt(id string) ([]snapshot.Stack, error) {
	p, err := l.at(id)
	if err != nil {
		return nil, err
	}
	dir, err := l.places.Layer(p.tree)
	if err != nil {
		return nil, err
	}
	list := make([]snapshot.Stack, len(parts))
	for i, part := range parts {
		list[i] = snapshot.Stack{Target: part.target, Lower: []snapshot.Layer{{Path: filepath.Join(dir, part.name)}}}
	}
	return list, nil
}

// Prepare has nothing to do: a bind leaves no marks.
func (l *layers) Prepare() error {
	if l.readOnly {
		return fs.ErrPermission
	}
	return nil
}

// Rebase has nothing to do: what others promote does not show here.
func (l *layers) Rebase() error { return l.Prepare() }

func (l *layers) OpenFile(at, path string) (f *os.File, err error) {
	err = l.looking(at, func(v *tree.View) error {
		f, err = v.Open(path)
		return err
	})
	return f, err
}

// Readlink reads a link of a state's workspace.
func (l *layers) Readlink(at, path string) (to string, err error) {
	err = l.looking(at, func(v *tree.View) error {
		to, err = v.Readlink(path)
		return err
	})
	return to, err
}

// looking opens a state's workspace.
func (l *layers) looking(at string, do func(*tree.View) error) error {
	p, err := l.at(at)
	if err != nil {
		return err
	}
	l.reading.RLock()
	defer l.reading.RUnlock()
	v, err := l.view(p.tree, workspace)
	if err != nil {
		return err
	}
	defer v.Close()
	return do(v)
}

// HomeMountpoint makes an empty directory or file in HOME, here and in every state to come.
func (l *layers) HomeMountpoint(path string, dir bool, o snapshot.Owner) error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	current := filepath.Join(l.book.Layer(l.book.State().Current), home)
	for _, root := range []string{l.points(), current} {
		if err := dirs.Point(root, path, dir, dirs.Owner(o)); err != nil {
			return err
		}
	}
	return nil
}

// points is a directory with HOME's mount points and nothing else.
func (l *layers) points() string { return filepath.Join(l.dir, "home", "lower") }

// ids is the translation of the feature's owners.
func (l *layers) ids() (dirs.IDs, error) {
	s := l.book.State()
	return idsOf(&s)
}

func idsOf(s *book.State) (dirs.IDs, error) {
	var st unix.Stat_t
	if err := unix.Stat(s.Workspace, &st); err != nil {
		return dirs.IDs{}, &fs.PathError{Op: "stat", Path: s.Workspace, Err: err}
	}
	return dirs.NewIDs(dirs.Owner(s.Owner), dirs.Owner{UID: st.Uid, GID: st.Gid}, s.UserXattr), nil
}

// Package overlay keeps a feature's layers as directories that overlayfs stacks: snapshot.Layers for every filesystem that
// can be an upper layer.
//
// A layer is layers/N/w for the workspace and layers/N/h for HOME, beside overlayfs' scratch directories ww and hw. The
// current layer is the upper of both mounts. Nothing is ever renamed to be sealed: sealing is writing down that the layer
// is finished, and that another, fresh one is current (package book). Mounts, descriptors and paths of the old one stay
// valid, so that it costs the same for every tree.
//
// While processes hold the current layer it cannot be taken away from them: then what changed in it since the last seal is
// copied into a layer of its own, a delta. Deltas of one upper lie on each other and on what lies below the upper; the next
// rotation seals the upper itself, and deltas serve their own checkpoints only.
//
// Below a stack lie the base layers of the generations that the feature has not seen (package promote), and the workspace.
package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// maxDepth is how many layers a stack may have. The kernel takes 500 lower layers, base layers and the workspace among them.
const maxDepth = 480

// layers is a feature's layers.
type layers struct {
	dir, feature string
	journal      string       // directory for a promote's journal
	durable      func() error // nil: syncfs
	homeOf       string       // while forking: the other's lowest layer of HOME
	readOnly     bool
	bases        *promote.Bases
	baseErr      error // why there are none: the workspace is gone
	book         *book.Book

	mu        sync.Mutex // held by what writes
	next      int        // the next number for a layer; what is between the book's Next and this is being made
	spare     int        // a layer that is made and waits to be used; 0: none
	busy      map[int]bool
	untrimmed []int   // sealed layers that have their scratch directories still
	copied    *copied // what the head's delta knows of the current layer; nil if none does

	reading  sync.RWMutex // held for reading while a view is open: its layers stay
	sizes    sync.Map     // layer number → usage, of sealed layers
	contents sync.Map     // layer number → *contents, likewise
	summed   atomic.Int64 // how many sums are in contents

	places book.Places // of layers, also of other features
}

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
		Driver: snapshot.DriverOverlay, Workspace: s.Workspace, Feature: s.Feature, Head: s.Head,
		Generation: s.Generation, Depth: len(s.Lower) + 1, Start: s.Origin.Start, Owner: s.Owner,
	}
}

func (l *layers) Records() ([]snapshot.Record, error) {
	all, err := l.book.Records()
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Damaged != "" {
			continue
		}
		if _, err := l.paths(all[i].Stack, "w"); err != nil {
			all[i].Damaged = err.Error()
		}
	}
	return all, nil
}

func (l *layers) Refs() ([]snapshot.LayerRef, error) { return l.book.Refs() }

func (l *layers) Pin(ctx context.Context) (func(), error) {
	if l.bases == nil {
		return nil, l.baseErr
	}
	if err := l.fits(); err != nil {
		return nil, err
	}
	return l.bases.Lock(ctx, false)
}

// fits refuses a current state that the kernel will not mount, because of too many promotes since its generation.
func (l *layers) fits() error {
	s := l.book.State()
	if n := len(s.Lower) + len(l.bases.Above(s.Generation)) + 1; n > 500 {
		return fmt.Errorf("%w: %d, most of them of promotes since the feature began", snapshot.ErrDepth, n)
	}
	return nil
}

// place is a state: what is stacked on the base.
type place struct {
	id         string // of the checkpoint, not of an alias; "" for the base and for the current state
	stack      []snapshot.LayerRef
	generation int
	origin     snapshot.Origin
	bare       bool
}

// at finds a state by its name. The base is that of the current state.
func (l *layers) at(id string) (place, error) {
	s := l.book.State()
	switch id {
	case snapshot.Base:
		return place{generation: s.Generation, origin: s.Origin}, nil
	case snapshot.Current:
		stack := append([]snapshot.LayerRef{{Feature: s.Feature, Layer: s.Current}}, s.Lower...)
		return place{stack: stack, generation: s.Generation, origin: s.Origin, bare: s.Bare}, nil
	}
	r, err := l.book.Record(id)
	if err != nil {
		return place{}, err
	}
	if r.AliasOf != "" {
		r.ID = r.AliasOf
	}
	return place{id: r.ID, stack: r.Stack, generation: r.Generation, origin: r.Origin, bare: r.Bare}, nil
}

// paths returns the directories of a stack: part "w" of the workspace, "h" of HOME.
func (l *layers) paths(stack []snapshot.LayerRef, part string) ([]string, error) {
	list := make([]string, len(stack))
	for i, ref := range stack {
		dir, err := l.places.Layer(ref)
		if err != nil {
			return nil, err
		}
		list[i] = dir + "/" + part
	}
	return list, nil
}

// whole makes sure that all layers of a state are there. Making it the current one does not open them, and the mount, which
// does, comes when there is no way back.
func (l *layers) whole(p *place) error {
	for _, part := range []string{"w", "h"} {
		dirs, err := l.paths(p.stack, part)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if _, err := os.Lstat(dir); err != nil {
				return &snapshot.DamageError{Path: dir, ID: p.id, Err: err}
			}
		}
	}
	return nil
}

// roots lists the directories that a state's view is made of, newest first.
func (l *layers) roots(p *place, part string) ([]tree.Root, error) {
	s := l.book.State()
	return l.rootsOf(&s, p, part)
}

func (l *layers) rootsOf(s *book.State, p *place, part string) ([]tree.Root, error) {
	dirs, err := l.paths(p.stack, part)
	if err != nil {
		return nil, err
	}
	var roots []tree.Root
	for i, dir := range dirs {
		roots = append(roots, tree.Root{Path: dir, UserXattr: s.UserXattr, Feature: p.stack[i].Feature, Layer: p.stack[i].Layer})
	}
	switch {
	case part == "h":
		return append(roots, tree.Root{Path: l.homeLower(), UserXattr: s.UserXattr}), nil
	case p.bare:
		return roots, nil
	case l.bases == nil:
		return nil, l.baseErr
	}
	roots = append(roots, l.bases.Above(p.generation)...)
	return append(roots, tree.Root{Path: s.Workspace, Base: true, UserXattr: s.UserXattr}), nil
}

func (l *layers) homeLower() string { return filepath.Join(l.dir, "home", "lower") }

// view opens the merged view of a state. The caller holds what is read: see hold.
func (l *layers) view(p *place, part string) (*tree.View, error) {
	roots, err := l.roots(p, part)
	if err != nil {
		return nil, err
	}
	if part == "w" {
		if err := l.book.CheckWorkspace(); err != nil {
			return nil, err
		}
	}
	return tree.OpenView(roots)
}

// stacks describes the mounts of a state; without an upper layer if current is 0.
func (l *layers) stacks(p *place, current int) ([]snapshot.Stack, error) {
	var list []snapshot.Stack
	for _, m := range []struct{ target, part string }{{snapshot.WorkspaceTarget, "w"}, {snapshot.HomeTarget, "h"}} {
		roots, err := l.roots(p, m.part)
		if err != nil {
			return nil, err
		}
		st := snapshot.Stack{Target: m.target}
		if current != 0 {
			st.Upper, st.Work = l.book.Layer(current)+"/"+m.part, l.book.Layer(current)+"/"+m.part+"w"
			if m.part == "w" {
				st.Work = l.book.Layer(current) + "/ww"
			}
		}
		for _, r := range roots {
			st.Lower = append(st.Lower, snapshot.Layer{Path: r.Path, Base: r.Base})
		}
		list = append(list, st)
	}
	return list, nil
}

// Stacks describes the mounts of the current state.
func (l *layers) Stacks() []snapshot.Stack {
	s := l.book.State()
	list, err := l.stacks(&place{stack: s.Lower, generation: s.Generation, bare: s.Bare}, s.Current)
	if err != nil {
		return nil // Open has resolved them all; without a workspace there are none, as Pin says
	}
	return list
}

// StacksAt describes read-only mounts of a state.
func (l *layers) StacksAt(id string) ([]snapshot.Stack, error) {
	p, err := l.at(id)
	if err != nil {
		return nil, err
	}
	list, err := l.stacks(&p, 0)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if err := l.double(&list[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// double puts an empty directory on a stack of one: overlayfs wants two lower layers where there is no upper one.
func (l *layers) double(s *snapshot.Stack) error {
	if len(s.Lower) > 1 {
		return nil
	}
	look, err := readLook(s.Lower[0].Path)
	if err != nil {
		return err
	}
	if s.Lower[0].Base {
		look.Owner = dirs.Owner(l.book.State().Owner)
	}
	path := filepath.Join(l.dir, "empty-"+strings.TrimPrefix(filepath.Base(s.Target), "/"))
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := look.wear(path); err != nil {
		return err
	}
	s.Lower = append([]snapshot.Layer{{Path: path}}, s.Lower...)
	return nil
}

// Prepare readies the scratch directories for the next mount: overlayfs refuses layers that were mounted volatile, until
// its mark is gone.
func (l *layers) Prepare() error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	at := l.book.Layer(l.book.State().Current)
	for _, work := range []string{"ww", "hw"} {
		if err := snapshot.Remove(context.Background(), filepath.Join(at, work, "work")); err != nil {
			return err
		}
	}
	return nil
}

// Rebase has nothing to do but to refuse: Stacks asks for the base layers each time.
func (l *layers) Rebase() error {
	switch {
	case l.readOnly:
		return fs.ErrPermission
	case l.bases == nil:
		return l.baseErr
	}
	return l.fits()
}

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
	v, err := l.view(&p, "w")
	if err != nil {
		return err
	}
	defer v.Close()
	return do(v)
}

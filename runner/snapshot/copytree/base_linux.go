package copytree

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// baseFile, in a base, is the manifest of the workspace. It is no JSON: paths are any bytes.
const baseFile = "base"

// copyBase makes a layer of the workspace as it is now, and notes how its objects looked.
func (l *layers) copyBase(ctx context.Context, s *book.State) (snapshot.LayerRef, error) {
	n, err := l.take()
	if err != nil {
		return snapshot.LayerRef{}, err
	}
	ref := snapshot.LayerRef{Feature: s.Feature, Layer: n}
	if err := l.fillBase(ctx, s, n); err != nil {
		return ref, errors.Join(err, l.discard(n))
	}
	return ref, nil
}

func (l *layers) fillBase(ctx context.Context, s *book.State, n int) error {
	ids, err := idsOf(s)
	if err != nil {
		return err
	}
	v, err := tree.OpenView([]tree.Root{{Path: s.Workspace, Base: true}})
	if err != nil {
		return err
	}
	at := book.LayerDir(l.dir, n)
	seen, err := copyView(ctx, v, filepath.Join(at, workspace), ids.FromBase)
	if err = errors.Join(err, v.Close()); err != nil {
		return err
	}
	if err := own(filepath.Join(at, home), s.Owner); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(at, baseFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(gob.NewEncoder(f).Encode(seen), f.Close()); err != nil {
		return err
	}
	// As book.SealLayer: there may be no book yet, and until there is nobody reads it.
	return os.WriteFile(filepath.Join(at, book.LayerFile), []byte("{\"id\":\"\"}\n"), 0o600)
}

// readBase returns the manifest of a base.
func (l *layers) readBase(ref snapshot.LayerRef) (manifest, error) {
	dir, err := l.places.Layer(ref)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, baseFile)
	f, err := os.Open(path)
	if err != nil {
		return nil, &snapshot.DamageError{Path: path, Err: err}
	}
	defer f.Close()
	var seen manifest
	if err := gob.NewDecoder(f).Decode(&seen); err != nil {
		return nil, &snapshot.DamageError{Path: path, Err: err}
	}
	return seen, nil
}

// noteCurrent marks, in the promote's journal, that what is promoted is what the feature shows.
const noteCurrent = `"current"`

// Promote hands a change over.
func (l *layers) Promote(ctx context.Context, c *snapshot.Change, o snapshot.PromoteOptions) (*snapshot.PromoteReport, error) {
	unlock, err := l.write()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c == nil || c.From != snapshot.Base {
		return nil, snapshot.ErrStaleChange
	}
	var r *snapshot.PromoteReport
	err = l.ofChange(c, func(p tree.Pair, to *place) error {
		t, err := l.target(p, to, c)
		if err != nil {
			return err
		}
		same, err := l.shows(ctx, c.To)
		if err != nil {
			return err
		}
		if same {
			t.Note = []byte(noteCurrent)
		}
		switch o.Kind {
		case snapshot.PromoteApply, "":
			r, err = promote.Apply(ctx, t, c, o.Moving)
		case snapshot.PromotePatch:
			r, err = promote.Patch(ctx, t, c, o.PatchFile)
		default:
			err = fmt.Errorf("promote as %q: %w", o.Kind, snapshot.ErrUnsupported)
		}
		return err
	})
	if r == nil {
		return nil, err
	}
	return r, errors.Join(err, l.promoted(context.WithoutCancel(ctx)))
}

// target is what package promote needs of a change.
func (l *layers) target(p tree.Pair, to *place, c *snapshot.Change) (promote.Target, error) {
	t := promote.Target{
		Dir: l.journal, Workspace: l.book.State().Workspace, Bases: l.bases, Old: p.Old, New: p.New, Generation: to.generation,
	}
	if c.Resolved != nil {
		t.Generation = c.Resolved.Generation
		return t, nil
	}
	seen, err := l.readBase(to.base)
	t.Seen = func(path string) (tree.Seen, bool) { s, ok := seen[path]; return s, ok }
	return t, err
}

// shows reports whether the current state is that of a name.
func (l *layers) shows(ctx context.Context, name string) (bool, error) {
	if name == snapshot.Current {
		return true, nil
	}
	s := l.book.State()
	if p, err := l.at(name); err != nil || p.id != l.meant(s.Head) {
		return false, err
	}
	return l.untouched(ctx, &s)
}

// promoted begins the feature anew after a promote of its current state, and ends the promote. It can be repeated.
func (l *layers) promoted(ctx context.Context) error {
	note, pending, err := promote.Pending(l.journal)
	if err != nil || !pending {
		return err
	}
	if string(note) != noteCurrent {
		return promote.Forget(l.journal)
	}
	if err := l.book.CheckWorkspace(); err != nil {
		return err
	}
	next := l.book.State()
	next.Head, next.Ground = "", ""
	if next.Generation, err = promote.Generation(l.journal); err != nil {
		return err
	}
	if next.Origin, err = l.book.OriginNow(); err != nil {
		return err
	}
	base, err := l.copyBase(ctx, &next)
	if err != nil {
		return err
	}
	p := place{tree: base, base: base, generation: next.Generation, origin: next.Origin}
	if err := l.advance(ctx, next, &p); err != nil {
		return errors.Join(err, l.discard(base.Layer))
	}
	if err := l.sync(); err != nil {
		return err
	}
	return promote.Forget(l.journal)
}

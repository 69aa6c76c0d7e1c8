package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// ends finds what a change goes from and to. The base is the one that the other end was made on.
func (l *layers) ends(from, to string) (a, b place, err error) {
	if a, err = l.at(from); err != nil {
		return a, b, err
	}
	if b, err = l.at(to); err != nil {
		return a, b, err
	}
	if from == snapshot.Base {
		a.generation, a.origin = b.generation, b.origin
	}
	if to == snapshot.Base {
		b.generation, b.origin = a.generation, a.origin
	}
	return a, b, nil
}

// Change compares two states.
func (l *layers) Change(ctx context.Context, from, to string) (*snapshot.Change, error) {
	return l.changeOf(ctx, from, to, nil)
}

// changeOf is Change, of some paths only.
func (l *layers) changeOf(ctx context.Context, from, to string, only func(path string) bool) (*snapshot.Change, error) {
	a, b, err := l.ends(from, to)
	if err != nil {
		return nil, err
	}
	o := tree.CompareOptions{Only: only}
	if from == snapshot.Base {
		if o.Touched, err = promote.Touched(l.journal); err != nil {
			return nil, err
		}
		o.Since, o.RootMode, o.RootXattr = b.origin.Start, b.origin.RootMode, b.origin.RootXattr
	}
	c, err := l.compare(ctx, &a, &b, o)
	if err != nil {
		return nil, err
	}
	c.From, c.To = from, to
	return c, nil
}

// Same reports whether two states are equal but for times.
func (l *layers) Same(ctx context.Context, a, b string) (bool, error) {
	from, to, err := l.ends(a, b)
	if err != nil {
		return false, err
	}
	for _, part := range parts {
		c, err := l.compareAll(ctx, &from, &to, part.name, false)
		if err != nil || len(c.Entries) > 0 {
			return false, err
		}
	}
	return true, nil
}

// compare compares the workspace of two states.
func (l *layers) compare(ctx context.Context, a, b *place, o tree.CompareOptions) (*snapshot.Change, error) {
	var c *snapshot.Change
	err := l.with(ctx, [2]*place{a, b}, "w", func(old, now *tree.View) (err error) {
		o.Sums = l.sums(now)
		c, err = tree.Compare(ctx, old, now, o)
		return err
	})
	return c, err
}

// with opens the views of two states, an old and a new one. Nothing is promoted to the workspace meanwhile: what a promote
// takes away shows from its base layer, which views that are open already do not have.
func (l *layers) with(ctx context.Context, of [2]*place, part string, do func(old, now *tree.View) error) error {
	release, err := l.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	old, err := l.view(of[0], part)
	if err != nil {
		return err
	}
	now, err := l.view(of[1], part)
	if err != nil {
		return errors.Join(err, old.Close())
	}
	return errors.Join(do(old, now), old.Close(), now.Close())
}

// hold keeps layers and the workspace from being collected and promoted to while a view is open.
func (l *layers) hold(ctx context.Context) (release func(), err error) {
	unpin := func() {}
	if l.bases != nil {
		if unpin, err = l.bases.Lock(ctx, false); err != nil {
			return nil, err
		}
	}
	l.reading.RLock()
	return func() {
		l.reading.RUnlock()
		unpin()
	}, nil
}

// ofChange opens the views that a change was read from: also when something was promoted since, which shows as conflicts.
func (l *layers) ofChange(c *snapshot.Change, do func(p tree.Pair, to *place) error) error {
	if c == nil || c.From == "" || c.To == "" {
		return snapshot.ErrStaleChange
	}
	_, to, err := l.ends(c.From, c.To)
	if err != nil {
		return err
	}
	l.reading.RLock()
	defer l.reading.RUnlock()
	p, err := c.Reopen()
	if err != nil {
		return err
	}
	current := l.book.State().Current
	if c.From == snapshot.Current && p.Old.Layers()[0].Layer != current ||
		c.To == snapshot.Current && p.New.Layers()[0].Layer != current {
		return errors.Join(snapshot.ErrStaleChange, p.Close())
	}
	return errors.Join(do(p, &to), p.Close())
}

// WriteDiff prints a change in git's unified format.
func (l *layers) WriteDiff(ctx context.Context, c *snapshot.Change, w io.Writer, o snapshot.DiffOptions) error {
	return l.ofChange(c, func(p tree.Pair, _ *place) error { return p.WriteDiff(ctx, c, w, o) })
}

// target is what package promote needs of a change.
func (l *layers) target(p tree.Pair, to *place, c *snapshot.Change) promote.Target {
	t := promote.Target{
		Dir: l.journal, Workspace: l.book.State().Workspace, Bases: l.bases, Old: p.Old, New: p.New, Generation: to.generation,
	}
	if c.Resolved != nil {
		t.Generation = c.Resolved.Generation
	}
	return t
}

// Resolve reads a change anew from the workspace as others made it.
func (l *layers) Resolve(ctx context.Context, c *snapshot.Change, o snapshot.Choice) (r *snapshot.Change, err error) {
	if l.bases != nil { // nothing is promoted meanwhile
		unpin, err := l.bases.Lock(ctx, false)
		if err != nil {
			return nil, err
		}
		defer unpin()
	}
	err = l.ofChange(c, func(p tree.Pair, to *place) error {
		r, err = promote.Resolve(ctx, l.target(p, to, c), c, o)
		return err
	})
	return r, err
}

// Conflicts lists the paths that the feature and others both changed, sorted.
func (l *layers) Conflicts(ctx context.Context, c *snapshot.Change) (list []snapshot.Conflict, err error) {
	err = l.ofChange(c, func(p tree.Pair, to *place) error {
		list, err = promote.Conflicts(ctx, l.target(p, to, c), c)
		return err
	})
	return list, err
}

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
		t := l.target(p, to, c)
		if l.shows(c.To) {
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
	if err != nil || o.Kind == snapshot.PromotePatch {
		return r, err // with a report: the workspace is new, and Open will finish what is left
	}
	return r, l.promoted()
}

// shows reports whether the current state is that of a name.
func (l *layers) shows(name string) bool {
	if name == snapshot.Current {
		return true
	}
	s := l.book.State()
	p, err := l.at(name)
	if err != nil || p.id != l.meant(s.Head) {
		return false
	}
	same, err := l.untouched(&s)
	return err == nil && same
}

package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
)

// Seal makes the current state a checkpoint.
func (l *layers) Seal(ctx context.Context, o snapshot.SealOptions) (snapshot.Sealed, error) {
	unlock, err := l.write()
	if err != nil {
		return snapshot.Sealed{}, err
	}
	defer unlock()
	if err := book.CheckID(o.ID); err != nil {
		return snapshot.Sealed{}, err
	}
	if _, err := l.book.Record(o.ID); !errors.Is(err, snapshot.ErrCheckpoint) {
		return snapshot.Sealed{}, fmt.Errorf("checkpoint %s: %w", o.ID, fs.ErrExist)
	}
	s := l.book.State()
	same, err := l.untouched(&s)
	switch {
	case err != nil:
		return snapshot.Sealed{}, err
	case same:
		return l.sealNothing(o, &s)
	case o.Live != nil:
		return l.sealCopy(ctx, o, &s)
	}
	return l.rotate(o, &s)
}

// record begins the record of a checkpoint of the current line.
func (l *layers) record(o snapshot.SealOptions, s *book.State) snapshot.Record {
	return snapshot.Record{
		ID: o.ID, Parent: l.meant(s.Head), Feature: s.Feature, Created: time.Now().UTC(), Meta: o.Meta,
		Generation: s.Generation, Origin: s.Origin, Bare: s.Bare,
	}
}

// meant returns the checkpoint that an id means.
func (l *layers) meant(id string) string {
	if r, err := l.book.Record(id); err == nil && r.AliasOf != "" {
		return r.AliasOf
	}
	return id
}

// sealNothing makes a checkpoint of a state that is its parent's: an alias, or a checkpoint of the base.
func (l *layers) sealNothing(o snapshot.SealOptions, s *book.State) (snapshot.Sealed, error) {
	r := l.record(o, s)
	r.Stack = l.ground(s)
	r.Depth = len(r.Stack)
	if s.Head != "" {
		r.AliasOf = r.Parent
		return snapshot.Sealed{Record: r, Alias: true}, l.book.Add(r)
	}
	next := *s
	next.Head, next.Ground = r.ID, r.ID
	return snapshot.Sealed{Record: r}, l.commit(next, r)
}

// ground returns the stack that the current layer lies on, in its present form: squashes replace it.
func (l *layers) ground(s *book.State) []snapshot.LayerRef {
	if s.Ground == "" {
		return s.Lower
	}
	r, err := l.book.Record(s.Ground)
	if err != nil { // dropped, or damaged: it is mounted all the same
		return s.Lower
	}
	return r.Stack
}

// rotate seals the current layer as it is, and puts a fresh one in its place.
func (l *layers) rotate(o snapshot.SealOptions, s *book.State) (snapshot.Sealed, error) {
	stack := append([]snapshot.LayerRef{{Feature: s.Feature, Layer: s.Current}}, l.ground(s)...)
	if len(stack) > maxDepth {
		return snapshot.Sealed{}, fmt.Errorf("%w: %d; squash first", snapshot.ErrDepth, len(stack))
	}
	r := l.record(o, s)
	r.Layer, r.Stack, r.Depth = s.Current, stack, len(stack)
	next := *s
	next.Head, next.Ground, next.Lower = r.ID, r.ID, stack
	if err := l.advance(next, r); err != nil {
		return snapshot.Sealed{}, err
	}
	l.untrimmed = append(l.untrimmed, r.Layer)
	return snapshot.Sealed{Record: r, Rotated: true}, nil
}

// advance commits next with a fresh current layer on next.Lower.
func (l *layers) advance(next book.State, add ...snapshot.Record) error {
	n, err := l.take()
	if err != nil {
		return err
	}
	next.Current = n
	if err := l.dress(&next, n); err != nil {
		return errors.Join(err, l.discard(n))
	}
	if err := l.commit(next, add...); err != nil {
		return errors.Join(err, l.discard(n))
	}
	l.copied = nil
	return nil
}

// commit makes next the state. Every number that is in use is given away with it.
func (l *layers) commit(next book.State, add ...snapshot.Record) error {
	next.Next = max(next.Next, l.next)
	return l.book.Commit(next, add...)
}

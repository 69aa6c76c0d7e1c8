package copytree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// sealed is how the current layer was when the head was copied from it.
type sealed struct {
	head  string
	began time.Time // of the copying
	seen  [2]manifest
}

// Seal copies the current layer.
func (l *layers) Seal(ctx context.Context, o snapshot.SealOptions) (snapshot.Sealed, error) {
	unlock, err := l.write()
	if err != nil {
		return snapshot.Sealed{}, err
	}
	defer unlock()
	if err := l.unused(o.ID); err != nil {
		return snapshot.Sealed{}, err
	}
	s := l.book.State()
	r := l.record(o, &s)
	same, err := l.untouched(ctx, &s)
	if err != nil {
		return snapshot.Sealed{}, err
	}
	if same {
		return l.sealNothing(&s, r)
	}
	return l.sealCopy(ctx, o, r)
}

// unused refuses an id that is none or that there is already.
func (l *layers) unused(id string) error {
	if err := book.CheckID(id); err != nil {
		return err
	}
	if _, err := l.book.Record(id); !errors.Is(err, snapshot.ErrCheckpoint) {
		return fmt.Errorf("checkpoint %s: %w", id, fs.ErrExist)
	}
	return nil
}

// record begins the record of a checkpoint of the current line.
func (l *layers) record(o snapshot.SealOptions, s *book.State) snapshot.Record {
	return snapshot.Record{
		ID: o.ID, Parent: l.meant(s.Head), Feature: s.Feature, Created: time.Now().UTC(), Meta: o.Meta,
		Generation: s.Generation, Origin: s.Origin, Depth: 1,
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
func (l *layers) sealNothing(s *book.State, r snapshot.Record) (snapshot.Sealed, error) {
	if s.Head != "" {
		head, err := l.at(s.Head)
		if err != nil {
			return snapshot.Sealed{}, err
		}
		r.AliasOf, r.Stack = r.Parent, head.stack()
		return snapshot.Sealed{Record: r, Alias: true}, l.book.Add(r)
	}
	base := s.Lower[len(s.Lower)-1]
	r.Stack = []snapshot.LayerRef{base, base}
	next := *s
	next.Head, next.Ground = r.ID, r.ID
	err := l.commit(next, r)
	if err == nil && l.known != nil {
		l.known.head = r.ID
	}
	return snapshot.Sealed{Record: r}, err
}

// sealCopy makes a checkpoint of a copy, the last of it while nothing moves.
func (l *layers) sealCopy(ctx context.Context, o snapshot.SealOptions, r snapshot.Record) (snapshot.Sealed, error) {
	n, err := l.take()
	if err != nil {
		return snapshot.Sealed{}, err
	}
	done := snapshot.Sealed{}
	know := &sealed{head: o.ID, began: time.Now()}
	err = l.copyCurrent(ctx, o.Live, n, know, &done)
	if err == nil {
		s := l.book.State()
		r.Layer, r.Stack = n, []snapshot.LayerRef{{Feature: s.Feature, Layer: n}, s.Lower[len(s.Lower)-1]}
		s.Head, s.Ground = r.ID, r.ID
		err = l.commit(s, r)
	}
	if err != nil {
		return snapshot.Sealed{}, errors.Join(err, l.discard(n))
	}
	l.known, done.Record = know, r
	return done, nil
}

// copyCurrent fills layer n from the current one: what takes long before a live sandbox stands still.
func (l *layers) copyCurrent(ctx context.Context, live *snapshot.Live, n int, know *sealed, done *snapshot.Sealed) (err error) {
	l.reading.RLock()
	defer l.reading.RUnlock()
	ref := snapshot.LayerRef{Feature: l.feature, Layer: l.book.State().Current}
	var mirrors []*mirror
	defer func() {
		for i, m := range mirrors {
			err = errors.Join(err, m.finish(err))
			know.seen[i] = m.seen
			done.Copied, done.CopiedBytes = done.Copied+m.to.Files, done.CopiedBytes+m.to.Bytes
			err = errors.Join(err, m.view.Close())
		}
	}()
	for _, part := range parts {
		v, err := l.view(ref, part.name)
		if err != nil {
			return err
		}
		m, err := newMirror(v, filepath.Join(l.book.Layer(n), part.name), nil)
		if err != nil {
			return errors.Join(err, v.Close())
		}
		mirrors = append(mirrors, m)
		if err := m.pass(ctx, never); err != nil {
			return err
		}
	}
	if live == nil {
		return nil
	}
	return frozen(ctx, live, mirrors, done)
}

// frozen copies what has changed since the first pass, while nothing moves.
func frozen(ctx context.Context, live *snapshot.Live, mirrors []*mirror, done *snapshot.Sealed) error {
	stopped := time.Now()
	paused, err := live.Pause(ctx)
	if err != nil {
		return err
	}
	for i, m := range mirrors {
		again := func(path string) bool { return slices.Contains(paused.Mapped, parts[i].target+"/"+path) }
		if err == nil {
			err = m.pass(ctx, again)
		}
	}
	err = errors.Join(err, paused.Resume())
	done.Pause = time.Since(stopped)
	return err
}

// untouched reports that the current layer is as it was when the head was copied.
func (l *layers) untouched(ctx context.Context, s *book.State) (bool, error) {
	if l.known == nil || l.known.head != s.Head {
		return false, nil
	}
	p, err := l.at(snapshot.Current)
	if err != nil {
		return false, err
	}
	old := p.under()
	if s.Head != "" {
		if old, err = l.at(s.Head); err != nil {
			return false, nil //nolint:nilerr // a damaged head is equal to nothing
		}
	}
	for i, part := range parts {
		same := false
		err := l.with(&old, &p, part.name, func(before, now *tree.View) (err error) {
			same, err = unchanged(ctx, before, now, l.known.seen[i], l.known.began)
			return err
		})
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// errDiffers ends a walk.
var errDiffers = errors.New("differs")

// unchanged compares a view with what was seen, and with its copy where the clock is too coarse to tell.
func unchanged(ctx context.Context, before, now *tree.View, seen manifest, began time.Time) (bool, error) {
	left := len(seen)
	err := now.Walk(ctx, func(path string, s tree.Stat) error {
		if was, ok := seen[path]; !ok || was != seenOf(&s) {
			return errDiffers
		}
		left--
		if s.Type != tree.File || s.Ctime.Before(began.Add(-racy)) {
			return nil
		}
		return sameContent(ctx, before, now, path)
	})
	if errors.Is(err, errDiffers) {
		return false, nil
	}
	return left == 0, err
}

func sameContent(ctx context.Context, before, now *tree.View, path string) error {
	a, err := before.Open(path)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := now.Open(path)
	if err != nil {
		return err
	}
	defer b.Close()
	same, err := beneath.SameContent(ctx, int(a.Fd()), int(b.Fd()), make([]byte, 128<<10))
	if err == nil && !same {
		err = errDiffers
	}
	return err
}

// commit makes next the state. Every number that is in use is given away with it.
func (l *layers) commit(next book.State, add ...snapshot.Record) error {
	next.Next = max(next.Next, l.next)
	return l.book.Commit(next, add...)
}

// take makes an empty layer.
func (l *layers) take() (int, error) {
	n := l.next
	at := book.LayerDir(l.dir, n)
	err := os.Mkdir(at, 0o700)
	if errors.Is(err, fs.ErrExist) { // the rest of one that was cut short
		if err = snapshot.Remove(context.Background(), at); err == nil {
			err = os.Mkdir(at, 0o700)
		}
	}
	for _, part := range parts {
		if err == nil {
			err = os.Mkdir(filepath.Join(at, part.name), 0o700)
		}
	}
	if err != nil {
		return 0, errors.Join(err, snapshot.Remove(context.Background(), at))
	}
	l.next++
	return n, nil
}

// discard removes a layer that take gave out and that did not come into use.
func (l *layers) discard(n int) error {
	return snapshot.Remove(context.Background(), book.LayerDir(l.dir, n))
}

// fill makes layer n a copy of a state, with HOME's mount points.
func (l *layers) fill(ctx context.Context, n int, p *place) error {
	for _, part := range parts {
		v, err := l.view(p.tree, part.name)
		if err != nil {
			return err
		}
		_, err = copyView(ctx, v, filepath.Join(book.LayerDir(l.dir, n), part.name), nil)
		if err = errors.Join(err, v.Close()); err != nil {
			return err
		}
	}
	return l.point(n)
}

// point makes the mount points in a layer's HOME that are missing there. What the sandbox put in their place stays.
func (l *layers) point(n int) error {
	at := filepath.Join(book.LayerDir(l.dir, n), home)
	return filepath.WalkDir(l.points(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == l.points() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: path, Err: err}
		}
		err = dirs.Point(at, strings.TrimPrefix(path, l.points()+"/"), d.IsDir(), dirs.Owner{UID: st.Uid, GID: st.Gid})
		if beneath.Gone(err) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	})
}

// look notes how the current layer is, which is a copy of a state that nobody has changed yet.
func (l *layers) look(ctx context.Context, head string) error {
	l.known = nil
	know := &sealed{head: head, began: time.Now()}
	p, err := l.at(snapshot.Current)
	if err != nil {
		return err
	}
	for i, part := range parts {
		know.seen[i] = manifest{}
		err := l.with(&p, &p, part.name, func(_, now *tree.View) error {
			return now.Walk(ctx, func(path string, s tree.Stat) error {
				know.seen[i][path] = seenOf(&s)
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	l.known = know
	return nil
}

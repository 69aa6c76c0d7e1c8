package copytree

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func timespec(t time.Time) unix.Timespec {
	return unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}
}

// ends finds what a change goes from and to. The base is the one that the other end was made on.
func (l *layers) ends(from, to string) (a, b place, err error) {
	if a, err = l.at(from); err != nil {
		return a, b, err
	}
	if b, err = l.at(to); err != nil {
		return a, b, err
	}
	if from == snapshot.Base {
		a = b.under()
	}
	if to == snapshot.Base {
		b = a.under()
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
	c, err := l.compare(ctx, &a, &b, workspace, tree.CompareOptions{Only: only})
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
		c, err := l.compare(ctx, &from, &to, part.name, tree.CompareOptions{})
		if err != nil || len(c.Entries) > 0 {
			return false, err
		}
	}
	return true, nil
}

// compare compares a part of two states; strict looks at owners, times and hard links, too.
func (l *layers) compare(ctx context.Context, a, b *place, part string, o tree.CompareOptions) (c *snapshot.Change, err error) {
	err = l.with(a, b, part, func(old, now *tree.View) (err error) {
		c, err = tree.Compare(ctx, old, now, o)
		return err
	})
	return c, err
}

// ofChange opens the views that a change was read from, if they are still those of its ends.
func (l *layers) ofChange(c *snapshot.Change, do func(p tree.Pair, to *place) error) error {
	if c == nil || c.From == "" || c.To == "" {
		return snapshot.ErrStaleChange
	}
	a, b, err := l.ends(c.From, c.To)
	if err != nil {
		return err
	}
	if c.Resolved != nil { // its base is the workspace itself
		l.reading.RLock()
		defer l.reading.RUnlock()
		p, err := c.Reopen()
		if err != nil {
			return err
		}
		return errors.Join(do(p, &b), p.Close())
	}
	return l.with(&a, &b, workspace, func(old, now *tree.View) error {
		if !c.Of(old, now) {
			return snapshot.ErrStaleChange
		}
		return do(tree.Pair{Old: old, New: now}, &b)
	})
}

// WriteDiff prints a change in git's unified format.
func (l *layers) WriteDiff(ctx context.Context, c *snapshot.Change, w io.Writer, o snapshot.DiffOptions) error {
	return l.ofChange(c, func(p tree.Pair, _ *place) error { return p.WriteDiff(ctx, c, w, o) })
}

// Conflicts lists the paths that the feature and others both changed, sorted.
func (l *layers) Conflicts(ctx context.Context, c *snapshot.Change) (list []snapshot.Conflict, err error) {
	err = l.onTarget(c, func(t promote.Target) error {
		list, err = promote.Conflicts(ctx, t, c)
		return err
	})
	return list, err
}

// Resolve reads a change anew from the workspace as others made it.
func (l *layers) Resolve(ctx context.Context, c *snapshot.Change, o snapshot.Choice) (r *snapshot.Change, err error) {
	err = l.onTarget(c, func(t promote.Target) error {
		r, err = promote.Resolve(ctx, t, c, o)
		return err
	})
	return r, err
}

// onTarget does something with where a change would be promoted to, as long as that is still the same directory.
func (l *layers) onTarget(c *snapshot.Change, do func(t promote.Target) error) error {
	if err := l.book.CheckWorkspace(); err != nil {
		return err
	}
	return l.ofChange(c, func(p tree.Pair, to *place) error {
		t, err := l.target(p, to, c)
		if err != nil {
			return err
		}
		return do(t)
	})
}

// Index reads all that a checkpoint changes.
func (l *layers) Index(ctx context.Context, id string) (snapshot.Indexed, error) {
	p, err := l.at(id)
	if err != nil {
		return snapshot.Indexed{}, err
	}
	r, err := l.book.Record(id)
	if err != nil {
		return snapshot.Indexed{}, err
	}
	x := snapshot.Indexed{ID: id, AliasOf: r.AliasOf}
	if x.Digest, err = l.digest(ctx, &p); err != nil {
		return x, err
	}
	if r.Layer != 0 && r.Feature == l.feature {
		if x.Bytes, x.Inodes, err = l.size(ctx, r.Layer); err != nil {
			return x, err
		}
	}
	if r.AliasOf != "" {
		return x, nil
	}
	parent, named := p.under(), false
	if r.Parent != "" {
		if at, err := l.at(r.Parent); err == nil {
			parent, named = at, at.id != r.ID
		}
	}
	same := named
	for _, part := range parts {
		c, err := l.compare(ctx, &parent, &p, part.name, tree.CompareOptions{})
		if err != nil {
			return x, err
		}
		x.Counts.Added += c.Added
		x.Counts.Modified += c.Modified
		x.Counts.Deleted += c.Deleted
		x.Counts.Bytes += c.Bytes
		if same = same && len(c.Entries) == 0; same {
			if c, err = l.compare(ctx, &parent, &p, part.name, tree.CompareOptions{Strict: true}); err != nil {
				return x, err
			}
			same = len(c.Entries) == 0
		}
	}
	return x, l.indexed(&x, &parent, same)
}

// digest sums a state up: what it began from, and all that differs from that.
func (l *layers) digest(ctx context.Context, p *place) (string, error) {
	s := l.book.State()
	h := sha256.New()
	fmt.Fprintf(h, "caisson 1\n%s\n%d %d\n%d %t\n", s.Workspace, s.Inode, s.Birth.UnixNano(), p.generation, false)
	under := p.under()
	for _, part := range parts {
		c, err := l.compare(ctx, &under, p, part.name, tree.CompareOptions{})
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, c.Digest)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// indexed writes down what Index found.
func (l *layers) indexed(x *snapshot.Indexed, parent *place, alias bool) error {
	if l.readOnly {
		return nil
	}
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := l.book.Record(x.ID)
	if errors.Is(err, snapshot.ErrCheckpoint) { // dropped meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	r.Bytes, r.Inodes = x.Bytes, x.Inodes
	if alias {
		if _, err := l.book.Record(parent.id); err == nil {
			r.AliasOf, r.Stack, r.Layer = parent.id, parent.stack(), 0
			x.AliasOf = r.AliasOf
			if err := l.book.Realias(r.ID, r.AliasOf); err != nil {
				return err
			}
		}
	}
	return l.book.Rewrite(r)
}

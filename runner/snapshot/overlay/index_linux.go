package overlay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

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
	x.Bytes, x.Inodes = r.Bytes, r.Inodes
	if slices.Contains(r.Stack, snapshot.LayerRef{Feature: l.feature, Layer: r.Layer}) { // else a squash took it up
		used, err := l.size(ctx, r.Layer)
		if err != nil {
			return x, err
		}
		x.Bytes, x.Inodes = used.Bytes, used.Inodes
	}
	if r.AliasOf != "" {
		return x, nil
	}
	parent, named := l.parent(&r)
	same := true
	for _, part := range []string{"w", "h"} {
		c, err := l.compareAll(ctx, &parent, &p, part, false)
		if err != nil {
			return x, err
		}
		x.Counts.Added += c.Added
		x.Counts.Modified += c.Modified
		x.Counts.Deleted += c.Deleted
		x.Counts.Bytes += c.Bytes
		if same = same && len(c.Entries) == 0; same && named {
			if c, err = l.compareAll(ctx, &parent, &p, part, true); err != nil {
				return x, err
			}
			same = len(c.Entries) == 0
		}
	}
	if same = same && named; same {
		if same, err = l.mayMerge(ctx, &parent, &p); err != nil {
			return x, err
		}
	}
	return x, l.indexed(&x, &parent, same)
}

// mayMerge reports whether a state can be forgotten that is equal to its parent: if nothing in its layer has its like in
// the workspace itself, which others may change tomorrow, while the layer's would stay.
func (l *layers) mayMerge(ctx context.Context, parent, p *place) (bool, error) {
	if len(p.stack) == 0 || !slices.Equal(p.stack[1:], parent.stack) || p.stack[0].Feature != l.feature {
		return false, nil
	}
	own := place{stack: p.stack[:1], bare: true}
	may := true
	for _, part := range parts {
		err := l.with(ctx, [2]*place{parent, &own}, part.name, func(old, now *tree.View) error {
			seen := int64(0)
			err := now.Walk(ctx, func(path string, s tree.Stat) error {
				seen++
				if s.Type == tree.Dir {
					return nil
				}
				like, err := old.Lstat(path)
				may = may && err == nil && !old.Layers()[like.Root].Base
				return nil
			})
			if err != nil {
				return err
			}
			// Whiteouts do not show, and hide what others may add.
			used, err := dirs.Measure(ctx, l.book.Layer(p.stack[0].Layer)+"/"+part.name)
			may = may && used.Inodes == seen
			return err
		})
		if err != nil || !may {
			return false, err
		}
	}
	return true, nil
}

// parent finds what a checkpoint is compared with; named: it is a checkpoint of this feature.
func (l *layers) parent(r *snapshot.Record) (p place, named bool) {
	if r.Parent != "" {
		if p, err := l.at(r.Parent); err == nil {
			return p, p.id != r.ID
		}
		// It was dropped. Its layers are still there, unless a squash has joined them with the checkpoint's own.
		if len(r.Stack) > 0 && r.Stack[0].Layer == r.Layer {
			return place{stack: r.Stack[1:], generation: r.Generation, origin: r.Origin, bare: r.Bare}, false
		}
	}
	return place{generation: r.Generation, origin: r.Origin}, false
}

func (l *layers) compareAll(ctx context.Context, a, b *place, part string, strict bool) (c *snapshot.Change, err error) {
	ids, err := l.ids()
	if err != nil {
		return nil, err
	}
	err = l.with(ctx, [2]*place{a, b}, part, func(old, now *tree.View) (err error) {
		o := tree.CompareOptions{Strict: strict, Sums: l.sums(now), Map: ids.FromBase}
		if part == "h" {
			o.Sums = nil
		}
		c, err = tree.Compare(ctx, old, now, o)
		return err
	})
	return c, err
}

// digest sums a state up: what it lies on, and all that differs from that.
func (l *layers) digest(ctx context.Context, p *place) (string, error) {
	s := l.book.State()
	h := sha256.New()
	fmt.Fprintf(h, "caisson 1\n%s\n%d %d\n%d %t\n", s.Workspace, s.Inode, s.Birth.UnixNano(), p.generation, p.bare)
	base := place{generation: p.generation, origin: p.origin}
	for _, part := range []string{"w", "h"} {
		c, err := l.compareAll(ctx, &base, p, part, false)
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
	before := r
	r.Bytes, r.Inodes = x.Bytes, x.Inodes
	if alias {
		p, err := l.book.Record(parent.id) // a squash may have replaced its stack
		if err == nil {
			r.AliasOf, r.Stack, r.Layer, r.Depth = parent.id, p.Stack, 0, len(p.Stack)
			x.AliasOf = r.AliasOf
			if err := l.book.Realias(r.ID, r.AliasOf); err != nil {
				return err
			}
		}
	}
	if before.Bytes == r.Bytes && before.Inodes == r.Inodes && r.AliasOf == "" {
		return nil
	}
	return l.book.Rewrite(r)
}

// maxSums is how many sums of files are remembered for a feature. One takes about 250 bytes.
const maxSums = 1 << 15

// contents remembers the sums of the files of one sealed layer: they never change, but a layer that was tampered with shows.
type contents struct {
	total *atomic.Int64 // of all the feature's layers
	mu    sync.Mutex
	sums  map[string]content
}

type content struct {
	seen tree.Seen
	sum  [32]byte
}

func (c *contents) Get(path string, s tree.Seen) ([32]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.sums[path]
	return known.sum, ok && known.seen == s
}

func (c *contents) Put(path string, s tree.Seen, sum [32]byte) {
	if c.total.Add(1) > maxSums {
		c.total.Add(-1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.sums[path]; known {
		c.total.Add(-1)
	}
	c.sums[path] = content{s, sum}
}

// forget frees what is remembered of a layer that goes.
func (l *layers) forget(n int) {
	l.sizes.Delete(n)
	was, _ := l.contents.LoadAndDelete(n)
	if c, known := was.(*contents); known {
		c.mu.Lock()
		defer c.mu.Unlock()
		l.summed.Add(-int64(len(c.sums)))
	}
}

// sums returns the cache of a view's sealed layers.
func (l *layers) sums(v *tree.View) func(root int) tree.Sums {
	current := l.book.State().Current
	all := v.Layers()
	return func(root int) tree.Sums {
		r := &all[root]
		if r.Base || r.Feature != l.feature || r.Layer == current || r.Layer == 0 {
			return nil
		}
		kept, _ := l.contents.LoadOrStore(r.Layer, &contents{total: &l.summed, sums: map[string]content{}})
		if c, ok := kept.(*contents); ok {
			return c
		}
		return nil
	}
}

package overlay

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// racy is how long before a freeze a file may have been changed without its ctime telling: timestamps are as coarse as a
// tick of the kernel's clock, 10 ms at most.
const racy = 10 * time.Millisecond

// copied is what a seal by copy leaves for the next one. It lives as long as the process that owns the sandbox: without it
// all of the current layer is copied.
type copied struct {
	manifests map[string]*tree.Manifest // by part
	mapped    []string                  // shared and writable then: what is stored through a map leaves no trace
	frozen    time.Time
}

// parts are the directories of a layer that hold what shows, and where.
var parts = []struct{ name, target string }{{"w", snapshot.WorkspaceTarget}, {"h", snapshot.HomeTarget}}

// copySeal is one seal by copy under way.
type copySeal struct {
	l     *layers
	state *book.State
	layer int // that is filled
	now   copied
	delta map[string]*tree.Delta
	files int
	bytes int64
}

// sealCopy seals while processes hold the current layer: a copy of what changed in it since the last seal becomes the
// checkpoint's layer. Most is copied while they run, and again what they changed meanwhile while they stand still.
func (l *layers) sealCopy(ctx context.Context, o snapshot.SealOptions, s *book.State) (snapshot.Sealed, error) {
	n, err := l.take()
	if err != nil {
		return snapshot.Sealed{}, err
	}
	c := &copySeal{l: l, state: s, layer: n, delta: map[string]*tree.Delta{}}
	c.now.manifests = map[string]*tree.Manifest{}
	sealed, err := c.run(ctx, o)
	if err != nil || sealed.Alias {
		return sealed, errors.Join(err, l.discard(n))
	}
	l.copied = &c.now
	l.untrimmed = append(l.untrimmed, n)
	return sealed, nil
}

func (c *copySeal) run(ctx context.Context, o snapshot.SealOptions) (snapshot.Sealed, error) {
	if err := c.pass(ctx, nil); err != nil {
		return snapshot.Sealed{}, err
	}
	pause, err := c.frozen(ctx, o.Live)
	if err != nil {
		return snapshot.Sealed{}, err
	}
	r := c.l.record(o, c.state)
	sealed := snapshot.Sealed{Record: r, Pause: pause, Copied: c.files, CopiedBytes: c.bytes}
	if same, err := c.nothing(); err != nil {
		return sealed, err
	} else if same {
		sealed.Alias = true
		sealed.AliasOf, sealed.Stack = r.Parent, c.below()
		sealed.Depth = len(sealed.Stack)
		return sealed, c.l.book.Add(sealed.Record)
	}
	sealed.Layer = c.layer
	sealed.Stack = append([]snapshot.LayerRef{{Feature: c.state.Feature, Layer: c.layer}}, c.below()...)
	sealed.Depth = len(sealed.Stack)
	if sealed.Depth > maxDepth {
		return sealed, fmt.Errorf("%w: %d; squash first", snapshot.ErrDepth, sealed.Depth)
	}
	next := *c.state
	next.Head = r.ID
	return sealed, c.l.commit(next, sealed.Record)
}

// frozen does what must be done while nothing moves, and measures how long that takes.
func (c *copySeal) frozen(ctx context.Context, live *snapshot.Live) (pause time.Duration, err error) {
	start := time.Now()
	p, err := live.Pause(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, p.Resume())
		pause = time.Since(start)
	}()
	c.now.frozen, c.now.mapped = time.Now(), p.Mapped
	return 0, c.pass(ctx, p.Mapped)
}

// pass copies what changed, for the first time or since the pass before.
func (c *copySeal) pass(ctx context.Context, mapped []string) error {
	before := c.before()
	for _, p := range parts {
		manifest := before.manifests[p.name]
		if c.delta[p.name] != nil {
			manifest = c.now.manifests[p.name]
		}
		err := c.copy(ctx, p.name, manifest, tree.DeltaOptions{
			Always: always(p.target, mapped, before.mapped), RacyBefore: before.frozen.Add(-racy), Resume: c.delta[p.name],
		})
		if err != nil {
			return err
		}
	}
	// The parts are one layer and lie on the same stack: if one is whole, the other has to be.
	if c.delta["w"].Whole == c.delta["h"].Whole {
		return nil
	}
	for _, p := range parts {
		if c.delta[p.name].Whole {
			continue
		}
		if err := c.l.empty(ctx, filepath.Join(c.l.book.Layer(c.layer), p.name)); err != nil {
			return err
		}
		if err := c.copy(ctx, p.name, nil, tree.DeltaOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// before is what the last seal left.
func (c *copySeal) before() *copied {
	if c.l.copied == nil || !c.state.Copied() {
		return &copied{}
	}
	return c.l.copied
}

// copy copies from one part of the current layer what changed since manifest was made of it.
func (c *copySeal) copy(ctx context.Context, part string, manifest *tree.Manifest, o tree.DeltaOptions) error {
	o.UserXattr = c.state.UserXattr
	from := tree.Root{Path: filepath.Join(c.l.book.Layer(c.state.Current), part), UserXattr: o.UserXattr}
	m, d, err := tree.CopyDelta(ctx, from, manifest, filepath.Join(c.l.book.Layer(c.layer), part), o)
	if err != nil {
		return err
	}
	c.now.manifests[part], c.delta[part] = m, &d
	c.files += d.Files
	c.bytes += d.Bytes
	return nil
}

// below is the stack that the copy lies on: the last seal's, if it holds only what changed since.
func (c *copySeal) below() []snapshot.LayerRef {
	if !c.delta["w"].Whole && c.l.copied != nil && c.state.Copied() {
		if r, err := c.l.book.Record(c.state.Head); err == nil {
			return r.Stack
		}
	}
	return c.l.ground(c.state)
}

// nothing reports that nothing changed since the last seal by copy.
func (c *copySeal) nothing() (bool, error) {
	if c.l.copied == nil || !c.state.Copied() || c.delta["w"].Whole {
		return false, nil
	}
	head, err := c.l.book.Record(c.state.Head)
	if err != nil || len(head.Stack) == 0 {
		return false, nil //nolint:nilerr // then it is not the same
	}
	top, err := c.l.places.Layer(head.Stack[0])
	if err != nil {
		return false, err
	}
	for _, p := range parts {
		if len(c.delta[p.name].Names) > 0 {
			return false, nil
		}
		was, err := readLook(top + "/" + p.name)
		if err != nil {
			return false, err
		}
		is, err := readLook(c.l.book.Layer(c.state.Current) + "/" + p.name)
		if err != nil || !is.shows(&was.Look) {
			return false, err
		}
	}
	return true, nil
}

// always lists, relative to a target, the files that are or were mapped.
func always(target string, mapped ...[]string) []string {
	var list []string
	for _, path := range slices.Concat(mapped...) {
		if rest, ok := strings.CutPrefix(path, target+"/"); ok {
			list = append(list, rest)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

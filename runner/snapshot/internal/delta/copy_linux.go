package delta

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// Copy copies into dst what changed in an upper layer since m was read. See tree.CopyDelta.
func Copy(ctx context.Context, upper string, m *Manifest, dst string, o Options) (*Manifest, Delta, error) {
	from, err := beneath.OpenRoot(upper)
	if err != nil {
		return nil, Delta{}, err
	}
	from.Ours = true
	to, err := beneath.OpenRoot(dst)
	if err != nil {
		return nil, Delta{}, errors.Join(err, from.Close())
	}
	to.Ours = true
	c := &copier{
		from: from, root: to, mark: "trusted.overlay.", before: m, racy: o.RacyBefore,
		always: map[string]bool{}, names: map[string]bool{}, buf: make([]byte, 64<<10),
	}
	if o.UserXattr {
		c.mark = "user.overlay."
	}
	for _, path := range o.Always {
		c.always[path] = true
	}
	if o.Resume != nil {
		c.resume(o.Resume, m)
	}
	began := time.Now()
	err = c.run(ctx)
	if c.names[""] = true; !c.rooted {
		delete(c.names, "")
	}
	d := Delta{
		Files: c.to.Files, Bytes: c.to.Bytes, Names: slices.SortedFunc(maps.Keys(c.names), beneath.ComparePaths),
		Whole: c.before == nil, before: c.before, began: began,
	}
	return c.next, d, errors.Join(err, to.Close(), from.Close())
}

type copier struct {
	from, root *beneath.Root
	mark       string
	racy       time.Time
	always     map[string]bool

	before *Manifest // what the layers below dst show; nil: nothing
	last   *Manifest // what dst and they show since the first pass; nil: this is the first

	next  *Manifest
	to    *layer.Writer
	names map[string]bool // what dst holds
	buf   []byte

	todo   []*change
	clears []string        // what dst holds and should not, or not so
	redone []string        // directories that are written anew, with all that is below
	rooted bool            // the root itself changed
	seated map[string]bool // directories of dst that look right again when the writer has finished
}

// change is a path that dst needs.
type change struct {
	path     string
	now      *known // nil: it is gone
	had      bool   // it shows from below dst, so far
	replaced bool   // a directory that is not the one that shows from below dst
}

// standing is what is known of a directory when its names are looked at.
type standing struct {
	fresh bool // nothing below it shows from below dst
	redo  bool // dst holds nothing of it that counts
}

// coarse is the resolution of the clock that files are stamped with, at its worst.
const coarse = 10 * time.Millisecond

// resume goes on where the first pass ended.
func (c *copier) resume(d *Delta, last *Manifest) {
	c.before, c.last = d.before, last
	for _, name := range d.Names {
		c.names[name] = true
	}
	c.rooted = c.names[""]
	c.racy = d.began.Add(-coarse)
}

// errRenamed ends an attempt: what changed cannot be said on top of earlier deltas.
var errRenamed = errors.New("a directory of lower layers was renamed")

func (c *copier) run(ctx context.Context) error {
	err := c.attempt(ctx)
	if !errors.Is(err, errRenamed) {
		return err
	}
	// All of it, then, from the beginning.
	names, err := c.rootNames()
	for _, name := range names {
		if err == nil {
			err = c.root.RemoveAll(ctx, name)
		}
	}
	if err != nil {
		return err
	}
	c.before, c.last, c.names = nil, nil, map[string]bool{}
	return c.attempt(ctx)
}

func (c *copier) rootNames() ([]string, error) {
	fd, err := c.root.Open("", beneath.ReadDir)
	if err != nil {
		return nil, c.root.Fail("open", ".", err)
	}
	defer unix.Close(fd)
	names, err := beneath.ReadNames(fd, c.buf, nil)
	if err != nil {
		return nil, c.root.Fail("read", ".", err)
	}
	return names, nil
}

// attempt scans the upper and then writes what dst needs.
func (c *copier) attempt(ctx context.Context) error {
	c.next = &Manifest{all: make(map[string]known, c.before.size())}
	c.to = layer.NewWriter(c.root, c.mark)
	defer c.to.Abandon()
	c.todo, c.clears, c.redone, c.seated = nil, nil, nil, map[string]bool{}
	if err := c.scan(ctx, "", standing{fresh: c.before == nil}); err != nil {
		return err
	}
	c.vanished()
	slices.SortFunc(c.todo, func(a, b *change) int { return beneath.ComparePaths(a.path, b.path) })
	if err := c.clear(ctx); err != nil {
		return err
	}
	if err := c.write(ctx); err != nil {
		return err
	}
	return c.to.Finish()
}

// clear removes from dst what the first pass wrote and what does not hold any more.
func (c *copier) clear(ctx context.Context) error {
	slices.SortFunc(c.clears, beneath.ComparePaths)
	gone := ""
	for _, path := range c.clears {
		if path == "" || gone != "" && beneath.Below(path, gone) {
			continue
		}
		_, dir, err := c.to.Exists(path)
		if err == nil {
			err = c.to.Forget(ctx, path)
		}
		if err != nil {
			return err
		}
		gone = path
		delete(c.names, path)
		if dir {
			maps.DeleteFunc(c.names, func(name string, _ bool) bool { return beneath.Below(name, path) })
		}
	}
	return nil
}

// write makes in dst what the list says. Sorted, a directory comes before what is in it.
func (c *copier) write(ctx context.Context) error {
	at := beneath.Cursor{Root: c.from}
	defer at.Close()
	gone := ""
	for _, t := range c.todo {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if t.now == nil && gone != "" && beneath.Below(t.path, gone) {
			continue // hidden with the directory that it was in
		}
		hidden, err := c.one(ctx, &at, t)
		if err != nil {
			return err
		}
		if hidden {
			gone = t.path
		}
	}
	if err := c.parents(""); err != nil {
		return err
	}
	// Where something was removed, the directory's time is not the upper's any more.
	for _, path := range c.clears {
		above, _ := beneath.Split(path)
		if now, ok := c.next.lookup(above); ok && now.dir() {
			if err := c.parents(above); err != nil {
				return err
			}
		}
	}
	return nil
}

// one makes one path. hidden says that nothing of what the layers below have beneath it shows any more.
func (c *copier) one(ctx context.Context, at *beneath.Cursor, t *change) (hidden bool, err error) {
	if t.path != "" {
		parent, _ := beneath.Split(t.path)
		if err := c.parents(parent); err != nil {
			return false, err
		}
	}
	switch {
	case t.now == nil, t.now.whiteout():
		return c.whiteout(t)
	case t.now.dir():
		return t.replaced, c.dir(t)
	}
	dir, name, err := at.Parent(t.path)
	s := layer.Source{Root: c.from, Mark: c.mark, Dir: dir, Name: name}
	if err == nil {
		err = beneath.StatAt(dir, name, &s.Stat)
	}
	if err == nil && beneath.IsDir(&s.Stat) {
		err = unix.ENOENT
	}
	if err == nil {
		c.names[t.path] = true
		if err = c.to.Copy(ctx, &s, t.path); err == nil {
			return true, nil
		}
	}
	if beneath.Gone(err) { // in use: the next pass sees what it is
		delete(c.next.all, t.path)
		return false, nil
	}
	return false, c.from.Fail("copy", t.path, err)
}

// whiteout hides what the layers below dst have at a path.
func (c *copier) whiteout(t *change) (hidden bool, err error) {
	err = c.to.Whiteout(t.path)
	if err == nil {
		c.names[t.path] = true
		return true, nil
	}
	if !beneath.Gone(err) {
		return false, err
	}
	// The directory above is in use, and was gone when it was to be made here. The next pass sees what it is; for it, this was
	// something else before.
	if t.now != nil {
		delete(c.next.all, t.path)
	} else {
		c.next.all[t.path] = known{}
	}
	return false, nil
}

// parents makes the directories above a path, as the upper has them.
func (c *copier) parents(path string) error {
	if c.seated[path] {
		return nil
	}
	if path != "" {
		above, _ := beneath.Split(path)
		if err := c.parents(above); err != nil {
			return err
		}
	}
	now, ok := c.next.lookup(path)
	if !ok { // in use
		now = known{Seen: journal.Seen{Mode: unix.S_IFDIR}}
	}
	// It is not on the list, so that it is the one that shows from below, or in dst already.
	return c.dir(&change{path: path, now: &now, had: true})
}

// dir makes a directory that looks like the upper's. The marks of one that the layers below have work there.
func (c *copier) dir(t *change) error {
	c.seated[t.path], c.names[t.path] = true, true
	fd, err := c.from.Open(t.path, beneath.ReadDir)
	if beneath.Gone(err) {
		return nil
	}
	if err != nil {
		return c.from.Fail("open", t.path, err)
	}
	defer unix.Close(fd)
	s := layer.Source{Root: c.from, Mark: c.mark, Name: t.path}
	if err := c.to.Dir(t.path, fd, &s); err != nil {
		return err
	}
	switch {
	case t.replaced, t.now.opaque && !t.had:
		return c.to.SetMark(t.path, "opaque", "y")
	case t.now.redirect != "" && !t.had:
		return c.to.SetMark(t.path, "redirect", t.now.redirect)
	}
	return nil
}

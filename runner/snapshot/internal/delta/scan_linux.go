package delta

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// Manifest is what an upper layer looked like when Copy read it. It lives in memory only.
type Manifest struct {
	all map[string]known // by path; the root is ""
}

// known is what tells one state of an object from another.
type known struct {
	journal.Seen
	dev      uint64
	redirect string
	opaque   bool
}

func (k *known) whiteout() bool { return k.Mode&unix.S_IFMT == unix.S_IFCHR && k.Inode == 0 }

func (k *known) dir() bool { return k.Mode&unix.S_IFMT == unix.S_IFDIR }

// scan looks at a directory of the upper and everything below it.
func (c *copier) scan(ctx context.Context, path string, above standing) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if len(path) > beneath.MaxPath {
		return c.from.Fail("read", path, beneath.ErrPathTooLong)
	}
	fd, err := c.from.Open(path, beneath.ReadDir)
	if beneath.Gone(err) {
		return nil // removed a moment ago
	}
	if err != nil {
		return c.from.Fail("open", path, err)
	}
	dirs, here, err := c.scanOpen(fd, path, above)
	unix.Close(fd)
	if err != nil {
		return err
	}
	for _, name := range dirs {
		if err := c.scan(ctx, beneath.Join(path, name), here); err != nil {
			return err
		}
	}
	return nil
}

// scanOpen looks at an open directory and what is directly in it, and returns the directories.
func (c *copier) scanOpen(fd int, path string, above standing) (dirs []string, here standing, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, here, c.from.Fail("stat", path, err)
	}
	m, err := layer.ReadMarks(fd, c.mark)
	if err != nil {
		return nil, here, c.from.Fail("getxattr", path, err)
	}
	now := known{Seen: journal.See(&st), dev: st.Dev, opaque: m.Opaque, redirect: m.Redirect}
	if here, err = c.see(path, &now, above); err != nil {
		return nil, here, err
	}
	names, err := beneath.ReadNames(fd, c.buf, nil)
	if err != nil {
		return nil, here, c.from.Fail("read", path, err)
	}
	for _, name := range names {
		if err := beneath.StatAt(fd, name, &st); beneath.Gone(err) {
			continue
		} else if err != nil {
			return nil, here, c.from.Fail("stat", beneath.Join(path, name), err)
		}
		if beneath.IsDir(&st) {
			dirs = append(dirs, name)
			continue
		}
		if _, err := c.see(beneath.Join(path, name), knownOf(&st), here); err != nil {
			return nil, here, err
		}
	}
	return dirs, here, nil
}

func knownOf(st *unix.Stat_t) *known {
	if beneath.IsWhiteout(st) {
		// They are links of one file, which gets a new ctime with each.
		return &known{Seen: journal.Seen{Mode: st.Mode}}
	}
	return &known{Seen: journal.See(st), dev: st.Dev}
}

// see compares an object with what it was.
func (c *copier) see(path string, now *known, above standing) (here standing, err error) {
	c.next.all[path] = *now
	t := &change{path: path, now: now}
	var was known
	if !above.fresh {
		was, t.had = c.before.lookup(path)
	}
	if now.redirect != "" && c.before != nil && !(t.had && was.redirect == now.redirect && was.Inode == now.Inode) {
		// A redirect leads to where the layers below the upper have something. On a delta it would lead to what that
		// says of the same place: a whiteout.
		return here, errRenamed
	}
	t.replaced = t.had && now.dir() && was.other(now)
	here = standing{fresh: above.fresh || !t.had || t.replaced, redo: above.redo}
	ref, have := was, t.had
	if c.last != nil && !above.redo {
		ref, have = c.last.lookup(path)
		if now.dir() && have && ref.other(now) {
			here.redo = true
			c.redone = append(c.redone, path)
			ref, have = was, t.had
		}
	}
	missing := here.fresh && (here.redo || !c.names[path])
	racy := c.racy.Unix() > 0 && !time.Unix(now.Ctime[0], now.Ctime[1]).Before(c.racy)
	if !have || ref != *now || missing || racy || c.always[path] || t.replaced && here.redo {
		c.todo = append(c.todo, t)
		c.rooted = c.rooted || path == ""
		if c.names[path] && !above.redo && (!now.dir() || here.redo || !have) {
			c.clears = append(c.clears, path)
		}
	} else if here.redo && !above.redo {
		c.clears = append(c.clears, path) // it is as it was before the first pass
	}
	return here, nil
}

// other reports that a directory cannot be merged with what was at its path.
func (k *known) other(now *known) bool {
	return !k.dir() || k.Inode != now.Inode || k.dev != now.dev || now.opaque && !k.opaque
}

// vanished adds what is not there any more.
func (c *copier) vanished() {
	for path := range c.before.paths() {
		if _, there := c.next.all[path]; there {
			continue
		}
		if c.last != nil && !c.isRedone(path) {
			if _, lately := c.last.all[path]; !lately {
				continue // dst says so already
			}
		}
		c.todo = append(c.todo, &change{path: path, had: true})
		if c.names[path] {
			c.clears = append(c.clears, path)
		}
	}
	for path := range c.last.paths() {
		if _, there := c.next.all[path]; !there && c.names[path] {
			c.clears = append(c.clears, path)
		}
	}
}

func (c *copier) isRedone(path string) bool {
	return slices.ContainsFunc(c.redone, func(dir string) bool { return beneath.Below(path, dir) })
}

func (m *Manifest) size() int {
	if m == nil {
		return 0
	}
	return len(m.all)
}

func (m *Manifest) paths() map[string]known {
	if m == nil {
		return nil
	}
	return m.all
}

func (m *Manifest) lookup(path string) (known, bool) {
	k, ok := m.paths()[path]
	return k, ok
}

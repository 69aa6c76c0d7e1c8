package promote

import (
	"context"
	"errors"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Conflicts lists the paths that the feature and others both changed, sorted: what others changed, removed or made
// at a path of the change since the feature began or since c was read, and what promotes changed since the feature's
// generation. Paths that both left in the same state are not in the change, and what only others changed is no
// conflict. c must have been read from t's views.
func Conflicts(ctx context.Context, t Target, c *tree.Change) ([]tree.Conflict, error) {
	if !c.Of(t.Old, t.New) {
		return nil, tree.ErrStaleChange
	}
	base, done, err := t.base()
	if err != nil {
		return nil, err
	}
	defer done()
	return conflicts(ctx, &t, base, c, t.seen(c))
}

// seen is how the workspace's object at the path of each entry was when the change was read.
func (t *Target) seen(c *tree.Change) []tree.Seen {
	all := make([]tree.Seen, len(c.Entries))
	for i := range c.Entries {
		if t.Seen != nil {
			all[i], _ = t.Seen(c.Entries[i].Path) // none: a conflict, if there is something now
		} else {
			all[i], _ = c.Entries[i].Old()
		}
	}
	return all
}

func conflicts(ctx context.Context, t *Target, base *beneath.Root, c *tree.Change, seen []tree.Seen) ([]tree.Conflict, error) {
	all := map[string]string{}
	for _, x := range c.Found() {
		all[x.Path] = x.Reason
	}
	touched := map[string]bool{}
	if t.Bases != nil {
		var err error
		if touched, err = t.Bases.Touched(t.Generation); err != nil {
			return nil, err
		}
	}
	at := beneath.Cursor{Root: base}
	defer at.Close()
	absent := "" // a directory that is not in the base, so that nothing below it is
	for i := range c.Entries {
		e := &c.Entries[i]
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		switch {
		case touched[e.Path]: // whose old side lies in a base layer, and looks new there
			all[e.Path] = "promoted by others since the feature began"
			continue
		case e.Detail().Conflict != "":
			all[e.Path] = e.Detail().Conflict
			continue
		case absent != "" && tree.Below(e.Path, absent):
			continue
		}
		reason, err := recheck(&at, e, &seen[i])
		if err != nil {
			return nil, base.Fail("stat", e.Path, err)
		}
		if reason != "" {
			all[e.Path] = reason
		}
		if e.Kind == tree.Added && e.Type == tree.Dir {
			absent = e.Path
		}
	}
	list := make([]tree.Conflict, 0, len(all))
	for _, path := range slices.SortedFunc(maps.Keys(all), tree.ComparePaths) {
		list = append(list, tree.Conflict{Path: path, Reason: all[path]})
	}
	return list, nil
}

// recheck compares a base object with what was seen of it.
func recheck(at *beneath.Cursor, e *tree.Entry, seen *tree.Seen) (reason string, err error) {
	if e.Path == "." {
		return "", nil
	}
	var st unix.Stat_t
	dir, name, err := at.Parent(e.Path)
	if err == nil {
		err = beneath.StatAt(dir, name, &st)
	}
	switch there := err == nil && !beneath.IsWhiteout(&st); {
	case err != nil && !beneath.Gone(err):
		return "", err
	case !there && e.OldType != "":
		return "removed by others since the change was read", nil
	case there && e.OldType == "":
		return "made by others since the change was read", nil
	case there && !unchanged(&st, seen, e):
		return "changed by others since the change was read", nil
	}
	return "", nil
}

// unchanged reports whether an object is the one that was seen, in the state that was seen. The ctime of a file with
// several links changes when another of its names does.
func unchanged(now *unix.Stat_t, seen *tree.Seen, e *tree.Entry) bool {
	s := journal.See(now)
	return seen.Same(s) && (s.Ctime == seen.Ctime || e.Detail().Old.Nlink > 1 && !beneath.IsDir(now))
}

// verify makes sure that nobody changed anything below the directories that were taken away.
func (p *promotion) verify() error {
	at := beneath.Cursor{Root: p.stage}
	defer at.Close()
	for i, s := range p.entries {
		top := p.c.Entries[s.from].Path
		for n := s.from + 1; n < s.to; n++ {
			e := &p.c.Entries[n]
			if e.OldType == "" {
				continue
			}
			var st unix.Stat_t
			dir, name, err := at.Parent(p.taken(i) + e.Path[len(top):])
			if err == nil {
				err = beneath.StatAt(dir, name, &st)
			}
			if err != nil && !beneath.Gone(err) {
				return p.base.Fail("verify", e.Path, err)
			}
			if err != nil || !unchanged(&st, &p.seen[n], e) {
				return &tree.ConflictError{Conflicts: []tree.Conflict{{Path: e.Path, Reason: "changed by others while promoting"}}}
			}
		}
	}
	return nil
}

// verifyLinked makes sure that what the base layer shares with the workspace stays as it is. Between the link and the
// exchange the file had its name, so that somebody may have opened it for writing or linked it: then it would change with
// what he writes. Now it has no name that is not ours, so who has not opened it never will.
func (p *promotion) verifyLinked() error {
	at := beneath.Cursor{Root: p.stage}
	defer at.Close()
	i := 0
	for _, n := range p.linked {
		for p.entries[i].to <= n {
			i++
		}
		path := p.c.Entries[n].Path
		taken := p.taken(i) + path[len(p.c.Entries[p.entries[i].from].Path):]
		reason, err := p.shared(&at, taken, &p.seen[n])
		if err != nil {
			return p.base.Fail("verify", path, err)
		}
		if reason != "" {
			return &tree.ConflictError{Conflicts: []tree.Conflict{{Path: path, Reason: reason}}}
		}
	}
	return nil
}

// shared tells what others did, or still can do, to a file that was taken away and has a link in the base layer.
func (p *promotion) shared(at *beneath.Cursor, taken string, seen *tree.Seen) (reason string, err error) {
	dir, name, err := at.Parent(taken)
	if err != nil {
		return "", err
	}
	fd, err := p.stage.OpenFile(dir, name)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) // ends the lease
	if err := unwritten(fd); errors.Is(err, unix.EAGAIN) {
		return "opened for writing by others while promoting", nil
	} else if err != nil {
		return "", err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	switch {
	case err != nil:
		return "", err
	case st.Nlink > 2:
		return "linked by others while promoting", nil
	case !seen.Same(journal.See(&st)):
		return "changed by others while promoting", nil
	}
	return "", nil
}

// taken is where in the stage an op's old object is.
func (p *promotion) taken(i int) string {
	if n, err := journal.Inode(p.stage.FD, journal.Aside(i)); err == nil && n != 0 {
		return journal.Aside(i)
	}
	return journal.Slot(i)
}

func removed(e *tree.Entry) error {
	return &tree.ConflictError{Conflicts: []tree.Conflict{{Path: e.Path, Reason: "removed by others while promoting"}}}
}

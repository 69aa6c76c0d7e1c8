package promote

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Conflicts lists the paths that the feature and others both changed, sorted: what others changed, removed or made
// at a path of the change since the feature began or since c was read. Paths that both left in the same state are
// not in the change, and what only others changed is no conflict. c must have been read from t's views.
func Conflicts(ctx context.Context, t Target, c *tree.Change) ([]tree.Conflict, error) {
	if !c.Of(t.Old, t.New) {
		return nil, tree.ErrStaleChange
	}
	return conflicts(ctx, t.base(), c)
}

func conflicts(ctx context.Context, base *beneath.Root, c *tree.Change) ([]tree.Conflict, error) {
	all := map[string]string{}
	for _, x := range c.Found() {
		all[x.Path] = x.Reason
	}
	at := beneath.Cursor{Root: base}
	defer at.Close()
	absent := "" // a directory that is not in the base, so that nothing below it is
	for i := range c.Entries {
		e := &c.Entries[i]
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if e.Detail().Conflict != "" {
			all[e.Path] = e.Detail().Conflict
			continue
		}
		if absent != "" && tree.Below(e.Path, absent) {
			continue
		}
		reason, err := recheck(&at, e)
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

// recheck compares a base object with what the walk saw of it.
func recheck(at *beneath.Cursor, e *tree.Entry) (reason string, err error) {
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
	case there && !unchanged(&st, &e.Detail().Old):
		return "changed by others since the change was read", nil
	}
	return "", nil
}

// unchanged reports whether an object is the one that was seen, in the state that was seen. The ctime of a file with
// several links changes when another of its names does.
func unchanged(now, seen *unix.Stat_t) bool {
	return same(now, seen) && (now.Ctim == seen.Ctim || seen.Nlink > 1 && !beneath.IsDir(seen))
}

// same is unchanged without a look at the ctime, for an object that was renamed.
func same(now, seen *unix.Stat_t) bool { return journal.See(seen).Same(journal.See(now)) }

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
			if err != nil || !unchanged(&st, &e.Detail().Old) {
				return &tree.ConflictError{Conflicts: []tree.Conflict{{Path: e.Path, Reason: "changed by others while promoting"}}}
			}
		}
	}
	return nil
}

// taken is where in the stage an op's old object is.
func (p *promotion) taken(i int) string {
	if n, err := journal.Inode(p.stage.FD, journal.Aside(i)); err == nil && n != 0 {
		return journal.Aside(i)
	}
	return journal.Slot(i)
}

package overlay

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Reset makes the current state that of a checkpoint: a fresh layer on its stack, or on the head's with what the paths hold
// in the checkpoint written into it. Nobody sees it before it is complete.
func (l *layers) Reset(ctx context.Context, o snapshot.ResetOptions) (*snapshot.ResetReport, error) {
	unlock, err := l.write()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if o.To == snapshot.Current {
		return nil, fmt.Errorf("%s: %w", o.To, snapshot.ErrCheckpoint)
	}
	to, err := l.at(o.To)
	if err != nil {
		return nil, err
	}
	report := &snapshot.ResetReport{To: o.To}
	match, err := dirs.Matcher(o.Paths, o.Skip)
	if err != nil {
		return nil, err
	}
	if o.DryRun {
		return report, l.preview(ctx, &to, match, report)
	}
	s := l.book.State()
	if o.Paths == nil {
		if err := l.whole(&to); err != nil {
			return nil, err
		}
		next := s
		next.Head, next.Ground, next.Lower = to.id, to.id, to.stack
		next.Generation, next.Origin, next.Bare = to.generation, to.origin, to.bare
		return report, l.advance(next)
	}
	if report.Conflicts, err = l.edited(ctx, match); err != nil {
		return nil, err
	}
	report.Paths, err = l.resetPaths(ctx, &s, &to, match)
	return report, err
}

// resetPaths puts paths back on the head, which holds all of the current state: the caller has just sealed it.
func (l *layers) resetPaths(ctx context.Context, s *book.State, to *place, match func(string) bool) ([]string, error) {
	next := *s
	next.Ground = s.Head
	onto := place{generation: s.Generation, origin: s.Origin, bare: s.Bare}
	if s.Head != "" {
		var err error
		if onto, err = l.at(s.Head); err != nil {
			return nil, err
		}
	}
	next.Lower = onto.stack
	n, err := l.take()
	if err != nil {
		return nil, err
	}
	next.Current = n
	paths, err := l.restore(ctx, &next, to, &onto, match)
	if err == nil {
		err = l.commit(next)
	}
	if err != nil {
		return nil, errors.Join(err, l.discard(n))
	}
	l.copied = nil
	return paths, nil
}

// restore fills a fresh current layer on onto with what differs in to.
func (l *layers) restore(ctx context.Context, s *book.State, to, onto *place, match func(string) bool) ([]string, error) {
	if err := l.dress(s, s.Current); err != nil {
		return nil, err
	}
	release, err := l.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	from, err := l.view(to, "w")
	if err != nil {
		return nil, err
	}
	defer from.Close()
	over, err := l.view(onto, "w")
	if err != nil {
		return nil, err
	}
	defer over.Close()
	ids, err := l.ids()
	if err != nil {
		return nil, err
	}
	return tree.Restore(ctx, from, over, l.book.Layer(s.Current)+"/w", tree.RestoreOptions{
		Match: match, Owner: s.Owner, UserXattr: s.UserXattr, Map: ids.FromBase,
	})
}

// preview fills in what Reset would change: nothing is written.
func (l *layers) preview(ctx context.Context, to *place, match func(string) bool, report *snapshot.ResetReport) error {
	now, err := l.at(snapshot.Current)
	if err != nil {
		return err
	}
	c, err := l.compare(ctx, &now, to, tree.CompareOptions{Only: match})
	if err != nil {
		return err
	}
	for i := range c.Entries {
		if path := c.Entries[i].Path; match(path) {
			report.Paths = append(report.Paths, path)
		}
	}
	report.Conflicts, err = l.edited(ctx, match)
	return err
}

// edited lists what the feature changed and others changed in the workspace, too: there the base is not what it was.
func (l *layers) edited(ctx context.Context, match func(string) bool) ([]snapshot.Conflict, error) {
	c, err := l.changeOf(ctx, snapshot.Base, snapshot.Current, match)
	if err != nil {
		return nil, err
	}
	list, err := l.Conflicts(ctx, c)
	return slices.DeleteFunc(list, func(x snapshot.Conflict) bool { return !match(x.Path) }), err
}

// promoted begins the feature anew after a promote of its current state, and ends the promote. It can be repeated.
func (l *layers) promoted() error {
	note, pending, err := promote.Pending(l.journal)
	if err != nil || !pending {
		return err
	}
	if string(note) == noteCurrent {
		if err := l.book.CheckWorkspace(); err != nil {
			return err
		}
		next := l.book.State()
		next.Head, next.Ground, next.Lower, next.Bare = "", "", nil, false
		if next.Generation, err = promote.Generation(l.journal); err != nil {
			return err
		}
		if next.Origin, err = l.book.OriginNow(); err != nil {
			return err
		}
		if err := l.advance(next); err != nil {
			return err
		}
		if err := l.sync(); err != nil {
			return err
		}
	}
	return promote.Forget(l.journal)
}

// noteCurrent marks, in the promote's journal, that what is promoted is what the feature shows.
const noteCurrent = `"current"`

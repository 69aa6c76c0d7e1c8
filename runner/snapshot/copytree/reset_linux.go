package copytree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Reset makes the current state that of a checkpoint: a copy of it, or of the head with what the paths hold in the
// checkpoint. Nobody sees it before it is complete.
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
		s.Head, s.Ground, s.Generation, s.Origin = to.id, to.id, to.generation, to.origin
		return report, l.advance(ctx, s, &to)
	}
	if report.Conflicts, err = l.edited(ctx, match); err != nil {
		return nil, err
	}
	report.Paths, err = l.resetPaths(ctx, &s, &to, match)
	return report, err
}

// advance commits next with a copy of a state as its current layer.
func (l *layers) advance(ctx context.Context, next book.State, p *place) error {
	n, err := l.take()
	if err != nil {
		return err
	}
	next.Current, next.Lower = n, []snapshot.LayerRef{p.base}
	if err = l.fill(ctx, n, p); err == nil {
		err = l.commit(next)
	}
	if err != nil {
		return errors.Join(err, l.discard(n))
	}
	l.known = nil
	return l.look(ctx, next.Head)
}

// resetPaths makes a copy of the head, which holds all of the current state (the caller has just sealed it), with some
// paths as they are in another state.
func (l *layers) resetPaths(ctx context.Context, s *book.State, to *place, match func(string) bool) ([]string, error) {
	onto, err := l.at(snapshot.Base)
	if s.Head != "" {
		onto, err = l.at(s.Head)
	}
	if err != nil {
		return nil, err
	}
	n, err := l.take()
	if err != nil {
		return nil, err
	}
	next := *s
	next.Current = n
	paths, err := l.mix(ctx, n, to, &onto, match)
	if err == nil {
		err = l.commit(next)
	}
	if err != nil {
		return nil, errors.Join(err, l.discard(n))
	}
	l.known = nil
	return paths, nil
}

// mix fills layer n: what differs becomes an overlay's layer first, as the other driver has it, and then both are copied
// as one tree.
func (l *layers) mix(ctx context.Context, n int, to, onto *place, match func(string) bool) (paths []string, err error) {
	at := book.LayerDir(l.dir, n)
	upper := filepath.Join(at, "upper")
	s := l.book.State()
	err = l.with(to, onto, workspace, func(from, over *tree.View) error {
		if err := os.Mkdir(upper, 0o700); err != nil {
			return err
		}
		if err := wear(upper, over); err != nil {
			return err
		}
		paths, err = tree.Restore(ctx, from, over, upper, tree.RestoreOptions{
			Match: match, Owner: s.Owner, UserXattr: s.UserXattr,
		})
		if err != nil {
			return err
		}
		v, err := tree.OpenView(append([]tree.Root{{Path: upper, UserXattr: s.UserXattr}}, over.Layers()...))
		if err != nil {
			return err
		}
		_, err = copyView(ctx, v, filepath.Join(at, workspace), nil)
		return errors.Join(err, v.Close())
	})
	if err != nil {
		return nil, err
	}
	if err := snapshot.Remove(ctx, upper); err != nil {
		return nil, err
	}
	err = l.with(onto, onto, home, func(_, v *tree.View) error {
		_, err := copyView(ctx, v, filepath.Join(at, home), nil)
		return err
	})
	return paths, errors.Join(err, l.point(n))
}

// wear makes one of our own directories look as the root of a view.
func wear(path string, v *tree.View) error {
	s, err := v.Lstat(".")
	if err != nil {
		return err
	}
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return err
	}
	defer r.Close()
	return errors.Join(beneath.Chown(r.FD, s.UID, s.GID), beneath.SetXattrs(r.FD, s.Xattrs),
		os.Chmod(path, s.Mode), beneath.SetMtime(r.FD, timespec(s.Mtime)))
}

// preview fills in what Reset would change: nothing is written.
func (l *layers) preview(ctx context.Context, to *place, match func(string) bool, report *snapshot.ResetReport) error {
	now, err := l.at(snapshot.Current)
	if err != nil {
		return err
	}
	c, err := l.compare(ctx, &now, to, workspace, tree.CompareOptions{Only: match})
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

// edited lists what the feature changed and others changed in the workspace, too.
func (l *layers) edited(ctx context.Context, match func(string) bool) ([]snapshot.Conflict, error) {
	c, err := l.changeOf(ctx, snapshot.Base, snapshot.Current, match)
	if err != nil {
		return nil, err
	}
	list, err := l.Conflicts(ctx, c)
	return slices.DeleteFunc(list, func(x snapshot.Conflict) bool { return !match(x.Path) }), err
}

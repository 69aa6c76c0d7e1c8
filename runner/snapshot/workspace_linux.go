package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Remove removes a feature's directory with everything in it: see tree.Remove.
func Remove(ctx context.Context, dir string, keep ...string) error {
	return tree.Remove(ctx, dir, keep...)
}

// This file is Workspace on the packages tree and promote, until runner uses Layers.

// views opens what the base and what the sandbox shows.
func (w *Workspace) views() (old, now *tree.View, err error) {
	base, err := w.openBase()
	if err != nil {
		return nil, nil, err
	}
	defer base.Close()
	below := tree.Root{Path: w.state.Workspace, Base: true, UserXattr: w.state.UserXattr}
	if old, err = tree.OpenView([]tree.Root{below}); err != nil {
		return nil, nil, err
	}
	now, err = tree.OpenView([]tree.Root{{Path: filepath.Join(w.dir, "upper"), UserXattr: w.state.UserXattr, Layer: 1}, below})
	if err != nil {
		return nil, nil, errors.Join(err, old.Close())
	}
	return old, now, nil
}

func (w *Workspace) with(do func(old, now *tree.View) error) error {
	old, now, err := w.views()
	if err != nil {
		return err
	}
	return errors.Join(do(old, now), old.Close(), now.Close())
}

// Change reads what the sandbox changed. Entries, counts and digest are exact when nobody writes in the feature;
// otherwise they are what was met. Errors name the path; *WorkspaceError when the base is gone.
func (w *Workspace) Change(ctx context.Context) (c *Change, err error) {
	touched, err := promote.Touched(w.dir)
	if err != nil {
		return nil, err
	}
	o := tree.CompareOptions{
		Since: w.state.Start, RootMode: w.state.RootMode, RootXattr: w.state.RootXattr, Touched: touched,
	}
	err = w.with(func(old, now *tree.View) (err error) {
		c, err = tree.Compare(ctx, old, now, o)
		return err
	})
	return c, err
}

// OpenChanged opens a regular file of the sandbox's view for reading.
func (w *Workspace) OpenChanged(path string) (f *os.File, err error) {
	err = w.with(func(_, now *tree.View) (err error) {
		f, err = now.Open(path)
		return err
	})
	return f, err
}

// WriteDiff prints a change in git's unified format.
func (w *Workspace) WriteDiff(ctx context.Context, c *Change, out io.Writer, o DiffOptions) error {
	return w.with(func(old, now *tree.View) error { return tree.WriteDiff(ctx, old, now, c, out, o) })
}

// Conflicts lists the paths that the feature and others both changed, sorted.
func (w *Workspace) Conflicts(ctx context.Context, c *Change) (list []Conflict, err error) {
	err = w.with(func(old, now *tree.View) (err error) {
		list, err = promote.Conflicts(ctx, promote.Target{Old: old, New: now}, c)
		return err
	})
	return list, err
}

// Promote hands a change over.
func (w *Workspace) Promote(ctx context.Context, c *Change, o PromoteOptions) (r *PromoteReport, err error) {
	if o.LockDir == "" {
		o.LockDir = filepath.Dir(w.dir)
	}
	err = w.with(func(old, now *tree.View) error {
		lock, err := lockName(w.state.Workspace, o.LockDir)
		if err != nil {
			return err
		}
		t := promote.Target{Dir: w.dir, Workspace: w.state.Workspace, Old: old, New: now, LockFile: lock}
		switch o.Kind {
		case PromoteApply, "":
			r, err = promote.Apply(ctx, t, c, nil)
		case PromotePatch:
			r, err = promote.Patch(ctx, t, c, o.PatchFile)
		default:
			err = fmt.Errorf("promote as %q: %w", o.Kind, ErrUnsupported)
		}
		return err
	})
	if err == nil && o.Kind != PromotePatch {
		err = w.renew()
	}
	return r, err
}

// lockName is the file that promotes to a workspace are serialised by.
func lockName(workspace, dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(workspace, &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: workspace, Err: err}
	}
	dir, err := filepath.Abs(dir)
	return filepath.Join(dir, fmt.Sprintf("workspace-%x-%x.lock", st.Dev, st.Ino)), err
}

// renew starts the feature anew after a promote.
func (w *Workspace) renew() error {
	base, err := w.openBase()
	if err != nil {
		return err
	}
	defer base.Close()
	if err := w.emptyUpper(base); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	if err := w.save(true); err != nil {
		return err
	}
	if err := promote.Forget(w.dir); err != nil {
		return err
	}
	return errors.Join(Remove(context.Background(), filepath.Join(w.dir, nextUpper)), w.Prepare())
}

// nextUpper is the name of an upper layer that is not in use.
const nextUpper = "upper.next"

// emptyUpper puts an empty upper layer in the place of the old one, which becomes the next. It can be repeated.
func (w *Workspace) emptyUpper(base *beneath.Root) error {
	next := filepath.Join(w.dir, nextUpper)
	if err := Remove(context.Background(), next); err != nil {
		return err
	}
	if err := w.makeUpper(nextUpper, base); err != nil {
		return err
	}
	upper := filepath.Join(w.dir, "upper")
	if err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, upper, unix.RENAME_EXCHANGE); err != nil {
		return &fs.PathError{Op: "exchange", Path: upper, Err: err}
	}
	return nil
}

// Recover finishes or undoes a promote of the feature in dir that was cut short.
func Recover(dir string) error {
	w, err := Open(dir)
	if err != nil {
		return err
	}
	promoted, err := promote.Recover(w.dir, nil)
	if err != nil {
		return err
	}
	if promoted {
		return w.renew()
	}
	if err := os.Remove(filepath.Join(w.dir, stateFile+".tmp")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return Remove(context.Background(), filepath.Join(w.dir, nextUpper))
}

// Discard throws the feature's layers away: everything under its directory but the names in keep (see Remove). A
// promote that was cut short is recovered first, so that nothing stays behind in the workspace; when the workspace
// itself is gone there is nothing to recover. It can be repeated.
func (w *Workspace) Discard(ctx context.Context, keep ...string) error {
	err := Recover(w.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrMissing) && !errors.Is(err, ErrReplaced) {
		return err
	}
	return Remove(ctx, w.dir, keep...)
}

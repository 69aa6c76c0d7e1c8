package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// Recover finishes or undoes a promote of the feature in dir that was cut short, so that the workspace is in the old
// or in the new state and holds nothing of ours. It waits for other promotes to the same workspace. Without anything
// to recover it does nothing. Errors leave the journal in place: Recover can be repeated. They are fs.ErrNotExist for
// a directory without layers and *WorkspaceError for a workspace that is not there.
func Recover(dir string) error {
	w, err := Open(dir)
	if err != nil {
		return err
	}
	name := journal.DoneFile
	p, err := journal.Read(filepath.Join(w.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		name = journal.PlanFile
		p, err = journal.Read(filepath.Join(w.dir, name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return w.tidy()
	}
	if err != nil {
		return err
	}
	unlock, err := lock(context.Background(), p.Lock)
	if err != nil {
		return err
	}
	defer unlock()
	base, err := w.openBase()
	if err != nil {
		return err
	}
	defer base.Close()
	if name == journal.DoneFile {
		return w.finish(base, p)
	}
	return w.undo(base, p)
}

// tidy removes what was cut short before or after everything that matters.
func (w *Workspace) tidy() error {
	for _, name := range []string{journal.PlanFile + ".tmp", stateFile + ".tmp"} {
		if err := ignoreMissing(os.Remove(filepath.Join(w.dir, name))); err != nil {
			return err
		}
	}
	return Remove(context.Background(), filepath.Join(w.dir, nextUpper))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// undo puts the old state back and forgets the plan. What others changed meanwhile is left as they made it.
func (w *Workspace) undo(base *beneath.Root, p *journal.Plan) error {
	touched, err := p.Undo(base)
	if err != nil {
		return err
	}
	if len(touched) > 0 {
		// Without this, our own renames would look like changes by others to the next promote.
		w.state.Touched = slices.Concat(w.state.Touched, touched)
		if err := w.save(true); err != nil {
			return err
		}
	}
	if err := w.forget(journal.PlanFile); err != nil {
		return err
	}
	journal.Step("undone")
	return nil
}

// finish cleans up after the new state has become irrevocable: it empties the upper layer, starts the feature anew and
// removes the stage.
func (w *Workspace) finish(base *beneath.Root, p *journal.Plan) error {
	if err := p.RestoreRoot(base); err != nil {
		return err
	}
	if err := w.emptyUpper(base); err != nil {
		return err
	}
	journal.Step("emptied")
	if err := w.clean(base, p); err != nil {
		return err
	}
	journal.Step("cleaned")
	if err := p.RestoreRoot(base); err != nil {
		return err
	}
	w.state.Touched = nil
	if err := w.begin(); err != nil {
		return err
	}
	if err := w.save(true); err != nil {
		return err
	}
	journal.Step("begun")
	return w.forget(journal.DoneFile)
}

// clean removes what is no longer needed, on both sides at once: it is mostly waiting.
func (w *Workspace) clean(base *beneath.Root, p *journal.Plan) error {
	ctx := context.Background()
	var group sync.WaitGroup
	var old error
	group.Go(func() { old = Remove(ctx, filepath.Join(w.dir, nextUpper)) })
	err := w.Prepare()
	if p.Stage != "" {
		err = errors.Join(err, base.RemoveAll(ctx, p.Stage))
	}
	group.Wait()
	return errors.Join(err, old)
}

func (w *Workspace) forget(name string) error {
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		return err
	}
	return journal.SyncDir(w.dir)
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

// Remove removes a feature's directory with everything in it, whatever the modes and the depth, also one that was
// never completed; a missing one is no error. With keep, names directly in it, those and the directory itself stay.
func Remove(ctx context.Context, dir string, keep ...string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	at, names := filepath.Dir(dir), []string{filepath.Base(dir)}
	if len(keep) > 0 {
		at = dir
	}
	r, err := beneath.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if len(keep) > 0 {
		if names, err = beneath.ReadNames(r.FD, make([]byte, 64<<10), nil); err != nil {
			return r.Fail("read", ".", err)
		}
	}
	for _, name := range names {
		if slices.Contains(keep, name) {
			continue
		}
		if err := r.RemoveAll(ctx, name); err != nil {
			return err
		}
	}
	return nil
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

// lockName is the file that promotes to a workspace are serialised by.
func lockName(base *beneath.Root, dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(base.FD, &st); err != nil {
		return "", base.Fail("stat", ".", err)
	}
	dir, err := filepath.Abs(dir)
	return filepath.Join(dir, fmt.Sprintf("workspace-%x-%x.lock", st.Dev, st.Ino)), err
}

// lock takes an exclusive flock. When ctx ends first, a goroutine waits on and gives the lock back at once: flock
// cannot be interrupted.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	unlock = func() { f.Close() }
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return unlock, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		unlock()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	taken := make(chan error, 1)
	go func() {
		_, err := beneath.Retry(func() (int, error) { return 0, unix.Flock(int(f.Fd()), unix.LOCK_EX) })
		taken <- err
	}()
	select {
	case err := <-taken:
		if err != nil {
			unlock()
			return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
		return unlock, nil
	case <-ctx.Done():
		go func() {
			_ = errors.Join(<-taken, f.Close()) // gives the lock back
		}()
		return nil, context.Cause(ctx)
	}
}

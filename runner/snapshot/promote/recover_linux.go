package promote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// touchedFile remembers, in a feature's directory, what an undone promote left with a new ctime.
const touchedFile = "promote.touched"

// Recover finishes or undoes a promote of the feature in dir that was cut short, so that the workspace is in the old
// or in the new state and holds nothing of ours. It waits for other promotes to the same workspace. promoted says
// that it is the new one: the caller begins the feature anew and calls Forget. Without anything to recover it does
// nothing. Errors leave the journal in place: Recover can be repeated. They are *tree.WorkspaceError for a workspace
// that is not there.
func Recover(dir string, b *Bases) (promoted bool, err error) {
	p, done, err := read(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, ignoreMissing(os.Remove(filepath.Join(dir, journal.PlanFile+".tmp")))
	}
	if err != nil {
		return false, err
	}
	t := Target{LockFile: p.Lock}
	if p.Bases != "" {
		if b == nil || b.dir != p.Bases {
			b = &Bases{dir: p.Bases, workspace: p.Workspace, inode: p.Inode, birth: p.Birth}
		}
		t.Bases = b
	}
	unlock, err := t.locks(context.Background())
	defer unlock()
	if err != nil {
		return false, err
	}
	base, err := openWorkspace(p)
	if err != nil {
		return false, err
	}
	defer base.Close()
	if done {
		return true, clean(base, p)
	}
	return false, undo(dir, base, p, b)
}

// read reads the journal, and whether it is of a promote that is done.
func read(dir string) (p *journal.Plan, done bool, err error) {
	p, err = journal.Read(filepath.Join(dir, journal.DoneFile))
	if !errors.Is(err, fs.ErrNotExist) {
		return p, true, err
	}
	p, err = journal.Read(filepath.Join(dir, journal.PlanFile))
	return p, false, err
}

// Pending reports whether a promote of the feature in dir is done and not forgotten, and the Target.Note it came with.
func Pending(dir string) (note []byte, pending bool, err error) {
	p, err := journal.Read(filepath.Join(dir, journal.DoneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return p.Note, true, nil
}

// Generation is the workspace's after the promote of the feature in dir that is done and not forgotten. fs.ErrNotExist.
func Generation(dir string) (int, error) {
	p, err := journal.Read(filepath.Join(dir, journal.DoneFile))
	if err != nil {
		return 0, err
	}
	return p.Generation, nil
}

// Forget ends a promote that is done, durably: the feature has begun anew.
func Forget(dir string) error {
	if err := ignoreMissing(os.Remove(filepath.Join(dir, touchedFile))); err != nil {
		return err
	}
	return forget(dir, journal.DoneFile)
}

func forget(dir, name string) error {
	if err := ignoreMissing(os.Remove(filepath.Join(dir, name))); err != nil {
		return err
	}
	return journal.SyncDir(dir)
}

// Touched returns the objects of the workspace whose ctime is of an undone promote of the feature in dir, and which are
// otherwise as they were: tree.CompareOptions.Touched.
func Touched(dir string) (map[string]tree.Seen, error) {
	data, err := os.ReadFile(filepath.Join(dir, touchedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []journal.Touched
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return nil, err
	}
	all := make(map[string]tree.Seen, len(list))
	for _, x := range list {
		all[string(x.Path)] = x.Seen
	}
	return all, nil
}

// touch adds to what Touched returns.
func touch(dir string, more []journal.Touched) error {
	all, err := Touched(dir)
	if err != nil {
		return err
	}
	for _, x := range more { // the newer one wins
		delete(all, string(x.Path))
	}
	list := more
	for path, seen := range all {
		list = append(list, journal.Touched{Path: []byte(path), Seen: seen})
	}
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return journal.WriteFile(dir, touchedFile, data)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// undo puts the old state back and forgets the plan. What others changed meanwhile is left as they made it.
func undo(dir string, base *beneath.Root, p *journal.Plan, b *Bases) error {
	if p.Bases != "" {
		if err := b.read(); err != nil {
			return err
		}
		// Before the old objects are looked at: removing links changes their ctime, too.
		if err := b.retract(context.Background(), p.Generation); err != nil {
			return err
		}
		journal.Step("retracted")
	}
	touched, err := p.Undo(base)
	if err != nil {
		return err
	}
	// A conflict is one again: what was said about it was said for this promote.
	touched = slices.DeleteFunc(touched, func(x journal.Touched) bool {
		return slices.ContainsFunc(p.Disputed, func(path []byte) bool { return bytes.Equal(path, x.Path) })
	})
	if len(touched) > 0 {
		// Without this, our own renames would look like changes by others to the next promote.
		if err := touch(dir, touched); err != nil {
			return err
		}
	}
	if err := forget(dir, journal.PlanFile); err != nil {
		return err
	}
	journal.Step("undone")
	return nil
}

// clean removes the stage after the new state has become irrevocable.
func clean(base *beneath.Root, p *journal.Plan) error {
	if p.Stage == "" {
		return nil
	}
	if err := base.RemoveAll(context.Background(), p.Stage); err != nil {
		return err
	}
	journal.Step("cleaned")
	return p.RestoreRoot(base)
}

// lock takes an exclusive flock. When ctx ends first, a goroutine waits on and gives the lock back at once: flock
// cannot be interrupted.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	return flock(ctx, path, unix.LOCK_EX)
}

func flock(ctx context.Context, path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	unlock = func() { f.Close() }
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if err == nil {
		return unlock, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		unlock()
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	taken := make(chan error, 1)
	go func() {
		_, err := beneath.Retry(func() (int, error) { return 0, unix.Flock(int(f.Fd()), how) })
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

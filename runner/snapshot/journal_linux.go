package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// The journal of a promote is one file in the feature's directory. As promote.plan it means: not yet; whatever was
// done is undone. Renamed to promote.done it means: irrevocable; what is left is to clean up. Both directions find out
// from inode numbers what has happened, so that they can themselves be cut short and repeated.
const (
	planFile = "promote.plan"
	doneFile = "promote.done"
)

// plan is what the journal holds.
type plan struct {
	Version int     `json:"version"`
	Lock    string  `json:"lock"`
	Stage   string  `json:"stage"` // a directory in the workspace's root; "" if nothing needs one
	Ops     []op    `json:"ops"`
	Dirs    []dirOp `json:"dirs"` // sorted by path; the root first
}

// op is one rename, or an exchange of two names. The op's place in the list is its name in the stage.
type op struct {
	Path []byte `json:"path"`
	New  uint64 `json:"new,omitempty"` // inode of what is staged; 0: nothing
	Old  uint64 `json:"old,omitempty"` // inode of what is there; 0: nothing
}

// dirOp is a directory that stays and of which something is set.
type dirOp struct {
	Path     []byte  `json:"path"`
	Old      dirAttr `json:"old"`
	New      dirAttr `json:"new"`
	Mode     bool    `json:"mode,omitempty"`
	Xattrs   bool    `json:"xattrs,omitempty"`
	SetMtime bool    `json:"set_mtime,omitempty"` // to New; Old is put back always
}

type dirAttr struct {
	Mode   uint32          `json:"mode"`
	Mtime  [2]int64        `json:"mtime"` // seconds, nanoseconds
	Xattrs []beneath.Xattr `json:"xattrs,omitempty"`
}

func slot(i int) string { return strconv.Itoa(i) }

// aside is where an op's old object goes on a filesystem that cannot exchange two names.
func aside(i int) string { return strconv.Itoa(i) + ".old" }

// step is called at every point at which a promote may be cut short. Tests replace it.
var step = func(string) {}

// rename is renameat2. Tests replace it by what filesystems without its flags answer.
var rename = unix.Renameat2

// renameNew renames and never replaces.
func renameNew(fromDir int, from string, toDir int, to string) error {
	err := rename(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !noFlags(err) {
		return err
	}
	var st unix.Stat_t
	if err := beneath.StatAt(toDir, to, &st); err == nil {
		return unix.EEXIST
	}
	return rename(fromDir, from, toDir, to, 0)
}

// noFlags reports a filesystem that does not know renameat2's flags.
func noFlags(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) }

// write makes the journal durable.
func (p *plan) write(dir string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, planFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(dir, planFile)); err != nil {
		return err
	}
	return syncDir(dir)
}

func readPlan(path string) (*plan, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var p plan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrUnusableLayers, err)
	}
	if p.Version != 1 {
		return nil, fmt.Errorf("%s: version %d: %w", path, p.Version, ErrUnsupported)
	}
	return &p, nil
}

// Recover finishes or undoes a promote of the feature in dir that was cut short, so that the workspace is in the old
// or in the new state and holds nothing of ours. It waits for other promotes to the same workspace. Without anything
// to recover it does nothing. Errors leave the journal in place: Recover can be repeated. They are fs.ErrNotExist for
// a directory without layers and *WorkspaceError for a workspace that is not there.
func Recover(dir string) error {
	w, err := Open(dir)
	if err != nil {
		return err
	}
	name := doneFile
	p, err := readPlan(filepath.Join(w.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		name = planFile
		p, err = readPlan(filepath.Join(w.dir, name))
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
	if name == doneFile {
		return w.finish(base, p)
	}
	return w.undo(base, p)
}

// tidy removes what a reset that was cut short before or after everything that matters may have left.
func (w *Workspace) tidy() error {
	for _, name := range []string{planFile + ".tmp", stateFile + ".tmp"} {
		if err := os.Remove(filepath.Join(w.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return Remove(context.Background(), filepath.Join(w.dir, nextUpper))
}

// undo puts the old state back and forgets the plan. What others changed meanwhile is left as they made it.
func (w *Workspace) undo(base *beneath.Root, p *plan) error {
	if p.Stage != "" {
		if err := undoStaged(base, p); err != nil {
			return err
		}
	}
	if err := w.forget(planFile); err != nil {
		return err
	}
	step("undone")
	return nil
}

func undoStaged(base *beneath.Root, p *plan) error {
	fd, err := base.Open(p.Stage, beneath.ReadDir)
	if err == nil {
		stage := &beneath.Root{FD: fd, Path: base.Path + "/" + p.Stage}
		err = undoOps(base, stage, p.Ops)
		stage.Close()
		if err != nil {
			return err
		}
	} else if !beneath.Gone(err) {
		return base.Fail("open", p.Stage, err)
	}
	if err := base.RemoveAll(context.Background(), p.Stage); err != nil {
		return err
	}
	for _, d := range slices.Backward(p.Dirs) {
		if err := d.set(base, &d.Old, true); err != nil && !beneath.Gone(err) {
			return base.Fail("restore", string(d.Path), err)
		}
	}
	return syncfs(base)
}

func syncfs(base *beneath.Root) error {
	if err := unix.Syncfs(base.FD); err != nil {
		return base.Fail("syncfs", ".", err)
	}
	return nil
}

func undoOps(base, stage *beneath.Root, ops []op) error {
	at := beneath.Cursor{Root: base}
	defer at.Close()
	for i, o := range slices.Backward(ops) {
		dir, name, err := at.Parent(string(o.Path))
		if beneath.Gone(err) {
			continue
		}
		if err == nil {
			err = o.undo(stage.FD, i, dir, name)
		}
		if err != nil {
			return base.Fail("restore", string(o.Path), err)
		}
		step("undo")
	}
	return nil
}

// undo takes one op back, as far as it was done.
func (o *op) undo(stage, i, dir int, name string) error {
	now, err := inode(dir, name)
	if err != nil {
		return err
	}
	old, err := inode(stage, aside(i))
	if err != nil {
		return err
	}
	if o.New != 0 && now == o.New {
		if o.Old == 0 || old == o.Old {
			if err := renameNew(dir, name, stage, slot(i)); err != nil {
				return err
			}
		} else {
			return rename(dir, name, stage, slot(i), unix.RENAME_EXCHANGE)
		}
	}
	if o.Old == 0 {
		return nil
	}
	from := aside(i)
	if o.New == 0 {
		from = slot(i)
		if old, err = inode(stage, from); err != nil {
			return err
		}
	}
	if old != o.Old {
		return nil // it never left its place
	}
	err = renameNew(stage, from, dir, name)
	if errors.Is(err, unix.EEXIST) {
		return nil // somebody made a new one
	}
	return err
}

// inode returns a name's inode number; 0 for none.
func inode(dir int, name string) (uint64, error) {
	var st unix.Stat_t
	err := beneath.StatAt(dir, name, &st)
	if beneath.Gone(err) {
		return 0, nil
	}
	return st.Ino, err
}

// set gives a directory of the base the attributes of one of the sides. mtime says whether its time, too.
func (d *dirOp) set(base *beneath.Root, a *dirAttr, mtime bool) error {
	fd, err := base.Open(string(d.Path), beneath.ReadDir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if d.Xattrs {
		if err := beneath.SetXattrs(fd, a.Xattrs); err != nil {
			return err
		}
	}
	if d.Mode {
		if err := unix.Fchmod(fd, a.Mode); err != nil {
			return err
		}
	}
	if !mtime {
		return nil
	}
	err = beneath.SetMtime(fd, unix.NsecToTimespec(a.Mtime[0]*1e9+a.Mtime[1]))
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		return nil // another owner's directory, in which we may only write
	}
	return err
}

// finish cleans up after the new state has become irrevocable.
func (w *Workspace) finish(base *beneath.Root, p *plan) error {
	if p.Stage != "" {
		if err := base.RemoveAll(context.Background(), p.Stage); err != nil {
			return err
		}
		step("cleaned")
		// Making and removing the stage changed the root's time; the root comes first.
		root := p.Dirs[0]
		attr := &root.Old
		if root.SetMtime {
			attr = &root.New
		}
		root.Mode, root.Xattrs = false, false
		if err := root.set(base, attr, true); err != nil {
			return base.Fail("restore", ".", err)
		}
	}
	if err := w.reset(base); err != nil {
		return err
	}
	step("reset")
	return w.forget(doneFile)
}

func (w *Workspace) forget(journal string) error {
	if err := os.Remove(filepath.Join(w.dir, journal)); err != nil {
		return err
	}
	return syncDir(w.dir)
}

// nextUpper is the name of an upper layer that is not in use.
const nextUpper = "upper.next"

// reset replaces the upper layer by an empty one and starts the feature anew. It can be repeated.
func (w *Workspace) reset(base *beneath.Root) error {
	ctx := context.Background()
	next := filepath.Join(w.dir, nextUpper)
	if err := Remove(ctx, next); err != nil {
		return err
	}
	if err := w.makeUpper(nextUpper, base); err != nil {
		return err
	}
	upper := filepath.Join(w.dir, "upper")
	if err := unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, upper, unix.RENAME_EXCHANGE); err != nil {
		return &fs.PathError{Op: "exchange", Path: upper, Err: err}
	}
	step("exchanged")
	if err := Remove(ctx, next); err != nil {
		return err
	}
	if err := w.Prepare(); err != nil {
		return err
	}
	return w.save(true)
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

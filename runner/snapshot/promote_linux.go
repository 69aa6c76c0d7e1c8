package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// Promote hands a change over that [Workspace.Change] read. PromoteApply changes the workspace: all of it or, after
// any error, nothing, also when the process or the machine dies in the middle (see [Recover]). Afterwards the
// feature has an empty upper layer and a new start, and must be mounted anew; a change read before is stale.
//
// New objects get the owner of the directory that they are put into, others keep theirs, with their access control
// lists and security labels. Content, modes, times, user.* attributes, links and holes are promoted; sockets and
// devices are not, which the report notes.
//
// An error of cleaning up comes with the new state in place: Recover finishes, as after a crash. Other errors:
// *ConflictError when others changed the same paths, also while promoting; ErrStaleChange;
// ErrUnsupported; *WorkspaceError.
func (w *Workspace) Promote(ctx context.Context, c *Change, o PromoteOptions) (*PromoteReport, error) {
	if err := w.owns(c); err != nil {
		return nil, err
	}
	switch o.Kind {
	case PromoteApply, "":
		return w.apply(ctx, c, o.LockDir)
	case PromotePatch:
		return w.patch(ctx, c, o.PatchFile)
	}
	return nil, fmt.Errorf("promote as %q: %w", o.Kind, ErrUnsupported)
}

// promotion is one apply under way.
type promotion struct {
	w       *Workspace
	c       *Change
	base    *beneath.Root
	upper   *beneath.Root
	stage   *beneath.Root
	plan    journal.Plan
	entries []span // of each op
	dirs    map[string]*journal.DirOp
	owners  map[string]Owner // of the directories in dirs
	report  *PromoteReport
}

// span is the entries from, up to but without to: an op's own and those below it.
type span struct{ from, to int }

func (w *Workspace) apply(ctx context.Context, c *Change, lockDir string) (*PromoteReport, error) {
	if lockDir == "" {
		lockDir = filepath.Dir(w.dir)
	}
	base, err := w.openBase()
	if err != nil {
		return nil, err
	}
	defer base.Close()
	upper, err := w.openUpper()
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	lockFile, err := lockName(base, lockDir)
	if err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, lockFile)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, name := range []string{journal.PlanFile, journal.DoneFile} {
		if _, err := os.Lstat(filepath.Join(w.dir, name)); err == nil {
			return nil, fmt.Errorf("%s: an earlier promote was cut short: %w", w.dir, ErrUnusableLayers)
		}
	}
	found, err := conflicts(ctx, base, c)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, &ConflictError{found}
	}
	p := &promotion{
		w: w, c: c, base: base, upper: upper, plan: journal.Plan{Version: 1, Lock: lockFile},
		dirs: map[string]*journal.DirOp{}, owners: map[string]Owner{}, report: c.report(PromoteApply),
	}
	if err := p.run(ctx); err != nil {
		return nil, err
	}
	return p.report, nil
}

// run brings the workspace from the old to the new state, or leaves the old one.
func (p *promotion) run(ctx context.Context) error {
	if err := p.lay(); err != nil {
		return err
	}
	if err := p.plan.Write(p.w.dir); err != nil {
		return errors.Join(err, ignoreMissing(os.Remove(filepath.Join(p.w.dir, journal.PlanFile))))
	}
	journal.Step("planned")
	if p.plan.Stage != "" {
		if err := p.replace(ctx); err != nil {
			return errors.Join(err, p.w.undo(p.base, &p.plan))
		}
	}
	if err := journal.Commit(p.w.dir); err != nil {
		return errors.Join(err, p.w.undo(p.base, &p.plan))
	}
	journal.Step("committed")
	return p.w.finish(p.base, &p.plan)
}

// replace stages everything and then puts it into place.
func (p *promotion) replace(ctx context.Context) error {
	if err := p.makeStage(); err != nil {
		return err
	}
	defer p.stage.Close()
	if err := p.fill(ctx); err != nil {
		return err
	}
	if err := journal.Syncfs(p.base); err != nil {
		return err
	}
	journal.Step("staged")
	if err := p.plan.Write(p.w.dir); err != nil {
		return err
	}
	journal.Step("journalled")
	if err := p.renameAll(ctx); err != nil {
		return err
	}
	if err := p.verify(); err != nil {
		return err
	}
	for _, d := range slices.Backward(p.plan.Dirs) {
		if err := d.Set(p.base, &d.New, d.SetMtime); err != nil {
			return p.base.Fail("set attributes", string(d.Path), err)
		}
		journal.Step("directory")
	}
	return journal.Syncfs(p.base)
}

// lay turns the entries into ops: one for the top of each tree that comes, goes or is replaced.
func (p *promotion) lay() error {
	all := p.c.Entries
	for i := 0; i < len(all); {
		e := &all[i]
		next := i + 1
		inPlace := e.Type == Dir && e.OldType == Dir
		for !inPlace && next < len(all) && below(all[next].Path, e.Path) {
			next++
		}
		switch {
		case inPlace:
			if err := p.attributes(e); err != nil {
				return err
			}
		case !promotable(e.Type):
			p.skip(e)
		default:
			if _, err := p.directory(parentOf(e.Path)); err != nil {
				return err
			}
			o := journal.Op{Path: []byte(e.Path)}
			if e.OldType != "" {
				o.Old = journal.See(&e.view.old)
			}
			p.plan.Ops = append(p.plan.Ops, o)
			p.entries = append(p.entries, span{i, next})
		}
		i = next
	}
	if len(p.plan.Ops) == 0 && len(p.dirs) == 0 {
		return nil
	}
	if _, err := p.directory(""); err != nil {
		return err
	}
	for _, d := range p.dirs {
		p.plan.Dirs = append(p.plan.Dirs, *d)
	}
	slices.SortFunc(p.plan.Dirs, func(a, b journal.DirOp) int { return comparePaths(string(a.Path), string(b.Path)) })
	p.plan.Stage = ".caisson-" + rand.Text()[:16]
	return nil
}

func parentOf(path string) string {
	dir, _ := beneath.Split(path)
	return dir
}

// promotable reports the types that a workspace may receive; "" is a deletion.
func promotable(t FileType) bool { return t != Socket && t != Char && t != Block }

func (p *promotion) skip(e *Entry) {
	p.report.note(e, "a "+string(e.Type)+" is not promoted")
	switch e.Kind {
	case Added:
		p.report.Added--
	default:
		p.report.Modified--
	}
}

// directory notes a directory of the base in which names will change, or the mode.
func (p *promotion) directory(path string) (*journal.DirOp, error) {
	if d, ok := p.dirs[path]; ok {
		return d, nil
	}
	fd, err := p.base.Open(path, beneath.ReadDir)
	if beneath.Gone(err) {
		return nil, &ConflictError{[]Conflict{{path, "removed by others while promoting"}}}
	}
	if err != nil {
		return nil, p.base.Fail("open", path, err)
	}
	defer unix.Close(fd)
	var old, now unix.Stat_t
	if err := unix.Fstat(fd, &old); err != nil {
		return nil, p.base.Fail("stat", path, err)
	}
	d := &journal.DirOp{Path: []byte(path), Old: journal.AttrOf(&old)}
	// Below a renamed directory the upper has no counterpart: then the time is that of the promote.
	if fd, err := p.upper.Open(path, beneath.ReadDir); err == nil {
		err = unix.Fstat(fd, &now)
		unix.Close(fd)
		if err != nil {
			return nil, p.upper.Fail("stat", path, err)
		}
		d.New, d.SetMtime = journal.AttrOf(&now), true
	}
	p.dirs[path], p.owners[path] = d, Owner{old.Uid, old.Gid}
	return d, nil
}

// attributes plans the change of a directory that stays.
func (p *promotion) attributes(e *Entry) error {
	path := e.Path
	if path == "." {
		path = ""
	}
	d, err := p.directory(path)
	if err != nil {
		return err
	}
	d.Mode, d.New.Mode, d.Xattrs = true, unixMode(e.Mode), e.Xattrs
	if !e.Xattrs {
		return nil
	}
	if d.Old.Xattrs, err = dirXattrs(p.base, path); err != nil {
		return err
	}
	from, source := p.source(e)
	if e.Path == "." {
		source = ""
	}
	d.New.Xattrs, err = dirXattrs(from, source)
	return err
}

func dirXattrs(r *beneath.Root, path string) ([]beneath.Xattr, error) {
	fd, err := r.Open(path, beneath.ReadDir)
	if err != nil {
		return nil, r.Fail("open", path, err)
	}
	defer unix.Close(fd)
	attrs, err := beneath.ReadXattrs(fd, beneath.IsUserXattr)
	if err != nil {
		return nil, r.Fail("getxattr", path, err)
	}
	return attrs, nil
}

// source is where an entry's new content lies.
func (p *promotion) source(e *Entry) (*beneath.Root, string) {
	if e.view.inBase {
		return p.base, e.view.source
	}
	return p.upper, e.view.source
}

// renameAll puts what is staged into place, and what was there into the stage.
func (p *promotion) renameAll(ctx context.Context) error {
	at := beneath.Cursor{Root: p.base}
	defer at.Close()
	if err := p.widen(); err != nil {
		return err
	}
	for i := range p.plan.Ops {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := &p.c.Entries[p.entries[i].from]
		reason, err := recheck(&at, e)
		if err == nil && reason == "" {
			reason, err = p.rename(&at, i, e)
		}
		if err != nil {
			return p.base.Fail("promote", e.Path, err)
		}
		if reason != "" {
			return &ConflictError{[]Conflict{{e.Path, reason}}}
		}
		journal.Step("renamed")
	}
	return nil
}

// widen lets us write, for the time being, into directories of ours whose mode the feature changed. Root needs no leave.
func (p *promotion) widen() error {
	if os.Geteuid() == 0 {
		return nil
	}
	for _, d := range p.plan.Dirs {
		if !d.Mode {
			continue
		}
		d.Xattrs = false
		if err := d.Set(p.base, &journal.DirAttr{Mode: d.Old.Mode | d.New.Mode | 0o700}, false); err != nil {
			return p.base.Fail("chmod", string(d.Path), err)
		}
	}
	return nil
}

// rename does one op, and makes sure that what it took away is what was seen.
func (p *promotion) rename(at *beneath.Cursor, i int, e *Entry) (reason string, err error) {
	dir, name, err := at.Parent(e.Path)
	if err != nil {
		return "", err
	}
	o, taken := &p.plan.Ops[i], journal.Slot(i)
	switch {
	case o.Old.Inode == 0:
		err = journal.RenameNew(p.stage.FD, journal.Slot(i), dir, name)
		if errors.Is(err, unix.EEXIST) {
			return "made by others while promoting", nil
		}
		if err != nil {
			return "", err
		}
		return "", p.narrow(e, dir, name)
	case o.New == 0:
		err = journal.RenameNew(dir, name, p.stage.FD, journal.Slot(i))
	default:
		err = journal.Exchange(p.stage.FD, journal.Slot(i), dir, name)
		if journal.NoFlags(err) {
			taken = journal.Aside(i)
			if err = journal.RenameNew(dir, name, p.stage.FD, taken); err == nil {
				err = journal.RenameNew(p.stage.FD, journal.Slot(i), dir, name)
			}
		}
	}
	if errors.Is(err, unix.ENOENT) {
		return "removed by others while promoting", nil
	}
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := beneath.StatAt(p.stage.FD, taken, &st); err != nil {
		return "", err
	}
	if beneath.IsDir(&st) && os.Geteuid() != 0 {
		st.Mode = e.view.old.Mode // it may have been widened to be moved
	}
	if !same(&st, &e.view.old) {
		return "changed by others while promoting", nil
	}
	return "", p.narrow(e, dir, name)
}

// narrow puts the mode of a directory right that was widened to move it.
func (p *promotion) narrow(e *Entry, dir int, name string) error {
	if e.Type != Dir || os.Geteuid() == 0 {
		return nil
	}
	return beneath.ChmodDir(dir, name, unixMode(e.Mode))
}

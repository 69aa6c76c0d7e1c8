package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Promote hands a change over that [Workspace.Change] read. PromoteApply changes the workspace: all of it or, after
// any error, nothing, also when the process or the machine dies in the middle (see [Recover]). Afterwards the
// feature has an empty upper layer and a new start, and must be mounted anew; a change read before is stale.
//
// New objects get the owner of the directory that they are put into, others keep theirs, with their access control
// lists and security labels. Content, modes, times, user.* attributes, links and holes are promoted; sockets and
// devices are not, which the report notes.
//
// Errors: *ConflictError when others changed the same paths, also while promoting; ErrStaleChange; ErrUnsupported;
// *WorkspaceError.
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

func (c *Change) report(kind PromoteKind) *PromoteReport {
	return &PromoteReport{Kind: kind, Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Digest: c.Digest}
}

// patch writes the change as a unified diff to a file, by rename.
func (w *Workspace) patch(ctx context.Context, c *Change, path string) (*PromoteReport, error) {
	if path == "" {
		return nil, &fs.PathError{Op: "patch", Path: path, Err: fs.ErrInvalid}
	}
	tmp := path + "." + rand.Text()[:8] + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	err = errors.Join(w.WriteDiff(ctx, c, f, DiffOptions{MaxFile: 1 << 62}), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(tmp))
	}
	r := c.report(PromotePatch)
	r.PatchFile = path
	for i := range c.Entries {
		e := &c.Entries[i]
		switch {
		case e.Binary:
			r.note(e, "binary: named in the patch, but not contained")
		case e.Type == Dir && e.Kind != Added, e.Type != "" && e.Type != Dir && e.Type != File && e.Type != Symlink:
			r.note(e, "a "+string(e.Type)+": a patch cannot hold it")
		}
	}
	return r, nil
}

func (r *PromoteReport) note(e *Entry, text string) {
	r.Notes = append(r.Notes, Note{Path: e.Path, Text: text})
}

// promotion is one apply under way.
type promotion struct {
	w       *Workspace
	c       *Change
	base    *beneath.Root
	upper   *beneath.Root
	stage   *beneath.Root
	plan    plan
	entries []span // of each op
	dirs    map[string]*dirOp
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
	for _, name := range []string{planFile, doneFile} {
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
		w: w, c: c, base: base, upper: upper, plan: plan{Version: 1, Lock: lockFile},
		dirs: map[string]*dirOp{}, owners: map[string]Owner{}, report: c.report(PromoteApply),
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
	if err := p.plan.write(p.w.dir); err != nil {
		return err
	}
	step("planned")
	if p.plan.Stage != "" {
		if err := p.replace(ctx); err != nil {
			return errors.Join(err, p.w.undo(p.base, &p.plan))
		}
	}
	if err := p.commit(); err != nil {
		return errors.Join(err, p.w.undo(p.base, &p.plan))
	}
	step("committed")
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
	if err := syncfs(p.base); err != nil {
		return err
	}
	step("staged")
	if err := p.plan.write(p.w.dir); err != nil {
		return err
	}
	step("journalled")
	if err := p.renameAll(ctx); err != nil {
		return err
	}
	if err := p.verify(); err != nil {
		return err
	}
	for _, d := range slices.Backward(p.plan.Dirs) {
		if err := d.set(p.base, &d.New, d.SetMtime); err != nil {
			return p.base.Fail("set attributes", string(d.Path), err)
		}
		step("directory")
	}
	return syncfs(p.base)
}

// commit makes the new state irrevocable.
func (p *promotion) commit() error {
	err := os.Rename(filepath.Join(p.w.dir, planFile), filepath.Join(p.w.dir, doneFile))
	if err != nil {
		return err
	}
	return syncDir(p.w.dir)
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
			p.plan.Ops = append(p.plan.Ops, op{Path: []byte(e.Path), Old: e.view.old.Ino})
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
	slices.SortFunc(p.plan.Dirs, func(a, b dirOp) int { return comparePaths(string(a.Path), string(b.Path)) })
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
func (p *promotion) directory(path string) (*dirOp, error) {
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
	d := &dirOp{Path: []byte(path), Old: attrOf(&old)}
	// Below a renamed directory the upper has no counterpart: then the time is that of the promote.
	if fd, err := p.upper.Open(path, beneath.ReadDir); err == nil {
		err = unix.Fstat(fd, &now)
		unix.Close(fd)
		if err != nil {
			return nil, p.upper.Fail("stat", path, err)
		}
		d.New, d.SetMtime = attrOf(&now), true
	}
	p.dirs[path], p.owners[path] = d, Owner{old.Uid, old.Gid}
	return d, nil
}

func attrOf(st *unix.Stat_t) dirAttr {
	return dirAttr{Mode: st.Mode & 0o7777, Mtime: [2]int64{st.Mtim.Sec, st.Mtim.Nsec}}
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
		step("renamed")
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
		if err := d.set(p.base, &dirAttr{Mode: d.Old.Mode | d.New.Mode | 0o700}, false); err != nil {
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
	o, taken := &p.plan.Ops[i], slot(i)
	switch {
	case o.Old == 0:
		err = renameNew(p.stage.FD, slot(i), dir, name)
		if errors.Is(err, unix.EEXIST) {
			return "made by others while promoting", nil
		}
		return "", err
	case o.New == 0:
		err = renameNew(dir, name, p.stage.FD, slot(i))
	default:
		err = rename(p.stage.FD, slot(i), dir, name, unix.RENAME_EXCHANGE)
		if noFlags(err) {
			taken = aside(i)
			err = errors.Join(
				renameNew(dir, name, p.stage.FD, taken),
				renameNew(p.stage.FD, slot(i), dir, name),
			)
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
	if !same(&st, &e.view.old) {
		return "changed by others while promoting", nil
	}
	return "", nil
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
			if err != nil || !unchanged(&st, &e.view.old) {
				return &ConflictError{[]Conflict{{e.Path, "changed by others while promoting"}}}
			}
		}
	}
	return nil
}

// taken is where in the stage an op's old object is.
func (p *promotion) taken(i int) string {
	if n, err := inode(p.stage.FD, aside(i)); err == nil && n != 0 {
		return aside(i)
	}
	return slot(i)
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
			<-taken
			unlock()
		}()
		return nil, context.Cause(ctx)
	}
}

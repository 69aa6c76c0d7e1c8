package promote

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// promotion is one apply under way.
type promotion struct {
	t       Target
	c       *tree.Change
	base    *beneath.Root // the workspace
	seen    []tree.Seen   // of its objects, by entry
	moving  func(ctx context.Context, generation int) error
	stage   *beneath.Root
	plan    journal.Plan
	entries []span // of each op
	linked  []int  // entries whose old object the base layer has a link of, in order
	dirs    map[string]*journal.DirOp
	owners  map[string]heir // of the directories in dirs
	report  *tree.PromoteReport
}

// span is the entries from, up to but without to: an op's own and those below it.
type span struct{ from, to int }

// run brings the workspace from the old to the new state, or leaves the old one.
func (p *promotion) run(ctx context.Context) (committed bool, err error) {
	if err := p.lay(); err != nil {
		return false, err
	}
	if b := p.t.Bases; b != nil {
		p.plan.Generation = b.Generation()
		if p.plan.Stage != "" {
			p.plan.Bases = b.dir
			p.plan.Generation++
		}
		p.report.Generation = p.plan.Generation
	}
	if err := p.plan.Write(p.t.Dir); err != nil {
		return false, errors.Join(err, ignoreMissing(os.Remove(filepath.Join(p.t.Dir, journal.PlanFile))))
	}
	journal.Step("planned")
	if p.plan.Stage != "" {
		if err := p.replace(ctx); err != nil {
			return false, errors.Join(err, undo(p.t.Dir, p.base, &p.plan, p.t.Bases))
		}
	}
	if err := journal.Commit(p.t.Dir); err != nil {
		return false, errors.Join(err, undo(p.t.Dir, p.base, &p.plan, p.t.Bases))
	}
	journal.Step("committed")
	return true, clean(p.base, &p.plan)
}

// replace stages everything and then puts it into place.
func (p *promotion) replace(ctx context.Context) error {
	if err := p.publish(ctx); err != nil {
		return err
	}
	if err := p.makeStage(); err != nil {
		return err
	}
	defer p.stage.Close()
	if err := p.fill(ctx); err != nil {
		return err
	}
	if err := p.sync(); err != nil {
		return err
	}
	journal.Step("staged")
	if err := p.plan.Write(p.t.Dir); err != nil {
		return err
	}
	journal.Step("journalled")
	if err := p.renameAll(ctx); err != nil {
		return err
	}
	if err := errors.Join(p.verify(), p.verifyLinked()); err != nil {
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

// publish lets features of earlier generations see what the promote will take away, and live ones move onto it.
func (p *promotion) publish(ctx context.Context) error {
	b := p.t.Bases
	if b == nil {
		return nil
	}
	if err := p.keep(ctx); err != nil {
		return err
	}
	journal.Step("all kept")
	if err := b.publish(p.plan.Generation); err != nil {
		return err
	}
	journal.Step("published")
	if p.moving == nil {
		return nil
	}
	err := p.moving(ctx, p.plan.Generation)
	if errors.Is(err, tree.ErrStayed) {
		err = errors.Join(err, b.unpublish(p.plan.Generation))
	}
	journal.Step("moved")
	return err
}

// sync makes the stage and the base layer durable.
func (p *promotion) sync() error {
	if err := journal.Syncfs(p.base); err != nil || p.t.Bases == nil {
		return err
	}
	kept, err := beneath.OpenRoot(p.t.Bases.dir)
	if err != nil {
		return err
	}
	defer kept.Close()
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(p.base.FD, &a), unix.Fstat(kept.FD, &b)); err != nil || a.Dev == b.Dev {
		return err
	}
	return journal.Syncfs(kept)
}

// lay turns the entries into ops: one for the top of each tree that comes, goes or is replaced.
func (p *promotion) lay() error {
	all := p.c.Entries
	for i := 0; i < len(all); {
		e := &all[i]
		next := i + 1
		inPlace := e.Type == tree.Dir && e.OldType == tree.Dir
		for !inPlace && next < len(all) && tree.Below(all[next].Path, e.Path) {
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
				o.Old = p.seen[i]
			}
			p.plan.Ops = append(p.plan.Ops, o)
			p.entries = append(p.entries, span{i, next})
			p.mayLink(i+1, next)
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
	slices.SortFunc(p.plan.Dirs, func(a, b journal.DirOp) int { return tree.ComparePaths(string(a.Path), string(b.Path)) })
	p.plan.Stage = ".caisson-" + rand.Text()[:16]
	return nil
}

// mayLink notes what is below an op and may get a link in the base layer.
func (p *promotion) mayLink(from, to int) {
	if p.t.Bases == nil {
		return
	}
	for n := from; n < to; n++ {
		if e := &p.c.Entries[n]; e.OldType == tree.File {
			p.plan.Linked = append(p.plan.Linked, journal.Touched{Path: []byte(e.Path), Seen: p.seen[n]})
		}
	}
}

func parentOf(path string) string {
	dir, _ := beneath.Split(path)
	return dir
}

// promotable reports the types that a workspace may receive; "" is a deletion.
func promotable(t tree.FileType) bool { return t != tree.Socket && t != tree.Char && t != tree.Block }

func (p *promotion) skip(e *tree.Entry) {
	note(p.report, e, "a "+string(e.Type)+" is not promoted")
	switch e.Kind {
	case tree.Added:
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
		return nil, &tree.ConflictError{Conflicts: []tree.Conflict{{Path: path, Reason: "removed by others while promoting"}}}
	}
	if err != nil {
		return nil, p.base.Fail("open", path, err)
	}
	defer unix.Close(fd)
	var old unix.Stat_t
	if err := unix.Fstat(fd, &old); err != nil {
		return nil, p.base.Fail("stat", path, err)
	}
	d := &journal.DirOp{Path: []byte(path), Old: journal.AttrOf(&old)}
	// Below a renamed directory the feature has none of its own: then the time is that of the promote.
	now, err := p.t.New.Lstat(path)
	switch {
	case err == nil && now.Type == tree.Dir && !p.t.New.Layers()[now.Root].Base:
		d.New = journal.DirAttr{Mode: tree.UnixMode(now.Mode), Mtime: [2]int64{now.Mtime.Unix(), int64(now.Mtime.Nanosecond())}}
		d.SetMtime = true
	case err != nil && !beneath.Gone(err):
		return nil, err
	}
	h := heir{Owner: tree.Owner{UID: old.Uid, GID: old.Gid}}
	if h.acl, err = beneath.GetXattr(fd, defaultACL); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return nil, p.base.Fail("getxattr", path, err)
	}
	p.dirs[path], p.owners[path] = d, h
	return d, nil
}

// attributes plans the change of a directory that stays.
func (p *promotion) attributes(e *tree.Entry) error {
	path := e.Path
	if path == "." {
		path = ""
	}
	d, err := p.directory(path)
	if err != nil {
		return err
	}
	d.Mode, d.New.Mode, d.Xattrs = true, tree.UnixMode(e.Mode), e.Xattrs
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
func (p *promotion) source(e *tree.Entry) (*beneath.Root, string) {
	d := e.Detail()
	return p.t.New.At(d.Root), d.Source
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
		reason, err := recheck(&at, e, &p.seen[p.entries[i].from])
		if err == nil && reason == "" {
			reason, err = p.rename(&at, i, e)
		}
		if err != nil {
			return p.base.Fail("promote", e.Path, err)
		}
		if reason != "" {
			return &tree.ConflictError{Conflicts: []tree.Conflict{{Path: e.Path, Reason: reason}}}
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
func (p *promotion) rename(at *beneath.Cursor, i int, e *tree.Entry) (reason string, err error) {
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
		st.Mode = o.Old.Mode // it may have been widened to be moved
	}
	if !o.Old.Same(journal.See(&st)) {
		return "changed by others while promoting", nil
	}
	return "", p.narrow(e, dir, name)
}

// narrow puts the mode of a directory right that was widened to move it.
func (p *promotion) narrow(e *tree.Entry, dir int, name string) error {
	if e.Type != tree.Dir || os.Geteuid() == 0 {
		return nil
	}
	return beneath.ChmodDir(dir, name, tree.UnixMode(e.Mode))
}

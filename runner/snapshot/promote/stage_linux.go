package promote

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// copier copies one promotion's objects into its stage.
type copier struct {
	*promotion
	ctx  context.Context
	from []beneath.Cursor // parents of the sources, in each layer of the new view
	base beneath.Cursor
	to   beneath.Cursor // parents in the stage
	data beneath.Copier
}

// heir is what new objects get from the directory that they are put into.
type heir struct {
	tree.Owner
	acl string // the access control list for what is made in it
}

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// lists are the access control lists of a new object.
func (h heir) lists(dir bool) []beneath.Xattr {
	if h.acl == "" {
		return nil
	}
	all := []beneath.Xattr{{Name: accessACL, Value: []byte(h.acl)}}
	if dir {
		all = append(all, beneath.Xattr{Name: defaultACL, Value: []byte(h.acl)})
	}
	return all
}

// stager makes a whole stage: directories, links and the like one after the other, then the plain files side by side,
// then the directories' attributes.
type stager struct {
	copier
	owner    heir              // of the tree that is being copied
	ready    map[string]string // first of a group of hard links → where it is in the stage
	standing map[string]string // likewise → a member that the change leaves as it is, in the base
	files    []stagedFile
	dirs     []stagedDir
}

// stagedFile is a file to copy.
type stagedFile struct {
	path  string // in the stage
	entry *tree.Entry
	owner heir
	op    *journal.Op // whose top it is; nil: it lies below that
}

// stagedDir is a directory whose attributes are set when everything below it is there.
type stagedDir struct {
	path  string // in the stage
	entry *tree.Entry
	owner heir
}

// makeStage makes the directory beside the workspace's own names, on the same filesystem, that only we may enter.
func (p *promotion) makeStage() error {
	name := p.plan.Stage
	if err := unix.Mkdirat(p.base.FD, name, 0o700); err != nil {
		return p.base.Fail("mkdir", name, err)
	}
	journal.Step("stage made")
	fd, err := p.base.Open(name, beneath.ReadDir)
	if err != nil {
		return p.base.Fail("open", name, err)
	}
	p.stage = &beneath.Root{FD: fd, Path: p.base.Path + "/" + name}
	err = unix.Fremovexattr(fd, defaultACL) // it is the workspace's, and not for all that is made here
	if err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return p.base.Fail("removexattr", name, err)
	}
	return nil
}

// fill copies the new side of every op into the stage.
func (p *promotion) fill(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stager{copier: p.copier(ctx), ready: map[string]string{}, standing: standing(p.c)}
	defer s.close()
	for i := range p.plan.Ops {
		if err := s.op(i); err != nil {
			return err
		}
		journal.Step("staging")
	}
	if err := s.copyFiles(cancel); err != nil {
		return err
	}
	for _, d := range slices.Backward(s.dirs) {
		if err := s.finishDir(&d); err != nil {
			return p.stage.Fail("set attributes", d.path, err)
		}
	}
	return nil
}

func (p *promotion) copier(ctx context.Context) copier {
	c := copier{
		promotion: p, ctx: ctx, data: beneath.Copier{Buf: make([]byte, 1<<20)},
		from: make([]beneath.Cursor, len(p.t.New.Layers())),
		base: beneath.Cursor{Root: p.base}, to: beneath.Cursor{Root: p.stage},
	}
	for i := range c.from {
		c.from[i].Root = p.t.New.At(i)
	}
	return c
}

func (c *copier) close() {
	for i := range c.from {
		c.from[i].Close()
	}
	c.base.Close()
	c.to.Close()
}

// copiers is how many files are copied at once. Making a file waits for the filesystem's journal more than it
// computes, as removing one does.
const copiers = 4

// copyFiles copies the plain files; cancel ends all workers when one fails.
func (s *stager) copyFiles(cancel context.CancelCauseFunc) error {
	var group sync.WaitGroup
	var step sync.Mutex
	for i := range copiers {
		part := s.files[i*len(s.files)/copiers : (i+1)*len(s.files)/copiers]
		group.Go(func() {
			c := s.promotion.copier(s.ctx)
			defer c.close()
			for n := range part {
				if err := c.staged(&part[n]); err != nil {
					cancel(err)
					return
				}
				step.Lock()
				journal.Step("copied")
				step.Unlock()
			}
		})
	}
	group.Wait()
	return context.Cause(s.ctx)
}

// staged copies one plain file.
func (c *copier) staged(f *stagedFile) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	dir, name, err := c.to.Parent(f.path)
	if err != nil {
		return c.stage.Fail("stage", f.entry.Path, err)
	}
	ino, err := c.file(f.entry, f.owner, dir, name)
	if err != nil {
		return c.stage.Fail("stage", f.entry.Path, err)
	}
	if f.op != nil {
		f.op.New = ino
	}
	return nil
}

// own finds the owner of what a tree becomes: that of what it replaces, or of the directory that it is put into.
func (s *stager) own(top *tree.Entry) error {
	s.owner = s.owners[parentOf(top.Path)]
	if top.OldType == "" {
		return nil
	}
	var st unix.Stat_t
	dir, name, err := s.base.Parent(top.Path)
	if err == nil {
		err = beneath.StatAt(dir, name, &st)
	}
	if beneath.Gone(err) {
		return removed(top)
	}
	s.owner.Owner = tree.Owner{UID: st.Uid, GID: st.Gid}
	return err
}

// op makes one tree, without its plain files.
func (s *stager) op(i int) error {
	from, to := s.entries[i].from, s.entries[i].to
	top := &s.c.Entries[from]
	if top.Type == "" {
		return nil
	}
	if err := s.own(top); err != nil {
		return err
	}
	for n := from; n < to; n++ {
		e := &s.c.Entries[n]
		if e.Type == "" {
			continue
		}
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if !promotable(e.Type) {
			s.skip(e)
			continue
		}
		var o *journal.Op
		if n == from {
			o = &s.plan.Ops[i]
		}
		if err := s.make(e, journal.Slot(i)+strings.TrimPrefix(e.Path, top.Path), o); err != nil {
			return s.stage.Fail("stage", e.Path, err)
		}
	}
	return nil
}

// make makes one object in the stage, or leaves a plain file for later. o is the op whose top it is, or nil.
func (s *stager) make(e *tree.Entry, path string, o *journal.Op) error {
	first, linked := s.c.Linked()[e.Path]
	linked = linked && !s.t.New.Layers()[e.Detail().Root].Base
	if e.Type == tree.File && !linked {
		s.files = append(s.files, stagedFile{path, e, s.owner, o})
		return nil
	}
	dir, name, err := s.to.Parent(path)
	if err != nil {
		return err
	}
	done := false
	if linked {
		if done, err = s.link(e, first, dir, name); err != nil {
			return err
		}
		s.ready[first] = path
	}
	if !done {
		if err := s.node(e, dir, name, path); err != nil {
			return err
		}
	}
	if o != nil {
		o.New, err = journal.Inode(dir, name)
	}
	return err
}

// node makes one object that is no link of another.
func (s *stager) node(e *tree.Entry, dir int, name, path string) error {
	var err error
	switch e.Type {
	case tree.File:
		_, err = s.file(e, s.owner, dir, name)
		return err
	case tree.Dir:
		s.dirs = append(s.dirs, stagedDir{path, e, s.owner})
		return unix.Mkdirat(dir, name, 0o700)
	case tree.Symlink:
		err = unix.Symlinkat(e.Link, dir, name)
	case tree.Fifo:
		err = unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0)
	default:
		err = unix.ENOTSUP
	}
	if err != nil {
		return err
	}
	return s.finishNode(e, dir, name)
}

// finishNode gives a link or a fifo its attributes. The stage is ours alone: the name is what we made.
func (s *stager) finishNode(e *tree.Entry, dir int, name string) error {
	err := unix.Fchownat(dir, name, int(s.owner.UID), int(s.owner.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && (!errors.Is(err, unix.EPERM) || os.Geteuid() == 0) {
		return err
	}
	if e.Type == tree.Fifo {
		if err := unix.Fchmodat(dir, name, tree.UnixMode(e.Mode), 0); err != nil {
			return err
		}
	}
	return beneath.SetMtimeAt(dir, name, e.Detail().New.Mtim, unix.AT_SYMLINK_NOFOLLOW)
}

func (s *stager) finishDir(d *stagedDir) error {
	fd, err := s.stage.Open(d.path, beneath.ReadDir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return setAttributes(fd, d.entry, d.owner.Owner, d.owner.lists(true))
}

// setAttributes sets owner, attributes, mode and time, in an order in which none undoes another.
func setAttributes(fd int, e *tree.Entry, owner tree.Owner, keep []beneath.Xattr) error {
	if err := beneath.Chown(fd, owner.UID, owner.GID); err != nil {
		return err
	}
	for _, x := range keep {
		err := unix.Fsetxattr(fd, x.Name, x.Value, 0)
		if err != nil && strings.HasPrefix(x.Name, "system.") {
			return err // an access control list that is lost may let others in
		}
	}
	if e.Detail().Xattrs != "" {
		if err := beneath.SetXattrs(fd, beneath.UnpackXattrs(e.Detail().Xattrs)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, tree.UnixMode(e.Mode)); err != nil {
		return err
	}
	return beneath.SetMtime(fd, e.Detail().New.Mtim)
}

// kept reports attributes of a replaced file that are no part of a change and stay. Capabilities, and signatures of
// the content, do not outlive the content.
func kept(name string) bool {
	switch name {
	case "security.capability", "security.ima", "security.evm":
		return false
	}
	return strings.HasPrefix(name, "security.") || strings.HasPrefix(name, "system.posix_acl_")
}

// file copies a regular file.
func (c *copier) file(e *tree.Entry, owner heir, dir int, name string) (uint64, error) {
	at := &c.from[e.Detail().Root]
	from, fromName, err := at.Parent(e.Detail().Source)
	if err != nil {
		return 0, err
	}
	src, err := at.Root.OpenFile(from, fromName)
	if err != nil {
		return 0, err
	}
	defer unix.Close(src)
	keep, err := c.keep(e, owner)
	if err != nil {
		return 0, err
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dst, err := beneath.Retry(func() (int, error) { return unix.Openat(dir, name, flags, 0o600) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(dst)
	if err := c.data.Copy(c.ctx, dst, src, &e.Detail().New); err != nil {
		return 0, err
	}
	if err := setAttributes(dst, e, owner.Owner, keep); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	err = unix.Fstat(dst, &st)
	return st.Ino, err
}

// keep reads what a file that replaces another inherits from it; a new one inherits from its directory.
func (c *copier) keep(e *tree.Entry, owner heir) ([]beneath.Xattr, error) {
	if e.OldType != tree.File {
		return owner.lists(false), nil
	}
	dir, name, err := c.base.Parent(e.Path)
	if err != nil {
		return nil, err
	}
	fd, err := c.base.Root.OpenFile(dir, name)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return beneath.ReadXattrs(fd, kept)
}

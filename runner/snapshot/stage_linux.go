package snapshot

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// copier copies one promotion's objects into its stage.
type copier struct {
	*promotion
	ctx      context.Context
	upper    beneath.Cursor // parents of the sources
	base     beneath.Cursor
	to       beneath.Cursor // parents in the stage
	buf      []byte
	noClone  bool              // the filesystems share no blocks
	noRange  bool              // they do not copy in the kernel either
	owner    Owner             // of the tree that is being copied
	ready    map[string]string // first of a group of hard links → where it is in the stage
	standing map[string]string // likewise → a member that the change leaves as it is, in the base
	dirs     []stagedDir
}

// stagedDir is a directory whose attributes are set when everything below it is there.
type stagedDir struct {
	path  string // in the stage
	entry *Entry
	owner Owner
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
	return nil
}

// fill copies the new side of every op into the stage.
func (p *promotion) fill(ctx context.Context) error {
	c := &copier{promotion: p, ctx: ctx, buf: make([]byte, small), ready: map[string]string{}}
	c.upper.Root, c.base.Root, c.to.Root = p.upper, p.base, p.stage
	defer c.upper.Close()
	defer c.base.Close()
	defer c.to.Close()
	c.standing = p.c.standing()
	for i := range p.plan.Ops {
		if err := c.op(i); err != nil {
			return err
		}
		journal.Step("staging")
	}
	for _, d := range slices.Backward(c.dirs) {
		if err := c.finishDir(&d); err != nil {
			return p.stage.Fail("set attributes", d.path, err)
		}
	}
	return nil
}

// standing finds, for each group of hard links, a member that the change leaves alone: the others are linked to it.
func (c *Change) standing() map[string]string {
	all := map[string]string{}
	for path, first := range c.detail.linked {
		_, found := slices.BinarySearchFunc(c.Entries, path, func(e Entry, p string) int { return comparePaths(e.Path, p) })
		if !found {
			all[first] = path
		}
	}
	return all
}

// op copies one tree.
func (c *copier) op(i int) error {
	s := c.entries[i]
	all := c.promotion.c.Entries
	top := &all[s.from]
	if top.Type == "" {
		return nil
	}
	c.owner = c.owners[parentOf(top.Path)]
	if top.OldType != "" {
		c.owner = Owner{top.view.old.Uid, top.view.old.Gid}
	}
	for n := s.from; n < s.to; n++ {
		e := &all[n]
		if e.Type == "" {
			continue
		}
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		if !promotable(e.Type) {
			c.skip(e)
			continue
		}
		ino, err := c.copy(e, journal.Slot(i)+strings.TrimPrefix(e.Path, top.Path))
		if err != nil {
			return c.stage.Fail("stage", e.Path, err)
		}
		if n == s.from {
			c.plan.Ops[i].New = ino
		}
	}
	return nil
}

// copy makes one object in the stage and returns its inode.
func (c *copier) copy(e *Entry, path string) (uint64, error) {
	dir, name, err := c.to.Parent(path)
	if err != nil {
		return 0, err
	}
	if first, ok := c.promotion.c.detail.linked[e.Path]; ok && !e.view.inBase {
		done, err := c.link(e, first, dir, name)
		if err != nil {
			return 0, err
		}
		c.ready[first] = path
		if done {
			return journal.Inode(dir, name)
		}
	}
	switch e.Type {
	case File:
		return c.file(e, dir, name)
	case Dir:
		if err = unix.Mkdirat(dir, name, 0o700); err == nil {
			c.dirs = append(c.dirs, stagedDir{path, e, c.owner})
		}
	case Symlink:
		err = unix.Symlinkat(e.Link, dir, name)
	case Fifo:
		err = unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0)
	default:
		err = unix.ENOTSUP
	}
	if err != nil {
		return 0, err
	}
	if e.Type != Dir {
		if err := c.finishNode(e, dir, name); err != nil {
			return 0, err
		}
	}
	return journal.Inode(dir, name)
}

// finishNode gives a link or a fifo its attributes. The stage is ours alone: the name is what we made.
func (c *copier) finishNode(e *Entry, dir int, name string) error {
	err := unix.Fchownat(dir, name, int(c.owner.UID), int(c.owner.GID), unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && (!errors.Is(err, unix.EPERM) || os.Geteuid() == 0) {
		return err
	}
	if e.Type == Fifo {
		if err := unix.Fchmodat(dir, name, unixMode(e.Mode), 0); err != nil {
			return err
		}
	}
	return beneath.SetMtimeAt(dir, name, e.view.new.Mtim, unix.AT_SYMLINK_NOFOLLOW)
}

func (c *copier) finishDir(d *stagedDir) error {
	fd, err := c.stage.Open(d.path, beneath.ReadDir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	c.owner = d.owner
	return c.finish(fd, d.entry, nil)
}

// finish sets owner, attributes, mode and time, in an order in which none undoes another.
func (c *copier) finish(fd int, e *Entry, keep []beneath.Xattr) error {
	if err := chown(fd, c.owner); err != nil {
		return err
	}
	for _, x := range keep {
		err := unix.Fsetxattr(fd, x.Name, x.Value, 0)
		if err != nil && strings.HasPrefix(x.Name, "system.") {
			return err // an access control list that is lost may let others in
		}
	}
	if e.view.xattrs != "" {
		if err := beneath.SetXattrs(fd, unpackXattrs(e.view.xattrs)); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, unixMode(e.Mode)); err != nil {
		return err
	}
	return beneath.SetMtime(fd, e.view.new.Mtim)
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
func (c *copier) file(e *Entry, dir int, name string) (uint64, error) {
	at := &c.upper
	if e.view.inBase {
		at = &c.base
	}
	from, fromName, err := at.Parent(e.view.source)
	if err != nil {
		return 0, err
	}
	src, err := at.Root.OpenFile(from, fromName)
	if err != nil {
		return 0, err
	}
	defer unix.Close(src)
	keep, err := c.keep(e)
	if err != nil {
		return 0, err
	}
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dst, err := beneath.Retry(func() (int, error) { return unix.Openat(dir, name, flags, 0o600) })
	if err != nil {
		return 0, err
	}
	defer unix.Close(dst)
	if err := c.data(dst, src, &e.view.new); err != nil {
		return 0, err
	}
	if err := c.finish(dst, e, keep); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	err = unix.Fstat(dst, &st)
	return st.Ino, err
}

// link makes a hard link instead of a copy, if another member of the group is there: in the stage, or in the base. The
// base's can serve only while it has no other links: those are no part of the group.
func (c *copier) link(e *Entry, first string, dir int, name string) (bool, error) {
	if staged, ok := c.ready[first]; ok {
		// The cursor of the stage is in use for dir.
		at := &beneath.Cursor{Root: c.stage}
		defer at.Close()
		parent, base, err := at.Parent(staged)
		if err != nil {
			return false, err
		}
		return true, unix.Linkat(parent, base, dir, name, 0)
	}
	standing, ok := c.standing[first]
	if !ok {
		return false, nil
	}
	var st unix.Stat_t
	parent, base, err := c.base.Parent(standing)
	if err == nil {
		err = beneath.StatAt(parent, base, &st)
	}
	if err == nil && typeOf(&st) == e.Type && st.Nlink == 1 {
		return true, unix.Linkat(parent, base, dir, name, 0)
	}
	if err != nil && !beneath.Gone(err) {
		return false, err
	}
	c.report.note(e, "is no hard link of "+Quote(standing)+" any more")
	return false, nil
}

// keep reads what a file that replaces another inherits from it.
func (c *copier) keep(e *Entry) ([]beneath.Xattr, error) {
	if e.OldType != File {
		return nil, nil
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

// data copies a file's content and keeps its holes.
func (c *copier) data(dst, src int, st *unix.Stat_t) error {
	sparse := st.Blocks*512 < st.Size
	if st.Size <= int64(len(c.buf)) && !sparse {
		n, err := beneath.ReadFull(src, c.buf[:st.Size])
		if err != nil {
			return err
		}
		return writeAt(dst, c.buf[:n], 0)
	}
	if !c.noClone {
		if err := unix.IoctlFileClone(dst, src); err == nil {
			return nil
		}
		c.noClone = true
	}
	if err := unix.Ftruncate(dst, st.Size); err != nil {
		return err
	}
	for off := int64(0); off < st.Size; {
		from, err := unix.Seek(src, off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			break
		}
		to := st.Size
		switch {
		case errors.Is(err, unix.EINVAL):
			from = off
		case err != nil:
			return err
		default:
			if to, err = unix.Seek(src, from, unix.SEEK_HOLE); err != nil {
				return err
			}
		}
		if err := c.extent(dst, src, from, min(to, st.Size)); err != nil {
			return err
		}
		off = to
	}
	return nil
}

// extent copies one range, in the kernel where that can.
func (c *copier) extent(dst, src int, from, to int64) error {
	for from < to {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		if !c.noRange {
			in, out := from, from
			n, err := unix.CopyFileRange(src, &in, dst, &out, int(min(to-from, 64<<20)), 0)
			if err == nil && n > 0 {
				from += int64(n)
				continue
			}
			if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO) {
				return err
			}
			c.noRange = err != nil
		}
		n, err := beneath.Retry(func() (int, error) {
			return unix.Pread(src, c.buf[:min(int64(len(c.buf)), to-from)], from)
		})
		if err != nil || n == 0 {
			return err
		}
		if err := writeAt(dst, c.buf[:n], from); err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

func writeAt(fd int, b []byte, off int64) error {
	for len(b) > 0 {
		n, err := beneath.Retry(func() (int, error) { return unix.Pwrite(fd, b, off) })
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

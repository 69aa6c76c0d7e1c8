package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// gather puts together what the workers found.
func (w *Workspace) gather(k *walk, all []*found) (*Change, error) {
	c := &Change{detail: &detail{dir: w.dir, start: w.state.Start, linked: map[string]string{}}}
	links := map[uint64][]string{}
	var orphans []orphan
	var same []string
	var twins []Entry
	total := 0
	for _, f := range all {
		total += len(f.entries)
	}
	c.Entries = make([]Entry, 0, total)
	for _, f := range all {
		c.Entries = append(c.Entries, f.entries...)
		c.detail.conflicts = append(c.detail.conflicts, f.conflicts...)
		orphans = append(orphans, f.orphans...)
		same = append(same, f.same...)
		twins = append(twins, f.twins...)
		for ino, paths := range f.links {
			links[ino] = append(links[ino], paths...)
		}
	}
	c.link(links, twins)
	slices.SortFunc(c.Entries, func(a, b Entry) int { return comparePaths(a.Path, b.Path) })
	if err := k.adopt(c, orphans, same); err != nil {
		return nil, err
	}
	c.count()
	c.Digest = c.digest()
	return c, nil
}

// link names the first path of every group of hard links. twins are members that are as in the base: where they are no
// links of each other there, that is their change.
func (c *Change) link(links map[uint64][]string, twins []Entry) {
	standing := map[uint64]*Entry{} // by inode in the upper
	slices.SortFunc(twins, func(a, b Entry) int { return comparePaths(a.Path, b.Path) })
	for i := range twins {
		e := &twins[i]
		first, ok := standing[e.view.new.Ino]
		if !ok {
			standing[e.view.new.Ino] = e
		} else if first.view.old.Ino != e.view.old.Ino {
			e.Kind = Modified
			c.Entries = append(c.Entries, *e)
		}
	}
	for _, paths := range links {
		if len(paths) < 2 {
			continue
		}
		first := slices.MinFunc(paths, comparePaths)
		for _, p := range paths {
			c.detail.linked[p] = first
		}
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if first, ok := c.detail.linked[e.Path]; ok && first != e.Path && e.Type != "" && !e.view.inBase {
			e.HardLink = first
		}
	}
}

// adopt sorts the orphans out: one whose origin is at another path that the upper covers was renamed by the feature;
// of the others, the base object was removed by others.
func (k *walk) adopt(c *Change, orphans []orphan, same []string) error {
	if len(orphans) == 0 {
		return nil
	}
	covered := same
	for i := range c.Entries {
		if c.Entries[i].OldType != "" {
			covered = append(covered, c.Entries[i].Path)
		}
	}
	at := beneath.Cursor{Root: k.base}
	defer at.Close()
	slices.SortFunc(covered, comparePaths)
	handles := make(map[string]bool, len(covered))
	for _, path := range covered {
		dir, name, err := at.Parent(path)
		if beneath.Gone(err) {
			continue
		}
		if err != nil {
			return k.base.Fail("open", path, err)
		}
		if h, _, err := unix.NameToHandleAt(dir, name, 0); err == nil {
			handles[handleKey(h.Type(), h.Bytes())] = true
		}
	}
	for _, o := range orphans {
		if !handles[originKey(o.origin)] {
			c.detail.conflicts = append(c.detail.conflicts, Conflict{o.path, removedByOthers})
		}
	}
	return nil
}

func handleKey(kind int32, id []byte) string { return string(kind) + string(id) }

// originKey reads the file handle in an overlay.origin attribute: struct ovl_fb of fs/overlayfs/overlayfs.h, with
// version, magic, length, flags, type and a UUID before the handle's bytes. An unreadable one matches nothing.
func originKey(origin string) string {
	const header = 5 + 16
	if len(origin) < header || origin[1] != '\xfb' {
		return ""
	}
	return handleKey(int32(origin[4]), []byte(origin[header:]))
}

func (c *Change) count() {
	for i := range c.Entries {
		e := &c.Entries[i]
		switch e.Kind {
		case Added:
			c.Added++
		case Deleted:
			c.Deleted++
		default:
			c.Modified++
		}
		c.Bytes += e.Size
	}
}

// digest binds everything that a gate could judge by. Strings are preceded by their lengths.
func (c *Change) digest() string {
	h := sha256.New()
	var b []byte
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		b = b[:0]
		text(e.Path)
		text(string(e.Kind))
		text(string(e.Type))
		text(string(e.OldType))
		text(e.Link)
		text(e.HardLink)
		text(e.view.xattrs)
		b = binary.AppendUvarint(b, uint64(unixMode(e.Mode)))
		b = binary.AppendUvarint(b, uint64(e.Size))
		if e.Type == Char || e.Type == Block {
			b = binary.AppendUvarint(b, e.view.new.Rdev)
		}
		b = append(b, e.view.sum[:]...)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Conflicts lists the paths that the feature and others both changed, sorted: what others changed, removed or made
// at a path of the change since the feature began or since c was read. Paths that both left in the same state are
// not in the change, and what only others changed is no conflict.
func (w *Workspace) Conflicts(ctx context.Context, c *Change) ([]Conflict, error) {
	if err := w.owns(c); err != nil {
		return nil, err
	}
	base, err := w.openBase()
	if err != nil {
		return nil, err
	}
	defer base.Close()
	return conflicts(ctx, base, c)
}

func (w *Workspace) owns(c *Change) error {
	if c == nil || c.detail == nil || c.detail.dir != w.dir || !c.detail.start.Equal(w.state.Start) {
		return ErrStaleChange
	}
	return nil
}

func conflicts(ctx context.Context, base *beneath.Root, c *Change) ([]Conflict, error) {
	all := map[string]string{}
	for _, x := range c.detail.conflicts {
		all[x.Path] = x.Reason
	}
	at := beneath.Cursor{Root: base}
	defer at.Close()
	absent := "" // a directory that is not in the base, so that nothing below it is
	for i := range c.Entries {
		e := &c.Entries[i]
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if e.view.conflict != "" {
			all[e.Path] = e.view.conflict
			continue
		}
		if absent != "" && below(e.Path, absent) {
			continue
		}
		reason, err := recheck(&at, e)
		if err != nil {
			return nil, base.Fail("stat", e.Path, err)
		}
		if reason != "" {
			all[e.Path] = reason
		}
		if e.Kind == Added && e.Type == Dir {
			absent = e.Path
		}
	}
	list := make([]Conflict, 0, len(all))
	for _, path := range slices.SortedFunc(maps.Keys(all), comparePaths) {
		list = append(list, Conflict{path, all[path]})
	}
	return list, nil
}

// recheck compares a base object with what the walk saw of it.
func recheck(at *beneath.Cursor, e *Entry) (reason string, err error) {
	if e.Path == "." {
		return "", nil
	}
	var st unix.Stat_t
	dir, name, err := at.Parent(e.Path)
	if err == nil {
		err = beneath.StatAt(dir, name, &st)
	}
	switch there := err == nil && !beneath.IsWhiteout(&st); {
	case err != nil && !beneath.Gone(err):
		return "", err
	case !there && e.OldType != "":
		return "removed by others since the change was read", nil
	case there && e.OldType == "":
		return "made by others since the change was read", nil
	case there && !unchanged(&st, &e.view.old):
		return "changed by others since the change was read", nil
	}
	return "", nil
}

// unchanged reports whether an object is the one that was seen, in the state that was seen. The ctime of a file with
// several links changes when another of its names does.
func unchanged(now, seen *unix.Stat_t) bool {
	return same(now, seen) && (now.Ctim == seen.Ctim || seen.Nlink > 1 && !beneath.IsDir(seen))
}

// same is unchanged without a look at the ctime, for an object that was renamed.
func same(now, seen *unix.Stat_t) bool { return journal.See(seen).Same(journal.See(now)) }

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
	if n, err := journal.Inode(p.stage.FD, journal.Aside(i)); err == nil && n != 0 {
		return journal.Aside(i)
	}
	return journal.Slot(i)
}

// OpenChanged opens a regular file of the sandbox's view for reading: from the upper layer, or, below a directory
// that the sandbox renamed, from the base. It never follows a link and never blocks. Errors are fs.ErrNotExist for
// what the view does not hold or the upper does not cover, and *fs.PathError.
func (w *Workspace) OpenChanged(path string) (*os.File, error) {
	upper, err := w.openUpper()
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	at := beneath.Cursor{Root: upper}
	defer at.Close()
	dir, name, err := at.Parent(path)
	if err == nil {
		var st unix.Stat_t
		if err = beneath.StatAt(dir, name, &st); err == nil {
			if !beneath.IsFile(&st) {
				return nil, upper.Fail("open", path, unix.ENOENT)
			}
			fd, err := upper.OpenFile(dir, name)
			if err != nil {
				return nil, upper.Fail("open", path, err)
			}
			return os.NewFile(uintptr(fd), path), nil
		}
	}
	if !beneath.Gone(err) {
		return nil, upper.Fail("open", path, err)
	}
	return w.openRenamed(upper, path)
}

// openRenamed follows the redirects of a path's parents into the base.
func (w *Workspace) openRenamed(upper *beneath.Root, path string) (*os.File, error) {
	base, err := w.openBase()
	if err != nil {
		return nil, err
	}
	defer base.Close()
	j := job{upper: true, merged: true}
	f := &found{walk: &walk{upper: upper, base: base, mark: w.mark()}}
	parts := strings.Split(path, "/")
	for i, part := range parts[:len(parts)-1] {
		fd, err := upper.Open(strings.Join(parts[:i+1], "/"), beneath.ReadDir)
		if beneath.Gone(err) {
			j.lower = beneath.Join(j.lower, strings.Join(parts[i:len(parts)-1], "/"))
			break
		}
		if err != nil {
			return nil, upper.Fail("open", path, err)
		}
		m, err := f.marks(fd)
		unix.Close(fd)
		if err != nil {
			return nil, upper.Fail("getxattr", path, err)
		}
		j.lower = beneath.Join(j.lower, part)
		f.follow(&j, &m)
	}
	dir, name := beneath.Split(path)
	if !j.merged || j.lower == dir {
		return nil, upper.Fail("open", path, unix.ENOENT)
	}
	at := beneath.Cursor{Root: base}
	defer at.Close()
	parent, err := at.Dir(j.lower)
	if err != nil {
		return nil, base.Fail("open", j.lower, err)
	}
	fd, err := base.OpenFile(parent, name)
	if err != nil {
		return nil, base.Fail("open", beneath.Join(j.lower, name), err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

package tree

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// gather puts together what the workers found.
func (k *walk) gather(all []*found) (*Change, error) {
	c := &Change{detail: &detail{key: keyOf(k.old, k.now), old: k.old.layers, now: k.now.layers, linked: map[string]string{}}}
	links := map[linkKey][]string{}
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
		for key, paths := range f.links {
			links[key] = append(links[key], paths...)
		}
	}
	k.link(c, links, twins)
	slices.SortFunc(c.Entries, func(a, b Entry) int { return ComparePaths(a.Path, b.Path) })
	if err := k.adopt(c, orphans, same); err != nil {
		return nil, err
	}
	c.count()
	c.Digest = c.digest()
	return c, nil
}

// link names the first path of every group of hard links. twins are members that are as in the base: where they are no
// links of each other there, that is their change.
func (k *walk) link(c *Change, links map[linkKey][]string, twins []Entry) {
	standing := map[linkKey]*Entry{}
	slices.SortFunc(twins, func(a, b Entry) int { return ComparePaths(a.Path, b.Path) })
	for i := range twins {
		e := &twins[i]
		key := linkKey{e.detail.Root, e.detail.New.Ino}
		first, ok := standing[key]
		if !ok {
			standing[key] = e
		} else if objectOf(&first.detail.Old) != objectOf(&e.detail.Old) {
			e.Kind = Modified
			c.Entries = append(c.Entries, *e)
		}
	}
	for _, paths := range links {
		if len(paths) < 2 {
			continue
		}
		first := slices.MinFunc(paths, ComparePaths)
		for _, p := range paths {
			c.detail.linked[p] = first
		}
	}
	for i := range c.Entries {
		e := &c.Entries[i]
		if first, ok := c.detail.linked[e.Path]; ok && first != e.Path && e.Type != "" && !k.now.layers[e.detail.Root].Base {
			e.HardLink = first
		}
	}
}

// adopt sorts the orphans out: one whose origin is at another path that the change covers, or in one of the feature's
// own layers, was renamed by the feature; of the others, the base object was removed by others.
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
	handles := make(map[string]bool, len(covered))
	if err := k.handles(handles, covered); err != nil {
		return err
	}
	for i, l := range k.now.layers {
		if l.Base || i == 0 {
			continue
		}
		own := handlesBelow{k.now.roots[i], make([]byte, 64<<10), handles}
		if err := own.add(""); err != nil {
			return err
		}
	}
	for _, o := range orphans {
		if !handles[originKey(o.origin)] {
			c.detail.conflicts = append(c.detail.conflicts, Conflict{Path: o.path, Reason: removedByOthers})
		}
	}
	return nil
}

// handles adds the file handles of what the workspace holds at paths.
func (k *walk) handles(to map[string]bool, paths []string) error {
	base := k.old.roots[len(k.old.roots)-1]
	at := beneath.Cursor{Root: base}
	defer at.Close()
	slices.SortFunc(paths, ComparePaths)
	for _, path := range paths {
		dir, name, err := at.Parent(path)
		if beneath.Gone(err) {
			continue
		}
		if err != nil {
			return base.Fail("open", path, err)
		}
		if h, _, err := unix.NameToHandleAt(dir, name, 0); err == nil {
			to[handleKey(h.Type(), h.Bytes())] = true
		}
	}
	return nil
}

// handlesBelow collects the file handles of everything in a layer.
type handlesBelow struct {
	root *beneath.Root
	buf  []byte
	to   map[string]bool
}

func (b *handlesBelow) add(path string) error {
	fd, err := b.root.Open(path, beneath.ReadDir)
	if err != nil {
		return b.root.Fail("open", path, err)
	}
	names, err := beneath.ReadNames(fd, b.buf, nil)
	var dirs []string
	for _, name := range names {
		var st unix.Stat_t
		if beneath.StatAt(fd, name, &st) != nil {
			continue
		}
		if beneath.IsDir(&st) {
			dirs = append(dirs, name)
		} else if h, _, err := unix.NameToHandleAt(fd, name, 0); err == nil {
			b.to[handleKey(h.Type(), h.Bytes())] = true
		}
	}
	unix.Close(fd)
	if err != nil {
		return b.root.Fail("read", path, err)
	}
	for _, name := range dirs {
		if err := b.add(beneath.Join(path, name)); err != nil {
			return err
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

// Select returns a change of some of the entries, read from the same views.
func (c *Change) Select(keep func(e *Entry) bool) *Change {
	out := &Change{From: c.From, To: c.To, Resolved: c.Resolved}
	for i := range c.Entries {
		if keep(&c.Entries[i]) {
			out.Entries = append(out.Entries, c.Entries[i])
		}
	}
	if len(out.Entries) == len(c.Entries) || c.detail == nil {
		out.detail = c.detail
	} else {
		d := *c.detail
		out.detail = &d
		out.relink()
	}
	out.count()
	if out.detail != nil {
		out.Digest = out.digest()
	}
	return out
}

// relink leaves of every group of hard links what is in the change.
func (c *Change) relink() {
	all := c.detail.linked
	first := map[string]string{} // of what is left of a group
	c.detail.linked = map[string]string{}
	for i := range c.Entries {
		e := &c.Entries[i]
		e.HardLink = ""
		group, ok := all[e.Path]
		if !ok || e.Type == "" {
			continue
		}
		if first[group] == "" {
			first[group] = e.Path
		}
		c.detail.linked[e.Path] = first[group]
		if first[group] != e.Path && !c.detail.now[e.detail.Root].Base {
			e.HardLink = first[group]
		}
	}
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
		text(e.detail.Xattrs)
		b = binary.AppendUvarint(b, uint64(UnixMode(e.Mode)))
		b = binary.AppendUvarint(b, uint64(e.Size))
		if e.Type == Char || e.Type == Block {
			b = binary.AppendUvarint(b, e.detail.New.Rdev)
		}
		b = append(b, e.detail.Sum[:]...)
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

package tree

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// openDir opens a directory's sides, decides what became of the directory itself and lists the names to compare.
func (f *found) openDir(j *job) error {
	if len(j.path) > MaxPath {
		return f.upper.Fail("read", j.path, ErrPathTooLong)
	}
	p := &parts{upper: -1, lower: -1, old: -1}
	p.users.Store(1)
	var m marks
	var err error
	if j.upper {
		if p.upper, err = f.upper.Open(j.path, beneath.ReadDir); err != nil {
			p.release()
			if beneath.Gone(err) {
				return nil // a live sandbox removed it a moment ago
			}
			return f.upper.Fail("open", j.path, err)
		}
		if m, err = f.marks(p.upper); err != nil {
			p.release()
			return f.upper.Fail("getxattr", j.path, err)
		}
		f.follow(j, &m)
	}
	if err := f.openBaseDirs(j, p); err != nil {
		p.release()
		return err
	}
	if j.entry != nil {
		if err := f.decideDir(j, p, &m); err != nil {
			p.release()
			return err
		}
	}
	names, err := f.list(j, p)
	if err != nil {
		p.release()
		return f.upper.Fail("read", j.path, err)
	}
	j.parts = p
	f.divide(j, names)
	return nil
}

// follow applies a directory's marks to where its names show through from.
func (f *found) follow(j *job, m *marks) {
	switch {
	case m.opaque:
		j.merged = false
	case strings.HasPrefix(m.redirect, "/"):
		j.lower, j.merged = strings.Trim(m.redirect, "/"), true
	case m.redirected && j.merged:
		parent, _ := beneath.Split(j.lower)
		j.lower = beneath.Join(parent, m.redirect)
	}
	if m.redirected && m.opaque {
		m.redirected = false
	}
}

// openBaseDirs opens the base directories that show through and that are compared with.
func (f *found) openBaseDirs(j *job, p *parts) error {
	if j.merged {
		fd, err := f.base.Open(j.lower, beneath.ReadDir)
		switch {
		case err == nil:
			p.lower = fd
		case beneath.Gone(err):
			j.merged = false
		default:
			return f.base.Fail("open", j.lower, err)
		}
	}
	if !j.old {
		return nil
	}
	switch fd, err := f.openOld(j, p); {
	case beneath.Gone(err):
		j.old = false
	case err != nil:
		return f.base.Fail("open", j.path, err)
	default:
		p.old = fd
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return f.base.Fail("stat", j.path, err)
		}
		p.touched = !beneath.TimeOf(st.Ctim).Before(f.start)
		j.stale = j.stale || !j.inPlace() && !f.before(j.path, &st)
	}
	return nil
}

func (f *found) openOld(j *job, p *parts) (int, error) {
	if j.merged && j.lower == j.path {
		return unix.FcntlInt(uintptr(p.lower), unix.F_DUPFD_CLOEXEC, 0)
	}
	return f.base.Open(j.path, beneath.ReadDir)
}

// before reports whether a base object's last change is older than the feature's view of it, or our own.
func (k *walk) before(path string, st *unix.Stat_t) bool {
	if beneath.TimeOf(st.Ctim).Before(k.start) {
		return true
	}
	seen, ok := k.touched[path]
	return ok && seen == journal.See(st)
}

// decideDir completes the entry of a directory that is in the new view.
func (f *found) decideDir(j *job, p *parts, m *marks) error {
	e := j.entry
	if j.path == "" {
		return f.decideRoot(e, p, m)
	}
	if m.metacopy {
		return f.upper.Fail("read", j.path, ErrUnusableLayers)
	}
	e.detail.Xattrs = m.user
	if !j.upper && p.lower >= 0 {
		attrs, err := f.userXattrs(p.lower)
		if err != nil {
			return f.base.Fail("getxattr", j.lower, err)
		}
		e.detail.Xattrs = attrs
	}
	if j.lonely && m.origin && !m.redirected && !m.opaque {
		// A renamed directory would say where it came from.
		f.conflicts = append(f.conflicts, Conflict{j.path, removedByOthers})
	}
	if m.redirected && !j.merged {
		f.conflicts = append(f.conflicts, Conflict{j.path, "the directory that was renamed to this was removed by others"})
	}
	if e.Kind == "" { // a directory before and after
		if p.old >= 0 && !j.inPlaceOfBase() {
			attrs, err := f.userXattrs(p.old)
			if err != nil {
				return f.base.Fail("getxattr", j.path, err)
			}
			e.Xattrs = attrs != e.detail.Xattrs
		}
		switch {
		case e.Xattrs:
			e.Kind = Modified
		case e.Mode != e.OldMode:
			e.Kind = ModeOnly
		default:
			return nil
		}
	}
	f.emit(e, j.stale)
	return nil
}

// inPlaceOfBase reports a base directory that shows at its own path: both views are one object.
func (j *job) inPlaceOfBase() bool { return !j.upper && j.merged && j.lower == j.path }

// decideRoot compares the upper's root with what Create gave it, because it is no copy of what others made since.
func (f *found) decideRoot(e *Entry, p *parts, m *marks) error {
	v := &Detail{Xattrs: m.user}
	if err := errors.Join(unix.Fstat(p.upper, &v.New), unix.Fstat(p.old, &v.Old)); err != nil {
		return f.upper.Fail("stat", ".", err)
	}
	if v.New.Mode&0o7777 == f.rootMode && m.user == f.rootXattr {
		return nil
	}
	old, err := f.userXattrs(p.old)
	if err != nil {
		return f.base.Fail("getxattr", ".", err)
	}
	e.describe(v, true, true)
	e.Kind, e.Xattrs = ModeOnly, old != m.user
	if e.Xattrs {
		e.Kind = Modified
	}
	if v.Old.Mode&0o7777 != f.rootMode || old != f.rootXattr {
		v.Conflict = changedByOthers
	}
	if e.Xattrs || e.Mode != e.OldMode {
		f.entries = append(f.entries, *e)
	}
	return nil
}

// list returns the names that may differ between the views.
func (f *found) list(j *job, p *parts) ([]string, error) {
	var names []string
	var err error
	sides := []int{p.upper, p.lower, p.old}
	if j.inPlace() {
		sides = sides[:1]
	}
	used := 0
	for _, fd := range sides {
		if fd < 0 {
			continue
		}
		if names, err = beneath.ReadNames(fd, f.buf[:64<<10], names); err != nil {
			return nil, err
		}
		used++
	}
	if used > 1 {
		slices.Sort(names)
		names = slices.Compact(names)
	}
	return names, nil
}

// divide keeps the first names of a large directory and leaves the rest to whoever is free.
func (f *found) divide(j *job, names []string) {
	var rest []*job
	for len(names) > batch {
		part := *j
		part.names, names = names[:batch], names[batch:]
		rest = append(rest, &part)
	}
	j.names = names
	if len(rest) > 0 {
		j.parts.users.Add(int32(len(rest)))
		f.push(rest...)
	}
}

// side is a name in one of the views.
type side struct {
	st   unix.Stat_t
	ok   bool
	base bool // the new view's, seen through from the base
	lost bool // listed and then not found in the upper
	dir  int  // where it lies
}

// compare looks one name up in both views.
func (f *found) compare(j *job, name string) error {
	n, err := f.newSide(j, name)
	if err != nil {
		return err
	}
	if n.base && j.lower == j.path || !n.ok && n.lost {
		return nil // one object seen in both views, or removed a moment ago
	}
	o := side{dir: j.parts.old}
	if o.dir >= 0 {
		if err := beneath.StatAt(o.dir, name, &o.st); err == nil {
			o.ok = !beneath.IsWhiteout(&o.st)
		} else if !beneath.Gone(err) {
			return f.base.Fail("stat", beneath.Join(j.path, name), err)
		}
	}
	if !n.ok && !o.ok {
		return nil
	}
	return f.entry(j, name, &n, &o)
}

// newSide looks a name up as overlayfs does: in the upper, then in the base directory that shows through.
func (f *found) newSide(j *job, name string) (n side, err error) {
	if n.dir = j.parts.upper; n.dir >= 0 {
		err := beneath.StatAt(n.dir, name, &n.st)
		if err == nil {
			n.ok = !f.hides(n.dir, name, &n.st)
			return n, nil
		}
		if !beneath.Gone(err) {
			return n, f.upper.Fail("stat", beneath.Join(j.path, name), err)
		}
	}
	if j.inPlace() {
		n.lost = true
		return n, nil
	}
	if n.dir = j.parts.lower; n.dir >= 0 {
		err := beneath.StatAt(n.dir, name, &n.st)
		if err != nil && !beneath.Gone(err) {
			return n, f.base.Fail("stat", beneath.Join(j.lower, name), err)
		}
		n.ok = err == nil && !beneath.IsWhiteout(&n.st)
		n.base = n.ok
	}
	return n, nil
}

// hides reports a whiteout in either of its forms: a 0/0 character device, or an empty file with a mark.
func (f *found) hides(dir int, name string, st *unix.Stat_t) bool {
	if !beneath.IsFile(st) || st.Size != 0 {
		return beneath.IsWhiteout(st)
	}
	_, err := unix.Lgetxattr(beneath.ProcFD(dir)+"/"+name, f.mark+"whiteout", nil)
	return err == nil
}

const (
	changedByOthers = "changed by others since the feature began"
	removedByOthers = "removed by others since the feature began"
)

// emit records an entry.
func (f *found) emit(e *Entry, stale bool) {
	f.judge(e, stale)
	f.entries = append(f.entries, *e)
}

// judge tells whether others changed an entry's base.
func (f *found) judge(e *Entry, stale bool) {
	switch {
	case e.OldType == "":
	case !f.before(e.Path, &e.detail.Old):
		e.detail.Conflict = changedByOthers
	case stale:
		e.detail.Conflict = "in a directory that the feature replaced and others changed"
	}
}

// userXattrs returns the user's attributes of an open file, packed for comparison.
func (k *walk) userXattrs(fd int) (string, error) {
	attrs, err := beneath.ReadXattrs(fd, beneath.IsUserXattr)
	return beneath.PackXattrs(attrs), err
}

// marks reads an upper object's attributes.
func (k *walk) marks(fd int) (marks, error) {
	var m marks
	var buf [1024]byte
	names, err := beneath.ListXattrs(fd, buf[:])
	if err != nil {
		return m, err
	}
	user := false
	for _, name := range names {
		user = user || beneath.IsUserXattr(name)
		mark, ours := strings.CutPrefix(name, k.mark)
		if !ours {
			continue
		}
		switch mark {
		case "origin":
			m.origin = true
		case "opaque":
			value, err := beneath.GetXattr(fd, name)
			if err != nil {
				return m, err
			}
			m.opaque = value == "y" // "x": only holds whiteouts in attributes
		case "redirect":
			if m.redirect, err = beneath.GetXattr(fd, name); err != nil {
				return m, err
			}
			m.redirected = true
		case "metacopy":
			m.metacopy = true
		}
	}
	if user {
		m.user, err = k.userXattrs(fd)
	}
	return m, err
}

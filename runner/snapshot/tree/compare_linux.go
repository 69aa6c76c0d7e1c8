package tree

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// openDir opens a directory's sides, decides what became of the directory itself and lists the names to compare.
func (f *found) openDir(j *job) error {
	if len(j.path) > MaxPath {
		return f.now.roots[0].Fail("read", j.path, ErrPathTooLong)
	}
	p := &parts{}
	p.users.Store(1)
	err := f.seat(j, p)
	if err == nil && j.now != nil && len(p.now.fds) == 0 {
		p.release()
		return nil // a live sandbox removed it a moment ago
	}
	if err == nil {
		p.tail = f.tail(p)
		err = f.look(j, p)
	}
	if err == nil && j.entry != nil {
		err = f.decideDir(j, p)
	}
	var names []string
	if err == nil {
		names, err = f.list(p)
	}
	if err != nil {
		p.release()
		return err
	}
	j.parts = p
	f.divide(j, names)
	return nil
}

// seat opens both sides.
func (f *found) seat(j *job, p *parts) (err error) {
	p.now, p.old = &dir{}, &dir{}
	for _, s := range []struct {
		v    *View
		from *seat
		to   **dir
	}{{f.now, j.now, &p.now}, {f.old, j.old, &p.old}} {
		var d *dir
		switch {
		case s.from == nil:
			continue
		case s.from.above == nil:
			d, err = s.v.openTop()
		default:
			d, err = s.v.resolve(s.from.above, s.from.name)
		}
		if err != nil {
			return err
		}
		*s.to = d
	}
	return nil
}

// tail counts the places that the end of both sides has in common. Only in layers below which all layers are the same,
// because a path that a redirect names is looked up in all of them.
func (f *found) tail(p *parts) int {
	n := 0
	for n < len(p.now.places) && n < len(p.old.places) {
		a, b := p.now.places[len(p.now.places)-1-n], p.old.places[len(p.old.places)-1-n]
		fromEnd := len(f.now.layers) - a.layer
		if fromEnd > f.common || fromEnd != len(f.old.layers)-b.layer || a.path != b.path {
			break
		}
		n++
	}
	return n
}

// look notes whether others changed the old directory.
func (f *found) look(j *job, p *parts) error {
	last := len(p.old.fds) - 1
	if last < 0 || f.Since.IsZero() || !f.old.layers[p.old.places[last].layer].Base {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(p.old.fds[last], &st); err != nil {
		return f.old.roots[p.old.places[last].layer].Fail("stat", j.path, err)
	}
	p.touched = !beneath.TimeOf(st.Ctim).Before(f.Since)
	j.stale = j.stale || !p.inPlace() && !f.before(j.path, &st)
	return nil
}

// before reports whether a base object's last change is older than the feature's view of it, or our own.
func (k *walk) before(path string, st *unix.Stat_t) bool {
	if k.Since.IsZero() || beneath.TimeOf(st.Ctim).Before(k.Since) {
		return true
	}
	seen, ok := k.Touched[path]
	return ok && seen == journal.See(st)
}

// decideDir completes the entry of a directory that is in the new view.
func (f *found) decideDir(j *job, p *parts) error {
	if j.path == "" {
		return f.decideRoot(j.entry, p)
	}
	e := j.entry
	first, last := p.now.places[0], p.now.places[len(p.now.places)-1]
	e.detail.Root, e.detail.Source = first.layer, first.path
	if p.now.top.Metacopy {
		return f.now.roots[first.layer].Fail("read", first.path, ErrUnusableLayers)
	}
	if low := p.now.low; !f.Since.IsZero() && low.Origin && !low.Opaque && !f.now.layers[last.layer].Base {
		// It was copied up from something further down, which is not there any more.
		switch {
		case low.Redirected:
			f.conflicts = append(f.conflicts, Conflict{Path: j.path, Reason: RenamedAway})
		case j.lonely:
			f.conflicts = append(f.conflicts, Conflict{Path: j.path, Reason: removedByOthers})
		}
	}
	var err error
	if e.detail.Xattrs, err = f.dirXattrs(f.now, p.now, f.buf2); err != nil {
		return err
	}
	if e.Kind == "" { // a directory before and after
		old, err := f.dirXattrs(f.old, p.old, f.buf2)
		if err != nil {
			return err
		}
		e.Xattrs = old != e.detail.Xattrs
		switch {
		case e.Xattrs, f.Strict && f.differs(e):
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

// dirXattrs returns the user's attributes of a directory's first place, packed.
func (f *found) dirXattrs(v *View, d *dir, buf []byte) (string, error) {
	if len(d.fds) == 0 {
		return "", nil
	}
	// One call tells of most directories that they have none.
	if names, err := unix.Flistxattr(d.fds[0], buf); err == nil && names == 0 {
		return "", nil
	}
	attrs, err := f.userXattrs(d.fds[0])
	if err != nil {
		return "", v.roots[d.places[0].layer].Fail("getxattr", d.places[0].path, err)
	}
	return attrs, nil
}

// decideRoot compares the roots. That of an upper layer began as a copy of the one below it: with Since set it is
// compared with that, and not with what others made of the base since.
func (f *found) decideRoot(e *Entry, p *parts) error {
	d := &Detail{Root: p.now.places[0].layer, OldRoot: p.old.places[0].layer}
	if err := errors.Join(unix.Fstat(p.now.fds[0], &d.New), unix.Fstat(p.old.fds[0], &d.Old)); err != nil {
		return f.now.roots[0].Fail("stat", ".", err)
	}
	var old string
	var err error
	if d.Xattrs, err = f.dirXattrs(f.now, p.now, f.buf2); err == nil {
		old, err = f.dirXattrs(f.old, p.old, f.buf2)
	}
	if err != nil {
		return err
	}
	began := !f.Since.IsZero()
	if began && d.New.Mode&0o7777 == f.RootMode && d.Xattrs == string(f.RootXattr) {
		return nil
	}
	e.describe(d, true, true)
	e.Kind, e.Xattrs = ModeOnly, old != d.Xattrs
	if e.Xattrs || f.Strict && f.differs(e) {
		e.Kind = Modified
	}
	if began && (d.Old.Mode&0o7777 != f.RootMode || old != string(f.RootXattr)) {
		d.Conflict = changedByOthers
	}
	if e.Kind == Modified || e.Mode != e.OldMode {
		f.entries = append(f.entries, *e)
	}
	return nil
}

// list returns the names that may differ between the views: those that the places before the common ones hold.
func (f *found) list(p *parts) ([]string, error) {
	var names []string
	used := 0
	for _, s := range []struct {
		v *View
		d *dir
	}{{f.now, p.now}, {f.old, p.old}} {
		for i := range len(s.d.fds) - p.tail {
			var err error
			if names, err = beneath.ReadNames(s.d.fds[i], f.buf[:64<<10], names); err != nil {
				return nil, s.v.roots[s.d.places[i].layer].Fail("read", s.d.places[i].path, err)
			}
			used++
		}
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

// compare looks one name up in both views.
func (f *found) compare(j *job, name string) error {
	var n, o side
	if err := f.now.find(j.parts.now, name, &n); err != nil {
		return err
	}
	if err := f.old.find(j.parts.old, name, &o); err != nil {
		return err
	}
	if !n.ok && !o.ok {
		return nil
	}
	// One object seen in both views. Of directories, what shows through may still differ.
	if n.ok && o.ok && objectOf(&n.st) == objectOf(&o.st) {
		fromEnd := len(j.parts.now.places) - n.at
		if !beneath.IsDir(&n.st) || fromEnd <= j.parts.tail && fromEnd == len(j.parts.old.places)-o.at {
			return nil
		}
	}
	return f.entry(j, name, &n, &o)
}

// RenamedAway is the reason of a conflict in which the feature's side is lost, too: it was never copied.
const RenamedAway = "the directory that was renamed to this was removed by others"

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
	case e.OldType == "" || f.Since.IsZero():
	case !f.before(e.Path, &e.detail.Old):
		e.detail.Conflict = changedByOthers
	case stale:
		e.detail.Conflict = "in a directory that the feature replaced and others changed"
	}
}

// differs reports, for a strict comparison, other owners, times or numbers of links.
func (f *found) differs(e *Entry) bool {
	d := e.detail
	if d.New.Mtim != d.Old.Mtim || !beneath.IsDir(&d.New) && d.New.Nlink != d.Old.Nlink {
		return true
	}
	nu, ng, ok := f.ids(&d.New, f.now.layers[d.Root].Base)
	ou, og, ok2 := f.ids(&d.Old, f.old.layers[d.OldRoot].Base)
	return ok && ok2 && (nu != ou || ng != og)
}

// ids returns an object's owner as the sandbox sees it, if that is known.
func (k *walk) ids(st *unix.Stat_t, base bool) (uid, gid uint32, known bool) {
	switch {
	case !base:
		return st.Uid, st.Gid, true
	case k.Map == nil:
		return 0, 0, false
	}
	uid, gid = k.Map(st.Uid, st.Gid)
	return uid, gid, true
}

// userXattrs returns the user's attributes of an open file, packed for comparison.
func (k *walk) userXattrs(fd int) (string, error) {
	attrs, err := beneath.ReadXattrs(fd, beneath.IsUserXattr)
	return beneath.PackXattrs(attrs), err
}

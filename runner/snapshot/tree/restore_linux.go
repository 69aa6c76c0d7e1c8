package tree

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// Restore writes into upper, an empty layer, so that onto with upper above it shows what from shows at the paths that
// Match selects: content, type, mode, owner, attributes, times and hard links, or that there is nothing. Everything else
// shows as in onto. A directory that goes takes along what is in it, and one that has to be there for a selected path
// comes as it is in from, both whether selected or not.
//
// It returns the selected paths that differed, and those that went with them, sorted. After an error upper is of no use.
func Restore(ctx context.Context, from, onto *View, upper string, o RestoreOptions) ([]string, error) {
	c, err := Compare(ctx, onto, from, CompareOptions{Strict: true, Map: o.Map, Only: o.Match})
	if err != nil {
		return nil, err
	}
	root, err := beneath.OpenRoot(upper)
	if err != nil {
		return nil, err
	}
	root.Ours = true
	top := Root{UserXattr: o.UserXattr}
	r := &restorer{from: from, onto: onto, o: o, to: layer.NewWriter(root, top.mark()), made: map[string]bool{}}
	r.to.Map = o.Map
	if err = r.begin(root); err == nil {
		err = r.all(ctx, c)
	}
	if err == nil {
		err = r.to.Finish()
	}
	r.to.Abandon()
	closeAll(r.sources)
	return r.paths, errors.Join(err, root.Close())
}

type restorer struct {
	from, onto *View
	o          RestoreOptions
	to         *layer.Writer
	made       map[string]bool  // directories that are in the upper
	sources    []beneath.Cursor // of each layer of from
	paths      []string
}

// begin takes the upper's root as it is: the caller gave it its looks.
func (r *restorer) begin(root *beneath.Root) error {
	r.sources = r.from.cursors()
	r.made[""] = true
	return r.to.Dir("", root.FD, &layer.Source{Root: root})
}

func (r *restorer) all(ctx context.Context, c *Change) error {
	var groups []*Entry // that have other names
	gone := ""          // a directory that is not one any more
	for i := range c.Entries {
		e := &c.Entries[i]
		if gone != "" && Below(e.Path, gone) && e.Type == "" {
			r.paths = append(r.paths, e.Path) // went with the directory that it is in
			continue
		}
		if r.o.Match != nil && !r.o.Match(e.Path) {
			continue
		}
		r.paths = append(r.paths, e.Path)
		if err := r.entry(ctx, e); err != nil {
			return err
		}
		if e.OldType == Dir && e.Type != Dir {
			gone = e.Path
		}
		if e.Type != "" && e.Type != Dir && e.detail.New.Nlink > 1 {
			groups = append(groups, e)
		}
	}
	if len(groups) == 0 {
		return nil
	}
	return r.relink(ctx, c, groups)
}

// relink writes the names of hard links of what was written that are as in from already: else they would not be links
// of it any more.
func (r *restorer) relink(ctx context.Context, c *Change, groups []*Entry) error {
	members := map[object]bool{}
	for _, e := range groups {
		members[objectOf(&e.detail.New)] = true
	}
	changed := make(map[string]bool, len(c.Entries))
	for i := range c.Entries {
		changed[c.Entries[i].Path] = true
	}
	return r.from.Walk(ctx, func(path string, s Stat) error {
		if s.Type == Dir || s.Nlink < 2 || changed[path] || !members[object{s.Dev, s.Ino}] {
			return nil
		}
		e := &Entry{Path: path, Type: s.Type, OldType: s.Type, detail: &Detail{Root: s.Root, Source: s.Source}}
		e.detail.New.Mode, e.detail.New.Nlink, e.detail.New.Ino = typeBits(s.Type), 2, s.Ino
		return r.entry(ctx, e)
	})
}

// entry writes one path.
func (r *restorer) entry(ctx context.Context, e *Entry) error {
	if e.Path == "." {
		return r.like(r.from, "")
	}
	parent, _ := beneath.Split(e.Path)
	if err := r.parents(parent); err != nil {
		return err
	}
	switch e.Type {
	case "":
		return r.to.Whiteout(e.Path)
	case Dir:
		return r.directory(r.from, e.Path, e.OldType != Dir)
	}
	at := &r.sources[e.detail.Root]
	dir, name, err := at.Parent(e.detail.Source)
	if err != nil {
		return at.Root.Fail("open", e.detail.Source, err)
	}
	return r.to.Copy(ctx, r.from.source(&side{st: e.detail.New, root: e.detail.Root, dir: dir}, name), e.Path)
}

// parents makes the directories above a path: as they are in onto, or as in from where onto has none.
func (r *restorer) parents(path string) error {
	if r.made[path] {
		return nil
	}
	above, _ := beneath.Split(path)
	if err := r.parents(above); err != nil {
		return err
	}
	st, err := r.onto.Lstat(path)
	switch {
	case err == nil && st.Type == Dir:
		return r.directory(r.onto, path, false)
	case err == nil || beneath.Gone(err):
		return r.directory(r.from, path, true)
	}
	return err
}

// directory makes one that looks as in v. opaque: nothing of the layers below shows in it.
func (r *restorer) directory(v *View, path string, opaque bool) error {
	r.made[path] = true
	if err := r.like(v, path); err != nil || !opaque {
		return err
	}
	return r.to.SetMark(path, "opaque", "y")
}

func (r *restorer) like(v *View, path string) error {
	d, err := v.openDir(path)
	if err != nil {
		return err
	}
	defer d.close()
	return r.to.Dir(path, d.fds[0], v.sourceOf(d))
}

package tree

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/delta"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// Merge makes one layer in dst, an empty directory, that shows over below what layers, newest first, show over it: the
// same names, contents, attributes, times, owners and groups of hard links, also when others edit the workspace later.
// below is nil if nothing is. What is deleted stays a whiteout, also of names that below does not have.
//
// Nothing in dst is a hard link of a layer's file. What may be seen are other inode numbers, and the number of links of
// files of which only some names still show. Errors name the path; dst then holds something and is of no use.
func Merge(ctx context.Context, layers []Root, below *View, dst string) error {
	all := slices.Clone(layers)
	if below != nil {
		all = append(all, below.layers...)
	}
	v, err := OpenView(all)
	if err != nil {
		return err
	}
	run := *v // sees the run only
	run.tops = v.tops[:len(layers)]
	root, err := beneath.OpenRoot(dst)
	if err != nil {
		return errors.Join(err, v.Close())
	}
	root.Ours = true
	m := &merger{run: &run, to: layer.NewWriter(root, layers[0].mark())}
	if err = m.merge(ctx); err == nil {
		err = m.to.Finish()
	}
	m.to.Abandon()
	return errors.Join(err, root.Close(), v.Close())
}

type merger struct {
	run *View
	to  *layer.Writer
}

func (m *merger) merge(ctx context.Context) error {
	d, err := m.run.openTop()
	if err != nil {
		return err
	}
	return m.dir(ctx, d, "", false)
}

// source names what find found, for copying.
func (v *View) source(s *side, name string) *layer.Source {
	l := &v.layers[s.root]
	src := &layer.Source{Root: v.roots[s.root], Base: l.Base, Mark: l.mark(), Dir: s.dir, Name: name, Stat: s.st}
	if l.Plain {
		src.Mark = ""
	}
	return src
}

// sourceOf names an open directory, for copying.
func (v *View) sourceOf(d *dir) *layer.Source {
	p := d.places[0]
	return v.source(&side{root: p.layer, dir: d.fds[0]}, p.path)
}

// dir makes a directory of what the run holds of it, with everything below, and closes d. closed says that nothing of the
// layers below shows in it.
func (m *merger) dir(ctx context.Context, d *dir, path string, closed bool) error {
	dirs, err := m.names(ctx, d, path, closed)
	d.close() // what comes is deep, perhaps
	for _, name := range dirs {
		if err == nil {
			err = m.sub(ctx, d.places, beneath.Join(path, name), closed)
		}
	}
	return err
}

// names makes an open directory and what is in it, and returns the names of the directories.
func (m *merger) names(ctx context.Context, d *dir, path string, closed bool) (dirs []string, err error) {
	if len(path) > MaxPath {
		return nil, m.run.roots[0].Fail("read", path, ErrPathTooLong)
	}
	if err := m.to.Dir(path, d.fds[0], m.run.sourceOf(d)); err != nil {
		return nil, err
	}
	names, err := m.run.names(d)
	for _, name := range names {
		if err != nil {
			return nil, err
		}
		var s side
		if err = m.run.find(d, name, &s); err != nil {
			return nil, err
		}
		sub := beneath.Join(path, name)
		switch {
		case s.at == len(d.fds): // removed a moment ago: no layer does that
		case !s.ok && closed:
		case !s.ok:
			err = m.to.Whiteout(sub)
		case beneath.IsDir(&s.st):
			dirs = append(dirs, name)
		default:
			err = m.file(ctx, &s, sub, name)
		}
	}
	return dirs, err
}

func (m *merger) file(ctx context.Context, s *side, path, name string) error {
	if beneath.IsFile(&s.st) {
		fd, err := m.run.roots[s.root].OpenListed(s.dir, name)
		if err != nil {
			return m.run.roots[s.root].Fail("open", path, err)
		}
		k, err := layer.ReadMarks(fd, m.run.layers[s.root].mark())
		unix.Close(fd)
		if err == nil && k.Metacopy {
			err = ErrUnusableLayers
		}
		if err != nil {
			return m.run.roots[s.root].Fail("getxattr", path, err)
		}
	}
	return m.to.Copy(ctx, m.run.source(s, name), path)
}

// sub makes a directory below one, and marks it so that the kernel goes on in the layers below where it would have gone
// on from the run.
func (m *merger) sub(ctx context.Context, above []place, path string, closed bool) error {
	_, name := beneath.Split(path)
	d, t := &dir{}, &trail{name: name}
	if err := m.run.extend(d, t, above); err != nil {
		d.close()
		return err
	}
	mark, value := "", ""
	switch {
	case t.stop && !closed:
		mark, value = "opaque", "y"
	case t.stop:
	case t.rooted(), t.name != name && !closed:
		mark, value = "redirect", t.name
	}
	closed = t.stop || closed && !t.rooted()
	if err := m.dir(ctx, d, path, closed); err != nil || mark == "" {
		return err
	}
	return m.to.SetMark(path, mark, value)
}

// Manifest is what an upper layer looked like when CopyDelta read it. It lives in memory only.
type Manifest = delta.Manifest

// CopyDelta copies into dst what changed in an upper layer since m was read, so that dst, on the layers that earlier
// calls made of the same upper (the newest first), shows what the upper shows on what lies below all of them. m is nil
// for the first; then, and when a directory of lower layers was renamed since, dst is a copy of all of the upper
// (Delta.Whole), and takes the place of every earlier one. dst is an empty directory; nothing in it is a hard link of
// the upper's.
//
// The upper may be in use: what changes meanwhile is copied half or not at all. A second call, with everything that uses
// the upper stopped, the manifest of the first and its Delta in DeltaOptions.Resume, puts that right and copies little
// more than what changed since the first. The manifest that comes back is for the next delta.
func CopyDelta(ctx context.Context, upper Root, m *Manifest, dst string, o DeltaOptions) (*Manifest, Delta, error) {
	o.UserXattr = upper.UserXattr
	return delta.Copy(ctx, upper.Path, m, dst, o)
}

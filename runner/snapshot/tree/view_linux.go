package tree

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

// View is a stack of layers as overlayfs shows it. It is safe for concurrent use.
type View struct {
	layers []Root
	roots  []*beneath.Root
	ids    []object // of the roots
	tops   []place  // likewise
}

// object tells what is one file.
type object struct{ dev, ino uint64 }

func objectOf(st *unix.Stat_t) object { return object{st.Dev, st.Ino} }

// place is a directory in one layer; path "" is the layer's root.
type place struct {
	layer int
	path  string
}

// dir is an open directory of a view: its places, newest first.
type dir struct {
	places []place
	fds    []int
	top    marks // of the first place
	low    marks // of the last one
}

func (d *dir) close() {
	if d == nil {
		return
	}
	for _, fd := range d.fds {
		unix.Close(fd)
	}
	d.fds = nil
}

// marks is what overlayfs wrote into a directory's or a file's extended attributes.
type marks = layer.Marks

func (r *Root) mark() string {
	if r.UserXattr {
		return "user.overlay."
	}
	return "trusted.overlay."
}

// OpenView opens layers, newest first. Errors are *fs.PathError, wrapped in ErrUnusableLayers for those of a feature.
func OpenView(layers []Root) (*View, error) {
	v := &View{layers: layers}
	for i := range layers {
		r, err := beneath.OpenRoot(layers[i].Path)
		var st unix.Stat_t
		if err == nil {
			r.Ours = !layers[i].Base
			v.roots = append(v.roots, r)
			err = unix.Fstat(r.FD, &st)
		}
		if err != nil {
			if !layers[i].Base {
				err = fmt.Errorf("%w: %w", ErrUnusableLayers, err)
			}
			return nil, errors.Join(err, v.Close())
		}
		v.ids = append(v.ids, objectOf(&st))
		v.tops = append(v.tops, place{layer: i})
	}
	return v, nil
}

// Close closes the layers, and puts modes back that were in the way of a reader without privileges.
func (v *View) Close() error {
	var errs []error
	for _, r := range v.roots {
		errs = append(errs, r.Close())
	}
	v.roots = nil
	return errors.Join(errs...)
}

// Layers returns what OpenView got.
func (v *View) Layers() []Root { return v.layers }

// At returns an open layer, for those who read what an entry's Source says.
func (v *View) At(root int) *beneath.Root { return v.roots[root] }

// openTop opens the root of the view. Its places are those of all layers: no mark in a root hides another.
func (v *View) openTop() (*dir, error) {
	d := &dir{places: v.tops}
	for i, r := range v.roots[:len(v.tops)] {
		fd, err := r.Open("", beneath.ReadDir)
		if err != nil {
			d.close()
			return nil, r.Fail("open", ".", err)
		}
		d.fds = append(d.fds, fd)
		if d.low, err = v.marks(i, fd); err != nil {
			d.close()
			return nil, r.Fail("getxattr", ".", err)
		}
		if i == 0 {
			d.top = d.low
		}
	}
	return d, nil
}

// trail is how far the lookup of a directory has come: what the kernel calls ovl_lookup_data.
type trail struct {
	name string // below the places of the directory above, or a path from a layer's root if it begins with a slash
	stop bool   // nothing further down shows
	low  marks  // of the directory found last
}

func (t *trail) rooted() bool { return t.name[0] == '/' }

// resolve opens the directory that a name is in a directory with these places, exactly as ovl_lookup of
// fs/overlayfs/namei.c finds it. Without any place it is no directory.
func (v *View) resolve(above []place, name string) (*dir, error) {
	d := &dir{}
	t := &trail{name: name}
	if err := v.extend(d, t, above); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// extend adds the places that a trail finds in these.
func (v *View) extend(d *dir, t *trail, above []place) error {
	rooted := t.rooted()
	for i := 0; i < len(above) && !t.stop; i++ {
		at := above[i]
		if err := v.descend(d, t, at); err != nil {
			return err
		}
		if !rooted && t.rooted() {
			// From here on the path counts from the roots of the layers further down.
			rooted, above, i = true, v.tops, at.layer
		}
	}
	d.low = t.low
	return nil
}

// descend looks for a trail's directory in one place, as ovl_lookup_layer does.
func (v *View) descend(d *dir, t *trail, at place) error {
	if !t.rooted() {
		_, err := v.step(d, t, at, "")
		return err
	}
	at.path = ""
	for rest := t.name[1:]; ; {
		_, after, more := strings.Cut(rest, "/")
		post := ""
		if more {
			post = "/" + after
		}
		next, err := v.step(d, t, at, post)
		if err != nil || next == nil || !more {
			return err
		}
		at, rest = *next, after
	}
}

// step looks one component up, as ovl_lookup_single does: the last one of the trail's name before post. It returns
// where it is, or nil.
func (v *View) step(d *dir, t *trail, at place, post string) (*place, error) {
	head := t.name[:len(t.name)-len(post)]
	prefix := head[:strings.LastIndexByte(head, '/')+1]
	r := v.roots[at.layer]
	next := place{at.layer, beneath.Join(at.path, head[len(prefix):])}
	if len(next.path) > MaxPath {
		return nil, r.Fail("open", next.path, ErrPathTooLong)
	}
	fd, err := r.Open(next.path, beneath.ReadDir)
	switch {
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENAMETOOLONG):
		return nil, nil
	case beneath.Gone(err): // there, and no directory: a whiteout or not, it hides what is below
		t.stop = true
		return nil, nil
	case err != nil:
		return nil, r.Fail("open", next.path, err)
	}
	m, err := v.marks(at.layer, fd)
	if err != nil || post != "" {
		unix.Close(fd)
	} else { // d owns it, also after an error
		if len(d.fds) == 0 {
			d.top = m
		}
		d.places, d.fds, t.low = append(d.places, next), append(d.fds, fd), m
	}
	if err == nil && m.Redirected && !layer.ValidRedirect(m.Redirect) {
		err = fmt.Errorf("redirect %q: %w", m.Redirect, ErrUnusableLayers)
	}
	if err != nil {
		return nil, r.Fail("getxattr", next.path, err)
	}
	switch {
	case m.Opaque:
		t.stop = true
	case strings.HasPrefix(m.Redirect, "/"):
		// An opaque directory above does not count any more.
		t.stop, t.name = false, m.Redirect+post
	case m.Redirected:
		t.name = prefix + m.Redirect + post
	}
	return &next, nil
}

// marks reads a directory's marks. Those in the lowest layer mean nothing, as in the kernel.
func (v *View) marks(i, fd int) (marks, error) {
	if l := &v.layers[i]; !l.Plain && i < len(v.layers)-1 {
		return layer.ReadMarks(fd, l.mark())
	}
	return marks{}, nil
}

// side is a name in one of the views.
type side struct {
	st   unix.Stat_t
	ok   bool
	base bool // in a layer of the host
	at   int  // which of the directory's places holds it; the number of these if none does
	root int  // that place's layer
	dir  int  // and descriptor
}

// find looks a name up in an open directory: the first place that has it decides.
func (v *View) find(d *dir, name string, s *side) error {
	s.at = len(d.fds)
	for i, fd := range d.fds {
		err := beneath.StatAt(fd, name, &s.st)
		if beneath.Gone(err) {
			continue
		}
		p := d.places[i]
		if err != nil {
			return v.roots[p.layer].Fail("stat", beneath.Join(p.path, name), err)
		}
		s.at, s.root, s.dir, s.base = i, p.layer, fd, v.layers[p.layer].Base
		s.ok = !v.hides(s, name)
		return nil
	}
	return nil
}

// hides reports a whiteout in either of its forms: a 0/0 character device, or an empty file with a mark.
func (v *View) hides(s *side, name string) bool {
	l := &v.layers[s.root]
	if l.Plain {
		return false
	}
	if !beneath.IsFile(&s.st) || s.st.Size != 0 {
		return beneath.IsWhiteout(&s.st)
	}
	_, err := unix.Lgetxattr(beneath.ProcFD(s.dir)+"/"+name, l.mark()+"whiteout", nil)
	return err == nil
}

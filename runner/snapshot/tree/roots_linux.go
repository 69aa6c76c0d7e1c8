package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// View is a stack of layers as overlayfs shows it. It is safe for concurrent use.
type View struct {
	layers []Root
	roots  []*beneath.Root
}

func (r *Root) mark() string {
	if r.UserXattr {
		return "user.overlay."
	}
	return "trusted.overlay."
}

// OpenView opens layers, newest first. Errors are *fs.PathError, wrapped in ErrUnusableLayers but for the workspace's.
func OpenView(layers []Root) (*View, error) {
	v := &View{layers: layers}
	for i := range layers {
		r, err := beneath.OpenRoot(layers[i].Path)
		if err != nil {
			if !layers[i].Base {
				err = fmt.Errorf("%w: %w", ErrUnusableLayers, err)
			}
			return nil, errors.Join(err, v.Close())
		}
		r.Ours = !layers[i].Base
		v.roots = append(v.roots, r)
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

// keyOf tells the views apart that changes are read from.
func keyOf(old, now *View) string {
	var b strings.Builder
	for _, v := range []*View{old, now} {
		for i, r := range v.layers {
			var st unix.Stat_t
			if v.roots != nil {
				_ = unix.Fstat(v.roots[i].FD, &st) // zero tells apart, too
			}
			fmt.Fprintf(&b, "%q %x %x\n", r.Path, st.Dev, st.Ino)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Of reports whether Compare read the change from these views, in this process.
func (c *Change) Of(old, now *View) bool {
	return c != nil && c.detail != nil && c.detail.key == keyOf(old, now)
}

// Found returns the conflicts that Compare met and that belong to no entry.
func (c *Change) Found() []Conflict { return c.detail.conflicts }

// Linked returns, for each path of a group of hard links in the new view, the group's first path, changed or not.
func (c *Change) Linked() map[string]string { return c.detail.linked }

// Old describes the old side as it was seen; false when there was nothing.
func (e *Entry) Old() (Seen, bool) {
	if e.OldType == "" || e.detail == nil {
		return Seen{}, false
	}
	return journal.See(&e.detail.Old), true
}

// Lstat describes a path; fs.ErrNotExist.
func (v *View) Lstat(path string) (Stat, error) { return Stat{}, errors.ErrUnsupported }

// Walk calls do for the root (".") and everything below, directories before what they hold, names sorted.
func (v *View) Walk(ctx context.Context, do func(path string, s Stat) error) error {
	return errors.ErrUnsupported
}

// Restore writes into a fresh upper so that onto with upper above shows from's paths where Match says so, and returns
// the paths that differed.
func Restore(ctx context.Context, from, onto *View, upper string, o RestoreOptions) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// Merge makes one layer in dst that shows over below what layers show, newest first.
func Merge(ctx context.Context, layers []Root, below *View, dst string) error {
	return errors.ErrUnsupported
}

// Manifest is what an upper layer looked like.
type Manifest struct{}

// CopyDelta copies what changed in an upper since m into dst.
func CopyDelta(ctx context.Context, upper Root, m *Manifest, dst string, o DeltaOptions) (*Manifest, Delta, error) {
	return nil, Delta{}, errors.ErrUnsupported
}

// Open opens a regular file of the sandbox's view for reading: from the upper layer, or, below a directory
// that the sandbox renamed, from the base. It never follows a link and never blocks. Errors are fs.ErrNotExist for
// what the view does not hold or the upper does not cover, and *fs.PathError.
func (v *View) Open(path string) (*os.File, error) {
	upper := v.roots[0]
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
	return v.openRenamed(upper, path)
}

// openRenamed follows the redirects of a path's parents into the base.
func (v *View) openRenamed(upper *beneath.Root, path string) (*os.File, error) {
	base := v.roots[1]
	j := job{upper: true, merged: true}
	f := &found{walk: &walk{upper: upper, base: base, mark: v.layers[0].mark()}}
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

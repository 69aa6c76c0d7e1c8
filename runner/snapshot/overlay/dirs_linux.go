package overlay

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
)

// look is what shows of a directory itself.
type look struct {
	dirs.Look
	keepMtime bool
}

func readLook(path string) (look, error) {
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return look{}, err
	}
	defer r.Close()
	l, err := dirs.LookOf(r.FD)
	if err != nil {
		return look{}, r.Fail("stat", ".", err)
	}
	return look{Look: l}, nil
}

// shows reports whether a directory looks so.
func (a *look) shows(b *dirs.Look) bool {
	return a.Owner == b.Owner && a.Mode == b.Mode && a.Mtime == b.Mtime &&
		beneath.PackXattrs(a.Xattrs) == beneath.PackXattrs(b.Xattrs)
}

// wear makes one of our own directories look so.
func (a *look) wear(path string) error {
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return err
	}
	defer r.Close()
	err = errors.Join(beneath.Chown(r.FD, a.Owner.UID, a.Owner.GID), beneath.SetXattrs(r.FD, a.Xattrs), unix.Fchmod(r.FD, a.Mode))
	if err == nil && !a.keepMtime {
		err = beneath.SetMtime(r.FD, a.Mtime)
	}
	if err != nil {
		return r.Fail("create", ".", err)
	}
	return nil
}

// make makes the directories of a layer.
func (l *layers) make(at string) error {
	err := os.Mkdir(at, 0o700)
	if errors.Is(err, fs.ErrExist) { // the rest of one that was cut short
		if err = snapshot.Remove(context.Background(), at); err == nil {
			err = os.Mkdir(at, 0o700)
		}
	}
	for _, part := range []string{"w", "h", "ww", "hw"} {
		if err == nil {
			err = os.Mkdir(filepath.Join(at, part), 0o700)
		}
	}
	return err
}

// looks returns how the roots of the workspace and HOME look where nothing of the current layer shows: as those directly
// below do.
func (l *layers) looks(s *book.State) (w, h look, err error) {
	p := place{stack: s.Lower[:min(1, len(s.Lower))], generation: s.Generation, bare: s.Bare}
	for _, x := range []struct {
		to   *look
		part string
	}{{&w, "w"}, {&h, "h"}} {
		roots, err := l.rootsOf(s, &p, x.part)
		if err != nil {
			return w, h, err
		}
		if *x.to, err = readLook(roots[0].Path); err != nil {
			return w, h, err
		}
		if roots[0].Base {
			x.to.Owner = dirs.Owner(s.Owner)
		}
	}
	return w, h, nil
}

// dress makes the roots of an empty layer look as those that it will cover.
func (l *layers) dress(s *book.State, n int) error {
	w, h, err := l.looks(s)
	if err != nil {
		return err
	}
	at := book.LayerDir(l.dir, n)
	return errors.Join(w.wear(at+"/w"), h.wear(at+"/h"))
}

// untouched reports a current layer in which nothing was ever written.
func (l *layers) untouched(s *book.State) (bool, error) {
	if s.Copied() {
		return false, nil
	}
	w, h, err := l.looks(s)
	if err != nil {
		return false, err
	}
	at := l.book.Layer(s.Current)
	for _, x := range []struct {
		look *look
		path string
	}{{&w, at + "/w"}, {&h, at + "/h"}} {
		same, err := bare(x.path, x.look)
		if err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// bare reports an empty directory that looks like a.
func bare(path string, a *look) (bool, error) {
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return false, err
	}
	defer r.Close()
	now, err := dirs.LookOf(r.FD)
	if err != nil {
		return false, r.Fail("stat", ".", err)
	}
	if !a.shows(&now) {
		return false, nil
	}
	names, err := beneath.ReadNames(r.FD, make([]byte, 4096), nil)
	if err != nil {
		return false, r.Fail("read", ".", err)
	}
	return len(names) == 0, nil
}

// take gives out a layer that is empty and has not been used.
func (l *layers) take() (int, error) {
	n := l.spare
	l.spare = 0
	if n != 0 {
		return n, nil
	}
	n = l.next
	if err := l.make(l.book.Layer(n)); err != nil {
		return 0, err
	}
	l.next++
	return n, nil
}

// discard removes a layer that take gave out and that did not come into use.
func (l *layers) discard(n int) error {
	return snapshot.Remove(context.Background(), l.book.Layer(n))
}

// empty removes what is in a directory of ours.
func (l *layers) empty(ctx context.Context, dir string) error {
	if err := snapshot.Remove(ctx, dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o700)
}

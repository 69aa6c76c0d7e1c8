package promote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/kernel"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// workspace is the smallest driver that there can be: one upper layer, which begins anew after each promote.
type workspace struct {
	dir   string
	bases *Bases // nil: without base layers
	state state
}

type state struct {
	Workspace  string
	UserXattr  bool
	Start      time.Time
	RootMode   uint32
	RootXattr  []byte
	Generation int
	Bases      bool
	Sealed     []string // layers, newest first
}

// create makes a feature in dir on the directory ws.
func create(dir, ws string, bases bool) (*workspace, error) {
	w := &workspace{dir: dir, state: state{Workspace: ws, UserXattr: os.Geteuid() != 0, Bases: bases}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := w.openBases(); err != nil {
		return nil, err
	}
	if bases {
		w.state.Generation = w.bases.Generation()
	}
	return w, w.begin()
}

// open opens what create made.
func open(dir string) (*workspace, error) {
	w := &workspace{dir: dir}
	data, err := os.ReadFile(dir + "/state.json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &w.state); err != nil {
		return nil, err
	}
	return w, w.openBases()
}

func (w *workspace) openBases() (err error) {
	if w.state.Bases {
		w.bases, err = OpenBases(filepath.Join(filepath.Dir(w.dir), "bases"), w.state.Workspace)
	}
	return err
}

// seal makes the upper a layer, under a new one.
func (w *workspace) seal() error {
	path := fmt.Sprintf("%s/layer%d", w.dir, len(w.state.Sealed)+1)
	if err := os.Rename(w.dir+"/upper", path); err != nil {
		return err
	}
	w.state.Sealed = append([]string{path}, w.state.Sealed...)
	if err := w.makeUpper(path, false); err != nil {
		return err
	}
	return w.save()
}

// begin makes an empty upper that looks like the workspace, on nothing but that.
func (w *workspace) begin() error {
	for _, path := range w.state.Sealed {
		if err := tree.Remove(context.Background(), path); err != nil {
			return err
		}
	}
	w.state.Sealed = nil
	if err := w.makeUpper(w.state.Workspace, true); err != nil {
		return err
	}
	dir, err := os.Open(w.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if w.state.Start, err = beneath.Stamp(int(dir.Fd())); err != nil {
		return err
	}
	return w.save()
}

func (w *workspace) save() error {
	data, err := json.Marshal(&w.state)
	if err != nil {
		return err
	}
	return os.WriteFile(w.dir+"/state.json", data, 0o600)
}

// makeUpper makes an empty upper that looks like a directory.
func (w *workspace) makeUpper(like string, note bool) error {
	upper := w.dir + "/upper"
	err := errors.Join(tree.Remove(context.Background(), upper), tree.Remove(context.Background(), w.dir+"/work"))
	if err == nil {
		err = errors.Join(os.Mkdir(upper, 0o700), os.Mkdir(w.dir+"/work", 0o700))
	}
	if err != nil {
		return err
	}
	base, err := beneath.OpenRoot(like)
	if err != nil {
		return err
	}
	defer base.Close()
	top, err := beneath.OpenRoot(upper)
	if err != nil {
		return err
	}
	defer top.Close()
	var st unix.Stat_t
	if err := unix.Fstat(base.FD, &st); err != nil {
		return err
	}
	attrs, err := beneath.ReadXattrs(base.FD, beneath.IsUserXattr)
	if err != nil {
		return err
	}
	if note {
		w.state.RootMode, w.state.RootXattr = st.Mode&0o7777, []byte(beneath.PackXattrs(attrs))
	}
	return errors.Join(beneath.SetXattrs(top.FD, attrs), unix.Fchmod(top.FD, st.Mode&0o7777), beneath.SetMtime(top.FD, st.Mtim))
}

// below is what the upper lies on.
func (w *workspace) below() []tree.Root {
	var all []tree.Root
	if w.bases != nil {
		all = w.bases.Above(w.state.Generation)
	}
	return append(all, tree.Root{Path: w.state.Workspace, Base: true, UserXattr: w.state.UserXattr})
}

func (w *workspace) stack() kernel.Stack {
	s := kernel.Stack{Upper: w.dir + "/upper", Work: w.dir + "/work", UserXattr: w.state.UserXattr, Lower: slices.Clone(w.state.Sealed)}
	for _, r := range w.below() {
		s.Lower = append(s.Lower, r.Path)
	}
	return s
}

// with opens both views.
func (w *workspace) with(do func(t Target) error) error {
	below := w.below()
	old, err := tree.OpenView(below)
	if err != nil {
		return err
	}
	var own []tree.Root
	for i, path := range append([]string{w.dir + "/upper"}, w.state.Sealed...) {
		own = append(own, tree.Root{Path: path, UserXattr: w.state.UserXattr, Layer: 1 + len(w.state.Sealed) - i})
	}
	now, err := tree.OpenView(append(own, below...))
	if err != nil {
		return errors.Join(err, old.Close())
	}
	return w.do(tree.Pair{Old: old, New: now}, nil, do)
}

// of opens the views that a change was read from.
func (w *workspace) of(c *tree.Change, do func(t Target) error) error {
	p, err := c.Reopen()
	if err != nil {
		return err
	}
	return w.do(p, c, do)
}

func (w *workspace) do(p tree.Pair, c *tree.Change, do func(t Target) error) error {
	t := Target{
		Dir: w.dir, Workspace: w.state.Workspace, Bases: w.bases, Old: p.Old, New: p.New, Generation: w.state.Generation,
		LockFile: filepath.Join(filepath.Dir(w.dir), "workspace.lock"), Note: []byte("note"),
	}
	if c != nil && c.Resolved != nil {
		t.Generation = c.Resolved.Generation
	}
	return errors.Join(do(t), p.Close())
}

func (w *workspace) change(ctx context.Context) (c *tree.Change, err error) {
	touched, err := Touched(w.dir)
	if err != nil {
		return nil, err
	}
	o := tree.CompareOptions{Since: w.state.Start, RootMode: w.state.RootMode, RootXattr: w.state.RootXattr, Touched: touched}
	err = w.with(func(t Target) (err error) {
		c, err = tree.Compare(ctx, t.Old, t.New, o)
		return err
	})
	return c, err
}

func (w *workspace) conflicts(ctx context.Context, c *tree.Change) (list []tree.Conflict, err error) {
	err = w.of(c, func(t Target) (err error) {
		list, err = Conflicts(ctx, t, c)
		return err
	})
	return list, err
}

func (w *workspace) resolve(ctx context.Context, c *tree.Change, o tree.Choice) (r *tree.Change, err error) {
	err = w.of(c, func(t Target) (err error) {
		r, err = Resolve(ctx, t, c, o)
		return err
	})
	return r, err
}

func (w *workspace) diff(ctx context.Context, c *tree.Change, out io.Writer, o tree.DiffOptions) error {
	return w.of(c, func(t Target) error { return tree.Pair{Old: t.Old, New: t.New}.WriteDiff(ctx, c, out, o) })
}

func (w *workspace) patch(ctx context.Context, c *tree.Change, file string) (r *tree.PromoteReport, err error) {
	err = w.of(c, func(t Target) (err error) {
		r, err = Patch(ctx, t, c, file)
		return err
	})
	return r, err
}

func (w *workspace) apply(ctx context.Context, c *tree.Change, moving func(context.Context, int) error) (r *tree.PromoteReport, err error) {
	err = w.of(c, func(t Target) (err error) {
		r, err = Apply(ctx, t, c, moving)
		return err
	})
	if err == nil {
		err = w.renew()
	}
	return r, err
}

// renew begins anew after a promote.
func (w *workspace) renew() (err error) {
	if w.state.Generation, err = Generation(w.dir); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	return Forget(w.dir)
}

// recovers is what a driver does when it opens a feature.
func recovers(dir string) error {
	w, err := open(dir)
	if err != nil {
		return err
	}
	promoted, err := Recover(w.dir, w.bases)
	if err != nil || !promoted {
		return err
	}
	if note, pending, err := Pending(w.dir); err != nil || !pending || string(note) != "note" {
		return errors.Join(err, fs.ErrInvalid)
	}
	return w.renew()
}

// open opens a file of what the sandbox sees.
func (w *workspace) open(path string) (f *os.File, err error) {
	err = w.with(func(t Target) (err error) {
		f, err = t.New.Open(path)
		return err
	})
	return f, err
}

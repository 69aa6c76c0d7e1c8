package snapshottest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// Harness is a driver under test.
type Harness struct {
	Name   string
	Create func(snapshot.CreateOptions) (snapshot.Layers, error)
	Open   func(snapshot.OpenOptions) (snapshot.Layers, error)
	Fork   func(ctx context.Context, from snapshot.OpenOptions, at string, o snapshot.CreateOptions) (snapshot.Layers, error)

	// Repair mends what Open refuses.
	Repair func(context.Context, snapshot.OpenOptions) ([]snapshot.DamageError, error)

	// Mount makes stacks usable; nil is the package's Mount.
	Mount func(testing.TB, []snapshot.Stack) *Mounted

	// LinksBreak says that a hard link of a sealed file breaks at the first write, as an overlay's does.
	LinksBreak bool
}

// Run runs every case.
func Run(t *testing.T, h Harness) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(newWorld(t, h)) })
	}
}

// world is a workspace and the features on it, of one test.
type world struct {
	testing.TB
	h     Harness
	dir   string // everything of the test
	ws    string
	dirs  map[string]string // feature id → its directory
	count int
}

func newWorld(t testing.TB, h Harness) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "caisson-suite")
	must(t, err)
	w := &world{TB: t, h: h, dir: dir, ws: filepath.Join(dir, "ws"), dirs: map[string]string{}}
	if w.h.Mount == nil {
		testenv.Need(t, "overlay", mountable())
		w.h.Mount = Mount
	}
	must(t, os.Mkdir(w.ws, 0o755))
	// Modes in a tree may defeat the testing package's own cleaning.
	t.Cleanup(func() { must(t, snapshot.Remove(context.Background(), dir)) })
	return w
}

func (w *world) createOptions(id string) snapshot.CreateOptions {
	dir := filepath.Join(w.dir, "state", "features", id)
	w.dirs[id] = dir
	return snapshot.CreateOptions{
		Dir: dir, Workspace: w.ws, Feature: id, Bases: filepath.Join(w.dir, "state", "bases"),
		Owner: snapshot.Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())},
	}
}

func (w *world) openOptions(id string) snapshot.OpenOptions {
	return snapshot.OpenOptions{
		Dir: w.dirs[id], Feature: id, Bases: filepath.Join(w.dir, "state", "bases"), Resolve: w.resolve,
	}
}

func (w *world) resolve(id string) (string, error) {
	if dir, ok := w.dirs[id]; ok {
		return dir, nil
	}
	return "", fmt.Errorf("feature %s: %w", id, os.ErrNotExist)
}

// next returns a name that was not used before.
func (w *world) next(prefix string) string {
	w.count++
	return fmt.Sprintf("%s%d", prefix, w.count)
}

// feature is a feature that is mounted, or can be.
type feature struct {
	*world
	id string
	l  snapshot.Layers
	m  *Mounted
}

func (w *world) create() *feature {
	w.Helper()
	id := w.next("f")
	l, err := w.h.Create(w.createOptions(id))
	must(w, err)
	return w.adopt(id, l)
}

func (w *world) adopt(id string, l snapshot.Layers) *feature {
	w.Helper()
	f := &feature{world: w, id: id, l: l}
	w.Cleanup(f.close)
	f.mount()
	return f
}

func (w *world) fork(from *feature, at string) (*feature, error) {
	w.Helper()
	id := w.next("f")
	l, err := w.h.Fork(w.Context(), w.openOptions(from.id), at, w.createOptions(id))
	if err != nil {
		return nil, err
	}
	return w.adopt(id, l), nil
}

func (f *feature) mount() {
	f.Helper()
	f.unmount()
	must(f, f.l.Prepare())
	f.m = f.h.Mount(f, f.l.Stacks())
}

func (f *feature) unmount() {
	if f.m != nil {
		f.m.Close()
		f.m = nil
	}
}

func (f *feature) close() {
	f.unmount()
	if f.l != nil {
		must(f, f.l.Close())
		f.l = nil
	}
}

func (f *feature) reopen() {
	f.Helper()
	f.close()
	l, err := f.h.Open(f.openOptions(f.id))
	must(f, err)
	f.l = l
	f.mount()
}

// seal makes a checkpoint and mounts what is to be mounted then.
func (f *feature) seal() snapshot.Sealed {
	f.Helper()
	s, err := f.l.Seal(f.Context(), snapshot.SealOptions{ID: f.next("c")})
	must(f, err)
	if s.Rotated {
		f.mount()
	}
	return s
}

func (f *feature) reset(to string) {
	f.Helper()
	_, err := f.l.Reset(f.Context(), snapshot.ResetOptions{To: to})
	must(f, err)
	f.mount()
}

// view lists the workspace and HOME as they show.
func (f *feature) view() view {
	f.Helper()
	if f.h.LinksBreak && os.Geteuid() != 0 {
		f.mount() // until then, a link of a file that was just copied up has another inode number
	}
	v, err := listPair(f.m.Workspace, f.m.Home)
	must(f, err)
	return v
}

// wantView fails unless everything shows exactly as it did.
func (f *feature) wantView(want view, what string) {
	f.Helper()
	if d := want.differ(f.view(), plain.Exact); d != "" {
		f.Fatalf("%s: %s\n%s", f.id, what, d)
	}
}

func (f *feature) change(from, to string) *snapshot.Change {
	f.Helper()
	c, err := f.l.Change(f.Context(), from, to)
	must(f, err)
	return c
}

func (f *feature) write(path, content string) {
	f.Helper()
	must(f, os.WriteFile(filepath.Join(f.m.Workspace, path), []byte(content), 0o644))
}

func (f *feature) want(path, content string) {
	f.Helper()
	got, err := os.ReadFile(filepath.Join(f.m.Workspace, path))
	if content == "" && errors.Is(err, os.ErrNotExist) {
		return
	}
	must(f, err)
	if string(got) != content {
		f.Fatalf("%s holds %q, not %q", path, got, content)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

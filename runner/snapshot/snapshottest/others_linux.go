package snapshottest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// editedWorkspace: what others edit under a running feature shows or not, but what the feature wrote stays, and a promote
// names the conflict.
func editedWorkspace(w *world) {
	w.file("mine", "old")
	w.file("both", "old")
	f := w.create()
	f.write("mine", "feature")
	f.write("both", "feature")
	w.file("both", "user")
	w.file("theirs", "user")
	id := f.seal().ID
	f.want("both", "feature")
	c := f.change(snapshot.Base, id)
	list, err := f.l.Conflicts(w.Context(), c)
	must(w, err)
	if len(list) != 1 || list[0].Path != "both" {
		w.Fatalf("conflicts %+v", list)
	}
	_, err = f.l.Promote(w.Context(), c, snapshot.PromoteOptions{LockDir: w.dir})
	w.is(err, snapshot.ErrConflict, "promote")
	if data, _ := os.ReadFile(w.ws + "/mine"); string(data) != "old" {
		w.Fatalf("the workspace holds %q", data)
	}
	must(w, os.Rename(w.ws, w.ws+".away"))
	must(w, os.Mkdir(w.ws, 0o755))
	if _, err := f.l.Promote(w.Context(), c, snapshot.PromoteOptions{LockDir: w.dir}); err == nil {
		w.Error("promoted to another directory")
	}
	must(w, os.Remove(w.ws))
	must(w, os.Rename(w.ws+".away", w.ws))
}

// resolvedConflicts: a conflict that is named is resolved to one side; the feature goes on with what the workspace has then, and
// its own side is in the checkpoint.
func resolvedConflicts(w *world) {
	for _, path := range []string{"ours", "theirs", "dir/a", "dir/b"} {
		w.file(path, "old")
	}
	f := w.create()
	for _, path := range []string{"ours", "theirs", "free"} {
		f.write(path, "feature")
	}
	must(w, os.RemoveAll(f.m.Workspace+"/dir"))
	for _, path := range []string{"ours", "theirs", "dir/a"} {
		w.file(path, "user")
	}
	id := f.seal().ID
	c := f.change(snapshot.Base, id)
	_, err := f.l.Resolve(w.Context(), c, snapshot.Choice{Ours: []string{"ours"}})
	w.is(err, snapshot.ErrConflict, "two are left")
	list, err := f.l.Conflicts(w.Context(), c)
	must(w, err)
	var theirs []string
	for _, x := range list {
		if x.Path != "ours" {
			theirs = append(theirs, x.Path)
		}
	}
	r, err := f.l.Resolve(w.Context(), c, snapshot.Choice{Ours: []string{"ours"}, Theirs: theirs})
	must(w, err)
	f.unmount()
	report, err := f.l.Promote(w.Context(), r, snapshot.PromoteOptions{LockDir: w.dir})
	must(w, err)
	f.mount()
	if len(report.Resolved) != len(list) {
		w.Errorf("resolved %+v of %+v", report.Resolved, list)
	}
	for path, want := range map[string]string{"ours": "user", "theirs": "feature", "free": "feature"} {
		if data, err := os.ReadFile(w.ws + "/" + path); err != nil || string(data) != want {
			w.Errorf("%s holds %q, %v", path, data, err)
		}
		f.want(path, want)
	}
	if _, err := os.Lstat(w.ws + "/dir"); err == nil {
		w.Error("dir is still there")
	}
	f.reset(id)
	f.want("ours", "feature")
}

// promote hands over what a feature shows.
func (f *feature) promote(moving func(ctx context.Context, generation int) error) (*snapshot.PromoteReport, error) {
	f.Helper()
	f.seal()
	c := f.change(snapshot.Base, snapshot.Current)
	f.unmount()
	r, err := f.l.Promote(f.Context(), c, snapshot.PromoteOptions{LockDir: f.dir, Moving: moving})
	f.mount()
	return r, err
}

func promoteOne(w *world) {
	w.file("a", "old")
	w.file("gone", "old")
	f := w.create()
	f.write("a", "new")
	f.write("d", "new")
	must(w, os.Remove(f.m.Workspace+"/gone"))
	r, err := f.promote(nil)
	must(w, err)
	if r.Added != 1 || r.Modified != 1 || r.Deleted != 1 {
		w.Errorf("%+v", r)
	}
	now, err := plain.List(w.ws)
	must(w, err)
	if len(now) != 3 || f.l.Info().Head != "" {
		w.Errorf("%d paths, head %q", len(now), f.l.Info().Head)
	}
	f.want("a", "new")
	if c := f.change(snapshot.Base, snapshot.Current); len(c.Entries) != 0 {
		w.Errorf("%d entries are left", len(c.Entries))
	}
	f.write("a", "newer")
	_, err = f.promote(nil)
	must(w, err)
	f.want("a", "newer")
	f.reopen()
	f.want("a", "newer")
}

// promoteTwo: of two features that changed one file, the second is refused; what does not touch is promoted.
func promoteTwo(w *world) {
	w.file("a", "old")
	w.file("b", "old")
	f, g, h := w.create(), w.create(), w.create()
	f.write("a", "f")
	g.write("a", "g")
	h.write("b", "h")
	hidden := h.view()
	moved := 0
	_, err := f.promote(func(context.Context, int) error {
		moved++
		for _, other := range []*feature{g, h} {
			other.unmount()
			must(w, other.l.Rebase())
			other.mount()
		}
		return nil
	})
	must(w, err)
	if moved != 1 {
		w.Errorf("asked %d times to move", moved)
	}
	g.want("a", "g")
	h.wantView(hidden, "a feature beside a promote")
	_, err = g.promote(nil)
	w.is(err, snapshot.ErrConflict, "the second promote of a file")
	_, err = h.promote(nil)
	must(w, err)
	for path, want := range map[string]string{"a": "f", "b": "h"} {
		if data, err := os.ReadFile(w.ws + "/" + path); err != nil || string(data) != want {
			w.Errorf("%s holds %q, %v", path, data, err)
		}
	}
	refused := errors.New("held")
	k := w.create()
	k.write("a", "k")
	_, err = k.promote(func(context.Context, int) error { return refused })
	w.is(err, refused, "others who do not move")
	if data, _ := os.ReadFile(w.ws + "/a"); string(data) != "f" {
		w.Errorf("after a refused promote: %q", data)
	}
	k.want("a", "k")
}

// rollbackPast: what was sealed before a promote shows as it was, also what the promote took away.
func rollbackPast(w *world) {
	w.file("a", "old")
	w.file("gone", "old")
	w.file("dir/in", "old")
	f := w.create()
	base := f.view()
	f.write("new", "new")
	one, v := f.seal().ID, f.view()
	f.write("a", "new")
	must(w, os.Remove(f.m.Workspace+"/gone"))
	must(w, os.RemoveAll(f.m.Workspace+"/dir"))
	two, v2 := f.seal().ID, f.view()
	_, err := f.promote(nil)
	must(w, err)
	f.reset(one)
	f.wantView(v, "a checkpoint before the promote")
	f.reset(two)
	f.wantView(v2, "the checkpoint that was promoted")
	f.reset(one)
	f.reset(snapshot.Base)
	f.wantView(base, "the base before the promote")
	f.reopen()
	g, err := w.fork(f, one)
	must(w, err)
	g.wantView(v, "a fork of it")
	c := g.change(snapshot.Base, one)
	if len(c.Entries) != 1 || c.Entries[0].Path != "new" {
		w.Errorf("%+v", c.Entries)
	}
}

// plantedLink: while a path is now a directory and now a link out of the sandbox, the host never follows it.
func plantedLink(w *world) {
	outside := filepath.Join(w.dir, "outside")
	must(w, os.Mkdir(outside, 0o755))
	must(w, os.WriteFile(outside+"/victim", []byte("untouched"), 0o644))
	w.file("d/victim", "inside")
	f := w.create()
	f.write("d/victim", "changed")
	f.write("d/more", "more")
	id := f.seal().ID
	must(w, os.Mkdir(f.m.Workspace+"/real", 0o755))
	f.write("real/victim", "real")
	must(w, os.Symlink(outside, f.m.Workspace+"/link"))
	before, err := plain.List(outside)
	must(w, err)
	stop, done := make(chan struct{}), make(chan int)
	go exchange(f.m.Workspace, stop, done)
	for i := range 20 {
		f.readAll()
		if i%5 == 4 {
			_, _ = f.l.Reset(w.Context(), snapshot.ResetOptions{To: id, Paths: []string{"**"}})
		}
	}
	close(stop)
	if n := <-done; n < 100 {
		w.Logf("only %d exchanges", n)
	}
	after, err := plain.List(outside)
	must(w, err)
	if d := before.Differ(after, plain.Exact); d != "" {
		w.Fatalf("something outside changed:\n%s", d)
	}
	f.reset(id)
	f.want("d/victim", "changed")
}

// exchange puts a link in the place of directories and back until it is stopped.
func exchange(dir string, stop <-chan struct{}, done chan<- int) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			done <- n
			return
		default:
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/real", unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
			_ = unix.Renameat2(unix.AT_FDCWD, dir+"/d", unix.AT_FDCWD, dir+"/link", unix.RENAME_EXCHANGE)
		}
	}
}

// readAll reads a state that changes meanwhile in every way there is. Errors are fine, following a link is not.
func (f *feature) readAll() {
	f.Helper()
	ctx := f.Context()
	if c, err := f.l.Change(ctx, snapshot.Base, snapshot.Current); err == nil {
		_ = f.l.WriteDiff(ctx, c, &bytes.Buffer{}, snapshot.DiffOptions{})
	}
	if r, err := f.l.OpenFile(snapshot.Current, "link/victim"); err == nil {
		data := make([]byte, 32)
		n, _ := r.Read(data)
		r.Close()
		if string(data[:n]) == "untouched" {
			f.Error("read through the link")
		}
	}
	_, _ = f.l.Seal(ctx, snapshot.SealOptions{ID: f.next("live"), Live: standing})
}

// plantedMarks: what a task writes that looks like an overlay's own marks is no mark. It stays in the feature as the task
// sees it, and the workspace gets none of it.
func plantedMarks(w *world) {
	w.file("dir/below", "base")
	w.file("a", "base")
	w.file("b", "base")
	f := w.create()
	at := f.m.Workspace
	f.write("a", "mine")
	f.write("dir/new", "mine")
	must(w, os.Mkdir(at+"/made", 0o755))
	planted := map[string][2]string{
		"dir": {"user.overlay.opaque", "y"}, "made": {"user.overlay.redirect", "/dir"}, "a": {"user.overlay.whiteout", "y"},
		"dir/new": {"user.overlay.metacopy", ""}, ".": {"user.overlay.opaque", "x"},
	}
	for path, x := range planted {
		if err := unix.Setxattr(at+"/"+path, x[0], []byte(x[1]), 0); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EOPNOTSUPP) {
			w.Fatal(path, err)
		}
	}
	must(w, unix.Setxattr(at+"/a", "user.large", bytes.Repeat([]byte("x"), 3000), 0))
	hidden := unix.Mknod(at+"/made/a", unix.S_IFCHR, 0) == nil // an overlay refuses that
	check := func(when string) {
		w.Helper()
		for path, want := range map[string]string{"dir/below": "base", "dir/new": "mine", "a": "mine", "b": "base"} {
			f.want(path, want)
		}
		names, err := os.ReadDir(f.m.Workspace + "/made")
		if err != nil || len(names) > 0 != hidden {
			w.Errorf("%s: %v %v", when, names, err)
		}
	}
	one, v := f.seal().ID, f.view()
	check("sealed")
	f.write("b", "mine")
	_, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: f.next("c"), Live: standing})
	must(w, err)
	f.reset(one)
	f.wantView(v, "after a rollback")
	check("after a rollback")
	_, err = f.l.Squash(w.Context(), true)
	must(w, err)
	f.reopen()
	check("squashed")
	g, err := w.fork(f, one)
	must(w, err)
	g.wantView(v, "forked")
	_, err = f.promote(nil)
	must(w, err)
	for path := range planted {
		w.unmarked(path)
	}
	if names, err := os.ReadDir(w.ws + "/made"); err != nil || len(names) > 0 {
		w.Errorf("in the workspace: %v %v", names, err)
	}
}

// unmarked makes sure that a path of the workspace has no overlay's marks.
func (w *world) unmarked(path string) {
	w.Helper()
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(w.ws+"/"+path, list)
	if err != nil && !errors.Is(err, unix.ENOTSUP) || bytes.Contains(list[:max(n, 0)], []byte("overlay")) {
		w.Errorf("%s in the workspace: %q %v", path, list[:max(n, 0)], err)
	}
}

// largeHole: a file costs what it holds, and not what its size says.
func largeHole(w *world) {
	w.file("a", "base")
	f := w.create()
	f.write("hole", "text")
	size := int64(1) << 62
	for size > 1<<40 && os.Truncate(f.m.Workspace+"/hole", size) != nil {
		size >>= 1
	}
	began := time.Now()
	one := f.seal().ID
	f.write("a", "mine")
	_, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: f.next("c"), Live: standing})
	must(w, err)
	must(w, f.l.WriteDiff(w.Context(), f.change(snapshot.Base, snapshot.Current), &bytes.Buffer{}, snapshot.DiffOptions{}))
	f.reset(one)
	f.wantSize("hole", size)
	g, err := w.fork(f, one)
	must(w, err)
	g.wantSize("hole", size)
	var archive bytes.Buffer
	_, err = f.l.Export(w.Context(), one, &archive, snapshot.ExportOptions{})
	must(w, err)
	if archive.Len() > 1<<20 {
		w.Errorf("an archive of %d bytes", archive.Len())
	}
	_, err = f.promote(nil)
	must(w, err)
	info, err := os.Stat(w.ws + "/hole")
	if err != nil || info.Size() != size {
		w.Errorf("%v %v", info, err)
	}
	if took := time.Since(began); took > time.Minute {
		w.Errorf("took %v", took)
	}
}

func (f *feature) wantSize(path string, size int64) {
	f.Helper()
	info, err := os.Stat(filepath.Join(f.m.Workspace, path))
	must(f, err)
	if info.Size() != size {
		f.Errorf("%s has %d bytes, not %d", path, info.Size(), size)
	}
}

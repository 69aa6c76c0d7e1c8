package snapshottest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

func index(w *world) {
	w.file("a", "a")
	f := w.create()
	f.write("a", "changed")
	f.write("b", "b")
	one := f.seal().ID
	x, err := f.l.Index(w.Context(), one)
	must(w, err)
	if x.Counts.Added != 1 || x.Counts.Modified != 1 || x.Counts.Deleted != 0 || x.Digest == "" || x.AliasOf != "" {
		w.Errorf("%+v", x)
	}
	// Written and put back: equal in every respect but for the layer.
	var st unix.Stat_t
	var root unix.Stat_t
	must(w, unix.Lstat(f.m.Workspace+"/b", &st))
	must(w, unix.Stat(f.m.Workspace, &root))
	f.write("b", "B")
	f.write("b", "b")
	must(w, unix.UtimesNanoAt(unix.AT_FDCWD, f.m.Workspace+"/b", []unix.Timespec{st.Atim, st.Mtim}, 0))
	must(w, unix.UtimesNanoAt(unix.AT_FDCWD, f.m.Workspace, []unix.Timespec{root.Atim, root.Mtim}, 0))
	same := f.view()
	two := f.seal().ID
	y, err := f.l.Index(w.Context(), two)
	must(w, err)
	if y.Digest != x.Digest || y.AliasOf != one {
		w.Errorf("%+v is no alias of %+v", y, x)
	}
	f.reset(two)
	f.wantView(same, "what became an alias")
	// Equal but for a time is no alias.
	must(w, os.Chtimes(f.m.Workspace+"/b", time.Time{}, time.Unix(5, 0)))
	three := f.seal().ID
	z, err := f.l.Index(w.Context(), three)
	must(w, err)
	if z.AliasOf != "" || z.Digest != x.Digest {
		w.Errorf("another time: %+v", z)
	}
}

// equality: states are equal when nobody could tell them apart but by times, in the workspace and in HOME.
func equality(w *world) {
	w.file("a", "a")
	f := w.create()
	one := f.seal().ID
	want := func(equal bool, a, b, what string) {
		w.Helper()
		got, err := f.l.Same(w.Context(), a, b)
		must(w, err)
		if got != equal {
			w.Errorf("%s: Same(%s, %s) is %t", what, a, b, got)
		}
	}
	want(true, one, snapshot.Current, "nothing has happened")
	want(true, snapshot.Base, one, "nothing has happened")
	must(w, os.Chtimes(f.m.Workspace+"/a", time.Time{}, time.Unix(5, 0)))
	want(true, one, snapshot.Current, "another time")
	must(w, os.Chmod(f.m.Workspace+"/a", 0o700))
	want(false, one, snapshot.Current, "another mode")
	two := f.seal().ID
	must(w, os.WriteFile(f.m.Home+"/notes", []byte("note"), 0o644))
	want(false, two, snapshot.Current, "only HOME differs")
	three := f.seal().ID
	want(false, two, three, "only HOME differs")
	f.reset(two)
	want(true, two, snapshot.Current, "gone back")
	want(false, snapshot.Base, two, "of the base")
	_, err := f.l.Same(w.Context(), "nonesuch", two)
	w.is(err, snapshot.ErrCheckpoint, "an unknown id")
}

// at: a checkpoint can be looked at while the feature is elsewhere.
func at(w *world) {
	w.file("base", "base")
	f := w.create()
	f.write("a", "one")
	must(w, os.Symlink("first", f.m.Workspace+"/link"))
	one := f.seal().ID
	v := f.view()
	f.write("a", "two")
	must(w, errors.Join(os.Remove(f.m.Workspace+"/link"), os.Symlink("second", f.m.Workspace+"/link")))
	stacks, err := f.l.StacksAt(one)
	must(w, err)
	for _, s := range stacks {
		if s.Upper != "" {
			w.Errorf("%s can be written", s.Target)
		}
	}
	m := f.h.Mount(w, stacks)
	defer m.Close()
	now, err := listPair(m.Workspace, m.Home)
	must(w, err)
	if d := v.differ(now, plain.Exact); d != "" {
		w.Errorf("the checkpoint's own mount:\n%s", d)
	}
	for where, want := range map[string]string{one: "one", snapshot.Current: "two", snapshot.Base: ""} {
		r, err := f.l.OpenFile(where, "a")
		if want == "" {
			w.is(err, fs.ErrNotExist, "OpenFile")
			continue
		}
		must(w, err)
		data, err := io.ReadAll(r)
		must(w, errors.Join(err, r.Close()))
		if string(data) != want {
			w.Errorf("%s: %q", where, data)
		}
	}
	for where, want := range map[string]string{one: "first", snapshot.Current: "second", snapshot.Base: ""} {
		to, err := f.l.Readlink(where, "link")
		if to != want || want == "" && !errors.Is(err, fs.ErrNotExist) || want != "" && err != nil {
			w.Errorf("%s: %q, %v", where, to, err)
		}
		_, err = f.l.Readlink(where, "base")
		w.is(err, fs.ErrNotExist, "Readlink of a file")
	}
}

func mountPoints(w *world) {
	f := w.create()
	o := f.l.Info().Owner
	one := f.seal().ID
	must(w, f.l.HomeMountpoint("go/pkg/mod", true, o))
	must(w, f.l.HomeMountpoint(".npmrc", false, o))
	must(w, f.l.HomeMountpoint("go/pkg/mod", true, o))
	for _, bad := range []string{"../x", "/x", ".", "", "a/../../x", ".npmrc/x"} {
		if err := f.l.HomeMountpoint(bad, true, o); err == nil {
			w.Errorf("%q was made", bad)
		}
	}
	check := func(when string) {
		w.Helper()
		for _, path := range []string{"/go/pkg/mod", "/.npmrc"} {
			if _, err := os.Lstat(f.m.Home + path); err != nil {
				w.Errorf("%s: %v", when, err)
			}
		}
	}
	f.mount()
	check("at once")
	f.reset(one)
	check("in an older state")
	f.reopen()
	check("opened again")
	f.reset(snapshot.Base)
	check("in the base")
}

func archives(w *world) {
	w.file("a/kept", "kept")
	w.file("a/gone", "gone")
	f := w.create()
	must(w, os.Remove(f.m.Workspace+"/a/gone"))
	f.write("a/new", strings.Repeat("new", 1000))
	must(w, os.Symlink("/etc/passwd", f.m.Workspace+"/link"))
	must(w, os.WriteFile(f.m.Home+"/h", []byte("home"), 0o600))
	id, v := f.seal().ID, f.view()
	ctx := w.Context()
	var tarred, packed, homeTar bytes.Buffer
	digest, err := f.l.Export(ctx, id, &tarred, snapshot.ExportOptions{})
	must(w, err)
	again, err := f.l.Export(ctx, id, &packed, snapshot.ExportOptions{Zstd: true})
	must(w, err)
	if digest != again || packed.Len() >= tarred.Len() || !strings.HasPrefix(digest, "sha256:") {
		w.Errorf("%s of %d bytes, %s of %d", digest, tarred.Len(), again, packed.Len())
	}
	_, err = f.l.Export(ctx, id, &homeTar, snapshot.ExportOptions{Home: true})
	must(w, err)

	g := w.create()
	rec, err := g.l.Import(ctx, &packed, snapshot.ImportOptions{ID: "imported", Digest: digest})
	must(w, err)
	if rec.ID != "imported" || g.l.Info().Head != "" {
		w.Errorf("%+v, head %q", rec, g.l.Info().Head)
	}
	g.want("link", "")
	g.reset("imported")
	if d := v[0].Differ(g.view()[0], plain.Exact); d != "" {
		w.Errorf("imported:\n%s", d)
	}
	for name, data := range map[string][]byte{
		"cut": tarred.Bytes()[:tarred.Len()/2], "empty": nil, "no archive": []byte(strings.Repeat("nothing", 500)),
	} {
		if _, err := g.l.Import(ctx, bytes.NewReader(data), snapshot.ImportOptions{ID: "bad"}); err == nil {
			w.Errorf("%s: taken", name)
		}
	}
	if _, err := g.l.Import(ctx, bytes.NewReader(tarred.Bytes()), snapshot.ImportOptions{ID: "bad", Digest: "sha256:0"}); err == nil {
		w.Error("another digest: taken")
	}
	if _, err := g.l.Import(ctx, bytes.NewReader(tarred.Bytes()), snapshot.ImportOptions{ID: "bad", MaxBytes: 100}); err == nil {
		w.Error("too large: taken")
	}
	_, err = g.l.Change(ctx, snapshot.Base, "bad")
	w.is(err, snapshot.ErrCheckpoint, "what was refused")
}

func usage(w *world) {
	f := w.create()
	f.write("large", strings.Repeat("x", 1<<20))
	one := f.seal().ID
	must(w, os.Remove(f.m.Workspace+"/large"))
	two := f.seal().ID
	must(w, f.l.Sync(w.Context()))
	u, err := f.l.Usage(w.Context())
	must(w, err)
	if u.Bytes < 1<<20 || u.Checkpoints != 2 || u.Layers < 2 || u.Inodes < 3 {
		w.Errorf("%+v", u)
	}
	must(w, f.l.Drop(w.Context(), one))
	_, err = f.l.Squash(w.Context(), true)
	must(w, err)
	if f.h.LinksBreak {
		f.reset(two) // the head's stack has no large file any more
	}
	freed, err := f.l.Collect(w.Context(), nil)
	must(w, err)
	if freed < 1<<20 {
		w.Errorf("%d bytes freed", freed)
	}
	f.reset(two)
	f.want("large", "")
	if again, err := f.l.Collect(w.Context(), nil); err != nil || again > freed {
		w.Errorf("collected again: %d, %v", again, err)
	}
}

func cancelled(w *world) {
	w.file("a", "a")
	f := w.create()
	f.write("a", "b")
	id := f.seal().ID
	f.write("a", "c")
	before := f.view()
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	_, _ = f.l.Reset(ctx, snapshot.ResetOptions{To: id, Paths: []string{"a"}})
	_, _ = f.l.Squash(ctx, true)
	_, _ = f.l.Import(ctx, strings.NewReader(""), snapshot.ImportOptions{ID: "x"})
	if _, err := f.l.Change(ctx, snapshot.Base, id); err == nil {
		w.Error("a change was read on a cancelled context")
	}
	if c, err := f.l.Change(w.Context(), snapshot.Base, id); err == nil {
		if _, err := f.l.Promote(ctx, c, snapshot.PromoteOptions{LockDir: w.dir}); err == nil {
			w.Error("promoted on a cancelled context")
		}
	}
	f.reopen()
	if now := f.view(); before.differ(now, plain.Exact) != "" {
		f.want("a", "b") // a rollback that was too fast to be cancelled is complete
	}
}

// damage breaks a checkpoint's file, and wants everything else to go on.
func damagedCheckpoint(w *world) {
	f := w.create()
	f.write("a", "one")
	one := f.seal().ID
	f.write("a", "two")
	two := f.seal().ID
	for _, bad := range []string{"", "{", `{"id":"other"}`, "\x00\x00"} {
		f.close()
		must(w, os.WriteFile(filepath.Join(w.dirs[f.id], "checkpoints", one+".json"), []byte(bad), 0o600))
		f.reopen()
		all, err := f.l.Records()
		must(w, err)
		if len(all) != 2 || all[0].ID != one && all[1].ID != one {
			w.Fatalf("%+v", all)
		}
		for _, r := range all {
			if (r.Damaged != "") != (r.ID == one) {
				w.Errorf("%+v", r)
			}
		}
		_, err = f.l.Reset(w.Context(), snapshot.ResetOptions{To: one})
		var damage *snapshot.DamageError
		if !errors.As(err, &damage) || damage.ID != one {
			w.Errorf("rollback to what is damaged: %v", err)
		}
		_, err = f.l.Collect(w.Context(), nil)
		must(w, err)
		f.reset(two)
		f.want("a", "two")
		f.write("b", "b")
		f.seal()
		f.reset(two)
		must(w, f.l.Drop(w.Context(), w.lastID()))
	}
	must(w, f.l.Drop(w.Context(), one))
}

func (w *world) lastID() string { return "c" + strconv.Itoa(w.count) }

func damagedLayer(w *world) {
	f := w.create()
	f.write("a", "one")
	f.seal()
	f.write("a", "two")
	s := f.seal()
	f.reset(snapshot.Base)
	f.write("a", "other")
	other := f.seal().ID
	f.close()
	must(w, snapshot.Remove(w.Context(), filepath.Join(w.dirs[f.id], "layers", strconv.Itoa(s.Layer))))
	f.reopen()
	all, err := f.l.Records()
	must(w, err)
	for _, r := range all {
		if (r.Damaged != "") != (r.ID == s.ID) {
			w.Errorf("%+v", r)
		}
	}
	if _, err := f.l.Reset(w.Context(), snapshot.ResetOptions{To: s.ID}); !errors.Is(err, snapshot.ErrUnusableLayers) {
		w.Errorf("rollback to a lost layer: %v", err)
	}
	f.reset(other)
	f.want("a", "other")
}

func damagedState(w *world) {
	f := w.create()
	f.write("a", "one")
	one, v := f.seal().ID, f.view()
	f.write("a", "two")
	two, v2 := f.seal().ID, f.view()
	f.write("a", "not sealed")
	dir := w.dirs[f.id]
	f.close()
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":2,"current":-1}`} {
		must(w, os.WriteFile(dir+"/state.json", []byte(bad), 0o600))
		if l, err := w.h.Open(f.openOptions(f.id)); err == nil {
			w.Errorf("%q: opened", bad)
			must(w, l.Close())
		} else if errors.Is(err, fs.ErrNotExist) {
			w.Errorf("%q: %v", bad, err)
		}
		for range 2 { // it can be repeated
			found, err := w.h.Repair(w.Context(), f.openOptions(f.id))
			must(w, err)
			w.Logf("%q: %v", bad, found)
		}
		f.reopen()
		if f.l.Info().Head != two {
			w.Errorf("%q: the head is %q", bad, f.l.Info().Head)
		}
		f.wantView(v2, "the newest checkpoint, after a repair")
		f.reset(one)
		f.wantView(v, "an older one, after a repair")
		f.close()
	}
}

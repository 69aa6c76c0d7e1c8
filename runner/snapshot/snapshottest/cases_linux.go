package snapshottest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// cases are what Run runs, each with a workspace of its own that is empty at first.
var cases = []struct {
	name string
	run  func(w *world)
}{
	{"life", life},
	{"untouched", untouched},
	{"ids", ids},
	{"foreign ids", foreignIDs},
	{"branches", branches},
	{"paths", paths},
	{"live", live},
	{"fork", forks},
	{"read only", readOnly},
	{"index", index},
	{"equality", equality},
	{"at", at},
	{"mount points", mountPoints},
	{"archives", archives},
	{"usage", usage},
	{"cancelled", cancelled},
	{"damaged checkpoint", damagedCheckpoint},
	{"damaged layer", damagedLayer},
	{"damaged state", damagedState},
	{"edited workspace", editedWorkspace},
	{"resolved conflicts", resolvedConflicts},
	{"promote", promoteOne},
	{"two promotes", promoteTwo},
	{"rollback past a promote", rollbackPast},
	{"planted link", plantedLink},
	{"planted marks", plantedMarks},
	{"large hole", largeHole},
}

func (w *world) file(path, content string) {
	w.Helper()
	full := filepath.Join(w.ws, path)
	must(w, os.MkdirAll(filepath.Dir(full), 0o755))
	must(w, os.WriteFile(full, []byte(content), 0o644))
}

// is fails unless err is target.
func (w *world) is(err, target error, what string) {
	w.Helper()
	if !errors.Is(err, target) {
		w.Fatalf("%s: %v, and should be %v", what, err, target)
	}
}

func life(w *world) {
	w.file("kept", "old\n")
	w.file("gone", "old\n")
	f := w.create()
	base := f.view()
	f.write("kept", "one\n")
	must(w, os.Remove(f.m.Workspace+"/gone"))
	must(w, os.WriteFile(f.m.Home+"/.profile", []byte("home\n"), 0o600))
	one := f.view()
	c1 := f.seal()
	f.wantView(one, "after the first seal")
	if c1.Alias || f.l.Info().Head != c1.ID || c1.Parent != "" {
		w.Fatalf("first seal: %+v, head %s", c1, f.l.Info().Head)
	}
	f.write("kept", "two\n")
	f.write("new", "two\n")
	two := f.view()
	c2 := f.seal()
	f.write("new", "three\n")
	f.reset(c1.ID)
	f.wantView(one, "first checkpoint")
	f.reset(c2.ID)
	f.wantView(two, "second checkpoint")
	f.reset(snapshot.Base)
	f.wantView(base, "base")
	f.reset(c2.ID)
	f.reopen()
	f.wantView(two, "second checkpoint, opened again")
	all, err := f.l.Records()
	must(w, err)
	if len(all) != 2 || all[0].ID != c1.ID || all[1].ID != c2.ID || all[1].Parent != c1.ID || f.l.Info().Head != c2.ID {
		w.Fatalf("records %+v, head %s", all, f.l.Info().Head)
	}
	if data, err := os.ReadFile(w.ws + "/kept"); err != nil || string(data) != "old\n" {
		w.Fatalf("the workspace holds %q, %v", data, err)
	}
}

// untouched: a seal of a state that is its parent's costs no layer.
func untouched(w *world) {
	w.file("a", "a")
	f := w.create()
	first := f.seal()
	before, err := f.l.Usage(w.Context())
	must(w, err)
	s := f.seal()
	if !s.Alias || s.AliasOf != first.ID || s.Rotated {
		w.Fatalf("%+v is no alias of %s", s, first.ID)
	}
	f.write("b", "b")
	with := f.view()
	second := f.seal()
	again := f.seal()
	if second.Alias || !again.Alias || again.AliasOf != second.ID {
		w.Fatalf("%+v, %+v", second, again)
	}
	after, err := f.l.Usage(w.Context())
	must(w, err)
	if after.Layers > before.Layers+2 {
		w.Fatalf("%d layers became %d", before.Layers, after.Layers)
	}
	f.reset(s.ID)
	f.want("b", "")
	f.reset(again.ID)
	f.wantView(with, "an alias")
	// Dropping what an alias means leaves the alias.
	f.reset(s.ID)
	must(w, f.l.Drop(w.Context(), second.ID))
	_, err = f.l.Collect(w.Context(), nil)
	must(w, err)
	f.reset(again.ID)
	f.wantView(with, "an alias of what was dropped")
}

func ids(w *world) {
	f := w.create()
	first := f.seal()
	for _, id := range []string{"", ".", "..", "../x", "a/b", "a b", "\x00", snapshot.Base, snapshot.Current, strings.Repeat("x", 200), ".hidden"} {
		if _, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: id}); err == nil {
			w.Errorf("sealed as %q", id)
		}
	}
	f.write("a", "a")
	_, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: first.ID})
	w.is(err, fs.ErrExist, "the same id again")
	s, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: "with-meta", Meta: json.RawMessage(`{"a":[1,2]}`)})
	must(w, err)
	if s.Rotated {
		f.mount()
	}
	f.reopen()
	all, err := f.l.Records()
	must(w, err)
	if last := all[len(all)-1]; string(last.Meta) != `{"a":[1,2]}` || last.Created.IsZero() || last.Feature != f.id {
		w.Errorf("%+v", last)
	}
}

// foreignIDs: a checkpoint of another feature is none.
func foreignIDs(w *world) {
	w.file("a", "a")
	f, g := w.create(), w.create()
	g.write("a", "g")
	id := g.seal().ID
	ctx := w.Context()
	_, err := f.l.Reset(ctx, snapshot.ResetOptions{To: id})
	w.is(err, snapshot.ErrCheckpoint, "Reset")
	_, err = f.l.Reset(ctx, snapshot.ResetOptions{To: id, Paths: []string{"a"}})
	w.is(err, snapshot.ErrCheckpoint, "Reset of paths")
	_, err = f.l.Change(ctx, snapshot.Base, id)
	w.is(err, snapshot.ErrCheckpoint, "Change")
	_, err = f.l.Change(ctx, id, snapshot.Current)
	w.is(err, snapshot.ErrCheckpoint, "Change from")
	_, err = f.l.StacksAt(id)
	w.is(err, snapshot.ErrCheckpoint, "StacksAt")
	_, err = f.l.Index(ctx, id)
	w.is(err, snapshot.ErrCheckpoint, "Index")
	_, err = f.l.OpenFile(id, "a")
	w.is(err, snapshot.ErrCheckpoint, "OpenFile")
	_, err = f.l.Readlink(id, "a")
	w.is(err, snapshot.ErrCheckpoint, "Readlink")
	_, err = f.l.Export(ctx, id, &bytes.Buffer{}, snapshot.ExportOptions{})
	w.is(err, snapshot.ErrCheckpoint, "Export")
	_, err = w.fork(f, id)
	w.is(err, snapshot.ErrCheckpoint, "Fork")
	f.want("a", "a")
	g.want("a", "g")
}

// branches: every state that was sealed can be had again from every other one.
func branches(w *world) {
	w.file("base", "base")
	f := w.create()
	points := map[string]view{}
	var order []string
	for i := range 12 {
		if i%4 == 3 {
			f.reset(order[i/2])
		}
		f.write("file", strings.Repeat("x", i))
		f.write(w.next("only"), "here")
		v := f.view()
		id := f.seal().ID
		points[id] = v
		order = append(order, id)
	}
	for range 2 {
		for id, v := range points {
			f.reset(id)
			f.wantView(v, id)
		}
		_, err := f.l.Squash(w.Context(), true)
		must(w, err)
		_, err = f.l.Collect(w.Context(), nil)
		must(w, err)
	}
	f.reopen()
	for i := len(order) - 1; i >= 0; i-- {
		f.reset(order[i])
		f.wantView(points[order[i]], order[i])
	}
}

func paths(w *world) {
	w.file("a/x", "old")
	w.file("a/y", "old")
	w.file("b", "old")
	f := w.create()
	f.write("a/x", "one")
	f.write("b", "one")
	must(w, os.Remove(f.m.Workspace+"/a/y"))
	one := f.seal().ID
	f.write("a/x", "two")
	f.write("a/new", "two")
	f.write("b", "two")
	must(w, os.WriteFile(f.m.Home+"/h", []byte("two"), 0o600))
	two := f.seal().ID
	before := f.view()
	r, err := f.l.Reset(w.Context(), snapshot.ResetOptions{To: one, Paths: []string{"a/**"}, DryRun: true})
	must(w, err)
	if got := strings.Join(r.Paths, " "); got != "a/new a/x" {
		w.Errorf("would change %q", got)
	}
	f.wantView(before, "a dry run")
	r, err = f.l.Reset(w.Context(), snapshot.ResetOptions{To: one, Paths: []string{"a/**"}})
	must(w, err)
	f.mount()
	if got := strings.Join(r.Paths, " "); got != "a a/new a/x" { // a has another time
		w.Errorf("changed %q", got)
	}
	f.want("a/x", "one")
	f.want("a/new", "")
	f.want("b", "two")
	if data, err := os.ReadFile(f.m.Home + "/h"); err != nil || string(data) != "two" {
		w.Errorf("HOME: %q, %v", data, err)
	}
	f.seal()
	_, err = f.l.Reset(w.Context(), snapshot.ResetOptions{To: snapshot.Base, Paths: []string{"**"}, Skip: []string{"b"}})
	must(w, err)
	f.mount()
	f.want("a/x", "old")
	f.want("a/y", "old")
	f.want("b", "two")
	f.reset(two)
	f.wantView(before, "back")
	_, err = f.l.Reset(w.Context(), snapshot.ResetOptions{To: one, Paths: []string{"[a"}})
	if err == nil {
		w.Error("a bad pattern was taken")
	}
	f.wantView(before, "after a bad pattern")
}

// live: what is sealed while others hold the workspace is what they had written when they were stopped.
func live(w *world) {
	w.file("log", "")
	f := w.create()
	log, err := os.OpenFile(f.m.Workspace+"/log", os.O_APPEND|os.O_WRONLY, 0)
	must(w, err)
	defer log.Close()
	points := map[string]string{}
	for i := range 5 {
		_, err := log.WriteString("line\n")
		must(w, err)
		f.write(w.next("file"), "x")
		id, resumed := w.next("c"), false
		s, err := f.l.Seal(w.Context(), snapshot.SealOptions{ID: id, Live: &snapshot.Live{
			Pause: func(context.Context) (snapshot.Paused, error) {
				_, err := log.WriteString("late\n") // after the first pass
				must(w, os.Mkdir(f.m.Workspace+"/"+w.next("late"), 0o755))
				return snapshot.Paused{Resume: func() error { resumed = true; return nil }}, err
			},
		}})
		must(w, err)
		if !resumed || s.Rotated {
			w.Fatalf("%+v, resumed %v", s, resumed)
		}
		points[id] = strings.Repeat("line\nlate\n", i+1)
	}
	_, err = log.WriteString("after\n")
	must(w, err)
	refused := errors.New("refused")
	_, err = f.l.Seal(w.Context(), snapshot.SealOptions{ID: "no", Live: &snapshot.Live{
		Pause: func(context.Context) (snapshot.Paused, error) { return snapshot.Paused{}, refused },
	}})
	w.is(err, refused, "a pause that fails")
	if _, err := f.l.Change(w.Context(), snapshot.Base, "no"); !errors.Is(err, snapshot.ErrCheckpoint) {
		w.Errorf("sealed all the same: %v", err)
	}
	last := f.seal()
	for id, want := range points {
		f.reset(id)
		f.want("log", want)
	}
	f.reset(last.ID)
	f.want("log", strings.Repeat("line\nlate\n", 5)+"after\n")
}

func forks(w *world) {
	w.file("a", "a")
	f := w.create()
	f.write("a", "one")
	one, id := f.view(), f.seal().ID
	f.write("a", "two")
	two := f.view()
	g, err := w.fork(f, id)
	must(w, err)
	g.wantView(one, "a fork")
	g.write("a", "fork")
	forked := g.view()
	gid := g.seal().ID
	h, err := w.fork(g, gid)
	must(w, err)
	h.wantView(forked, "a fork of a fork")
	h.reset(gid)
	g.reset(id)
	g.wantView(one, "what the fork began from")
	f.wantView(two, "the origin")
	b, err := w.fork(f, snapshot.Base)
	must(w, err)
	b.want("a", "a")
	_, err = w.fork(f, snapshot.Current)
	if err == nil {
		w.Error("forked what is not sealed")
	}
	// The origin forgets the checkpoint; the fork's Refs keep the layer.
	f.seal()
	must(w, f.l.Drop(w.Context(), id))
	needed, err := g.l.Refs()
	must(w, err)
	more, err := h.l.Refs()
	must(w, err)
	_, err = f.l.Collect(w.Context(), append(needed, more...))
	must(w, err)
	g.reopen()
	g.wantView(one, "the fork, when the origin has forgotten")
	h.reset(gid)
	h.wantView(forked, "the fork's fork")
}

func readOnly(w *world) {
	f := w.create()
	f.write("a", "a")
	id := f.seal().ID
	o := f.openOptions(f.id)
	o.ReadOnly = true
	l, err := w.h.Open(o)
	must(w, err)
	defer l.Close()
	ctx := w.Context()
	_, err = l.Seal(ctx, snapshot.SealOptions{ID: "x"})
	w.is(err, fs.ErrPermission, "Seal")
	_, err = l.Reset(ctx, snapshot.ResetOptions{To: id})
	w.is(err, fs.ErrPermission, "Reset")
	w.is(l.Drop(ctx, id), fs.ErrPermission, "Drop")
	_, err = l.Collect(ctx, nil)
	w.is(err, fs.ErrPermission, "Collect")
	_, err = l.Squash(ctx, true)
	w.is(err, fs.ErrPermission, "Squash")
	c, err := l.Change(ctx, snapshot.Base, id)
	must(w, err)
	if len(c.Entries) != 1 {
		w.Errorf("%d entries", len(c.Entries))
	}
	_, err = w.h.Open(snapshot.OpenOptions{Dir: w.dir + "/none"})
	w.is(err, fs.ErrNotExist, "nothing")
	_, err = w.h.Create(w.createOptions(f.id))
	w.is(err, fs.ErrExist, "the same again")
}

package snapshottest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"

	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest/internal/plain"
)

// sealPoint makes a checkpoint, of a state that others may hold or not.
func (p *player) sealPoint(live bool) *point {
	p.Helper()
	p.verify("before a seal")
	at := p.point()
	o := snapshot.SealOptions{ID: p.next("c")}
	paused, resumed := 0, 0
	if live {
		o.Live = &snapshot.Live{Pause: func(context.Context) (snapshot.Paused, error) {
			paused++
			return snapshot.Paused{Resume: func() error { resumed++; return nil }}, nil
		}}
	}
	s, err := p.l.Seal(p.Context(), o)
	must(p, err)
	p.r.logf("%s: sealed %s: alias %v, rotated %v, copied %d", p.id, o.ID, s.Alias, s.Rotated, s.Copied)
	if paused != resumed || live && s.Rotated {
		p.Fatalf("seal of a live one: %d pauses, %d resumed, rotated %v", paused, resumed, s.Rotated)
	}
	if s.Rotated {
		p.mount()
		must(p, p.model.Mounted())
	}
	p.wantView(at.view, "after a seal")
	p.points[o.ID] = at
	p.order = append(p.order, o.ID)
	return at
}

// some picks a checkpoint; there is none at first.
func (p *player) some() (id string, at *point) {
	if len(p.order) == 0 || p.r.IntN(12) == 0 {
		return snapshot.Base, p.bases[p.l.Info().Generation]
	}
	id = p.order[p.r.IntN(len(p.order))]
	return id, p.points[id]
}

func (r *random) rollback(p *player) {
	r.Helper()
	if r.IntN(2) == 0 {
		p.sealPoint(false)
	}
	id, at := p.some()
	r.logf("%s: rollback to %s", p.id, id)
	p.reset(id)
	if id == snapshot.Base { // an empty HOME is as old as the feature, which may be a fork
		home, now := at.view[1]["."], p.view()[1]["."]
		home.Mtime = now.Mtime
		at.view[1]["."] = home
	}
	p.at(at, "after a rollback to "+id)
}

// rollbackPaths takes one name at the top, and what is below it, from another state.
func (r *random) rollbackPaths(p *player) {
	r.Helper()
	p.sealPoint(false)
	id, at := p.some()
	name := plain.Names[r.IntN(5)]
	r.logf("%s: rollback of %s to %s", p.id, name, id)
	before := p.view()
	_, err := p.l.Reset(r.Context(), snapshot.ResetOptions{To: id, Paths: []string{name, name + "/**"}})
	must(r, err)
	p.mount()
	after := p.view()
	want := view{plain.Listing{}, before[1]}
	within := func(path string) bool { return path == name || strings.HasPrefix(path, name+"/") }
	for path, n := range before[0] {
		if !within(path) {
			want[0][path] = n
		}
	}
	for path, n := range at.view[0] {
		if within(path) {
			want[0][path] = n
		}
	}
	// Links between what is taken and what stays cannot be had, and the root changes with what it holds.
	for _, l := range []plain.Listing{want[0], after[0]} {
		for path, n := range l {
			n.Group = ""
			if path == "." {
				n.Mtime = unix.Timespec{}
			}
			l[path] = n
		}
	}
	if d := want.differ(after, plain.Exact); d != "" {
		r.Fatalf("%s: after a rollback of %q to %s:\n%s", p.id, name, id, d)
	}
	must(r, p.model.Replace(p.m.Workspace, p.m.Home))
	if r.h.LinksBreak {
		must(r, p.model.Copied(p.l.Stacks()[0].Upper))
	}
}

func (r *random) forkPoint(p *player) {
	r.Helper()
	if len(p.order) == 0 {
		return
	}
	id := p.order[r.IntN(len(p.order))]
	f, err := r.fork(p.feature, id)
	must(r, err)
	r.logf("%s: forked from %s at %s", f.id, p.id, id)
	q := &player{feature: f, r: r, points: map[string]*point{}, bases: maps.Clone(p.bases)}
	q.model = &plain.Model{Root: filepath.Join(r.dir, "model", f.id), Links: r.h.LinksBreak}
	r.Cleanup(q.model.Release)
	q.at(p.points[id], "after a fork of "+id)
	if len(r.players) >= 3 { // the oldest that is not at work stays on disk, for those that began from it
		r.players[1].close()
		r.players = slices.Delete(r.players, 1, 2)
	}
	r.players = append(r.players, q)
	if r.IntN(2) == 0 {
		slices.Reverse(r.players)
	}
}

// promote hands the current state over, while the other features are mounted until they are asked to move.
func (r *random) promote(p *player) {
	r.Helper()
	at := p.sealPoint(false)
	before := map[*player]view{}
	for _, q := range r.players[1:] {
		before[q] = q.view()
	}
	old, err := plain.List(r.ws)
	must(r, err)
	c := p.change(snapshot.Base, snapshot.Current)
	p.unmount()
	_, err = p.l.Promote(r.Context(), c, snapshot.PromoteOptions{LockDir: r.dir, Moving: func(context.Context, int) error {
		for _, q := range r.players[1:] {
			q.unmount()
			must(r, q.l.Rebase())
			q.mount()
		}
		return nil
	}})
	var conflict *snapshot.ConflictError
	if errors.As(err, &conflict) {
		r.logf("%s: %v", p.id, err)
		r.done["conflict"]++
		now, err := plain.List(r.ws)
		must(r, err)
		if d := old.Differ(now, plain.Exact); d != "" {
			r.Fatalf("%s: a refused promote changed the workspace:\n%s", p.id, d)
		}
		p.mount()
		p.wantView(at.view, "after a refused promote")
		return
	}
	must(r, err)
	p.mount()
	now, err := plain.List(r.ws)
	must(r, err)
	if d := applied(old, c, at.view[0]).Differ(now, plain.Promoted); d != "" {
		r.Fatalf("%s: what was promoted and the workspace differ:\n%s", p.id, d)
	}
	if r.h.LinksBreak {
		r.loosen(old, c)
	}
	p.begin()
	if d := now.Differ(p.view()[0], plain.Promoted); d != "" {
		r.Fatalf("%s: after a promote, the workspace and what shows differ:\n%s", p.id, d)
	}
	for _, q := range r.players[1:] {
		must(r, q.l.Rebase())
		q.mount()
		q.wantView(before[q], "after a promote of "+p.id)
	}
}

// loosen has older states not compared in the hard links that the workspace had between what a promote took away and
// what it left.
func (r *random) loosen(old plain.Listing, c *snapshot.Change) {
	left := map[string]bool{} // groups of which the change does not have every name
	for path, n := range old {
		taken := slices.ContainsFunc(c.Entries, func(e snapshot.Entry) bool { return e.Path == path })
		left[n.Group] = left[n.Group] || !taken
	}
	for _, p := range r.players {
		for _, at := range append(slices.Collect(maps.Values(p.points)), slices.Collect(maps.Values(p.bases))...) {
			for path, n := range old {
				if n.Group != "" && left[n.Group] {
					at.loose = append(at.loose, path)
				}
			}
		}
	}
}

// compared returns a view without the links that are not to be compared.
func (at *point) compared(v view) view {
	if len(at.loose) == 0 {
		return v
	}
	groups := map[string]bool{}
	for _, path := range at.loose {
		groups[at.view[0][path].Group] = true
	}
	out := maps.Clone(v[0])
	for path, n := range at.view[0] {
		if n.Group != "" && groups[n.Group] {
			m, ok := out[path]
			if m.Group = ""; ok {
				out[path] = m
			}
		}
	}
	return view{out, v[1]}
}

func (r *random) squash(p *player) {
	r.Helper()
	before := p.view()
	n, err := p.l.Squash(r.Context(), true)
	must(r, err)
	r.logf("%s: squashed %d", p.id, n)
	p.mount()
	p.wantView(before, "after a squash")
}

func (r *random) drop(p *player) {
	r.Helper()
	if len(p.order) < 4 {
		return
	}
	i := r.IntN(len(p.order))
	id := p.order[i]
	r.logf("%s: drop %s", p.id, id)
	err := p.l.Drop(r.Context(), id)
	if id == p.l.Info().Head {
		if !errors.Is(err, snapshot.ErrHead) {
			r.Fatalf("%s: the head was dropped: %v", p.id, err)
		}
		return
	}
	must(r, err)
	p.order = slices.Delete(p.order, i, i+1)
	delete(p.points, id)
	var needed []snapshot.LayerRef
	for other := range r.world.dirs {
		if other == p.id {
			continue
		}
		refs, err := r.refs(other)
		must(r, err)
		needed = append(needed, refs...)
	}
	_, err = p.l.Collect(r.Context(), needed)
	must(r, err)
	if _, err := p.l.Reset(r.Context(), snapshot.ResetOptions{To: id, DryRun: true}); !errors.Is(err, snapshot.ErrCheckpoint) {
		r.Fatalf("rollback to a dropped checkpoint: %v", err)
	}
}

// refs are the layers that a feature needs, open or not.
func (r *random) refs(id string) ([]snapshot.LayerRef, error) {
	for _, p := range r.players {
		if p.id == id {
			return p.l.Refs()
		}
	}
	o := r.openOptions(id)
	o.ReadOnly = true
	l, err := r.h.Open(o)
	if err != nil {
		return nil, err
	}
	refs, err := l.Refs()
	return refs, errors.Join(err, l.Close())
}

// changeOf compares two states and what the driver says about their difference.
func (r *random) changeOf(p *player) {
	r.Helper()
	from, a := p.some()
	to, b := p.some()
	if from == snapshot.Base && to == snapshot.Base {
		return
	}
	if from == snapshot.Base { // the one that the other end was made on
		a = p.bases[b.gen]
	} else if to == snapshot.Base {
		b = p.bases[a.gen]
	}
	p.wantKinds(from, to, a.view[0], b.view[0])
	if from != snapshot.Base && to != snapshot.Base {
		p.wantKinds(to, from, b.view[0], a.view[0])
	}
}

// wantKinds compares two states by the driver, twice.
func (p *player) wantKinds(from, to string, a, b plain.Listing) {
	p.Helper()
	want := kinds(a, b)
	links := joined(a, b, want)
	c := p.change(from, to)
	got := map[string]snapshot.Kind{}
	for i := range c.Entries {
		got[c.Entries[i].Path] = c.Entries[i].Kind
	}
	for path := range want {
		if got[path] != want[path] {
			p.Errorf("%s: change from %s to %s: %q is %q and should be %q", p.id, from, to, path, got[path], want[path])
		}
	}
	for path := range got {
		if want[path] == "" && !links[path] {
			p.Errorf("%s: change from %s to %s: %q is %q and should not be there", p.id, from, to, path, got[path])
		}
	}
	if p.Failed() {
		p.FailNow()
	}
	if again := p.change(from, to); again.Digest != c.Digest {
		p.Fatalf("%s: change from %s to %s has two digests", p.id, from, to)
	}
}

// export writes a checkpoint as an archive, makes another of it and compares the two.
func (r *random) export(p *player) {
	r.Helper()
	if len(p.order) == 0 {
		return
	}
	id := p.order[r.IntN(len(p.order))]
	r.logf("%s: export and import of %s", p.id, id)
	o := snapshot.ExportOptions{Full: true, Zstd: r.IntN(2) == 0}
	var first, second bytes.Buffer
	digest, err := p.l.Export(r.Context(), id, &first, o)
	must(r, err)
	copied := p.next("c")
	rec, err := p.l.Import(r.Context(), bytes.NewReader(first.Bytes()), snapshot.ImportOptions{ID: copied, Digest: digest})
	must(r, err)
	if rec.ID != copied {
		r.Fatalf("imported as %q, not %q", rec.ID, copied)
	}
	again, err := p.l.Export(r.Context(), copied, &second, o)
	must(r, err)
	if again != digest {
		r.Fatalf("%s: %s exported has digest %s, and %s after an import", p.id, id, digest, again)
	}
	before := p.sealPoint(false)
	p.reset(copied)
	want := maps.Clone(p.points[id].view[0])
	maps.DeleteFunc(want, func(_ string, n plain.Node) bool { return n.Mode&unix.S_IFMT == unix.S_IFSOCK })
	if d := want.Differ(p.view()[0], plain.Imported); d != "" {
		r.Fatalf("%s: after an export and import of %s:\n%s", p.id, id, d)
	}
	p.reset(p.order[len(p.order)-1])
	p.at(before, "after going back from an import")
}

package overlay

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// TestRollbackPastPromote: what a promote takes out of the workspace still shows to every older checkpoint and to the other
// features, and new features see what it brought.
func TestRollbackPastPromote(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/kept", []byte("kept"), 0o644))
	must(t, os.WriteFile(b.ws+"/old", []byte("old"), 0o600))
	must(t, os.WriteFile(b.ws+"/gone", []byte("gone"), 0o644))
	b.create()
	b.seal("start")
	want := map[string]string{"start": b.now()}
	b.write("new", "new")
	b.seal("added")
	want["added"] = b.now()

	other := &box{TB: t, dir: b.dir, ws: b.ws, feature: "other"}
	other.create()
	other.write("own", "own")
	other.seal("mine")
	theirs := other.now()

	b.write("old", "changed")
	must(t, os.Remove(b.path("gone")))
	b.seal("done")
	done := b.now()
	moved := 0
	c, err := b.l.Change(b.Context(), snapshot.Base, "done")
	must(t, err)
	r, err := b.l.Promote(b.Context(), c, snapshot.PromoteOptions{Moving: func(context.Context, int) error {
		// What a live feature does: it shows the same before and after, and while the workspace changes.
		moved++
		other.unmount()
		must(t, other.l.Rebase())
		other.mount()
		if got := other.now(); got != theirs {
			t.Errorf("while moving, the other feature shows %s", got)
		}
		return nil
	}})
	must(t, err)
	if moved != 1 || r.Generation != 1 || b.l.Info().Head != "" || b.l.Info().Generation != 1 {
		t.Errorf("moved %d times, %+v, now %+v", moved, r, b.l.Info())
	}
	b.mount()
	if got := b.now(); got != done {
		t.Errorf("after the promote: %s, want %s", got, done)
	}
	if got, want := read(t, b.ws), "kept=kept new=new old=changed"; got != want {
		t.Errorf("the workspace holds %q", got)
	}
	if got := other.now(); got != theirs {
		t.Errorf("the other feature shows %s, want %s", got, theirs)
	}
	for round := range 2 {
		for id, what := range want {
			if got := b.checkpoint(id); got != what {
				t.Errorf("%s shows %s, want %s", id, got, what)
			}
			b.reset(id)
			if got := b.now(); got != what {
				t.Errorf("rolled back to %s: %s, want %s", id, got, what)
			}
		}
		if round == 0 { // a second promote, of the state that the first one left
			b.reset(snapshot.Base)
			b.reset("done")
			b.write("kept", "twice")
			b.seal("twice")
		}
	}
	other.reset("mine")
	if got := other.now(); got != theirs {
		t.Errorf("the other feature rolled back: %s, want %s", got, theirs)
	}
	// Both changed the same path: the one that comes second is told.
	other.write("old", "theirs")
	c, err = other.l.Change(b.Context(), snapshot.Base, snapshot.Current)
	must(t, err)
	if _, err := other.l.Promote(b.Context(), c, snapshot.PromoteOptions{}); !errors.Is(err, snapshot.ErrConflict) {
		t.Errorf("promoting the same path second: %v", err)
	}
	fresh := &box{TB: t, dir: b.dir, ws: b.ws, feature: "fresh"}
	fresh.create()
	fresh.want("kept=kept new=new old=changed")
	fork := b.fork("added", "fork")
	if got := fork.now(); got != want["added"] {
		t.Errorf("a fork of before the promote shows %s", got)
	}
	if freed, err := CollectBases(b.Context(), b.options().Bases, b.ws, 0); err != nil || freed != 0 {
		t.Errorf("collecting what is needed: %d bytes, %v", freed, err)
	}
}

// TestRefusedPromote: nothing of it is left, for anybody.
func TestRefusedPromote(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/old", []byte("old"), 0o600))
	b.create()
	b.write("old", "new")
	b.seal("one")
	c, err := b.l.Change(b.Context(), snapshot.Base, "one")
	must(t, err)
	held := errors.Join(snapshot.ErrStayed, snapshot.ErrHeld)
	_, err = b.l.Promote(b.Context(), c, snapshot.PromoteOptions{Moving: func(context.Context, int) error { return held }})
	if !errors.Is(err, snapshot.ErrHeld) {
		t.Errorf("refused: %v", err)
	}
	if got := read(t, b.ws); got != "old=old" || b.l.Info().Head != "one" || b.l.Info().Generation != 0 {
		t.Errorf("the workspace holds %q, the feature is %+v", got, b.l.Info())
	}
	b.promote()
	b.mount()
	b.want("old=new")
}

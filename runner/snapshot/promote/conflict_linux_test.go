package promote

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Each case is what the feature does and what others then do to the workspace. want are the conflicting paths; with
// none, promote must succeed and keep what the others did.
var conflictCases = []struct {
	name         string
	feature      func(m string) error
	others       func(ws string) error
	want         []string
	kept, absent []string
}{
	{name: "untouched path edited", feature: editIn("edit"), others: editIn("keep"), kept: []string{"keep"}},
	{name: "untouched path added", feature: editIn("edit"), others: editIn("other"), kept: []string{"other"}},
	{name: "sibling in an edited directory", feature: editIn("dir/a"), others: editIn("dir/other"), kept: []string{"dir/other"}},
	{name: "both edited", feature: editIn("edit"), others: editAs("edit", "theirs"), want: []string{"edit"}},
	{name: "both edited equally", feature: editIn("edit"), others: editIn("edit")},
	{name: "edited before the feature did", feature: editIn("edit"), others: chmodIn("edit"), want: []string{"edit"}},
	{name: "both deleted", feature: removeIn("gone"), others: removeIn("gone"), absent: []string{"gone"}},
	{name: "both deleted a directory", feature: removeIn("dir"), others: removeIn("dir"), absent: []string{"dir"}},
	{name: "deleted, edited by others", feature: removeIn("gone"), others: editIn("gone"), want: []string{"gone"}},
	{name: "edited, deleted by others", feature: editIn("edit"), others: removeIn("edit"), want: []string{"edit"}},
	{name: "edited in a directory deleted by others", feature: editIn("dir/a"), others: removeIn("dir"), want: []string{"dir"}},
	{name: "both added", feature: editIn("new"), others: editAs("new", "theirs"), want: []string{"new"}},
	{name: "both added equally", feature: editIn("new"), others: editIn("new")},
	{name: "added below a directory that others moved away", feature: editIn("dir/new"),
		others: func(ws string) error { return os.Rename(ws+"/dir", ws+"/away") }, want: []string{"dir"}},
	{name: "directory deleted, edited by others", feature: removeIn("dir"), others: editIn("dir/sub/c"), want: []string{"dir/sub/c"}},
	{name: "directory deleted, added to by others", feature: removeIn("dir"), others: editIn("dir/sub/new"),
		want: []string{"dir/sub", "dir/sub/c", "dir/sub/new"}},
	{name: "directory deleted, old tree moved in by others", feature: removeIn("dir"),
		others: func(ws string) error { return os.Rename(ws+"/empty", ws+"/dir/sub/empty") },
		want:   []string{"dir/sub", "dir/sub/c", "dir/sub/empty"}},
	{name: "directory replaced, edited by others", feature: func(m string) error {
		return steps(os.RemoveAll(m+"/dir"), os.Mkdir(m+"/dir", 0o755), write(m+"/dir/z", "z"))
	}, others: editIn("dir/b"), want: []string{"dir/b"}},
	{name: "directory renamed, edited by others", feature: func(m string) error { return os.Rename(m+"/dir", m+"/zdir") },
		others: editIn("dir/sub/c"), want: []string{"dir/sub/c"}},
	{name: "directory renamed, removed by others", feature: func(m string) error { return os.Rename(m+"/dir", m+"/zdir") },
		others: removeIn("dir"), want: []string{"zdir"}},
	{name: "file renamed, others busy beside it", feature: func(m string) error { return os.Rename(m+"/edit", m+"/moved") },
		others: editIn("other"), kept: []string{"other", "moved"}, absent: []string{"edit"}},
	{name: "file renamed, its old name put back", feature: func(m string) error {
		return steps(os.Rename(m+"/edit", m+"/moved"), write(m+"/edit", "one\ntwo\nthree\n"))
	}, others: editIn("other"), kept: []string{"other", "moved", "edit"}},
	{name: "directory became a link", feature: editIn("dir/a"), others: func(ws string) error {
		return steps(os.Rename(ws+"/dir", ws+"/real"), os.Symlink("real", ws+"/dir"))
	}, want: []string{"dir"}},
	{name: "mode changed, edited by others", feature: chmodIn("mode"), others: editIn("mode"), want: []string{"mode"}},
	{name: "root mode changed by others", feature: editIn("edit"), others: func(ws string) error { return os.Chmod(ws, 0o700) }},
}

func editIn(path string) func(string) error { return editAs(path, "mine\n") }

func editAs(path, text string) func(string) error {
	return func(dir string) error { return write(dir+"/"+path, text) }
}

func removeIn(path string) func(string) error {
	return func(dir string) error { return os.RemoveAll(dir + "/" + path) }
}

func chmodIn(path string) func(string) error {
	return func(dir string) error { return os.Chmod(dir+"/"+path, 0o711) }
}

func TestConflicts(t *testing.T) {
	for _, c := range conflictCases {
		t.Run(c.name, func(t *testing.T) {
			b := newBox(t, project(t))
			b.sandbox(c.feature)
			must(t, c.others(b.ws))
			before := listing(t, b.ws)
			change := b.change()
			list, err := b.w.conflicts(t.Context(), change)
			must(t, err)
			var got []string
			for _, x := range list {
				got = append(got, x.Path)
				if x.Reason == "" {
					t.Errorf("%s: no reason", x.Path)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("conflicts %v, want %v; change:\n%s", list, c.want, summary(change))
			}
			_, err = b.w.apply(t.Context(), change, nil)
			if len(c.want) > 0 {
				var ce *tree.ConflictError
				if !errors.As(err, &ce) || !errors.Is(err, tree.ErrConflict) || len(ce.Conflicts) != len(c.want) ||
					!strings.Contains(err.Error(), "changed by others") {
					t.Fatalf("promote: %v", err)
				}
				b.wantSame(before, "a refused promote changed the workspace")
				return
			}
			must(t, err)
			for _, p := range c.kept {
				if !exists(b.ws + "/" + p) {
					t.Errorf("%s is gone", p)
				}
			}
			for _, p := range c.absent {
				if exists(b.ws + "/" + p) {
					t.Errorf("%s is still there", p)
				}
			}
		})
	}
}

// TestStart: what was changed a moment before Create is no conflict, what is changed a moment after is one.
func TestStart(t *testing.T) {
	for range 50 {
		b := newBox(t, project(t))
		_, err := os.ReadFile(b.ws + "/edit")
		must(t, err)
		b.upper("edit", "mine")
		c := b.change()
		if list, err := b.w.conflicts(t.Context(), c); err != nil || len(list) > 0 {
			t.Fatalf("%v %v", list, err)
		}
	}
}

// upper writes into the upper layer by hand, as overlayfs would on a first write.
func (b *box) upper(path, text string) {
	b.Helper()
	must(b, write(b.w.dir+"/upper/"+path, text))
}

func TestSecondFeature(t *testing.T) {
	b := newBox(t, project(t))
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	b.upper("edit", "b")
	other.upper("edit", "other")
	other.upper("keep", "other")
	b.promote()
	list, err := other.w.conflicts(t.Context(), other.change())
	must(t, err)
	if len(list) != 1 || list[0].Path != "edit" {
		t.Fatalf("%v", list)
	}
	// The first goes on from its own promote.
	b.upper("edit", "b again")
	b.promote()
}

// TestEditedWhilePromoting edits each path of a change at each step of its promote. Either the promote refuses and
// the edit stays, or the edit came too late and the promoted state holds; nothing of ours is left.
func TestEditedWhilePromoting(t *testing.T) {
	feature := func(m string) error {
		return steps(write(m+"/edit", "mine"), os.Remove(m+"/gone"), os.RemoveAll(m+"/dir"), write(m+"/new", "mine"))
	}
	for _, victim := range []string{"edit", "gone", "dir/sub/c", "new"} {
		for n := 1; ; n++ {
			b := newBox(t, project(t))
			b.sandbox(feature)
			c := b.change()
			calls, edited := 0, ""
			journal.Step = func(name string) {
				if calls++; calls == n {
					edited = name
					if write(b.ws+"/"+victim, "theirs") != nil {
						edited += " (gone)"
					}
				}
			}
			_, err := b.w.apply(context.Background(), c, nil)
			journal.Step = func(string) {}
			if edited == "" {
				break
			}
			data, _ := os.ReadFile(b.ws + "/" + victim)
			switch {
			case errors.Is(err, tree.ErrConflict):
				if string(data) != "theirs" {
					t.Errorf("%s at %d %s: refused (%v), but the edit is lost: %q", victim, n, edited, err, data)
				}
			case err != nil:
				t.Errorf("%s at %d %s: %v", victim, n, edited, err)
			case strings.HasPrefix(edited, "planned"), strings.HasPrefix(edited, "stag"), strings.HasPrefix(edited, "journalled"):
				t.Errorf("%s at %d %s: promoted over the edit", victim, n, edited)
			}
			if left := leftovers(b.ws); left != nil {
				t.Errorf("%s at %d %s: left %v", victim, n, edited, left)
			}
		}
	}
}

func leftovers(ws string) (left []string) {
	names, _ := os.ReadDir(ws)
	for _, n := range names {
		if strings.HasPrefix(n.Name(), ".caisson") {
			left = append(left, n.Name())
		}
	}
	return left
}

// TestConflictsOfLayers: with sealed layers below the upper, what was renamed from them is the feature's own, and what
// was renamed from the workspace still is not.
func TestConflictsOfLayers(t *testing.T) {
	for name, c := range map[string]struct {
		first, then func(m string) error
		others      func(ws string) error
		want        []string
	}{
		"own file renamed": {editIn("dir/own"), func(m string) error { return os.Rename(m+"/dir/own", m+"/dir/renamed") },
			editIn("dir/other"), nil},
		"own directory renamed": {func(m string) error { return steps(os.Mkdir(m+"/own", 0o755), write(m+"/own/f", "f")) },
			func(m string) error { return os.Rename(m+"/own", m+"/renamed") }, editIn("other"), nil},
		"base file renamed twice": {func(m string) error { return os.Rename(m+"/edit", m+"/once") },
			func(m string) error { return os.Rename(m+"/once", m+"/twice") }, editIn("other"), nil},
		"base directory renamed twice": {func(m string) error { return os.Rename(m+"/dir", m+"/once") },
			func(m string) error { return os.Rename(m+"/once", m+"/twice") }, editIn("other"), nil},
		"edited in a lower layer, by others, too": {editIn("edit"), editIn("keep"), editAs("edit", "theirs"), []string{"edit"}},
		"directory renamed below, removed by others": {func(m string) error { return os.Rename(m+"/dir", m+"/once") }, editIn("keep"),
			removeIn("dir"), []string{"once"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t, project(t))
			b.sandbox(c.first)
			must(t, b.w.seal())
			b.sandbox(c.then)
			must(t, c.others(b.ws))
			list, err := b.w.conflicts(t.Context(), b.change())
			must(t, err)
			var got []string
			for _, x := range list {
				got = append(got, x.Path)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("conflicts %v, want %v; change:\n%s", list, c.want, summary(b.change()))
			}
		})
	}
}

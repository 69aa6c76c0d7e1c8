package book

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newBook is a feature whose layers hold nothing.
func newBook(t testing.TB) *Book {
	dir := t.TempDir()
	b, err := Create(dir, State{Identity: Identity{Driver: "test", Feature: "f", Workspace: "/ws"}, Current: 1})
	must(t, err)
	makeLayer(t, b, 1)
	return b
}

func makeLayer(t testing.TB, b *Book, n int) { must(t, os.MkdirAll(b.Layer(n), 0o700)) }

// seal does what a driver's rotation does.
func seal(t testing.TB, b *Book, id string) snapshot.Record {
	t.Helper()
	s := b.State()
	r := snapshot.Record{
		ID: id, Parent: s.Head, Feature: s.Feature, Created: time.Unix(int64(s.Current), 0), Layer: s.Current,
		Stack: append([]snapshot.LayerRef{{Feature: s.Feature, Layer: s.Current}}, s.Lower...),
	}
	s.Head, s.Ground, s.Lower, s.Current, s.Next = id, id, r.Stack, s.Next, s.Next+1
	makeLayer(t, b, s.Current)
	must(t, b.Commit(s, r))
	return r
}

func ids(all []snapshot.Record) string {
	var list []string
	for i := range all {
		list = append(list, all[i].ID)
	}
	return strings.Join(list, " ")
}

func TestCommitAndOpen(t *testing.T) {
	b := newBook(t)
	seal(t, b, "one")
	seal(t, b, "two")
	again, err := Open(b.Dir())
	must(t, err)
	if got, want := fmt.Sprint(again.State()), fmt.Sprint(b.State()); got != want {
		t.Errorf("opened %s, want %s", got, want)
	}
	all, err := again.Records()
	must(t, err)
	if ids(all) != "one two" || all[1].Depth != 0 || all[1].Parent != "one" || len(all[1].Stack) != 2 {
		t.Errorf("records %+v", all)
	}
	if _, err := Create(b.Dir(), State{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second book: %v", err)
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(b.Dir(), StateFile), []byte(`{"version":1,"workspace":"/ws"}`), 0o600))
	if _, err := Open(b.Dir()); !errors.Is(err, snapshot.ErrUnsupported) {
		t.Errorf("another version: %v", err)
	}
}

func TestCheckID(t *testing.T) {
	for _, id := range []string{"01J9ZQ", "a.b-c_d", strings.Repeat("x", 128)} {
		if err := CheckID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", ".", "..", ".x", "a/b", "base", "current", "a b", "a\x00", "ü", strings.Repeat("x", 129)} {
		if err := CheckID(id); !errors.Is(err, snapshot.ErrCheckpoint) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestUncommitted: a seal that was cut short before its state was renamed leaves nothing that counts, also when numbers go
// on to be used.
func TestUncommitted(t *testing.T) {
	b := newBook(t)
	seal(t, b, "one")
	before := b.State()
	must(t, b.seal(snapshot.Record{
		ID: "ghost", Feature: "f", Layer: before.Current, Stack: []snapshot.LayerRef{{Feature: "f", Layer: before.Current}},
	}, before.Identity))
	again, err := Open(b.Dir())
	must(t, err)
	if _, err := again.Record("ghost"); !errors.Is(err, snapshot.ErrCheckpoint) {
		t.Errorf("a record of the current layer: %v", err)
	}
	seal(t, again, "two") // the same layer
	all, err := again.Records()
	must(t, err)
	if ids(all) != "one two" {
		t.Errorf("records %s", ids(all))
	}
	must(t, again.Sweep())
	if _, err := os.Lstat(again.recordPath("ghost")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("swept: %v", err)
	}
}

func TestGarbage(t *testing.T) {
	b := newBook(t)
	for _, id := range []string{"one", "two", "three"} {
		seal(t, b, id)
	}
	makeLayer(t, b, 77) // of something cut short
	garbage := func(needed ...snapshot.LayerRef) string {
		list, err := b.Garbage(needed)
		must(t, err)
		slices.Sort(list)
		return fmt.Sprint(list)
	}
	if got := garbage(); got != "[77]" {
		t.Errorf("garbage %s", got)
	}
	s := b.State()
	r, err := b.Record("one")
	must(t, err)
	s.Head, s.Ground, s.Lower = "one", "one", r.Stack // a reset
	must(t, b.Commit(s))
	must(t, b.Drop("two", "three", "never-was"))
	if got := garbage(); got != "[2 3 77]" {
		t.Errorf("garbage %s after dropping", got)
	}
	if got := garbage(snapshot.LayerRef{Feature: "f", Layer: 3}, snapshot.LayerRef{Feature: "g", Layer: 2}); got != "[2 77]" {
		t.Errorf("garbage %s with one that a fork needs", got)
	}
	if err := b.Drop("one"); !errors.Is(err, snapshot.ErrHead) {
		t.Errorf("dropping the head: %v", err)
	}
	must(t, os.WriteFile(b.recordPath("one"), []byte("{"), 0o600))
	again, err := Open(b.Dir())
	must(t, err)
	must(t, again.SealLayer(2))
	if list, err := again.Garbage(nil); err != nil || fmt.Sprint(list) != "[3 77]" && fmt.Sprint(list) != "[77]" {
		t.Errorf("garbage %v, %v beside a record that cannot be read", list, err)
	}
}

func TestAliases(t *testing.T) {
	b := newBook(t)
	one := seal(t, b, "one")
	seal(t, b, "two")
	alias := one
	alias.ID, alias.AliasOf, alias.Layer = "alias", "one", 0
	must(t, b.Add(alias))
	must(t, b.Drop("one"))
	again, err := Open(b.Dir())
	must(t, err)
	r, err := again.Record("alias")
	if err != nil || r.AliasOf != "" || len(r.Stack) != 1 {
		t.Errorf("an alias of what was dropped: %+v, %v", r, err)
	}
}

func TestDropHead(t *testing.T) {
	b := newBook(t)
	one := seal(t, b, "one")
	if err := b.Drop("one"); !errors.Is(err, snapshot.ErrHead) {
		t.Errorf("dropping the head: %v", err)
	}
	alias := one
	alias.ID, alias.AliasOf, alias.Layer = "alias", "one", 0
	must(t, b.Add(alias))
	must(t, b.Drop("one"))
	again, err := Open(b.Dir())
	must(t, err)
	if s := again.State(); s.Head != "alias" || s.Ground != "alias" {
		t.Errorf("the head is %q on %q", s.Head, s.Ground)
	}
	if _, err := again.Record("alias"); err != nil {
		t.Error(err)
	}
}

func TestRestore(t *testing.T) {
	b := newBook(t)
	seal(t, b, "one")
	seal(t, b, "two")
	must(t, os.Remove(filepath.Join(b.Layer(2), LayerFile))) // two's
	must(t, os.WriteFile(filepath.Join(b.Dir(), StateFile), nil, 0o600))
	var made int
	r, err := Restore(b.Dir(), func(b *Book) error { made = b.State().Current; return os.Mkdir(b.Layer(made), 0o700) })
	must(t, err)
	if s := r.State(); s.Head != "one" || s.Current != made || s.Workspace != "/ws" || made != 4 {
		t.Errorf("restored %+v", s)
	}
	problems, err := r.Repair()
	if err != nil || len(problems) != 1 || problems[0].ID != "two" {
		t.Errorf("problems %v, %v", problems, err)
	}
	empty := t.TempDir()
	var damage *snapshot.DamageError
	if _, err := Restore(empty, nil); !errors.As(err, &damage) {
		t.Errorf("without any checkpoint: %v", err)
	}
}

// TestFull: an error while sealing leaves the old state, in memory as well.
func TestFull(t *testing.T) {
	b := newBook(t)
	seal(t, b, "one")
	before := b.State()
	next := before
	next.Head = "two"
	// A directory in the place of the temporary file.
	must(t, os.Mkdir(filepath.Join(b.Dir(), StateFile+".tmp"), 0o700))
	if err := b.Commit(next, snapshot.Record{ID: "two", Feature: "f", Layer: before.Current}); err == nil {
		t.Fatal("no error")
	}
	if b.State().Head != "one" {
		t.Error("the state in memory changed")
	}
	if _, err := os.Lstat(b.recordPath("two")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is left: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(b.Layer(before.Current), LayerFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the layer's file is left: %v", err)
	}
}

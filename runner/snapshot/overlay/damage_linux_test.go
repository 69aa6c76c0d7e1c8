package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
)

// threeCheckpoints has a=1, a=2 and a=3, and a=4 that is not sealed.
func threeCheckpoints(t *testing.T) *box {
	b := newBox(t).create()
	for i, id := range []string{"one", "two", "three"} {
		b.write("a", string(rune('1'+i)))
		b.seal(id)
	}
	b.write("a", "4")
	return b
}

func (b *box) repair() []snapshot.DamageError {
	b.Helper()
	b.unmount()
	found, err := Repair(context.Background(), b.open())
	must(b, err)
	return found
}

func TestDamagedState(t *testing.T) {
	for name, content := range map[string]string{
		"cut": `{"version":2,"driver":"ov`, "empty": "", "nothing": "{}", "other": `{"version":3}`, "zeros": strings.Repeat("\x00", 500),
		"numbers": `{"version":2,"workspace":"/x","current":-1,"next":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			b := threeCheckpoints(t)
			b.unmount()
			path := filepath.Join(b.at("f"), book.StateFile)
			must(t, os.WriteFile(path, []byte(content), 0o600))
			_, err := Open(b.open())
			var damage *snapshot.DamageError
			if name == "other" {
				if !errors.Is(err, snapshot.ErrUnsupported) {
					t.Errorf("an unknown version: %v", err)
				}
				return
			}
			if !errors.As(err, &damage) || damage.Path != path {
				t.Fatalf("opening: %v", err)
			}
			found := b.repair()
			if len(found) != 1 || found[0].Path != path {
				t.Errorf("repair names %v", found)
			}
			b.reopen()
			b.want("a=3")
			b.write("b", "x")
			b.seal("four")
			b.reset("one")
			b.want("a=1")
			collect(b)
			b.reset("four")
			b.want("a=3 b=x")
		})
	}
}

func TestDamagedCheckpoint(t *testing.T) {
	b := threeCheckpoints(t)
	path := filepath.Join(b.at("f"), book.CheckpointsDir, "two.json")
	must(t, os.WriteFile(path, []byte("not json"), 0o600))
	found := b.repair()
	if len(found) != 1 || found[0].ID != "two" || !strings.Contains(found[0].Error(), path) {
		t.Errorf("repair names %v", found)
	}
	b.reopen()
	b.want("a=4")
	all, err := b.l.Records()
	must(t, err)
	if len(all) != 3 || all[0].ID != "two" || all[0].Damaged == "" {
		t.Errorf("records: %+v", all)
	}
	var damage *snapshot.DamageError
	if _, err := b.l.Reset(context.Background(), snapshot.ResetOptions{To: "two"}); !errors.As(err, &damage) {
		t.Errorf("reset to a damaged checkpoint: %v", err)
	}
	collect(b) // frees nothing of what the unreadable one may need
	b.reset("three")
	b.want("a=3")
	b.reset("one")
	b.want("a=1")
	must(t, b.l.Drop(context.Background(), "two"))
	if found := b.repair(); len(found) != 0 {
		t.Errorf("after dropping it: %v", found)
	}
}

func TestMissingLayer(t *testing.T) {
	b := threeCheckpoints(t)
	b.unmount()
	gone := b.l.book.Layer(2) // sealed as two
	must(t, snapshot.Remove(context.Background(), gone))
	var ids []string
	for _, e := range b.repair() {
		if !strings.Contains(e.Error(), gone) {
			t.Errorf("%v does not name %s", &e, gone)
		}
		ids = append(ids, e.ID)
	}
	if got := strings.Join(ids, " "); got != "two three" {
		t.Errorf("damaged: %s", got)
	}
	l, err := Open(b.open())
	must(t, err)
	b.l = l.(*layers)
	b.reset("one")
	b.want("a=1")
	for _, id := range ids { // also the one that only lies on the missing layer
		var damage *snapshot.DamageError
		if _, err := b.l.Reset(context.Background(), snapshot.ResetOptions{To: id}); !errors.As(err, &damage) || damage.ID != id {
			t.Errorf("reset to %s: %v", id, err)
		}
		o := snapshot.CreateOptions{Dir: t.TempDir(), Feature: "fork" + id}
		if _, err := Fork(context.Background(), b.open(), id, o); !errors.As(err, &damage) || damage.ID != id {
			t.Errorf("fork of %s: %v", id, err)
		}
	}
	b.write("b", "x")
	b.seal("four")
	b.reopen()
	b.want("a=1 b=x")
}

// TestForeignCheckpointFile: a file of another feature's checkpoint, put among this one's, is no way to its layers.
func TestForeignCheckpointFile(t *testing.T) {
	b := threeCheckpoints(t)
	data, err := os.ReadFile(filepath.Join(b.at("f"), book.CheckpointsDir, "two.json"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(b.at("f"), book.CheckpointsDir, "copy.json"), data, 0o600))
	must(t, os.WriteFile(filepath.Join(b.at("f"), book.CheckpointsDir, "ghost.json"),
		[]byte(strings.Replace(string(data), `"id":"two"`, `"id":"ghost"`, 1)), 0o600))
	found := b.repair()
	if len(found) != 1 || found[0].ID != "copy" {
		t.Errorf("repair names %v", found)
	}
	if _, err := os.Stat(filepath.Join(b.at("f"), book.CheckpointsDir, "ghost.json")); !os.IsNotExist(err) {
		t.Errorf("a record of a layer that was sealed for another checkpoint is there still: %v", err)
	}
}

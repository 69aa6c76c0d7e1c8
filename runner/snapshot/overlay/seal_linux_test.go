package overlay

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func TestSealAndReset(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/base", []byte("base"), 0o644))
	b.create()
	first := b.seal("start")
	if first.Rotated || first.Alias || first.Layer != 0 {
		t.Errorf("an untouched feature's first checkpoint: %+v", first)
	}
	b.write("a", "1")
	must(t, os.WriteFile(b.home("rc"), []byte("home"), 0o644))
	one := b.seal("one")
	if !one.Rotated || one.Parent != "start" || one.Depth != 1 {
		t.Errorf("a rotation: %+v", one)
	}
	b.want("a=1 base=base")
	again := b.seal("again")
	if !again.Alias || again.AliasOf != "one" || again.Rotated {
		t.Errorf("a checkpoint of nothing: %+v", again)
	}
	b.write("a", "2")
	must(t, os.Remove(b.path("base")))
	b.seal("two")
	b.want("a=2")

	b.reset("one")
	b.want("a=1 base=base")
	if data, err := os.ReadFile(b.home("rc")); err != nil || string(data) != "home" {
		t.Errorf("HOME: %q, %v", data, err)
	}
	b.write("b", "3")
	three := b.seal("three")
	if three.Parent != "one" {
		t.Errorf("parent %s after a reset to one", three.Parent)
	}
	b.reset("two")
	b.want("a=2")
	b.reset("again") // an alias
	b.want("a=1 base=base")
	b.reset(snapshot.Base)
	b.want("base=base")
	if _, err := os.Lstat(b.home("rc")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("HOME after a reset to the base: %v", err)
	}
	b.reopen()
	b.reset("three")
	b.want("a=1 b=3 base=base")
	ctx := context.Background()
	if _, err := b.l.Reset(ctx, snapshot.ResetOptions{To: "foreign"}); !errors.Is(err, snapshot.ErrCheckpoint) {
		t.Errorf("reset to an unknown id: %v", err)
	}
	if _, err := b.l.Reset(ctx, snapshot.ResetOptions{To: "../state"}); !errors.Is(err, snapshot.ErrCheckpoint) {
		t.Errorf("reset to a path: %v", err)
	}
	if _, err := b.l.Seal(ctx, snapshot.SealOptions{ID: "one"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("an id for the second time: %v", err)
	}
	list, err := b.l.Records()
	must(t, err)
	if len(list) != 5 {
		t.Errorf("%d records", len(list))
	}
}

func TestFork(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/base", []byte("base"), 0o644))
	b.create()
	must(t, b.l.HomeMountpoint("cache", true, b.options().Owner))
	b.mount()
	b.write("a", "1")
	b.seal("one")
	b.write("a", "2")
	b.seal("two")

	c := b.fork("one", "g")
	c.want("a=1 base=base")
	c.write("c", "c")
	c.seal("three")
	c.want("a=1 base=base c=c")
	b.want("a=2 base=base")
	d := c.fork("three", "h") // of a fork
	d.want("a=1 base=base c=c")
	d.reset("three")
	d.want("a=1 base=base c=c")
	c.reset("one") // where it began
	c.want("a=1 base=base")
	c.reopen()
	c.reset("three")
	c.want("a=1 base=base c=c")
	if _, err := c.l.Reset(context.Background(), snapshot.ResetOptions{To: "two"}); !errors.Is(err, snapshot.ErrCheckpoint) {
		t.Errorf("a checkpoint of another feature: %v", err)
	}
	e := b.fork(snapshot.Base, "i")
	e.want("base=base")
	was, err := os.Stat(b.home("cache"))
	must(t, err)
	if is, err := os.Stat(e.home("cache")); err != nil || is.Mode() != was.Mode() || !is.ModTime().Equal(was.ModTime()) {
		t.Errorf("the mount point in HOME: %v, %v, in the fork %v", was, err, is)
	}
	must(t, snapshot.Remove(context.Background(), b.at("f")))
	c.unmount()
	if _, err := Open(c.open()); !errors.Is(err, snapshot.ErrUnusableLayers) {
		t.Errorf("a fork without its origin: %v", err)
	}
}

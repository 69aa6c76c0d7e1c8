package overlay

import (
	"os"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func (b *box) index(id string) snapshot.Indexed {
	b.Helper()
	x, err := b.l.Index(b.Context(), id)
	must(b, err)
	return x
}

func TestIndex(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/base", []byte("base"), 0o644))
	b.create()
	when := time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)
	put := func(content string, mtime time.Time) {
		b.write("a", content)
		must(t, os.Chtimes(b.path("a"), mtime, mtime))
		must(t, os.Chtimes(b.path("."), when, when))
	}
	put("1", when)
	b.seal("one")
	one := b.index("one")
	if one.Counts != (snapshot.ChangeCounts{Added: 1, Bytes: 1}) || one.AliasOf != "" || one.Inodes != 3 || len(one.Digest) != 64 {
		t.Errorf("one: %+v", one)
	}
	// Written anew, as it was: to the nanosecond it is the same, a second later it is not.
	put("1", when)
	b.seal("same")
	put("1", when.Add(time.Second))
	b.seal("later")
	put("2", when)
	must(t, os.Remove(b.path("base")))
	must(t, os.WriteFile(b.home("h"), []byte("home"), 0o644))
	b.seal("two")
	same, later, two := b.index("same"), b.index("later"), b.index("two")
	if same.AliasOf != "one" || same.Digest != one.Digest {
		t.Errorf("same: %+v", same)
	}
	if later.AliasOf != "" || later.Digest != one.Digest { // a digest is of content and modes
		t.Errorf("later: %+v", later)
	}
	if two.Digest == one.Digest || two.Counts != (snapshot.ChangeCounts{Added: 1, Modified: 1, Deleted: 1, Bytes: 5}) {
		t.Errorf("two: %+v", two)
	}
	if again := b.index("two"); again != two {
		t.Errorf("again: %+v, before %+v", again, two)
	}
	b.reset("same")
	b.want("a=1 base=base")
	b.seal("after") // nothing was written on an alias
	if r, err := b.l.book.Record("after"); err != nil || r.AliasOf != "one" {
		t.Errorf("after: %+v, %v", r, err)
	}
	must(t, b.l.Drop(b.Context(), "later", "two"))
	collect(b)
	b.want("a=1 base=base")
	b.reopen()
	for _, id := range []string{"one", "same", "after"} {
		if got := b.index(id); got.Digest != one.Digest {
			t.Errorf("%s in a new process: %+v", id, got)
		}
	}
}

// TestEqualToTheWorkspace: a copy of what the workspace has is equal today, but stays when others edit that tomorrow.
func TestEqualToTheWorkspace(t *testing.T) {
	b := newBox(t)
	must(t, os.WriteFile(b.ws+"/base", []byte("base"), 0o644))
	must(t, os.Mkdir(b.ws+"/d", 0o755))
	b.create()
	b.write("d/x", "x")
	b.seal("one")
	info, err := os.Stat(b.path("d"))
	must(t, err)
	must(t, os.Chmod(b.path("base"), 0o600))
	must(t, os.Chmod(b.path("base"), 0o644)) // copied up, and as it was
	must(t, os.Chtimes(b.path("d"), info.ModTime(), info.ModTime()))
	b.seal("two")
	if x := b.index("two"); x.AliasOf != "" || x.Counts != (snapshot.ChangeCounts{}) {
		t.Errorf("%+v", x)
	}
	must(t, os.WriteFile(b.ws+"/base", []byte("edited"), 0o644))
	if got := b.checkpoint("two"); got != "base=base d/ d/x=x | " {
		t.Errorf("after the edit: %s", got)
	}
}

func TestUsage(t *testing.T) {
	b := newBox(t).create()
	const size = 1 << 20
	for _, id := range []string{"one", "two"} {
		b.write(id, string(make([]byte, size)))
		b.write("both", "x")
		b.seal(id)
	}
	b.reset(snapshot.Base)
	u, err := b.l.Usage(b.Context())
	must(t, err)
	if u.Checkpoints != 2 || u.Bytes < 2*size || u.Bytes > 3*size || u.ByCheckpoint["one"] != 0 || u.ByCheckpoint["two"] < size {
		t.Errorf("%+v", u) // two lies on one's layer
	}
	must(t, b.l.Drop(b.Context(), "two"))
	freed, err := b.l.Collect(b.Context(), nil)
	must(t, err)
	if freed < size || freed > size+size/2 {
		t.Errorf("%d bytes freed", freed)
	}
	after, err := b.l.Usage(b.Context())
	must(t, err)
	if after.ByCheckpoint["one"] < size || after.Bytes > u.Bytes-size {
		t.Errorf("%+v, before %+v", after, u)
	}
	// Read-only beside another process: nothing is written.
	o := b.open()
	o.ReadOnly = true
	l, err := Open(o)
	must(t, err)
	if _, err := l.Index(b.Context(), "one"); err != nil {
		t.Error(err)
	}
	if _, err := l.Seal(b.Context(), snapshot.SealOptions{ID: "x"}); !os.IsPermission(err) {
		t.Errorf("seal of what is open for reading: %v", err)
	}
	if _, err := l.Collect(b.Context(), nil); !os.IsPermission(err) {
		t.Errorf("collect of what is open for reading: %v", err)
	}
}

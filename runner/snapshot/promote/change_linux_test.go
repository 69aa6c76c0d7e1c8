package promote

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// project fills a workspace with one of everything.
func project(t testing.TB) func(string) {
	return func(ws string) {
		t.Helper()
		must(t, steps(
			write(ws+"/keep", "same\n"), write(ws+"/twin1", "twin\n"), write(ws+"/twin2", "twin\n"),
			write(ws+"/edit", "one\ntwo\nthree\n"),
			write(ws+"/gone", "bye\n"),
			write(ws+"/mode", "#!/bin/sh\n"),
			os.Symlink("keep", ws+"/link"),
			os.Mkdir(ws+"/dir", 0o755),
			write(ws+"/dir/a", "a\n"),
			write(ws+"/dir/b", "b\n"),
			os.Mkdir(ws+"/dir/sub", 0o755),
			write(ws+"/dir/sub/c", "c\n"),
			os.Mkdir(ws+"/empty", 0o755),
		))
	}
}

// Each case is what a sandbox does to project, and the change that must be read, exactly. The tree that the sandbox
// saw is also what promote must make of the workspace.
var changes = []struct {
	name string
	do   func(m string) error
	want []string
}{
	{"nothing", func(string) error { return nil }, nil},
	{"read only", func(m string) error { _, err := os.ReadFile(m + "/edit"); return err }, nil},
	{"edit", func(m string) error { return write(m+"/edit", "one\n2\nthree\n") }, []string{"modified edit"}},
	{"same size", func(m string) error { return write(m+"/edit", "one\ntwo\nTHREE\n") }, []string{"modified edit"}},
	{"touch", func(m string) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, m+"/edit", []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0)
	}, nil},
	{"rewrite with the same", func(m string) error { return write(m+"/edit", "one\ntwo\nthree\n") }, nil},
	{"chmod and back", func(m string) error {
		return steps(os.Chmod(m+"/mode", 0o755), os.Chmod(m+"/mode", 0o644))
	}, nil},
	{"add", func(m string) error { return write(m+"/new", "new\n") }, []string{"added new"}},
	{"delete", func(m string) error { return os.Remove(m + "/gone") }, []string{"deleted gone"}},
	{"delete and put back", func(m string) error {
		return steps(os.Remove(m+"/gone"), write(m+"/gone", "bye\n"))
	}, nil},
	{"chmod", func(m string) error { return os.Chmod(m+"/mode", 0o755) }, []string{"mode mode 0644>0755"}},
	{"setuid", func(m string) error { return unix.Chmod(m+"/mode", 0o4755) }, []string{"mode mode 0644>4755"}},
	{"chmod dir", func(m string) error { return os.Chmod(m+"/dir", 0o700) }, []string{"mode dir 0755>0700"}},
	{"chmod root", func(m string) error { return os.Chmod(m, 0o750) }, []string{"mode . 0755>0750"}},
	{"retarget", func(m string) error {
		return steps(os.Remove(m+"/link"), os.Symlink("edit", m+"/link"))
	}, []string{"link link keep>edit"}},
	{"file to link", func(m string) error {
		return steps(os.Remove(m+"/keep"), os.Symlink("/etc/passwd", m+"/keep"))
	}, []string{"type keep file>symlink"}},
	{"file to dir", func(m string) error {
		return steps(os.Remove(m+"/keep"), os.Mkdir(m+"/keep", 0o755), write(m+"/keep/x", "x"))
	}, []string{"type keep file>dir", "added keep/x"}},
	{"dir to file", func(m string) error {
		return steps(os.RemoveAll(m+"/dir"), write(m+"/dir", "now a file\n"))
	}, []string{"type dir dir>file", "deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c"}},
	{"delete dir", func(m string) error { return os.RemoveAll(m + "/dir") },
		[]string{"deleted dir", "deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c"}},
	{"opaque dir", func(m string) error {
		return steps(os.RemoveAll(m+"/dir"), os.Mkdir(m+"/dir", 0o755), write(m+"/dir/a", "a\n"), write(m+"/dir/z", "z\n"))
	}, []string{"deleted dir/b", "deleted dir/sub", "deleted dir/sub/c", "added dir/z"}},
	{"rename file", func(m string) error { return os.Rename(m+"/edit", m+"/moved") },
		[]string{"deleted edit", "added moved"}},
	{"rename dir", func(m string) error { return os.Rename(m+"/dir", m+"/zdir") }, []string{
		"deleted dir", "deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c",
		"added zdir", "added zdir/a", "added zdir/b", "added zdir/sub", "added zdir/sub/c",
	}},
	{"rename dir and edit in it", func(m string) error {
		return steps(os.Rename(m+"/dir", m+"/zdir"), write(m+"/zdir/a", "A\n"), os.Remove(m+"/zdir/b"),
			os.Rename(m+"/zdir/sub", m+"/zdir/bus"), write(m+"/zdir/bus/d", "d\n"))
	}, []string{
		"deleted dir", "deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c",
		"added zdir", "added zdir/a", "added zdir/bus", "added zdir/bus/c", "added zdir/bus/d",
	}},
	{"rename dir into another", func(m string) error { return os.Rename(m+"/dir/sub", m+"/empty/sub") }, []string{
		"deleted dir/sub", "deleted dir/sub/c", "added empty/sub", "added empty/sub/c",
	}},
	{"rename dir and back", func(m string) error {
		return steps(os.Rename(m+"/dir", m+"/x"), os.Rename(m+"/x", m+"/dir"))
	}, nil},
	{"swap dirs", func(m string) error {
		return steps(os.Rename(m+"/dir", m+"/x"), os.Rename(m+"/empty", m+"/dir"), os.Rename(m+"/x", m+"/empty"))
	}, []string{
		"deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c",
		"added empty/a", "added empty/b", "added empty/sub", "added empty/sub/c",
	}},
	{"rename over dir", func(m string) error {
		return steps(os.RemoveAll(m+"/empty"), os.Rename(m+"/dir", m+"/empty"), os.Mkdir(m+"/dir", 0o755))
	}, []string{
		"deleted dir/a", "deleted dir/b", "deleted dir/sub", "deleted dir/sub/c",
		"added empty/a", "added empty/b", "added empty/sub", "added empty/sub/c",
	}},
	{"hard links", func(m string) error {
		return steps(write(m+"/h1", "h\n"), os.Link(m+"/h1", m+"/h2"), os.Link(m+"/h1", m+"/dir/h3"))
	}, []string{"added dir/h3", "added h1 =dir/h3", "added h2 =dir/h3"}},
	{"hard link to an old file", func(m string) error { return os.Link(m+"/keep", m+"/keep2") },
		[]string{"added keep2 =keep"}},
	{"equal files became links", func(m string) error {
		return steps(os.Remove(m+"/twin2"), os.Link(m+"/twin1", m+"/twin2"))
	}, []string{"modified twin2 =twin1"}},
	{"new tree", func(m string) error {
		return steps(os.MkdirAll(m+"/n/e/w", 0o750), write(m+"/n/e/w/f", "f"), os.Symlink("../..", m+"/n/e/up"),
			os.Mkdir(m+"/n/empty", 0o700), os.Chmod(m+"/n/e", 0o1777))
	}, []string{"added n", "added n/e", "added n/e/up", "added n/e/w", "added n/e/w/f", "added n/empty"}},
	{"fifo", func(m string) error { return unix.Mkfifo(m+"/pipe", 0o640) }, []string{"added pipe"}},
	{"file to fifo", func(m string) error {
		return steps(os.Remove(m+"/keep"), unix.Mkfifo(m+"/keep", 0o600))
	}, []string{"type keep file>fifo"}},
	{"attributes", func(m string) error {
		return steps(unix.Setxattr(m+"/keep", "user.note", []byte("hi"), 0), unix.Setxattr(m+"/dir", "user.d", []byte("1"), 0))
	}, []string{"modified dir x", "modified keep x"}},
	{"odd names", func(m string) error {
		return steps(write(m+"/new\nline", "1"), write(m+"/\xff\xfe", "2"), write(m+"/ü", "3"), write(m+`/q"\`, "4"),
			write(m+"/dir-x", "5"), write(m+"/ ", "6"))
	}, []string{`added  `, "added dir-x", `added "new\nline"`, `added "q\"\\"`, `added "\303\274"`, `added "\377\376"`}},
	{"sparse", func(m string) error {
		return steps(write(m+"/s", "x"), os.Truncate(m+"/s", 32<<20), appendAt(m+"/s", 16<<20, "middle"))
	}, []string{"added s"}},
	{"unreadable", func(m string) error {
		return steps(write(m+"/zero", "x"), os.Chmod(m+"/zero", 0), os.Mkdir(m+"/zd", 0o755), write(m+"/zd/f", "f"), os.Chmod(m+"/zd", 0))
	}, []string{"added zd", "added zd/f", "added zero"}},
	{"empty file", func(m string) error { return write(m+"/e", "") }, []string{"added e"}},
	{"truncate", func(m string) error { return os.Truncate(m+"/edit", 0) }, []string{"modified edit"}},
}

func appendAt(path string, off int64, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(s), off)
	return steps(err, f.Close())
}

func TestChange(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			b := newBox(t, project(t))
			before := listing(t, b.ws)
			b.sandbox(c.do)
			b.wantChange(c.want...)
			b.wantSame(before, "reading a change touched the workspace")
			again, err := open(b.w.dir)
			must(t, err)
			c2, err := again.change(t.Context())
			must(t, err)
			if c1 := b.change(); c1.Digest != c2.Digest || len(c1.Digest) != 64 {
				t.Fatalf("digests %s, %s", c1.Digest, c2.Digest)
			}
		})
	}
}

// TestPromoteMatchesView promotes every case and compares the workspace with what the sandbox saw.
func TestPromoteMatchesView(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			b := newBox(t, project(t))
			var seen map[string]string
			b.sandbox(func(m string) error {
				err := c.do(m)
				seen = listing(t, m)
				return err
			})
			old := listing(t, b.ws)
			changed := map[string]bool{}
			for _, e := range b.change().Entries {
				changed["/"+e.Path] = true
			}
			b.promote()
			now := listing(t, b.ws)
			for path, line := range seen {
				if line == now[path] {
					continue
				}
				if !changed[path] && now[path] == old[path] {
					continue // a change of times only
				}
				t.Errorf("%s: %s\nin the sandbox: %s", tree.Quote(path), now[path], line)
			}
			for path := range now {
				if seen[path] == "" {
					t.Errorf("%s: %s: not in the sandbox", tree.Quote(path), now[path])
				}
			}
			b.wantChange()
			if got, _ := filepath.Glob(b.w.dir + "/promote*"); got != nil {
				t.Errorf("left: %v", got)
			}
			b.sandbox(func(m string) error { return write(m+"/again", "x") })
			b.wantChange("added again")
		})
	}
}

func TestEntryJSON(t *testing.T) {
	c := tree.Change{Entries: []tree.Entry{
		{Path: "a", Kind: tree.Added, Type: tree.File, Mode: tree.FileMode(0o4755), Size: 3},
		{Path: "\xff", Kind: tree.LinkOnly, Type: tree.Symlink, OldType: tree.Symlink, Link: "x\xfe", OldLink: "y", HardLink: "\xfd"},
		{Path: "d", Kind: tree.Deleted, OldType: tree.Dir, OldMode: tree.FileMode(0o1777)},
	}}
	data, err := json.Marshal(c)
	must(t, err)
	var back tree.Change
	must(t, json.Unmarshal(data, &back))
	again, err := json.Marshal(back)
	must(t, err)
	if string(data) != string(again) {
		t.Fatalf("%s\n%s", data, again)
	}
	for i := range c.Entries {
		if c.Entries[i] != back.Entries[i] {
			t.Errorf("%+v\n%+v", c.Entries[i], back.Entries[i])
		}
	}
	var first map[string]any
	must(t, json.Unmarshal(data, &struct{ Entries *[]map[string]any }{new([]map[string]any)}))
	must(t, json.Unmarshal([]byte(`{"path":"x","mode":"0644"}`), &first))
}

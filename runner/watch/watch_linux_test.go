package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

const patience = 30 * time.Second

func begin(t *testing.T, o Options) *Watcher {
	t.Helper()
	if o.Debounce == 0 {
		o.Debounce = 20 * time.Millisecond
	}
	w, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// until reads events until all that are wanted ("kind path") have come, and returns everything that came.
func until(t *testing.T, w *Watcher, want ...string) map[string]Event {
	t.Helper()
	got := map[string]Event{}
	late := time.After(patience)
	for {
		missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { _, ok := got[s]; return ok })
		if len(missing) == 0 {
			return got
		}
		select {
		case batch := <-w.Events():
			for _, e := range batch {
				got[e.Kind+" "+e.Path] = e
				if e.At.IsZero() {
					t.Errorf("%+v", e)
				}
			}
		case <-late:
			t.Fatalf("missing %d of %d, %.200q, got %d, %.2000s", len(missing), len(want), missing, len(got), fmt.Sprint(got))
		}
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// modes runs a test with inotify and without.
func modes(t *testing.T, f func(t *testing.T, o Options)) {
	t.Run(ModeInotify, func(t *testing.T) { f(t, Options{Upper: t.TempDir()}) }) // where the kernel is new enough
	t.Run(ModeScan, func(t *testing.T) { f(t, Options{Upper: t.TempDir(), MaxWatches: -1}) })
}

func TestKinds(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		at := func(name string) string { return filepath.Join(o.Upper, name) }
		o.Home = t.TempDir()
		write(t, at("modified"), "before")
		write(t, at("deleted"), "x")
		write(t, at("mode"), "x")
		write(t, at("moved"), "x")
		must(t, os.MkdirAll(at("dir/sub"), 0o755))
		write(t, at("dir/sub/file"), "x")
		w := begin(t, o)
		if o.MaxWatches == 0 && writesAreSeen() && w.Mode() != ModeInotify {
			t.Errorf("mode %s", w.Mode())
		}
		whole := filepath.Join(t.TempDir(), "added")
		write(t, whole, "12345")
		must(t, os.Rename(whole, at("added"))) // or it may be seen before it is written
		write(t, at("modified"), "after")
		write(t, filepath.Join(o.Home, "home"), "")
		must(t, os.Remove(at("deleted")), os.Chmod(at("mode"), 0o600), os.Rename(at("moved"), at("moved-away")),
			os.Rename(at("dir"), at("renamed")), os.Symlink("x", at("link")), os.Mkdir(at("new"), 0o755))
		got := until(t, w, "added added", "modified modified", "deleted deleted", "mode mode", "deleted moved", "added moved-away",
			"deleted dir/sub/file", "deleted dir", "added renamed/sub/file", "added renamed", "added link", "added new", "added home")
		if e := got["added added"]; e.Size != 5 || e.Stack != "workspace" {
			t.Errorf("%+v", e)
		}
		if e := got["added home"]; e.Stack != "home" {
			t.Errorf("%+v", e)
		}
		write(t, at("renamed/sub/file"), "more")
		write(t, at("new/in it"), "x")
		until(t, w, "modified renamed/sub/file", "added new/in it")
	})
}

// TestNewDirectories: what is made in a directory the moment after it was made is not lost, however deep.
func TestNewDirectories(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		w := begin(t, o)
		var want []string
		for i := range 100 {
			dir := fmt.Sprintf("d%d/e/f", i)
			must(t, os.MkdirAll(filepath.Join(o.Upper, dir), 0o755))
			write(t, filepath.Join(o.Upper, dir, "file"), "x")
			want = append(want, "added "+dir+"/file")
		}
		until(t, w, want...)
		must(t, os.RemoveAll(filepath.Join(o.Upper, "d7")), os.MkdirAll(filepath.Join(o.Upper, "d7/e/f"), 0o755))
		write(t, filepath.Join(o.Upper, "d7/e/f/again"), "x") // the inodes may be the same
		until(t, w, "added d7/e/f/again")
		write(t, filepath.Join(o.Upper, "d7/e/f/third"), "x")
		until(t, w, "added d7/e/f/third")
	})
}

func expectDue(t *testing.T, w *Watcher, want bool, within time.Duration) {
	t.Helper()
	late := time.After(within)
	for {
		select {
		case <-w.Due():
			if !want {
				t.Error("due, too early")
			}
			return
		case <-w.Events():
		case <-late:
			if want {
				t.Error("not due")
			}
			return
		}
	}
}

func TestDue(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		o.Every, o.Files = time.Hour, 5
		w := begin(t, o)
		for i := range 4 {
			write(t, filepath.Join(o.Upper, strconv.Itoa(i)), "x")
		}
		write(t, filepath.Join(o.Upper, "0"), "again: the same file")
		expectDue(t, w, false, 200*time.Millisecond)
		write(t, filepath.Join(o.Upper, "4"), "x")
		expectDue(t, w, true, patience)
		for i := range 4 {
			write(t, filepath.Join(o.Upper, strconv.Itoa(i)), "counted anew")
		}
		expectDue(t, w, false, 200*time.Millisecond)
		must(t, w.Reset(o.Upper, "")) // sealed
		write(t, filepath.Join(o.Upper, "4"), "y")
		expectDue(t, w, false, 200*time.Millisecond)
	})
	modes(t, func(t *testing.T, o Options) {
		o.Every, o.Files = 100*time.Millisecond, 1000
		w := begin(t, o)
		expectDue(t, w, false, 300*time.Millisecond) // nothing has changed
		write(t, filepath.Join(o.Upper, "one"), "x")
		expectDue(t, w, true, patience)
		expectDue(t, w, false, 300*time.Millisecond)
	})
}

// TestReset: a new upper is watched, the old one is not, and what was there is no event.
func TestReset(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		w := begin(t, o)
		next := t.TempDir()
		write(t, filepath.Join(next, "there"), "x")
		write(t, filepath.Join(o.Upper, "last"), "x")
		must(t, w.Reset(next, ""))
		write(t, filepath.Join(o.Upper, "late"), "x")
		write(t, filepath.Join(next, "new"), "x")
		got := until(t, w, "added last", "added new")
		for _, e := range []string{"added late", "added there"} {
			if _, ok := got[e]; ok {
				t.Errorf("%s: %+v", e, got)
			}
		}
		if err := w.Reset(filepath.Join(next, "none"), ""); err == nil {
			t.Error("no error for an upper that does not exist")
		}
		must(t, w.Reset(o.Upper, ""))
		write(t, filepath.Join(o.Upper, "back"), "x")
		until(t, w, "added back")
		must(t, w.Close())
		if err := w.Reset(next, ""); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Reset after Close: %v", err)
		}
	})
}

// TestOverflow: what the kernel could not tell is looked for.
func TestOverflow(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := Options{Upper: dir, Debounce: 20 * time.Millisecond}
	o.setDefaults()
	l := &loop{o: o, w: &Watcher{}, pending: map[place]Event{}, changed: map[place]bool{}, tick: stopped(), every: stopped()}
	must(t, l.open(dir, ""))
	defer l.close()
	l.look()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755)) // nobody listens
	write(t, filepath.Join(dir, "a/b/c"), "x")
	l.hear(nil)
	for _, p := range []string{"a", "a/b", "a/b/c"} {
		if l.pending[place{"workspace", p}].Kind != Added {
			t.Errorf("%s: %+v", p, l.pending)
		}
	}
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}

	w := begin(t, Options{Upper: dir, Every: time.Second})
	files := 30_000 // more than fs.inotify.max_queued_events
	if testing.Short() {
		files = 1000
	}
	sub := filepath.Join(dir, "flood")
	must(t, os.Mkdir(sub, 0o755))
	for i := range files {
		f, err := os.Create(filepath.Join(sub, strconv.Itoa(i)))
		must(t, err)
		f.Close()
	}
	write(t, filepath.Join(sub, "last"), "x")
	n := 0
	for e := range until(t, w, "added flood/last", "added flood/"+strconv.Itoa(files-1), "added flood/0") {
		if strings.HasPrefix(e, "added flood/") {
			n++
		}
	}
	t.Logf("%d of %d in the first batches, mode %s", n, files, w.Mode())
}

// TestManyDirectories: 50,000 can be watched; with more than may be, it scans and says so.
func TestManyDirectories(t *testing.T) {
	dirs := 5000
	if testing.Short() {
		dirs = 500
	}
	if os.Getenv("CAISSON_TEST_LONG") != "" {
		dirs = 50_000
	}
	dir := t.TempDir()
	for i := range dirs / 100 {
		for k := range 100 {
			must(t, os.MkdirAll(filepath.Join(dir, strconv.Itoa(i), strconv.Itoa(k)), 0o755))
		}
	}
	start := time.Now()
	w := begin(t, Options{Upper: dir})
	t.Logf("%d directories, %s, ready after %v", dirs, w.Mode(), time.Since(start))
	write(t, filepath.Join(dir, "3/7/file"), "x")
	until(t, w, "added 3/7/file")
	few := begin(t, Options{Upper: dir, MaxWatches: 100, Every: time.Second})
	write(t, filepath.Join(dir, "4/8/file"), "x")
	until(t, few, "added 4/8/file")
	if few.Mode() != ModeScan {
		t.Errorf("mode %s with %d directories and 100 watches", few.Mode(), dirs)
	}
}

// TestNoGrowth: what is gone is forgotten.
func TestNoGrowth(t *testing.T) {
	dir := t.TempDir()
	o := Options{Upper: dir, Debounce: time.Millisecond}
	o.setDefaults()
	l := &loop{o: o, w: &Watcher{}, pending: map[place]Event{}, changed: map[place]bool{}, tick: stopped(), every: stopped()}
	must(t, l.open(dir, ""))
	defer l.close()
	l.look()
	settle := func() {
		for quietly := false; !quietly; {
			select {
			case buf := <-l.heard():
				l.hear(buf)
			case <-time.After(50 * time.Millisecond):
				quietly = true
			}
		}
		l.look()
		l.batch()
	}
	for range 20 {
		for i := range 50 {
			must(t, os.MkdirAll(filepath.Join(dir, strconv.Itoa(i), "sub"), 0o755))
			write(t, filepath.Join(dir, strconv.Itoa(i), "sub/file"), "x")
		}
		settle()
		for i := range 50 {
			must(t, os.RemoveAll(filepath.Join(dir, strconv.Itoa(i))))
		}
		settle()
	}
	watches := 1
	if l.ino != nil {
		watches = len(l.ino.dirs)
	}
	if len(l.roots[0].top.kids) > 0 || watches != 1 || len(l.dirty) > 0 || len(l.pending) > 0 {
		t.Errorf("%d names, %d watches, %d dirty, %d pending are left", len(l.roots[0].top.kids), watches, len(l.dirty), len(l.pending))
	}
}

// TestClose: nothing is left of it, whoever does not read.
// TestReusedNumber: a directory in the place of a file, with the inode number that the file had.
func TestReusedNumber(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "name/sub"), 0o755))
	l := &loop{w: &Watcher{}, scans: true, pending: map[place]Event{}, changed: map[place]bool{}, tick: stopped(), every: stopped()}
	must(t, l.open(dir, ""))
	defer l.close()
	top := l.roots[0].top
	kid := top.kids["name"]
	kid.kids, kid.seen.isDir, kid.seen.mode = nil, false, unix.S_IFREG
	l.enter(top, again)
	if now := top.kids["name"]; now == kid || now.kids["sub"] == nil {
		t.Error("the directory's content is not seen")
	}
}

func TestClose(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		before := runtime.NumGoroutine()
		for range 10 {
			w := begin(t, o)
			for i := range 100 {
				write(t, filepath.Join(o.Upper, strconv.Itoa(i)), fmt.Sprint(time.Now()))
			}
			must(t, w.Close())
			must(t, w.Close())
		}
		if after := runtime.NumGoroutine(); after > before {
			t.Errorf("%d goroutines, %d before", after, before)
		}
	})
}

// TestLinkIsNotFollowed: the task exchanges a directory for a link to the host's all the time.
func TestLinkIsNotFollowed(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		outside := t.TempDir()
		must(t, os.MkdirAll(filepath.Join(outside, "sub"), 0o755))
		write(t, filepath.Join(outside, "secret"), "x")
		o.Debounce = time.Millisecond
		w := begin(t, o)
		at := func(name string) string { return filepath.Join(o.Upper, name) }
		must(t, os.Symlink(outside, at("link")))
		for range 300 {
			must(t, os.Mkdir(at("dir"), 0o755), unix.Renameat2(unix.AT_FDCWD, at("dir"), unix.AT_FDCWD, at("link"), unix.RENAME_EXCHANGE),
				unix.Renameat2(unix.AT_FDCWD, at("dir"), unix.AT_FDCWD, at("link"), unix.RENAME_EXCHANGE), os.Remove(at("dir")))
		}
		write(t, at("end"), "x")
		for name := range until(t, w, "added end") {
			if strings.Contains(name, "secret") || strings.Contains(name, "sub") {
				t.Error(name)
			}
		}
	})
}

// TestOverlay: what comes through an overlay is seen on its upper: copies, whiteouts, writes in place.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", errors.New("mounts an overlay"))
	}
	dir := t.TempDir()
	sub := func(name string) string { return filepath.Join(dir, name) }
	must(t, os.Mkdir(sub("lower"), 0o755), os.Mkdir(sub("upper"), 0o755), os.Mkdir(sub("work"), 0o755), os.Mkdir(sub("lower/d"), 0o755))
	for _, name := range []string{"copied", "removed", "chmod", "d/deep", "replaced"} {
		write(t, filepath.Join(sub("lower"), name), "below")
	}
	mnt := overlay(t, dir)
	w := begin(t, Options{Upper: sub("upper")})
	at := func(name string) string { return filepath.Join(mnt, name) }
	appendTo := func(name string) {
		t.Helper()
		f, err := os.OpenFile(at(name), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = f.WriteString("more")
		must(t, err, f.Close())
	}
	appendTo("copied")
	appendTo("d/deep")
	write(t, at("new"), "x")
	must(t, os.Remove(at("removed")), os.Chmod(at("chmod"), 0o600), os.Remove(at("replaced")), os.Mkdir(at("replaced"), 0o755))
	got := until(t, w, "modified copied", "modified d/deep", "added new", "deleted removed", "modified chmod", "added replaced")
	if _, ok := got["added d"]; ok {
		t.Error("a directory that was copied up is said to be added")
	}
	appendTo("copied") // in the upper already
	f, err := os.OpenFile(at("new"), os.O_RDWR, 0)
	must(t, err)
	mem, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	mem[0] = 'y'
	must(t, unix.Munmap(mem), f.Close())
	until(t, w, "modified copied", "modified new")
}

// overlay mounts dir's lower, upper and work, detached.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	fs, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	must(t, err)
	defer func() { _ = unix.Close(fs) }()
	for _, kv := range [][2]string{{"lowerdir", "lower"}, {"upperdir", "upper"}, {"workdir", "work"}} {
		must(t, unix.FsconfigSetString(fs, kv[0], filepath.Join(dir, kv[1])))
	}
	must(t, unix.FsconfigCreate(fs))
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return "/proc/self/fd/" + strconv.Itoa(fd)
}

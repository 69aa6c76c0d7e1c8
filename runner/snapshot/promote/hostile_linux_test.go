package promote

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// TestFarTimes: times that nanoseconds in 64 bits do not hold.
func TestFarTimes(t *testing.T) {
	needOverlay(t)
	b := newBox(t, project(t))
	far := unix.Timespec{Sec: 15_000_000_000, Nsec: 1} // in the year 2445: the most that ext4 takes
	past := unix.Timespec{Sec: -2_000_000_000}
	b.sandbox(func(m string) error {
		return steps(write(m+"/dir/new", "x"), os.Mkdir(m+"/made", 0o755), write(m+"/made/f", "x"),
			setMtime(m+"/dir/new", past), setMtime(m+"/made/f", far), setMtime(m+"/made", past), setMtime(m+"/dir", far))
	})
	want := b.shows()
	b.promote()
	got := listing(t, b.ws)
	for _, path := range []string{"/dir", "/dir/new", "/made", "/made/f"} {
		if got[path] != want[path] {
			t.Errorf("%s is %s, was %s", path, got[path], want[path])
		}
	}
}

func setMtime(path string, at unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, 0)
}

// TestImmutable: what the workspace's owner has locked refuses the promote, by name, and nothing has changed.
func TestImmutable(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ flag, path string }{{"i", "edit"}, {"a", "edit"}, {"i", "dir"}, {"a", "dir"}} {
		b := newBox(t, func(ws string) {
			project(t)(ws)
			if out, err := exec.Command("chattr", "+"+c.flag, ws+"/"+c.path).CombinedOutput(); err != nil {
				testenv.Need(t, "chattr", fmt.Errorf("%w: %s", err, out))
			}
		})
		before := listing(t, b.ws)
		must(t, os.Mkdir(b.w.dir+"/upper/dir", 0o755)) // the kernel does not let a task do it
		b.upper("dir/a", "mine")
		b.upper("edit", "mine")
		b.upper("new", "mine")
		_, err := b.w.apply(t.Context(), b.change(), nil)
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%+v: %v", c, err)
		}
		if d := differences(before, listing(t, b.ws)); d != "" {
			t.Errorf("%+v: changed:\n%s", c, d)
		}
		if left := leftovers(b.ws); left != nil {
			t.Errorf("%+v: left %v", c, left)
		}
		must(t, exec.Command("chattr", "-"+c.flag, b.ws+"/"+c.path).Run()) // before the box is emptied
	}
}

// TestSparse: a file without end costs what it holds.
func TestSparse(t *testing.T) {
	needOverlay(t)
	b := newBox(t, project(t))
	b.sandbox(func(m string) error {
		var err error
		for _, name := range []string{"hole", "text"} {
			err = errors.Join(err, write(m+"/"+name, strings.Repeat("text\n", 2000)), os.Truncate(m+"/"+name, 15<<40))
		}
		return err
	})
	began := time.Now()
	c := b.change()
	text := b.diff(tree.DiffOptions{}) + b.diff(tree.DiffOptions{Stat: true})
	if !strings.Contains(text, "too large to show") {
		t.Error(text)
	}
	r, err := b.w.patch(t.Context(), c, t.TempDir()+"/p")
	must(t, err)
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0].Text, "64 MiB") {
		t.Errorf("%+v", r.Notes)
	}
	b.promote()
	var st unix.Stat_t
	must(t, unix.Stat(b.ws+"/hole", &st))
	if st.Size != 15<<40 || st.Blocks > 1000 {
		t.Errorf("%d bytes in %d blocks", st.Size, st.Blocks)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestDefaultLists: what is new gets the access control list that its directory has for it, and no other directory's.
func TestDefaultLists(t *testing.T) {
	needOverlay(t)
	// struct posix_acl_xattr: version 2, then tag, permissions and id of each: owner rwx, uid 7 rwx, group r-x, mask rwx, others none.
	list := []byte{2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 7, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255,
		16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255}
	b := newBox(t, func(ws string) {
		must(t, steps(os.Mkdir(ws+"/plain", 0o755), os.Mkdir(ws+"/listed", 0o755)))
		for _, dir := range []string{ws, ws + "/listed"} {
			testenv.Need(t, "acl", unix.Setxattr(dir, "system.posix_acl_default", list, 0))
		}
	})
	b.sandbox(func(m string) error {
		return steps(write(m+"/top", "x"), write(m+"/plain/f", "x"), write(m+"/listed/f", "x"), os.Mkdir(m+"/listed/d", 0o755), write(m+"/listed/d/g", "x"),
			os.Mkdir(m+"/plain/d", 0o755), write(m+"/plain/d/g", "x"))
	})
	b.promote()
	for path, want := range map[string]bool{"top": true, "plain/f": false, "plain/d": false, "plain/d/g": false, "listed/f": true, "listed/d": true, "listed/d/g": true} {
		_, err := unix.Getxattr(b.ws+"/"+path, "system.posix_acl_access", make([]byte, 100))
		if has := err == nil; has != want {
			t.Errorf("%s: list %v, want %v", path, has, want)
		}
	}
	if n, err := unix.Getxattr(b.ws+"/listed/d", "system.posix_acl_default", make([]byte, 100)); n != len(list) {
		t.Errorf("a new directory has no list for what is made in it: %v", err)
	}
}

package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/quota"
)

// needs ends the test where a mechanism cannot be had.
func needs(t testing.TB, m Mechanism, stateDir string) {
	t.Helper()
	feature := map[Mechanism]string{Project: "prjquota", Btrfs: "btrfs", Ext4: "loop", Tmpfs: "root", Watched: "root"}[m]
	for _, s := range Probe(t.Context(), stateDir) {
		if s.Mechanism != m {
			continue
		}
		if !s.Bytes && m != Watched {
			testenv.Need(t, feature, errors.New(s.Reason))
		}
	}
}

func count(n quota.Count) *quota.Count { return &n }

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func create(t testing.TB, s *Store, id string, m Mechanism, l Limits) *Unit {
	t.Helper()
	u, err := s.Create(t.Context(), id, m, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	return u
}

// overlayOn mounts an overlay whose upper and work directories lie in a unit, detached, and returns its path.
func overlayOn(t testing.TB, u *Unit) string {
	t.Helper()
	lower := t.TempDir()
	upper, err := os.MkdirTemp(u.Dir(), "upper")
	if err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(u.Dir(), "work")
	if err != nil {
		t.Fatal(err)
	}
	m, err := mount("overlay", 0, "lowerdir="+lower, "upperdir="+upper, "workdir="+work)
	if errors.Is(err, unix.EINVAL) && u.Mechanism() == Tmpfs && !detachedUppers() {
		return upper // these kernels want upper directories of attached mounts; the limit is the file system's anyway
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return procPath(m)
}

// fill writes until it fails, and says how much that was.
func fill(path string) (quota.Bytes, error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	block := bytes.Repeat([]byte("caisson "), 8<<10)
	var n quota.Bytes
	for err == nil && n < 4*quota.GiB {
		var k int
		k, err = f.Write(block)
		n += quota.Bytes(k)
	}
	if err == nil {
		err = f.Sync()
	}
	return n, errors.Join(err, f.Close())
}

func fillInodesOf(dir string) (n quota.Count, err error) {
	for err == nil && n < 1<<20 {
		var f *os.File
		if f, err = os.Create(filepath.Join(dir, fmt.Sprint(n))); err == nil {
			f.Close()
			n++
		}
	}
	return n, err
}

func within(got, want int64) bool { return got >= want-want/50 && got <= want+want/50 }

func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// TestBytes: a writer inside sees the error at the limit, through an overlay.
func TestBytes(t *testing.T) {
	for _, m := range []Mechanism{Ext4, Tmpfs} {
		for _, limit := range []quota.Bytes{8 * quota.MiB, 200 * quota.MiB} {
			t.Run(fmt.Sprintf("%s/%s", m, limit), func(t *testing.T) {
				dir := t.TempDir()
				needs(t, m, dir)
				u := create(t, openStore(t, dir), "a", m, Limits{Bytes: limit, Inodes: count(1000)})
				checkBytes(t, u, limit)
			})
		}
	}
}

func checkBytes(t *testing.T, u *Unit, limit quota.Bytes) {
	t.Helper()
	inside, began := overlayOn(t, u), time.Now()
	before, err := u.Usage()
	if err != nil || before.Used > limit/100 || before.Limit != limit || before.Full() || before.HostFree == 0 {
		t.Fatalf("before: %+v, %v", before, err)
	}
	n, err := fill(filepath.Join(inside, "big"))
	t.Logf("%s: %d of %d bytes (%+.2f %%), %v", u.Mechanism(), n, limit, float64(n-limit)/float64(limit)*100, err)
	if !full(err) || n < limit-limit/50 || n > limit+limit/50+slackBytes {
		t.Errorf("%d of %d bytes, %v", n, limit, err)
	}
	after, err := u.Usage()
	if err != nil || !after.Full() || after.Percent() < 98 || !within(int64(after.Used), int64(limit)) {
		t.Errorf("after: %+v, %v", after, err)
	}
	// What is removed can be used again, and that it was full stays known.
	if err := os.Remove(filepath.Join(inside, "big")); err != nil {
		t.Fatal(err)
	}
	now, err := u.Usage()
	for deadline := time.Now().Add(10 * time.Second); err == nil && now.Full() && time.Now().Before(deadline); now, err = u.Usage() {
		runtime.Gosched() // xfs gives it back in the background, and has no event for it
	}
	if err != nil || now.Full() {
		t.Errorf("removed: %+v, %v", now, err)
	}
	removed := time.Now()
	if then, ok := u.WasFull(began); !ok || then != after {
		t.Errorf("%+v %v, want %+v", then, ok, after)
	}
	if then, ok := u.WasFull(removed); ok {
		t.Errorf("full after it was empty: %+v", then)
	}
	if again, err := fill(filepath.Join(inside, "again")); !full(err) || !within(int64(again), int64(limit)) {
		t.Errorf("again: %d of %d bytes, %v", again, limit, err)
	}
}

func TestInodes(t *testing.T) {
	for _, m := range []Mechanism{Ext4, Tmpfs} {
		for _, limit := range []quota.Count{1000, 20_000} {
			t.Run(fmt.Sprintf("%s/%d", m, limit), func(t *testing.T) {
				dir := t.TempDir()
				needs(t, m, dir)
				u := create(t, openStore(t, dir), "a", m, Limits{Bytes: 400 * quota.MiB, Inodes: &limit})
				checkInodes(t, u, limit)
			})
		}
	}
}

func checkInodes(t *testing.T, u *Unit, limit quota.Count) {
	t.Helper()
	inside := overlayOn(t, u)
	n, err := fillInodesOf(inside)
	t.Logf("%s: %d of %d inodes (%+.2f %%), %v", u.Mechanism(), n, limit, float64(n-limit)/float64(limit)*100, err)
	if !full(err) || !within(int64(n), int64(limit)) {
		t.Errorf("%d of %d inodes, %v", n, limit, err)
	}
	usage, err := u.Usage()
	if err != nil || !usage.Full() || usage.Percent() < 98 {
		t.Errorf("after: %+v, %v", usage, err)
	}
	if err := os.Remove(filepath.Join(inside, "7")); err != nil {
		t.Fatal(err)
	}
	// xfs deletes in the background.
	for n := range 1000 {
		var f *os.File
		if f, err = os.Create(filepath.Join(inside, "7")); err == nil {
			f.Close()
			break
		}
		if n < 999 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestBallast: in a full unit what a seal needs can be made all the same, and the writer does not get it.
func TestBallast(t *testing.T) {
	for _, m := range []Mechanism{Ext4, Tmpfs} {
		t.Run(string(m), func(t *testing.T) {
			dir := t.TempDir()
			needs(t, m, dir)
			checkBallast(t, create(t, openStore(t, dir), "a", m, Limits{Bytes: 10 * quota.MiB, Inodes: count(500)}))
		})
	}
}

func checkBallast(t *testing.T, u *Unit) {
	t.Helper()
	inside := overlayOn(t, u)
	if n, err := fill(filepath.Join(inside, "big")); !full(err) {
		t.Fatal(n, err)
	}
	if n, err := fillInodesOf(inside); !full(err) {
		t.Fatal(n, err)
	}
	for range 3 {
		if err := u.Reserve(true); err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			if err := os.MkdirAll(filepath.Join(u.Dir(), fmt.Sprint("layer", n)), 0o700); err != nil {
				t.Fatal(n, err)
			}
			if err := os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint("layer", n), "x"), nil, 0o600); n < 5 && err != nil {
				t.Fatal(n, err)
			}
			if n >= 5 {
				_ = os.Remove(filepath.Join(u.Dir(), fmt.Sprint("layer", n), "x"))
			}
		}
		for n := range 20 {
			if err := os.RemoveAll(filepath.Join(u.Dir(), fmt.Sprint("layer", n))); err != nil {
				t.Fatal(err)
			}
		}
		if err := u.Reserve(false); err != nil {
			t.Fatal("taking it back:", err)
		}
		// A few blocks that the file system had set aside come and go; a ballast does not.
		if n, err := fill(filepath.Join(inside, "0")); !full(err) || n > Ballast/4 {
			t.Fatalf("the ballast is not back: %d bytes, %v", n, err)
		}
	}
	// Where something of it was used up, that is said, and the next time the rest is given.
	if err := u.Reserve(true); err != nil {
		t.Fatal(err)
	}
	if _, err := fillInodesOf(inside); !full(err) {
		t.Fatal(err)
	}
	if err := u.Reserve(false); u.Mechanism() != Project && !full(err) { // root is not bound by quotas but through an overlay
		t.Fatal(err)
	}
}

// TestBallastInPart: what a seal has used of the ballast is missing, and the rest is kept back again, until there is too little.
func TestBallastInPart(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	u := create(t, openStore(t, dir), "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(500)})
	inside := overlayOn(t, u)
	if n, err := fill(filepath.Join(inside, "big")); !full(err) {
		t.Fatal(n, err)
	}
	for i, enough := range []bool{true, false} {
		if err := u.Reserve(true); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint("layer", i)), make([]byte, Ballast/3), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := u.Reserve(false); enough && err != nil || !enough && !full(err) {
			t.Errorf("after %d: %v", i, err)
		}
		if n, err := fill(filepath.Join(inside, fmt.Sprint(i))); !full(err) || n > Ballast/4 {
			t.Errorf("the rest is not kept back: %d bytes, %v", n, err)
		}
	}
	if err := os.Remove(filepath.Join(u.Dir(), "layer0")); err != nil {
		t.Fatal(err)
	}
	if err := u.Reserve(false); err != nil {
		t.Errorf("there is room again: %v", err)
	}
}

// TestOpen: what is in a unit is there again, for several openers at once, and the device is one.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	u := create(t, s, "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)})
	if err := os.WriteFile(filepath.Join(u.Dir(), "x"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "a", Ext4, Limits{Bytes: 10 * quota.MiB}); !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	v, err := s.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(v.Dir(), "y"), []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(u.Dir(), "y")); err != nil || string(data) != "2" {
		t.Fatalf("%q, %v: they do not share the file system", data, err)
	}
	if n := len(bound(dir)); n != 1 {
		t.Fatalf("%d loop devices", n)
	}
	if err := errors.Join(u.Close(), u.Close(), v.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Usage(); !errors.Is(err, fs.ErrClosed) {
		t.Error(err)
	}
	if n := devices(t, dir); n != 0 {
		t.Fatalf("%d loop devices are left", n)
	}
	if u, err = s.Open(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(u.Dir(), "x")); err != nil || string(data) != "1" {
		t.Fatalf("%q, %v", data, err)
	}
	if info, err := os.Stat(u.Dir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatal(info.Mode(), err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Remove(t.Context(), "a"), s.Remove(t.Context(), "a")); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "features", "a")); len(left) != 0 {
		t.Fatal(left)
	}
	if _, err := s.Open(t.Context(), "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}

// bound lists the loop devices whose image is below dir.
func bound(dir string) (list []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if name, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(name), dir) {
			list = append(list, f)
		}
	}
	return list
}

// devices counts them when the kernel has had time: it lets go of one when the last mount has gone, which can still be on
// the way when a close has returned, or a process ended.
func devices(t testing.TB, dir string) (n int) {
	t.Helper()
	for range 1000 {
		if n = len(bound(dir)); n == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return n
}

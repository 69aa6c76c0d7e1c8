package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
)

// TestResize: limits change while the unit is in use, down and up again and beyond what it was made for.
func TestResize(t *testing.T) {
	for _, m := range []Mechanism{Ext4, Tmpfs} {
		t.Run(string(m), func(t *testing.T) {
			dir := t.TempDir()
			needs(t, m, dir)
			s := openStore(t, dir)
			u := create(t, s, "a", m, Limits{Bytes: 40 * quota.MiB, Inodes: count(1000)})
			keep := filepath.Join(u.Dir(), "keep")
			if err := os.WriteFile(keep, make([]byte, 5*quota.MiB), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, l := range []struct {
				bytes  quota.Bytes
				inodes quota.Count
			}{{20 * quota.MiB, 500}, {40 * quota.MiB, 1000}, {10 * quota.MiB, 300}, {100 * quota.MiB, 900}} {
				err := u.Resize(t.Context(), Limits{Bytes: l.bytes, Inodes: &l.inodes})
				if m == Ext4 && l.bytes > 40*quota.MiB && !mayGrow() {
					if !errors.Is(err, ErrResize) {
						t.Error(err)
					}
					return
				}
				if err != nil {
					t.Fatalf("%s, %d: %v", l.bytes, l.inodes, err)
				}
				checkLimits(t, u, l.bytes-5*quota.MiB, l.inodes)
			}
			if err := u.Resize(t.Context(), Limits{Bytes: 3 * quota.MiB, Inodes: count(900)}); !errors.Is(err, ErrResize) {
				t.Error("smaller than what is in it:", err)
			}
			if err := u.Resize(t.Context(), Limits{Bytes: 100 * quota.MiB}); !errors.Is(err, ErrResize) {
				t.Error("without a limit of inodes:", err)
			}
			if err := u.Resize(t.Context(), Limits{Bytes: 100 * quota.MiB, Inodes: count(5000)}); m == Ext4 && !errors.Is(err, ErrResize) {
				t.Error("more inodes than it was made for:", err)
			}
			if info, err := os.Stat(keep); err != nil || info.Size() != int64(5*quota.MiB) {
				t.Error(info, err)
			}
			if err := u.Close(); err != nil || m == Tmpfs {
				return
			}
			again, err := s.Open(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			if l := again.Limits(); l.Bytes != 100*quota.MiB || *l.Inodes != 900 {
				t.Errorf("%+v", l)
			}
		})
	}
}

// mayGrow says whether root here may make a mounted ext4 larger, which containers' roots may not.
func mayGrow() bool {
	const sysResource = 24
	have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, sysResource, 0, 0, 0)
	return err == nil && have == 1
}

func checkLimits(t *testing.T, u *Unit, bytes quota.Bytes, inodes quota.Count) {
	t.Helper()
	inside := overlayOn(t, u)
	if n, err := fill(filepath.Join(inside, "big")); !full(err) || n < bytes-bytes/50 || n > bytes+bytes/50+slackBytes {
		t.Errorf("%s: %d of %d bytes, %v", u.Mechanism(), n, bytes, err)
	}
	if usage, err := u.Usage(); err != nil || !usage.Full() || usage.Percent() > 101 {
		t.Errorf("%+v, %v", usage, err)
	}
	os.Remove(filepath.Join(inside, "big"))
	if n, err := fillInodesOf(inside); !full(err) || n < inodes-inodes/20 || n > inodes+inodes/20+slackInodes {
		t.Errorf("%s: %d of %d inodes, %v", u.Mechanism(), n, inodes, err)
	}
	entries, err := os.ReadDir(inside)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(inside, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDiscard leaves nothing, however much was written, and writes none of it to the disk.
func TestDiscard(t *testing.T) {
	for _, m := range []Mechanism{Ext4, Tmpfs, Watched} {
		dir := t.TempDir()
		needs(t, m, dir)
		s := openStore(t, dir)
		u := create(t, s, "a", m, Limits{Bytes: 100 * quota.MiB, Inodes: count(100)})
		if err := os.WriteFile(filepath.Join(u.Dir(), "x"), make([]byte, 50*quota.MiB), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(u.Discard(), u.Discard(), u.Close()); err != nil {
			t.Error(m, err)
		}
		if left, _ := os.ReadDir(filepath.Join(dir, "features/a")); len(left) != 0 || devices(t, dir) != 0 {
			t.Error(m, left)
		}
	}
}

// TestDiscardInUse: a sandbox that is still ending has the unit mounted.
func TestDiscardInUse(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	u := create(t, openStore(t, dir), "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)})
	f, err := os.Create(filepath.Join(u.Dir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Discard(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(make([]byte, quota.MiB)); err != nil {
		t.Error(err)
	}
	f.Close()
	if n := devices(t, dir); n != 0 {
		t.Errorf("%d loop devices are left", n)
	}
}

// TestWatched: nothing stops a writer, and it is noticed.
func TestWatched(t *testing.T) {
	dir := t.TempDir()
	u := create(t, openStore(t, dir), "a", Watched, Limits{Bytes: 5 * quota.MiB, Inodes: count(100)})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	alerts := u.Watch(ctx, nil)
	// A link out of it, hard links, a hole and a directory that cannot be read count for what they are.
	for _, do := range []error{
		os.Symlink("/usr", filepath.Join(u.Dir(), "out")), os.WriteFile(filepath.Join(u.Dir(), "f"), make([]byte, quota.MiB), 0o600),
		os.Link(filepath.Join(u.Dir(), "f"), filepath.Join(u.Dir(), "g")), os.MkdirAll(filepath.Join(u.Dir(), "a/b/c"), 0o700),
		os.WriteFile(filepath.Join(u.Dir(), "hole"), nil, 0o600), os.Truncate(filepath.Join(u.Dir(), "hole"), 1<<40),
	} {
		if do != nil {
			t.Fatal(do)
		}
	}
	usage, err := u.Usage()
	if err != nil || usage.Used > quota.MiB || usage.Used < quota.MiB-slackBytes || usage.Inodes != 0 || usage.Full() {
		t.Errorf("%+v, %v", usage, err)
	}
	if err := os.WriteFile(filepath.Join(u.Dir(), "more"), make([]byte, 9*quota.MiB), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // as long as it is so
		if usage, ok := <-alerts; !ok || usage.Percent() < 190 || !usage.Full() {
			t.Errorf("%+v %v", usage, ok)
		}
	}
	if err := u.Reserve(true); err != nil {
		t.Error(err)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	for range alerts {
	}
}

// TestWatchedHidden: what a walk through the directory does not see.
func TestWatchedHidden(t *testing.T) {
	u := create(t, openStore(t, t.TempDir()), "a", Watched, Limits{Bytes: 5 * quota.MiB, Inodes: count(10_000)})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	self := func(context.Context) ([]int, error) { return []int{os.Getpid()}, nil }
	defer func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}()

	// A file without a name, open.
	f, err := os.Create(filepath.Join(u.Dir(), "gone"))
	if err == nil {
		_, err = f.Write(make([]byte, 9*quota.MiB))
	}
	if err := errors.Join(err, os.Remove(f.Name()), f.Sync()); err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(ctx)
	if usage := <-u.Watch(watching, self); usage.Percent() < 170 || usage.Unknown != "" {
		t.Errorf("%+v", usage)
	}
	stop()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if usage, err := u.look(ctx, self); err != nil || usage.Used > 0 {
		t.Errorf("%+v %v", usage, err)
	}

	// What cannot be measured is over the limit.
	at, err := unix.Open(u.Dir(), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for n := 0; n < 3100 && err == nil; n++ {
		var next int
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			next, err = unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			_ = unix.Close(at)
			at = next
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(at)
	usage, ok := <-u.Watch(ctx, nil)
	if !ok || usage.Unknown == "" || usage.Percent() < 100 || !usage.Full() {
		t.Errorf("%+v", usage)
	}
	if err := os.RemoveAll(filepath.Join(u.Dir(), "d")); err != nil {
		t.Error(err)
	}
}

// TestWatch tells of each level once.
func TestWatch(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	u := create(t, openStore(t, dir), "a", Ext4, Limits{Bytes: 20 * quota.MiB, Inodes: count(100)})
	ctx, cancel := context.WithCancel(t.Context())
	alerts := u.Watch(ctx, nil)
	for n, c := range []struct {
		size        quota.Bytes
		least, most int
	}{{16 * quota.MiB, 75, 81}, {5 * quota.MiB / 2, 90, 93}} {
		if err := os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint(n)), make([]byte, c.size), 0o600); err != nil {
			t.Fatal(err)
		}
		// It may have looked while that was being written.
		if usage := <-alerts; usage.Percent() < c.least || usage.Percent() > c.most {
			t.Errorf("%+v: %d %%, want %d to %d", usage, usage.Percent(), c.least, c.most)
		}
	}
	cancel()
	for range alerts {
	}
}

// TestTemplates: one for each pair of limits; Clean takes away old ones and what was left half-made.
func TestTemplates(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	l := Limits{Bytes: 10 * quota.MiB, Inodes: count(100)}
	for range 2 {
		if err := s.Warm(t.Context(), Ext4, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Warm(t.Context(), Ext4, Limits{Bytes: 2 * quota.MiB}); err != nil {
		t.Fatal(err)
	}
	templates := func() []string {
		list, _ := filepath.Glob(filepath.Join(dir, "disk", templatePrefix+"*"))
		return list
	}
	if got := templates(); len(got) != 4 { // image and description of each
		t.Fatal(got)
	}
	a, b := create(t, s, "a", Ext4, l), create(t, s, "b", Ext4, l)
	ids := map[[16]byte]bool{}
	for _, u := range []*Unit{a, b} {
		image, err := os.Open(u.place.image())
		if err != nil {
			t.Fatal(err)
		}
		id, err := ext4.UUID(image)
		image.Close()
		if err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	if len(ids) != 2 {
		t.Error("two file systems have one UUID")
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	if fsck, err := ext4.Tool("e2fsck"); err == nil { // what we write into the superblock is in order
		if out, err := exec.Command(fsck, "-fn", a.place.image()).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	old := time.Now().Add(-2 * templateAge)
	for _, name := range templates() {
		if strings.Contains(name, "-2m-") {
			if err := os.Chtimes(name, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "disk", "ext4-x.img.new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := s.Clean(t.Context())
	if err != nil || len(done) != 3 || len(templates()) != 2 {
		t.Error(done, templates(), err)
	}
}

func TestChoose(t *testing.T) {
	can := func(m Mechanism, bytes, inodes, persistent bool) Support {
		return Support{Mechanism: m, Bytes: bytes, Inodes: inodes, Persistent: persistent, Reason: string(m) + " reason", Remedy: string(m) + " remedy"}
	}
	all := []Support{can(Project, true, true, true), can(Btrfs, true, false, true), can(Ext4, true, true, true), can(Tmpfs, true, true, false), can(Watched, false, false, true)}
	none := []Support{can(Project, false, false, false), can(Btrfs, false, false, false), can(Ext4, false, false, false), can(Tmpfs, false, false, false), can(Watched, false, false, true)}
	inodes, bytes := Limits{Bytes: quota.GiB, Inodes: count(1000)}, Limits{Bytes: quota.GiB}
	for _, c := range []struct {
		all                []Support
		l                  Limits
		persistent, weaker bool
		want               Mechanism
	}{
		{all, inodes, true, false, Project}, {all[1:], inodes, true, false, Ext4}, {all[1:], bytes, true, false, Btrfs},
		{all[3:], inodes, false, false, Tmpfs}, {all[3:], inodes, true, false, ""}, {all[3:], inodes, true, true, Watched},
		{none, bytes, false, false, ""}, {none, bytes, false, true, Watched}, {all, bytes, true, true, Project}, // weaker is no wish
	} {
		m, err := Choose(c.all, c.l, c.persistent, c.weaker)
		if m != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%+v: %s, %v", c, m, err)
		}
		var u *UnavailableError
		if c.want == "" && (!errors.As(err, &u) || !errors.Is(err, ErrUnavailable) || len(u.Reasons) == 0) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	_, err := Choose(none, bytes, true, false)
	if u, ok := errors.AsType[*UnavailableError](err); !ok || !strings.Contains(err.Error(), "ext4: ext4 reason") || !strings.HasPrefix(u.Remedy, "project remedy; or btrfs remedy; or ") {
		t.Error(err)
	}
	for _, l := range []Limits{{}, {Bytes: 1}, {Bytes: quota.GiB, Inodes: count(0)}, {Bytes: quota.GiB, Total: quota.MiB}, {Bytes: -1}} {
		var bad *quota.LimitError
		if _, err := Choose(all, l, true, false); !errors.As(err, &bad) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// TestUnprivileged: an ordinary user is told why, and can have what is watched.
func TestUnprivileged(t *testing.T) {
	if os.Geteuid() == 0 {
		testenv.Need(t, "unprivileged", asUser(t))
		return
	}
	dir := t.TempDir()
	for _, s := range Probe(t.Context(), dir) {
		if s.Bytes || s.Reason == "" {
			t.Errorf("%+v", s)
		}
	}
	l := Limits{Bytes: 5 * quota.MiB, Inodes: count(100)}
	if _, err := Choose(Probe(t.Context(), dir), l, true, false); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	m, err := Choose(Probe(t.Context(), dir), l, true, true)
	if err != nil || m != Watched {
		t.Fatal(m, err)
	}
	s := openStore(t, dir)
	u := create(t, s, "a", m, l)
	if usage, err := u.Usage(); err != nil || usage.Limit != l.Bytes {
		t.Errorf("%+v, %v", usage, err)
	}
	// What its owner may not read counts, and stays as it is.
	shut := filepath.Join(u.Dir(), "a")
	below := filepath.Join(shut, "b")
	if err := errors.Join(os.MkdirAll(below, 0o700), os.WriteFile(filepath.Join(below, "f"), make([]byte, 9*quota.MiB), 0o600),
		os.Chmod(below, 0o200), os.Chmod(shut, 0)); err != nil {
		t.Fatal(err)
	}
	if usage, err := u.Usage(); err != nil || usage.Used < 8*quota.MiB || !usage.Full() {
		t.Errorf("%+v, %v", usage, err)
	}
	if info, err := os.Stat(shut); err != nil || info.Mode().Perm() != 0 {
		t.Error(info, err)
	}
	if err := errors.Join(os.Chmod(shut, 0o700), os.Chmod(below, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(u.Close(), s.Remove(t.Context(), "a")); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(t.Context(), "b", Ext4, l); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, exec.ErrNotFound) {
		t.Error(err)
	}
}

// asUser runs this test again as an ordinary user.
func asUser(t *testing.T) error {
	t.Helper()
	program := filepath.Join(os.TempDir(), fmt.Sprint("caisson-disk-test-", os.Getpid()))
	data, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		return err
	}
	defer os.Remove(program)
	home := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(home), 0o755), os.Chown(home, 65533, 65533)); err != nil {
		return err
	}
	c := exec.Command(program, "-test.run=^TestUnprivileged$")
	c.Dir, c.Env = home, []string{"TMPDIR=" + home}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return nil
}

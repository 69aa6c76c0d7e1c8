package disk

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
)

const holder = "CAISSON_DISK_TEST_HOLDER"

// TestMain lets the test binary be another process that has a unit open.
func TestMain(m *testing.M) {
	if dir := os.Getenv(holder); dir != "" {
		if err := hold(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold opens unit a, says what its device sees, and waits for the end of its input.
func hold(dir string) error {
	s, err := OpenStore(dir)
	if err != nil {
		return err
	}
	u, err := s.Open(context.Background(), "a")
	if errors.Is(err, fs.ErrNotExist) {
		u, err = s.Create(context.Background(), "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)})
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(u.Dir(), fmt.Sprint("by", os.Getpid())), []byte("written"), 0o600); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, u.Close())
}

// startHolder returns a process that has unit a open, and what makes it end by itself.
func startHolder(t *testing.T, dir string) (c *exec.Cmd, end func()) {
	t.Helper()
	c = exec.Command(os.Args[0])
	c.Env = append(os.Environ(), holder+"="+dir)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	return c, func() {
		in.Close()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestKilled: a process that is killed with a unit open leaves no device, and its unit in order.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	written := map[string]bool{}
	for range 5 {
		c, _ := startHolder(t, dir)
		written[fmt.Sprint("by", c.Process.Pid)] = true
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if !detachedUppers() { // there the mount stays for the next one
			if done, err := s.Clean(t.Context()); err != nil || len(done) != 1 {
				t.Fatal(done, err)
			}
		}
		if n := devices(t, dir); n != 0 {
			t.Fatalf("%d loop devices are left", n)
		}
	}
	u, err := s.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for name := range written {
		if data, err := os.ReadFile(filepath.Join(u.Dir(), name)); err != nil || string(data) != "written" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

// TestTwoProcesses share one device, whoever ends first.
func TestTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	c, end := startHolder(t, dir)
	u, err := s.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(bound(dir)); n != 1 {
		t.Fatalf("%d loop devices", n)
	}
	if _, err := os.Stat(filepath.Join(u.Dir(), fmt.Sprint("by", c.Process.Pid))); err != nil {
		t.Error(err)
	}
	// It is in use, and stays whole when somebody else needs room.
	if err := u.place.shrink(t.Context()); err != nil || u.place.Idle != nil {
		t.Error("shrunk while it is open:", err)
	}
	end()
	if err := os.WriteFile(filepath.Join(u.Dir(), "later"), []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	if err := errors.Join(u.Sync(), u.Close()); err != nil {
		t.Error(err)
	}
	if n := devices(t, dir); n != 0 {
		t.Fatalf("%d loop devices are left", n)
	}
}

// TestManyAtOnce: processes that open and close one unit over and over never get two devices for it, nor an error.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	create(t, s, "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)}).Close()
	deadline := time.Now().Add(2 * time.Second)
	errs := make(chan error)
	for range 6 {
		go func() {
			for n := 0; time.Now().Before(deadline); n++ {
				u, err := s.Open(t.Context(), "a")
				if err != nil {
					errs <- err
					return
				}
				err = os.WriteFile(filepath.Join(u.Dir(), "x"), []byte(fmt.Sprint(n)), 0o600)
				if err := errors.Join(err, u.Close()); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	most := 0
	for range 6 {
		for waiting := true; waiting; {
			select {
			case err := <-errs:
				if err != nil {
					t.Error(err)
				}
				waiting = false
			default:
				most = max(most, len(bound(dir)))
			}
		}
	}
	if n := devices(t, dir); most > 1 || n != 0 {
		t.Errorf("%d devices at once, %d left", most, n)
	}
}

// TestPowerLoss: an image that was not unmounted is checked before it is used.
func TestPowerLoss(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	u := create(t, s, "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)})
	if err := os.WriteFile(filepath.Join(u.Dir(), "x"), []byte("synced"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := u.Sync(); err != nil {
		t.Fatal(err)
	}
	// What the disk has at this moment is feature b.
	if err := os.CopyFS(filepath.Join(dir, "features/b"), os.DirFS(filepath.Join(dir, "features/a"))); err != nil {
		t.Fatal(err)
	}
	image, err := os.Open(filepath.Join(dir, "features/b", imageName))
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if clean, err := ext4.Clean(image); err != nil || clean {
		t.Fatal("the kernel does not say that it is mounted", err)
	}
	v, err := s.Open(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if data, err := os.ReadFile(filepath.Join(v.Dir(), "x")); err != nil || string(data) != "synced" {
		t.Errorf("%q, %v", data, err)
	}
}

// TestDamaged: what is broken is named, can be removed, and is no matter for the others.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	s := openStore(t, dir)
	l := Limits{Bytes: 10 * quota.MiB, Inodes: count(100)}
	file := func(id, name string) string { return filepath.Join(dir, "features", id, name) }
	for id, damage := range map[string]func(id string) error{
		"noimage": func(id string) error { return os.Remove(file(id, imageName)) },
		"cut":     func(id string) error { return os.Truncate(file(id, imageName), 512) },
		"zeros": func(id string) error {
			return errors.Join(os.Truncate(file(id, imageName), 0), os.Truncate(file(id, imageName), 1<<20))
		},
		"norecord": func(id string) error { return os.WriteFile(file(id, recordName), nil, 0o600) },
		"junk":     func(id string) error { return os.WriteFile(file(id, recordName), []byte("{"), 0o600) },
		"newer":    func(id string) error { return os.WriteFile(file(id, recordName), []byte(`{"version":99}`), 0o600) },
		"mechanism": func(id string) error {
			return os.WriteFile(file(id, recordName), []byte(`{"version":1,"mechanism":"x"}`), 0o600)
		},
	} {
		create(t, s, id, Ext4, l).Close()
		if err := damage(id); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Open(t.Context(), id); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", id, err)
		}
		create(t, s, id+"-beside", Ext4, Limits{Bytes: l.Bytes, Inodes: l.Inodes, Total: quota.GiB}).Close()
		if err := s.Remove(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	list, err := s.List()
	if err != nil || len(list) != 7 {
		t.Errorf("%v, %v", list, err)
	}
	for _, id := range []string{"", ".", "..", "a/b", "../x"} {
		if _, err := s.Open(t.Context(), id); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
	if n := devices(t, dir); n != 0 {
		t.Errorf("%d loop devices are left", n)
	}
}

// TestAttached: what kernels before 6.15 get.
func TestAttached(t *testing.T) {
	dir := t.TempDir()
	needs(t, Ext4, dir)
	detached := detachedUppers
	detachedUppers = func() bool { return false }
	defer func() { detachedUppers = detached }()
	s := openStore(t, dir)
	u := create(t, s, "a", Ext4, Limits{Bytes: 10 * quota.MiB, Inodes: count(100)})
	if want := filepath.Join(dir, "disk/mounts/a"); u.Dir() != want+"/disk" || !mountpoint(want) {
		t.Fatal(u.Dir())
	}
	v, err := s.Open(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(v.Dir(), "x"), []byte("1"), 0o600), u.Close()); err != nil {
		t.Fatal(err)
	}
	if !mountpoint(v.place.mounted()) {
		t.Fatal("the first one that closes takes it away")
	}
	v.use.Close() // as if killed
	v.volume.(*attachedVolume).use.Close()
	done, err := s.Clean(t.Context())
	if err != nil || len(done) != 1 || mountpoint(v.place.mounted()) {
		t.Fatal(done, err)
	}
	v.volume.(*attachedVolume).root.Close()
	if n := devices(t, dir); n != 0 {
		t.Fatalf("%d loop devices are left", n)
	}
	if u, err = s.Open(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(u.Dir(), "x")); err != nil || string(data) != "1" {
		t.Errorf("%q, %v", data, err)
	}
	if err := u.Discard(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "features/a")); len(left) != 0 || devices(t, dir) != 0 {
		t.Error(left)
	}
}

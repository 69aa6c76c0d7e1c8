package holders

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// elsewhere is a directory on another mount than the root: /dev/shm, or /proc, which every host has.
func elsewhere(t *testing.T) (dir string, mount uint64) {
	t.Helper()
	dir = "/proc"
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st); err != nil {
		t.Fatal(err)
	}
	return dir, st.Mnt_id
}

// inThread runs f on a thread of its own, which then stays as it is until the test ends.
func inThread(t *testing.T, f func() error) {
	t.Helper()
	ready, end, gone := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		runtime.LockOSThread() // never unlocked: the thread ends here
		ready <- f()
		<-end
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(end); <-gone })
}

func scanSelf(t *testing.T, mount uint64) []string {
	t.Helper()
	table, err := ReadTable(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	uses, err := Scan(os.Getpid(), table, map[uint64]bool{mount: true})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, u := range uses {
		if u.PID != os.Getpid() || u.Command == "" || u.Mount != mount {
			t.Errorf("%+v", u)
		}
		out = append(out, u.What+" "+u.Path)
	}
	return out
}

// TestThreads: a thread may have a working directory and descriptors of its own, and both hold.
func TestThreads(t *testing.T) {
	dir, mount := elsewhere(t)
	if got := scanSelf(t, mount); slices.Contains(got, "cwd "+dir) {
		t.Fatalf("before: %q", got)
	}
	t.Run("cwd", func(t *testing.T) {
		inThread(t, func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return unix.Chdir(dir)
		})
		if got := scanSelf(t, mount); !slices.Contains(got, "cwd "+dir) {
			t.Errorf("%q", got)
		}
	})
	t.Run("root", func(t *testing.T) {
		if os.Geteuid() != 0 {
			testenv.Need(t, "root", errors.New("changes a thread's root"))
		}
		inThread(t, func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return unix.Chroot(dir)
		})
		if got := scanSelf(t, mount); !slices.Contains(got, "root "+dir) {
			t.Errorf("%q", got)
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		inThread(t, func() error {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				return err
			}
			_, err := unix.Open(dir+"/version", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return err
		})
		if got := scanSelf(t, mount); !slices.Contains(got, "fd "+dir+"/version") {
			t.Errorf("%q", got)
		}
	})
}

// TestMaps: a mapping holds when its descriptor is closed; a shared one is named even if it is only read now.
func TestMaps(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a file")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	f.Close()
	table, err := ReadTable(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	mount := table.At(name)
	if got := scanSelf(t, mount); !slices.Contains(got, "map "+name) {
		t.Errorf("%q", got)
	}
	got, err := Shared(os.Getpid(), table, map[uint64]bool{mount: true})
	if err != nil || !slices.Contains(got, name) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestGone(t *testing.T) {
	c := exec.Command("true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	table, err := ReadTable(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if uses, err := Scan(c.Process.Pid, table, nil); err != nil || len(uses) > 0 {
		t.Errorf("%v, %v", uses, err)
	}
	if files, err := Shared(c.Process.Pid, table, nil); err != nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
}

func TestTable(t *testing.T) {
	table, err := parseTable([]byte(strings.Join([]string{
		`1 0 8:1 / / rw - ext4 /dev/x rw`, `2 1 0:2 / /workspace rw shared:1 - overlay none rw`,
		`3 2 0:3 / /workspace/a\040b rw - tmpfs none rw`, `4 1 0:4 / /work rw - tmpfs none rw`, `5 2 0:5 / /workspace rw - tmpfs none rw`,
	}, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]uint64{
		"/": 1, "/x": 1, "/workspace": 5, "/workspace/x": 5, "/workspace/a b": 3, "/workspace/a b/x": 3, "/work": 4, "/works": 1,
	} {
		if got := table.At(path); got != want {
			t.Errorf("%s is on mount %d, want %d", path, got, want)
		}
	}
	if m, ok := table.Mounted("/workspace"); !ok || m.ID != 5 {
		t.Errorf("%+v", m)
	}
	if got := table.Below(Mount{ID: 2, Point: "/workspace"}); len(got) != 1 || got[0].ID != 3 {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"x", "a 0 8:1 / / rw", "1 b 8:1 / / rw"} {
		if _, err := parseTable([]byte(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestRunning: who is stopped cannot run, nor a parent that waits for a stopped child in vfork.
func TestRunning(t *testing.T) {
	c := exec.Command("sh", "-c", "echo; read x")
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
	defer func() { _ = c.Wait() }()
	defer in.Close()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := c.Process.Pid
	if got := Running([]int{pid}); !slices.Equal(got, []int{pid}) {
		t.Errorf("%v while it waits for input", got)
	}
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WUNTRACED, nil); err != nil {
		t.Fatal(err)
	}
	if got := Running([]int{pid}); len(got) > 0 {
		t.Errorf("%v while it is stopped", got)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

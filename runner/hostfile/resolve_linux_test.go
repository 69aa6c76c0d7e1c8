package hostfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// A link is followed to the name that it means, and one of /proc to an open file means none.
func TestResolve(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	open, err := os.Create("open")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := os.MkdirAll("d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	fd := fmt.Sprintf("/proc/self/fd/%d", open.Fd())
	for name, to := range map[string]string{
		"file": "open", "twice": "file", "absolute": filepath.Join(dir, "open"), "new": "d/new", "directory": "d", "far": "d/e", "up": "far/../../open",
		"lost": "none/such", "loop": "pool", "pool": "loop", "stdout": fd, "again": "stdout", "fds": "/proc/self/fd", "null": "/dev/null",
	} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"open": "open", "file": "open", "twice": "open", "absolute": "open", "none": "none", "new": "d/new", "directory": "d", "directory/x": "d/x", "up": "open",
		"d/": "d", "far/../x": "d/x", "d/..": ".", "far/..": "d", ".": ".",
	} {
		if got, err := Resolve(path); err != nil || got != filepath.Join(dir, want) {
			t.Errorf("%s is %s, %v, not %s", path, got, err, want)
		}
	}
	if got, err := Resolve("null"); err != nil || got != "/dev/null" {
		t.Error(got, err)
	}
	for path, want := range map[string]error{
		"lost": fs.ErrNotExist, "none/such": fs.ErrNotExist, "loop": syscall.ELOOP, "open/": syscall.ENOTDIR, "open/x": syscall.ENOTDIR,
		"stdout": ErrProc, "again": ErrProc, fd: ErrProc, "/proc/sys/kernel/hostname": ErrProc, fmt.Sprintf("fds/%d", open.Fd()): ErrProc,
	} {
		if got, err := Resolve(path); got != "" || !errors.Is(err, want) {
			t.Errorf("%s is %q, %v, not %v", path, got, err, want)
		}
	}
}

// A link that somebody else left in a directory of everybody's is followed only where the kernel would.
func TestResolveProtected(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", errors.New("only root gives links away"))
	}
	dir := filepath.Join(t.TempDir(), "everybodys")
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|fs.ModeSticky), os.Symlink("/etc/planted", link), os.Lchown(link, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	_, asked := os.Stat(link)
	if _, err := Resolve(link); errors.Is(err, fs.ErrPermission) != errors.Is(asked, fs.ErrPermission) {
		t.Fatalf("%v, and the kernel says %v", err, asked)
	}
}

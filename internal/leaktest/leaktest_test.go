//go:build linux

package leaktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// TestFind proves that each kind can be found, and that nothing is found after it is gone.
func TestFind(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", fmt.Errorf("uid %d cannot mount", os.Geteuid()))
	}
	word := fmt.Sprintf("leaktest%d", os.Getpid()) // other tests run on this host at the same time
	dir, err := os.MkdirTemp("", word)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := unix.Mount(word, dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	program := filepath.Join(t.TempDir(), word)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if sleep, err = filepath.EvalSymlinks(sleep); err != nil { // busybox goes by its own name
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "1000")
	if strings.HasSuffix(sleep, "busybox") {
		c.Args = []string{"sleep", "1000"}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	found, err := Find(word[:min(len(word), 15)]) // comm holds no more
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"mount ", "process ", "temporary directory "} {
		if !strings.Contains("\n"+strings.Join(found, "\n"), "\n"+kind) {
			t.Errorf("no %sin %q", kind, found)
		}
	}
	if found, err := Find("leaktest-nothing-is-called-so"); err != nil || len(found) > 0 {
		t.Errorf("%q, %v", found, err)
	}
}

//go:build linux

package leaktest

import (
	"errors"
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

// TestFindLoop: a device whose image has been removed, and that nothing in the mount table shows.
func TestFindLoop(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", fmt.Errorf("uid %d has no loop devices", os.Geteuid()))
	}
	word := fmt.Sprintf("leakloop%d", os.Getpid())
	image, err := os.CreateTemp(t.TempDir(), "image")
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	if err := errors.Join(image.Truncate(1<<20), os.Remove(image.Name())); err != nil {
		t.Fatal(err)
	}
	testenv.Need(t, "loop", attach(t, image, word))
	found, err := Find(word)
	if err != nil || len(found) != 1 || !strings.HasPrefix(found[0], "loop device ") {
		t.Errorf("%q, %v", found, err)
	}
}

// attach makes a loop device that goes with the test.
func attach(t *testing.T, image *os.File, name string) error {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	for range 100 { // somebody else may be faster
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return err
		}
		device, err := os.OpenFile(fmt.Sprint("/dev/loop", n), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		c := unix.LoopConfig{Fd: uint32(image.Fd())}
		c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
		copy(c.Info.File_name[:], name)
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &c); err == nil {
			t.Cleanup(func() { device.Close() })
			return nil
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return unix.EBUSY
}

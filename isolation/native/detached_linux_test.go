package native

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
)

// detachedUnit makes an ext4 on a loop device, attached nowhere, and returns a directory of it, as disk units are.
func detachedUnit(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "root", needRoot())
	if !kernelAtLeast(6, 15) {
		testenv.Need(t, "detached", errors.New("this kernel's overlay takes no layer of a mount that is attached nowhere"))
	}
	image := filepath.Join(t.TempDir(), "disk.img")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			testenv.Need(t, "loop", err)
			t.Fatalf("%s: %s", name, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("truncate", "-s", "64M", image)
	run("mkfs.ext4", "-q", "-O", "^has_journal", image)
	device := run("losetup", "--find", "--show", image)
	defer run("losetup", "--detach", device) // when it is not used any more
	var m immediate
	defer m.close()
	fs, err := m.call("fsopen", unix.SYS_FSOPEN, "ext4", unix.FSOPEN_CLOEXEC)
	if err == nil {
		_, err = m.call("source", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, "source", device, 0)
	}
	if err == nil {
		_, err = m.call("create", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, nil, nil, 0)
	}
	if err == nil {
		_, err = m.call("fsmount", unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	unit, err := unix.FcntlInt(uintptr(m.last()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(unit); err != nil {
			t.Error(err)
		}
	})
	return "/proc/self/fd/" + strconv.Itoa(unit)
}

// inUnit is a stack whose upper lies in a unit.
func inUnit(t *testing.T, unit, name string, s isolation.Stack) isolation.Stack {
	t.Helper()
	s.Upper, s.Work = filepath.Join(unit, name, "upper"), filepath.Join(unit, name, "work")
	for _, d := range []string{s.Upper, s.Work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	uid, gid := testIDs().Host(1000, 1000)
	if err := os.Chown(s.Upper, int(uid), int(gid)); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDetachedUnit has uppers, then layers, then plain directories on a filesystem that is attached nowhere.
func TestDetachedUnit(t *testing.T) {
	unit := detachedUnit(t)
	e, s := testEngine(t), testSpec(t)
	s.Stacks = []isolation.Stack{inUnit(t, unit, "w0", s.Stacks[0]), inUnit(t, unit, "h0", s.Stacks[1])}
	b := startBox(t, e, s)
	if out, code := sh(t, b, "echo 0 >f; echo 0 >~/f; df . | tail -1"); code != 0 {
		t.Fatal(out)
	}
	w, h := inUnit(t, unit, "w1", s.Stacks[0]), inUnit(t, unit, "h1", s.Stacks[1])
	w.Lower = append([]isolation.Layer{{Path: s.Stacks[0].Upper}}, w.Lower...)
	h.Lower = append([]isolation.Layer{{Path: s.Stacks[1].Upper}}, h.Lower...)
	if err := b.Exchange(t.Context(), w, h); err != nil {
		t.Fatal(err)
	}
	if out, code := sh(t, b, "cat f ~/f && echo 1 >f && echo 1 >~/f"); code != 0 || out != "0\n0\n" {
		t.Fatal(out)
	}
	if got, err := os.ReadFile(filepath.Join(unit, "w0/upper/f")); err != nil || string(got) != "0\n" {
		t.Errorf("%q, %v", got, err)
	}
	plain := isolation.Stack{Target: "/workspace", Upper: w.Upper}
	if err := b.Exchange(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	if out, code := sh(t, b, "cat f && echo 2 >f"); code != 0 || out != "1\n" {
		t.Fatal(out)
	}
	if got, err := os.ReadFile(filepath.Join(unit, "w1/upper/f")); err != nil || string(got) != "2\n" {
		t.Errorf("%q, %v", got, err)
	}
}

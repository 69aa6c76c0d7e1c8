package seccomp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const helperVariable = "CAISSON_SECCOMP_TEST_HELPER"

// The kernel itself judges the filter: a process of its own loads it and tries calls whose answer without a
// filter would be another one.
func TestLoaded(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperVariable + "=filter"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "grandchild") {
		t.Errorf("a program could not be run under the filter:\n%s", out)
	}
}

func BenchmarkLoad(b *testing.B) {
	code, err := Compile(Default(), runtime.GOARCH)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		done := make(chan error)
		go func() { // filters stay on their thread, which ends with the goroutine
			runtime.LockOSThread()
			done <- load(code, 0)
		}()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

func load(code []unix.SockFilter, flags uintptr) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}

func helper() int {
	if os.Getenv(helperVariable) == "grandchild" {
		fmt.Println("grandchild")
		return 0
	}
	code, err := Compile(Default(), runtime.GOARCH)
	if err == nil {
		err = load(code, unix.SECCOMP_FILTER_FLAG_TSYNC)
	}
	if err == nil {
		err = errors.Join(probeCalls()...)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperVariable + "=grandchild"}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// probeCalls tries calls that the kernel would refuse anyway, with another errno: none does harm where the
// filter fails.
func probeCalls() (errs []error) {
	const bad = ^uintptr(0)
	high := uintptr(1) << 32
	null, err := os.Open(os.DevNull)
	if err != nil {
		return []error{err}
	}
	defer null.Close()
	for _, c := range []struct {
		name string
		nr   uintptr
		args [3]uintptr
		want unix.Errno
	}{
		{"ioctl TIOCSTI", unix.SYS_IOCTL, [3]uintptr{null.Fd(), unix.TIOCSTI}, unix.EPERM},
		{"ioctl TIOCSTI, high bit", unix.SYS_IOCTL, [3]uintptr{null.Fd(), high | unix.TIOCSTI}, unix.EPERM},
		{"ioctl TIOCLINUX, high bits", unix.SYS_IOCTL, [3]uintptr{null.Fd(), bad - 0xffffffff + unix.TIOCLINUX}, unix.EPERM},
		{"ioctl TCGETS", unix.SYS_IOCTL, [3]uintptr{null.Fd(), unix.TCGETS}, unix.ENOTTY},
		{"socket AF_VSOCK", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, 99}, unix.EPERM},
		{"socket AF_VSOCK, high bit", unix.SYS_SOCKET, [3]uintptr{high | unix.AF_VSOCK, 99}, unix.EPERM},
		{"socket AF_UNIX", unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, 99}, unix.EINVAL},
		{"clone3", unix.SYS_CLONE3, [3]uintptr{0, 0}, unix.ENOSYS},
		// CLONE_THREAD without CLONE_SIGHAND is never possible.
		{"clone NEWUSER", unix.SYS_CLONE, [3]uintptr{unix.CLONE_NEWUSER | unix.CLONE_THREAD}, unix.EPERM},
		{"clone", unix.SYS_CLONE, [3]uintptr{unix.CLONE_THREAD}, unix.EINVAL},
		{"unshare", unix.SYS_UNSHARE, [3]uintptr{bad}, unix.EPERM},
		{"setns", unix.SYS_SETNS, [3]uintptr{bad}, unix.EPERM},
		{"keyctl", unix.SYS_KEYCTL, [3]uintptr{bad}, unix.EPERM},
		{"bpf", unix.SYS_BPF, [3]uintptr{bad}, unix.EPERM},
		{"perf_event_open", unix.SYS_PERF_EVENT_OPEN, [3]uintptr{}, unix.EPERM},
		{"userfaultfd", unix.SYS_USERFAULTFD, [3]uintptr{bad}, unix.EPERM},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{}, unix.EPERM},
		{"x32 or unknown", x32Bit | unix.SYS_GETPID, [3]uintptr{}, unix.ENOSYS},
		{"a call of the future", 999, [3]uintptr{}, unix.ENOSYS},
	} {
		if _, _, got := unix.Syscall(c.nr, c.args[0], c.args[1], c.args[2]); got != c.want {
			errs = append(errs, fmt.Errorf("%s: %w, want %w", c.name, got, c.want))
		}
	}
	return errs
}

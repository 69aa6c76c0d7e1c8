//go:build linux

package isolationtest

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// makeQueue makes a POSIX message queue on the host and returns what removes it.
func makeQueue(t *testing.T, name string) func() {
	t.Helper()
	p, err := unix.BytePtrFromString(name[1:])
	must(t, err)
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_CREAT|unix.O_RDWR, 0o666, 0, 0, 0)
	if errno != 0 {
		t.Fatal("message queue:", errno)
	}
	must(t, unix.Close(int(fd)))
	return func() {
		if _, _, errno := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)), 0, 0); errno != 0 {
			t.Error("message queue:", errno)
		}
	}
}

// held is what this process holds of the kernel.
type held struct {
	descriptors []string
	children    []string
}

// holdings takes stock.
func holdings(t *testing.T) held {
	t.Helper()
	var h held
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			h.descriptors = append(h.descriptors, strings.TrimRight(target, "0123456789[]")) // sockets have numbers
		}
	}
	pids, err := os.ReadDir("/proc")
	must(t, err)
	for _, e := range pids {
		if pid, err := strconv.Atoi(e.Name()); err == nil && parent(pid) == os.Getpid() {
			h.children = append(h.children, fmt.Sprintf("%d (%s)", pid, state(pid)))
		}
	}
	return h
}

// checkHoldings fails the test for what has been left since before.
func checkHoldings(t *testing.T, before held) {
	t.Helper()
	after := holdings(t)
	for _, d := range after.descriptors {
		if i := slices.Index(before.descriptors, d); i >= 0 {
			before.descriptors = slices.Delete(before.descriptors, i, i+1)
		} else if d != "anon_inode:[eventpoll" && d != "anon_inode:[eventfd" { // the runtime's, made on demand
			t.Errorf("descriptor left open: %s", d)
		}
	}
	for _, c := range after.children {
		if !slices.Contains(before.children, c) {
			t.Errorf("child left: %s", c)
		}
	}
}

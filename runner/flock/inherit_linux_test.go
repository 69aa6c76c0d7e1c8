package flock

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const helper = "CAISSON_FLOCK_TEST_HELPER"

// TestMain lets the test binary be a process that takes a lock, hands its descriptor to a child that lives until descriptor 3
// ends, and dies.
func TestMain(m *testing.M) {
	path := os.Getenv(helper)
	if path == "" {
		os.Exit(m.Run())
	}
	l, err := Try(path, Exclusive)
	if err != nil {
		os.Exit(1)
	}
	c := exec.Command("cat")
	c.Stdin, c.ExtraFiles = os.NewFile(3, "until"), []*os.File{l.f}
	if err := c.Start(); err != nil {
		os.Exit(2)
	}
	_, _ = os.Stdout.WriteString("have\n")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func TestInherit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), helper+"="+path)
	until, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer until.Close()
	defer end.Close()
	c.ExtraFiles = []*os.File{until}
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2, c.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := Inherit(t.Context(), path, Exclusive); !errors.Is(err, ErrLocked) {
		t.Fatal("the holder lives:", err)
	}
	_ = in.Close()
	// Not Wait: that would wait for the child, which has the pipe. A zombie is dead.
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for n := 0; n <= 0; {
		if n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	if _, err := Try(path, Exclusive); !errors.Is(err, ErrLocked) {
		t.Fatal("the child has no copy of the lock")
	}
	got := make(chan error)
	go func() {
		l, err := Inherit(t.Context(), path, Exclusive)
		if err == nil {
			err = l.Release()
		}
		got <- err
	}()
	_ = end.Close()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
}

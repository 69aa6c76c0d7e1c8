//go:build linux

package isolationtest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hold holds a path in a way, says that it does, and waits for the end.
func hold(a []string) error {
	way, path := a[0], a[1]
	if way == "socket" { // a name in the file system, and no descriptor there
		if _, err := net.Listen("unix", path+"/socket"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	switch way {
	case "cwd":
		err = errors.Join(os.Chdir(path), f.Close())
	case "read", "directory":
	case "socket":
		err = f.Close()
	case "write":
		if err = f.Close(); err == nil {
			f, err = os.OpenFile(path, os.O_WRONLY, 0)
		}
	case "map":
		_, err = unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_PRIVATE)
		err = errors.Join(err, f.Close())
	case "store":
		err = errors.Join(store(path), f.Close())
	case "flight":
		err = errors.Join(flight(int(f.Fd())), f.Close())
	case "path":
		_, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		err = errors.Join(err, f.Close())
	case "child": // a process that nobody waits for, in a session of its own
		c := exec.Command("/proc/self/exe", "hold", "cwd", path)
		c.Args[0] = helperName
		c.Stdout, c.SysProcAttr = os.Stdout, &unix.SysProcAttr{Setsid: true}
		if err = errors.Join(c.Start(), f.Close()); err == nil {
			return forever()
		}
	default:
		err = errors.New("no such way")
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	err = forever()
	return errors.Join(err, f.Close()) // and so it is open until here
}

// forever waits for the signal that ends the program; others interrupt pause(2).
func forever() error {
	for {
		if err := unix.Pause(); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// store maps a file shared and writable, and keeps nothing else of it.
func store(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return errors.Join(err, f.Close())
}

// flight sends a descriptor through a socket that nobody reads.
func flight(fd int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0)
}

// pair reads the file "generation" of the workspace and of HOME again and again until the end of its input. Of two
// looks at the workspace that show the same, HOME between them must show that, too.
func pair([]string) error {
	end := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(end)
	}()
	fmt.Println("ready")
	n := 0
	for ; ; n++ {
		select {
		case <-end:
			fmt.Println(n)
			return nil
		case <-time.After(50 * time.Microsecond): // a moment in which nothing is open
		}
		var seen [3]string
		for i, path := range []string{"/workspace/generation", "/home/user/generation", "/workspace/generation"} {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			seen[i] = string(data)
		}
		if seen[0] == seen[2] && seen[0] != seen[1] {
			return fmt.Errorf("after %d looks: the workspace is %s, home is %s", n, seen[0], seen[1])
		}
	}
}

func (s *suite) testProcesses(t *testing.T) {
	b := s.start(t)
	if pids, err := b.Processes(t.Context()); err != nil || len(pids) != 0 {
		t.Errorf("%v, %v before anything runs", pids, err)
	}
	b.ready(t, b.process(t, "tree", "3"))
	// What has ended and is not reaped yet, /proc still shows.
	waitFor(t, "the processes that run", func() error {
		pids, err := b.Processes(t.Context())
		want := slices.DeleteFunc(namespacePIDs(t, b.PID()), func(pid int) bool { return pid == b.PID() })
		slices.Sort(want)
		if err != nil || !slices.Equal(pids, want) || len(pids) == 0 {
			return fmt.Errorf("%v, %w, want %v", pids, err, want)
		}
		return nil
	})
}

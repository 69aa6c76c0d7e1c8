//go:build linux

package isolationtest

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helper is the program that the suite runs inside: what other tests would do with a shell.
func helper(args []string) int {
	if len(args) == 0 {
		return 0
	}
	f, ok := commands[args[0]]
	if !ok {
		fmt.Fprintln(os.Stderr, "helper: no command", args[0])
		return 2
	}
	if err := f(args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		return 1
	}
	return 0
}

var commands map[string]func(args []string) error

func init() { // a literal would refer to itself through tree
	commands = map[string]func([]string) error{
		"exit":  exit,
		"raise": raise,
		"cat":   func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err },
		"echo":  func(a []string) error { fmt.Println(strings.Join(a, " ")); return nil },
		"both":  func([]string) error { fmt.Print("to stdout"); fmt.Fprint(os.Stderr, "to stderr"); return nil },
		"info":  info,
		"tty":   tty,
		"tick":  tick,
		"pause": func([]string) error { fmt.Println("ready"); return unix.Pause() },
		"tree":  tree,
		"fill":  fill,
		"read":  func(a []string) error { data, err := os.ReadFile(a[0]); fmt.Print(string(data)); return err },
		"write": func(a []string) error { return os.WriteFile(a[0], []byte(a[1]), 0o644) },
		"edit":  edit,
		"watch": watch,
		"hog":   hog,
		"hold":  hold,
		"pair":  pair,

		"interfaces": interfaces,
	}
}

func exit(a []string) error {
	n, err := strconv.Atoi(a[0])
	if err == nil {
		os.Exit(n)
	}
	return err
}

// raise ends the program by a signal.
func raise(a []string) error {
	n, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	signal.Reset()
	if err := unix.Kill(os.Getpid(), syscall.Signal(n)); err != nil {
		return err
	}
	return unix.Pause()
}

// processInfo is what a process can tell about itself.
type processInfo struct {
	PID, PPID, SID, PGRP int
	UID, EUID, GID, EGID int
	Groups               []int
	Args, Env            []string
	Cwd                  string
	FileSize             uint64 // the soft limit RLIMIT_FSIZE
}

func info([]string) error {
	sid, err := unix.Getsid(0)
	if err != nil {
		return err
	}
	groups, err := os.Getgroups()
	if err != nil {
		return err
	}
	cwd, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		return err
	}
	environ, err := os.ReadFile("/proc/self/environ") // os.Environ drops duplicates
	if err != nil {
		return err
	}
	for fd := range 3 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		if flags&unix.O_NONBLOCK != 0 { // C programs do not expect EAGAIN
			return fmt.Errorf("descriptor %d does not block", fd)
		}
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return err
	}
	i := processInfo{
		PID: os.Getpid(), PPID: os.Getppid(), SID: sid, PGRP: unix.Getpgrp(), UID: os.Getuid(), EUID: os.Geteuid(),
		GID: os.Getgid(), EGID: os.Getegid(), Groups: groups, Args: os.Args, Env: strings.Split(strings.TrimSuffix(string(environ), "\x00"), "\x00"), Cwd: cwd, FileSize: limit.Cur,
	}
	return json.NewEncoder(os.Stdout).Encode(i)
}

// tick prints a line every few milliseconds until it is ended.
func tick([]string) error {
	for i := 0; ; i++ {
		fmt.Println(i)
		time.Sleep(2 * time.Millisecond)
	}
}

// tree makes a family that does not want to end: each generation in a session of its own, and without the word "stay"
// every other one leaves an orphan. The last, at depth zero, says that it is ready.
func tree(a []string) error {
	// Ignoring SIGCHLD makes the kernel reap children that nobody waits for.
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGCHLD)
	depth, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	if depth > 0 {
		c := exec.Command("/proc/self/exe", append([]string{"tree", strconv.Itoa(depth - 1)}, a[1:]...)...)
		c.Args[0] = helperName
		c.Stdout, c.Stderr = os.Stdout, os.Stderr // holds the pipes
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			return err
		}
		if depth%2 == 1 && len(a) == 1 {
			os.Exit(0) // the child is an orphan
		}
	}
	if depth == 0 {
		fmt.Println("ready")
	}
	return unix.Pause()
}

// fill writes a file until that is refused, and prints the bytes written and the error.
func fill(a []string) error {
	f, err := os.Create(a[0])
	if err != nil {
		return err
	}
	block := make([]byte, 64<<10)
	total := 0
	for {
		n, err := f.Write(block)
		total += n
		if err != nil {
			fmt.Println(total, errnoName(err))
			return os.Remove(a[0])
		}
		if total > 64<<20 {
			fmt.Println(total, "unbounded")
			return os.Remove(a[0])
		}
	}
}

// edit makes every kind of change in the directory.
func edit(a []string) error {
	dir := a[0]
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "modified"), []byte("after"), 0o644),
		os.WriteFile(filepath.Join(dir, "added"), []byte("new"), 0o644),
		os.Remove(filepath.Join(dir, "deleted")),
		os.Rename(filepath.Join(dir, "moved"), filepath.Join(dir, "moved-away")),
		os.Chmod(filepath.Join(dir, "mode"), 0o600),
		os.Mkdir(filepath.Join(dir, "subdir"), 0o755),
		os.Symlink("modified", filepath.Join(dir, "symlink")),
		os.Link(filepath.Join(dir, "added"), filepath.Join(dir, "hardlink")),
	)
}

// hog uses more and more memory.
func hog([]string) error {
	var keep [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
		if len(keep) > 4096 {
			return errors.New("nothing stopped it")
		}
	}
}

// canary is zero in the helper and random in the supervisor, at the same address: both are this binary. Who reads
// anything but zero there has read the supervisor's memory.
var canary [16]byte

// watch looks at every other process, again and again, until its stdin ends: first at what it can open, then for the
// supervisor's memory in it. It prints how often it looked, then what it found.
func watch([]string) error {
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	looks := 0
	for {
		select {
		case <-ended:
			fmt.Println("looks", looks)
			return nil
		default:
		}
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
				looks++
				look(pid, own)
			}
		}
	}
}

func look(pid int, own string) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	if exe, err := os.Readlink(dir + "exe"); err == nil && exe != own {
		fmt.Printf("found the program %s of process %d\n", exe, pid)
	}
	if f, err := os.Open(dir + "mem"); err == nil {
		got := make([]byte, len(canary))
		if _, err := f.ReadAt(got, int64(uintptr(unsafe.Pointer(&canary)))); err == nil && got[0]|got[15] != 0 {
			fmt.Println("found the supervisor's memory:", hex.EncodeToString(got))
		}
		f.Close()
	}
	got := make([]byte, 8)
	local := unix.Iovec{Base: &got[0]}
	local.SetLen(len(got))
	remote := unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&canary)), Len: len(got)}
	if _, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, []unix.RemoteIovec{remote}, 0); err == nil && binary.NativeEndian.Uint64(got) != 0 {
		fmt.Println("found the supervisor's memory by process_vm_readv")
	}
	if fds, err := os.ReadDir(dir + "fd"); err == nil {
		for _, fd := range fds {
			if target, err := os.Readlink(dir + "fd/" + fd.Name()); err == nil && strings.HasPrefix(target, "/proc/") && !strings.HasPrefix(target, dir) {
				fmt.Printf("found descriptor %s → %s of process %d\n", fd.Name(), target, pid)
			}
		}
	}
}

// tty reports about the terminal, and again whenever its size changes, until it is ended.
func tty([]string) error {
	resized := make(chan os.Signal, 8)
	signal.Notify(resized, unix.SIGWINCH)
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, unix.SIGINT)
	line := make(chan string)
	go func() {
		buf := make([]byte, 256)
		for {
			n, err := os.Stdin.Read(buf)
			if err != nil || n == 0 {
				close(line)
				return
			}
			line <- string(buf[:n])
		}
	}()
	if err := reportTTY(); err != nil {
		return err
	}
	for {
		select {
		case <-resized:
			if err := reportTTY(); err != nil {
				return err
			}
		case <-interrupted:
			fmt.Println("interrupted")
		case s, ok := <-line:
			if !ok {
				fmt.Println("end of input")
				return nil
			}
			fmt.Printf("line %q\n", s)
		}
	}
}

func reportTTY() error {
	size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
	if err != nil {
		return fmt.Errorf("stdin: %w", err)
	}
	for _, fd := range []int{1, 2} {
		if _, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err != nil {
			return fmt.Errorf("fd %d: %w", fd, err)
		}
	}
	name, err := os.Readlink("/proc/self/fd/0")
	if err != nil {
		return err
	}
	sid, err := unix.Getsid(0)
	if err != nil {
		return err
	}
	foreground, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	if err != nil {
		return err
	}
	controlling, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer controlling.Close()
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return fmt.Errorf("the terminal's name: %w", err)
	}
	fmt.Printf("size %dx%d name %s leader %v foreground %v uid %d\n", size.Col, size.Row, name, sid == os.Getpid(), foreground == unix.Getpgrp(), st.Uid)
	return nil
}

func errnoName(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

//go:build linux

package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Case is one attempt to get out, or to get what a sandbox must not give.
type Case struct {
	Name   string // group/what
	Gives  string // what success would give; the CVE it was known by
	Expect Class  // how a sandbox refuses; a refusal of another class fails the case too
	Try    func(*Host) error
}

// Class is a set of kinds of refusal.
type Class uint

// The kinds. A case whose expectation were "any error" would pass by accident, for instance on a misspelt path.
const (
	Denied      Class = 1 << iota // EPERM, EACCES
	Absent                        // there is no such thing here
	ReadOnly                      // EROFS
	Empty                         // it opens, but holds nothing
	Masked                        // it is /dev/null in disguise
	Unreachable                   // no network to reach it by
	Invalid                       // the kernel does not take such a request here
	Killed                        // the process was killed for it, by SIGSYS or SIGSEGV
	NoEffect                      // answered with success, and nothing happened
	Busy                          // ETXTBSY, EBUSY
)

var classNames = []string{"denied", "absent", "read-only", "empty", "masked", "unreachable", "invalid", "killed", "no effect", "busy"}

func (c Class) String() string {
	var names []string
	for i, n := range classNames {
		if c&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "other"
	}
	return strings.Join(names, " or ")
}

var errnoClasses = map[syscall.Errno]Class{
	syscall.EPERM: Denied, syscall.EACCES: Denied,
	syscall.ENOENT: Absent, syscall.ENXIO: Absent, syscall.ENODEV: Absent, syscall.ESRCH: Absent, syscall.ENOSYS: Absent,
	syscall.ENOTDIR: Absent, syscall.EAFNOSUPPORT: Absent, syscall.EPROTONOSUPPORT: Absent, syscall.ESOCKTNOSUPPORT: Absent,
	syscall.EOPNOTSUPP: Absent, syscall.ENOTTY: Absent,
	syscall.EROFS:       ReadOnly,
	syscall.ENETUNREACH: Unreachable, syscall.EHOSTUNREACH: Unreachable, syscall.ECONNREFUSED: Unreachable,
	syscall.ENETDOWN: Unreachable, syscall.EADDRNOTAVAIL: Unreachable,
	syscall.EINVAL: Invalid, syscall.EBADF: Invalid, syscall.EXDEV: Invalid, syscall.EIO: Invalid, syscall.ELOOP: Invalid,
	syscall.ESTALE: Invalid, syscall.EFAULT: Invalid, syscall.EUSERS: Invalid, syscall.ENOSPC: Invalid,
	syscall.ETXTBSY: Busy, syscall.EBUSY: Busy,
}

// refusal is an answer that is not an errno.
type refusal struct {
	class Class
	text  string
}

func (r *refusal) Error() string { return r.text }

// refuse says that the attempt gave nothing.
func refuse(c Class, format string, a ...any) error {
	return &refusal{c, fmt.Sprintf(format, a...)}
}

// errNotHere means that the attempt makes no sense on this architecture or for this user.
var errNotHere = errors.New("does not apply here")

func classify(err error) Class {
	var r *refusal
	var errno syscall.Errno
	switch {
	case errors.As(err, &r):
		return r.class
	case errors.As(err, &errno):
		return errnoClasses[errno]
	}
	return 0
}

// Host is what the suite prepared outside and tells the hostile program, so that attempts have real targets.
type Host struct {
	Hostname   string
	PID        int               // of the supervisor
	Namespaces map[string]string // of the supervisor: "net" → "net:[4026531840]"
	Secret     string            // content that must never be seen
	Files      []string          // host files that hold Secret, outside everything mounted
	RootOnly   []string          // files with mode 0600 of root that hold Secret, below mounted host paths
	Setuid     []string          // copies of this program: setuid root, or with file capabilities
	Devices    []string          // device nodes that lie in the workspace
	Links      []string          // links in the workspace to Files
	Abstract   string            // an abstract unix socket that listens
	Listeners  []string          // TCP addresses that listen
	Key        int               // of System V objects that exist
	Queue      string            // a POSIX message queue that exists
	Writable   []string          // directories that may be written
	Mapped     bool              // the sandbox has a range of ids, not the user's own only
}

// sys returns a try of one raw system call.
func sys(nr uintptr, args ...uintptr) func(*Host) error {
	return func(*Host) error { return raw(nr, args...) }
}

func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	return nil
}

// reads returns a try that succeeds when path can be opened and gives at least a byte.
func reads(path string) func(*Host) error {
	return func(*Host) error { return readable(path) }
}

func readable(path string) error {
	data, err := readSome(path)
	if err == nil && len(data) == 0 {
		return refuse(Empty, "%s is empty", path)
	}
	return err
}

// readSome reads the first 64 KiB, never blocking.
func readSome(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if isNull(f) {
		return nil, refuse(Masked, "%s is the null device", path)
	}
	data := make([]byte, 64<<10)
	n, err := f.Read(data)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return data[:n], err
}

// opensForWriting returns a try that succeeds when path can be opened for writing. Nothing is written.
func opensForWriting(path string) func(*Host) error {
	return func(*Host) error { return writable(path) }
}

func writable(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if isNull(f) {
		return refuse(Masked, "%s is the null device", path)
	}
	return nil
}

// isNull recognizes the device that masks files.
func isNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// opens returns a try that succeeds when path can be opened at all.
func opens(path string, flags int) func(*Host) error {
	return func(*Host) error {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			return unix.Close(fd)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
}

// anyOf returns a try that succeeds with the first attempt that does; otherwise the least expected answer counts.
func anyOf[T any](list []T, expect Class, try func(T) error) error {
	if len(list) == 0 {
		return errNotHere
	}
	var odd, last error
	for _, x := range list {
		err := try(x)
		if err == nil {
			return nil
		}
		if classify(err)&expect == 0 {
			odd = errors.Join(odd, err)
		}
		last = err
	}
	if odd != nil {
		return odd
	}
	return last
}

// shows returns nil when the file holds the host's secret.
func shows(h *Host, path string) error {
	data, err := readSome(path)
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte(h.Secret)) {
		return refuse(Empty, "%s does not hold the secret", path)
	}
	return nil
}

// status returns a field of /proc/self/status.
func status(field string) (string, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("no %s in /proc/self/status", field)
}

// others lists the processes that are neither this one nor its parent, by what /proc shows.
func others() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	own := map[string]bool{fmt.Sprint(os.Getpid()): true, fmt.Sprint(os.Getppid()): true}
	var pids []string
	for _, e := range entries {
		if name := e.Name(); name[0] >= '0' && name[0] <= '9' && !own[name] {
			pids = append(pids, name)
		}
	}
	return pids, nil
}

// cstring is a NUL-terminated copy of s for raw system calls; s is a constant of this program.
func cstring(s string) *byte {
	p, err := syscall.BytePtrFromString(s)
	if err != nil {
		panic(err)
	}
	return p
}

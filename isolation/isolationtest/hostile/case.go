//go:build linux

package hostile

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
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

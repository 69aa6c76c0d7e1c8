package isolation

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/quota"
)

// Engine makes sandboxes out of specs. Start fails with ErrUnsupported, naming the control, when it cannot
// enforce everything the spec requires; it never enforces less. An Engine is safe for concurrent use.
type Engine interface {
	Name() string                                        // "native"
	Probe(ctx context.Context) Features                  // what it enforces on this host, with reasons
	Start(ctx context.Context, s *Spec) (Sandbox, error) // the spec carries the cgroup that quota made
	Close() error                                        // frees pools; sandboxes must be closed before
}

// Sandbox is a live set of namespaces with a PID 1 of ours and, at first, no task. It dies with the process that
// started it. Close is idempotent; after it every other method answers os.ErrClosed. A Sandbox is safe for concurrent
// use.
//
// A checkpoint is made under a Hold:
//
//	release, err := box.Hold(ctx)           // nobody runs, nobody is started
//	held, err := box.Holders(ctx, "/workspace", "/home/user")
//	if len(held) == 0 {
//		err = box.Exchange(ctx, workspace, home) // what was the upper is immutable from here on
//	}
//	err = release()
type Sandbox interface {
	// Exec starts a command. While somebody holds the sandbox it waits; when it is frozen it fails with ErrFrozen.
	Exec(ctx context.Context, p *Process) (Execution, error)

	// Freeze stops the whole tree, no cooperation needed, and Thaw lets it go on. They are the user's switch, not
	// counted: freezing what is frozen does nothing. A Hold is independent of it: releasing it does not thaw what
	// Freeze froze, and Thaw does not let go what is held.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// Hold keeps the sandbox still until release: nobody can be started, and whoever lives beside PID 1 is frozen.
	// Holds are counted. release is idempotent. Without a cgroup, freezing is by signals (SIGSTOP), which the
	// processes' parents can see.
	Hold(ctx context.Context) (release func() error, err error)

	// Processes returns the live ones but PID 1, in the host's pid namespace, sorted.
	Processes(ctx context.Context) ([]int, error)

	// Holders returns who uses the mounts at the targets (absolute paths inside): every thread, frozen or not. Without a
	// Hold, what they do meanwhile may be missed, and what /proc does not show: that has PID 0 (HeldReference).
	Holders(ctx context.Context, targets ...string) ([]Holder, error)

	// Mapped returns the files of the targets that live processes have mapped shared and writable, as "TARGET/path",
	// sorted: what is stored through a mapping leaves no trace in a file's times.
	Mapped(ctx context.Context, targets ...string) ([]string, error)

	// Exchange replaces the mounts at the stacks' targets; mounts below them are kept. All or none, and nobody inside
	// sees one without the other: whoever lives is frozen meanwhile. A *HeldError (ErrHeld) names who prevents it, and
	// nothing has changed; after a nil error no process can write to an old upper any more. When the kernel fails half
	// way the sandbox is closed, and the error is os.ErrClosed too. What is left to do of the old mounts is done in the
	// background; Close waits for it.
	Exchange(ctx context.Context, stacks ...Stack) error

	// Network opens what a network device is made with, in the sandbox's network namespace, which holds nothing but lo.
	// The namespace has no other way out: when the device goes, so does the network. A sandbox may be asked at any time,
	// and again. *UnsupportedError (ControlNetworkRules) where there is no TUN.
	Network(ctx context.Context) (*Network, error)

	PID() int                        // of PID 1, in the host's pid namespace
	Close(ctx context.Context) error // kills the tree, frees everything
}

// Network is what a device is made with from outside. The caller closes both.
type Network struct {
	TUN     *os.File // /dev/net/tun, non-blocking: what TUNSETIFF makes of it is in the namespace, and ends with the file
	Netlink *os.File // a socket of NETLINK_ROUTE, for the device's addresses and routes
}

// Close closes both.
func (n *Network) Close() error { return errors.Join(n.TUN.Close(), n.Netlink.Close()) }

// Process is one command to run in a live sandbox.
type Process struct {
	Args []string
	Env  []string // KEY=VALUE, complete: nothing is inherited
	Cwd  string   // absolute, inside
	UID  uint32   // inside; GID likewise
	GID  uint32

	// Stdin, Stdout and Stderr become fds 0, 1 and 2. They must be pipes or files of the supervisor's own
	// making, never the host's terminal. nil means /dev/null of the sandbox. With Terminal all three are ignored.
	Stdin, Stdout, Stderr *os.File
	Terminal              bool   // allocate a terminal inside; Execution.Terminal is its master
	Rows, Cols            uint16 // the terminal's size from the start; 0: unknown

	Cgroup  *quota.Leaf // the step's own cgroup; nil: stays with PID 1 (only where cgroups were waived)
	Rlimits []specs.POSIXRlimit
}

// Execution is a command that has been started: execve has succeeded.
type Execution interface {
	PID() int // in the host's pid namespace
	// Wait returns when the command's first process has ended; what it left running is not waited for.
	Wait(ctx context.Context) (ExitStatus, error)
	Signal(sig syscall.Signal) error // to the first process; os.ErrProcessDone after its end
	Terminal() *os.File              // the master side, owned by the caller; nil without a terminal
}

// ExitStatus is how a process ended, as the kernel reported it to the supervisor.
type ExitStatus struct {
	Code   int            // 0–255 when it exited
	Signal syscall.Signal // not 0 when a signal ended it
	User   time.Duration  // CPU time of it and the children that it waited for
	System time.Duration
	MaxRSS int64 // bytes
}

// ExecError says that the sandbox was fine but the command could not be executed.
// Errno is ENOENT (verdict 127), EACCES, ENOEXEC … (verdict 126).
type ExecError struct {
	Path  string
	Errno syscall.Errno
}

func (e *ExecError) Error() string {
	if e.Errno == syscall.ENOENT && !strings.Contains(e.Path, "/") {
		return e.Path + ": not found in PATH"
	}
	return e.Path + ": " + e.Errno.Error()
}

// Unwrap gives the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

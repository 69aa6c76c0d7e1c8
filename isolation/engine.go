package isolation

import (
	"context"
	"os"
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

// Sandbox is a live set of namespaces with a PID 1 of ours and no task yet. It dies with the process that
// started it. Close is idempotent; after it every other method answers os.ErrClosed.
type Sandbox interface {
	Exec(ctx context.Context, p *Process) (Execution, error)
	Freeze(ctx context.Context) error // the whole tree, no cooperation needed
	Thaw(ctx context.Context) error
	PID() int                        // of PID 1, in the host's pid namespace
	Close(ctx context.Context) error // kills the tree, frees everything
}

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

func (e *ExecError) Error() string { return e.Path + ": " + e.Errno.Error() }

// Unwrap gives the errno.
func (e *ExecError) Unwrap() error { return e.Errno }

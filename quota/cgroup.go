package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Mode says which cgroup version enforces limits on this host.
type Mode string

// The modes. Hybrid is version 1 for the controllers that matter here, with a version 2 tree beside them.
const (
	ModeV2     Mode = "v2"
	ModeV1     Mode = "v1"
	ModeHybrid Mode = "hybrid"
	ModeNone   Mode = "none"
)

// ErrUnavailable is what every UnavailableError matches with errors.Is.
var ErrUnavailable = errors.New("cgroups cannot be used")

// UnavailableError says why no group can be made here.
type UnavailableError struct {
	Reason string
	Remedy string // what the user can do to have them, with commands
	Scope  string // a command that gives a group to what is written after it; "" where there is none
}

func (e *UnavailableError) Error() string { return ErrUnavailable.Error() + ": " + e.Reason }

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Probe finds where groups can be made on this host: version 2 with the controllers cpu, memory and pids, or version 1
// with cpu, memory, pids and freezer; at the top of the hierarchies, or beneath the process's own group where that was
// delegated to it. It makes no group, with one exception: where its own group of version 2 was delegated to it, it moves
// what runs there into a leaf "supervisor", because a node with processes cannot limit children.
//
// Where no group can be made it returns an *UnavailableError.
func Probe() (*Cgroups, error) { return probe() }

const (
	remedyRoot = "run it as root, or where the cgroup filesystem is writable"
	userScope  = "systemd-run --user --scope -p Delegate=yes"
)

// unavailable makes the error; without a remedy of its own it has the one that always helps.
func unavailable(reason, remedy string) *UnavailableError {
	return &UnavailableError{Reason: reason, Remedy: cmp.Or(remedy, remedyRoot)}
}

// parentName is the directory, shared by every caisson process of the host, that holds the features' groups.
const parentName = "caisson"

// Cgroups is a place where groups can be made. It is safe for concurrent use, also by several processes.
type Cgroups struct {
	mode  Mode
	trees []tree // a process enters the first one first, so that one lists every process
	ops   operations
}

// tree is a mounted hierarchy, or the only one on version 2.
type tree struct {
	base        string   // the directory beneath which parentName lies
	below       string   // base without the mount point: "" at the top of the hierarchy, else "/docker/…"
	controllers []string // those of interest that live here
}

// operations are what differs between the versions. A path is relative to every tree's base.
type operations interface {
	// limit sets limits on a node that was just made; nil on a leaf without any.
	limit(path string, l *Limits, inner bool) error
	freeze(ctx context.Context, path string, frozen bool) error
	// kill sends SIGKILL to the processes that procs lists, frozen or not, and does not wait.
	kill(path string, procs func() ([]int, error)) error
	// usage reads a node, and adds what the kernel counts only in its leaves.
	usage(path string, leaves []string) (Usage, error)
	// refused is how many forks the node's own limit has refused beneath it, where its leaves do not count them.
	refused(path string) (int64, error)
	// oomEvents returns a file that becomes readable at every out-of-memory event in the node.
	oomEvents(path string) (*os.File, error)
	// oomKills is called at first and after every event, with what it returned before.
	oomKills(ctx context.Context, path string, seen int64) (int64, error)
	entry(path string) (*Entry, error)
}

// Mode says which cgroup version c uses; never ModeNone.
func (c *Cgroups) Mode() Mode { return c.mode }

// Root returns the directory that holds all groups; on version 1 that of the memory hierarchy. It exists only
// while there are groups.
func (c *Cgroups) Root() string {
	for _, t := range c.trees {
		if slices.Contains(t.controllers, "memory") {
			return t.dir(parentName)
		}
	}
	return c.trees[0].dir(parentName)
}

func (t tree) dir(path string) string { return t.base + "/" + path }

// Group is one feature's node.
type Group struct {
	c    *Cgroups
	id   string
	path string // caisson/ID

	mu     sync.Mutex
	leaves []string // paths of those that Leaf made
}

// ID returns the feature's id.
func (g *Group) ID() string { return g.id }

// Path returns the group's path beneath the place where groups are made: "caisson/ID".
func (g *Group) Path() string { return g.path }

// Leaf is a node for processes, beneath a Group.
type Leaf struct {
	g             *Group
	name          string
	path          string // caisson/ID/NAME
	refusedBefore int64  // by the group's own limit, when the leaf was made
}

// Name returns "init" or "step-1", as it was given.
func (l *Leaf) Name() string { return l.name }

// Path returns the leaf's path beneath the place where groups are made: "caisson/ID/NAME".
func (l *Leaf) Path() string { return l.path }

// Entry is how a process enters a leaf at its birth. The caller closes it.
type Entry struct {
	// V2 is the leaf's directory, opened with O_PATH, for clone3's CLONE_INTO_CGROUP. nil on version 1.
	V2 *os.File
	// Tasks are the leaf's "tasks" files, one per hierarchy of version 1, opened for writing. The child writes "0"
	// into each, in this order (Procs looks only into the first), before it unshares its cgroup namespace.
	// Moving it from outside instead has tails of 15 ms.
	Tasks []*os.File
}

// Close closes all files.
func (e *Entry) Close() error {
	var errs []error
	for _, f := range append(e.Tasks, e.V2) {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// checkName refuses what is not one plain file name: it becomes a directory of the cgroup filesystem.
func checkName(kind, name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 200 || strings.ContainsAny(name, "/\x00\n") {
		return fmt.Errorf("invalid cgroup %s %q", kind, name)
	}
	// Control files of the kernel are named controller.something; a directory of that name would shadow nothing but
	// confuse everyone.
	if strings.Contains(name, ".") {
		return fmt.Errorf("invalid cgroup %s %q: has a dot", kind, name)
	}
	return nil
}

package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
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
	Remedy string // what the user can do, with commands
}

func (e *UnavailableError) Error() string { return ErrUnavailable.Error() + ": " + e.Reason }

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// parentName is the directory, shared by every caisson process of the host, that holds the features' groups.
const parentName = "caisson"

// Cgroups is a place where groups can be made. It is safe for concurrent use, also by several processes.
type Cgroups struct {
	mode  Mode
	trees []tree
	ops   operations
}

// tree is one mounted hierarchy, or the only one on version 2.
type tree struct {
	base        string   // the directory beneath which parentName lies
	controllers []string // those of interest that live here
}

// operations are what differs between the versions. Paths are relative to every tree's base.
type operations interface {
	setup(path string, l *Limits, inner bool) error // limits of a node that was just made
	freeze(ctx context.Context, path string, frozen bool) error
	kill(ctx context.Context, path string) error // SIGKILL to the whole subtree; does not wait
	usage(path string) (Usage, error)
	watchOOM(ctx context.Context, path string) (<-chan struct{}, error)
	entry(path string) (*Entry, error)
}

// Mode says which cgroup version c uses; never ModeNone.
func (c *Cgroups) Mode() Mode { return c.mode }

// Root returns the directory that holds all groups; on version 1 that of the memory hierarchy. It exists only
// while there are groups.
func (c *Cgroups) Root() string { return c.memory().base + "/" + parentName }

func (c *Cgroups) memory() tree {
	for _, t := range c.trees {
		if t.has("memory") {
			return t
		}
	}
	return c.trees[0]
}

func (t tree) has(controller string) bool {
	for _, c := range t.controllers {
		if c == controller {
			return true
		}
	}
	return false
}

// Group is one feature's node.
type Group struct {
	c    *Cgroups
	id   string
	path string // caisson/ID
}

// ID returns the feature's id.
func (g *Group) ID() string { return g.id }

// Path returns the group's path beneath the place where groups are made: "caisson/ID".
func (g *Group) Path() string { return g.path }

// Leaf is a node for processes, beneath a Group.
type Leaf struct {
	c    *Cgroups
	name string
	path string // caisson/ID/NAME
	// refusedBefore is how many forks the group's own limit had refused when the leaf was made.
	refusedBefore int64
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
	// into each before it unshares its cgroup namespace. Moving it from outside instead has tails of 15 ms.
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

// Usage is what a group or leaf has used. -1 means unknown: this kernel does not count it.
type Usage struct {
	CPU           time.Duration // user and system time of everything that ever ran in it
	MemoryCurrent Bytes         // page cache included
	MemoryPeak    Bytes
	PidsCurrent   Count
	PidsPeak      Count
	OOMKills      int64 // processes that the OOM killer killed; on version 1 a group counts those of its present leaves
	PidsRefused   int64 // forks refused by the pids limit of the leaf, or of the group while the leaf existed
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

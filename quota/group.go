package quota

import (
	"context"
	"errors"
)

var errSkeleton = errors.New("quota: not yet")

// Probe finds where groups can be made on this host: version 2 with the controllers cpu, memory and pids, version 1
// with cpu, memory, pids and freezer, at the root of the hierarchies or beneath the process's own group where that was
// delegated to it. It makes no group. Where none can be made it returns an *UnavailableError.
func Probe() (*Cgroups, error) { return nil, errSkeleton }

// New makes the group of a feature with its limits.
func (c *Cgroups) New(id string, l Limits) (*Group, error) { return nil, errSkeleton }

// Load returns a group that another process made, perhaps one that died. The error is fs.ErrNotExist when there is none.
func (c *Cgroups) Load(id string) (*Group, error) { return nil, errSkeleton }

// List returns the ids of all groups, sorted.
func (c *Cgroups) List() ([]string, error) { return nil, errSkeleton }

// Cleanup removes the directory that holds all groups when it is empty.
func (c *Cgroups) Cleanup() error { return errSkeleton }

// Leaf makes a node for processes, without limits of its own when l is nil.
func (g *Group) Leaf(name string, l *Limits) (*Leaf, error) { return nil, errSkeleton }

// Freeze stops every process of the group, and returns when all stand still.
func (g *Group) Freeze(ctx context.Context) error { return errSkeleton }

// Thaw undoes Freeze.
func (g *Group) Thaw(ctx context.Context) error { return errSkeleton }

// Kill kills every process of the group, also frozen ones, and returns when all have ended.
func (g *Group) Kill(ctx context.Context) error { return errSkeleton }

// Procs returns the processes of the group and its leaves, in our pid namespace.
func (g *Group) Procs() ([]int, error) { return nil, errSkeleton }

// Usage returns what the group has used.
func (g *Group) Usage() (Usage, error) { return Usage{}, errSkeleton }

// Remove removes the group and its leaves, in which nothing may run any more. It is idempotent.
func (g *Group) Remove(ctx context.Context) error { return errSkeleton }

// Kill kills every process of the leaf, and returns when all have ended.
func (l *Leaf) Kill(ctx context.Context) error { return errSkeleton }

// Procs returns the processes of the leaf, in our pid namespace.
func (l *Leaf) Procs() ([]int, error) { return nil, errSkeleton }

// Usage returns what the leaf has used.
func (l *Leaf) Usage() (Usage, error) { return Usage{}, errSkeleton }

// Remove removes the leaf, in which nothing may run any more. It is idempotent.
func (l *Leaf) Remove(ctx context.Context) error { return errSkeleton }

// WatchOOM returns a channel that gets a value when the OOM killer has killed in the leaf. It ends with ctx.
func (l *Leaf) WatchOOM(ctx context.Context) (<-chan struct{}, error) { return nil, errSkeleton }

// Entry opens what a process needs to enter the leaf.
func (l *Leaf) Entry() (*Entry, error) { return nil, errSkeleton }

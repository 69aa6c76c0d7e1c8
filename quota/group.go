package quota

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// removeGrace is how long Remove waits for processes that are just ending.
const removeGrace = 2 * time.Second

// New makes the group of a feature with its limits. The error is fs.ErrExist when the group is there already,
// perhaps left by a process that died.
func (c *Cgroups) New(id string, l Limits) (*Group, error) {
	if err := errors.Join(checkName("id", id), l.check(true)); err != nil {
		return nil, err
	}
	g := &Group{c: c, id: id, path: parentName + "/" + id}
	if err := c.make(g.path, &l, true); err != nil {
		return nil, err
	}
	return g, nil
}

// Load returns a group that another process made, perhaps one that died. The error is fs.ErrNotExist when there is none.
func (c *Cgroups) Load(id string) (*Group, error) {
	if err := checkName("id", id); err != nil {
		return nil, err
	}
	g := &Group{c: c, id: id, path: parentName + "/" + id}
	err := fs.ErrNotExist
	for _, t := range c.trees {
		// One hierarchy is enough: a process that died while it made or removed the group leaves it in some of them.
		if _, err = os.Stat(t.dir(g.path)); err == nil {
			return g, nil
		}
	}
	return nil, fmt.Errorf("cgroup %s: %w", g.path, err)
}

// List returns the ids of all groups, sorted. It includes those that are incomplete.
func (c *Cgroups) List() ([]string, error) { return c.beneath(parentName) }

// beneath lists the nodes directly beneath a node, in whichever trees they are, sorted.
func (c *Cgroups) beneath(node string) ([]string, error) {
	var all []string
	for _, t := range c.trees {
		names, err := children(t.dir(node))
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Cleanup removes the directory that holds all groups when there are none.
func (c *Cgroups) Cleanup() error {
	var errs []error
	for _, t := range c.trees {
		err := syscall.Rmdir(t.dir(parentName))
		switch {
		case err == nil, gone(err), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.ENOTEMPTY):
		default:
			errs = append(errs, &os.PathError{Op: "rmdir", Path: t.dir(parentName), Err: err})
		}
	}
	return errors.Join(errs...)
}

// make makes a node in every tree and sets its limits; all or nothing.
func (c *Cgroups) make(node string, l *Limits, inner bool) error {
	for i, t := range c.trees {
		if err := t.mkdir(node); err != nil {
			for _, made := range c.trees[:i] {
				err = errors.Join(err, syscall.Rmdir(made.dir(node)))
			}
			return err
		}
	}
	if err := c.ops.limit(node, l, inner); err != nil {
		return errors.Join(fmt.Errorf("limits of cgroup %s: %w", node, err), c.rmdir(node))
	}
	return nil
}

// mkdir makes the directory of a node. Other caisson processes make and remove the shared parent at any time, so one
// that is missing is made, again and again: each turn means that another process has got further.
func (t tree) mkdir(node string) error {
	const turns = 100
	var err error
	for range turns {
		err = os.Mkdir(t.dir(node), 0o755)
		// The kernel answers ENODEV while the parent is being removed.
		if path.Dir(node) != parentName || !gone(err) {
			return err
		}
		if perr := os.Mkdir(t.dir(parentName), 0o755); perr != nil && !errors.Is(perr, fs.ErrExist) {
			return perr
		}
	}
	return err
}

// rmdir removes a node without children.
func (c *Cgroups) rmdir(node string) error {
	for _, t := range c.trees {
		if err := syscall.Rmdir(t.dir(node)); err != nil && !gone(err) {
			return &os.PathError{Op: "rmdir", Path: t.dir(node), Err: err}
		}
	}
	return nil
}

// remove removes a node and what is beneath it. It waits a little for processes that are ending.
func (c *Cgroups) remove(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, removeGrace)
	defer cancel()
	for {
		err := c.rmdir(node)
		if !errors.Is(err, syscall.EBUSY) {
			return err
		}
		names, lerr := c.beneath(node)
		pids, perr := c.procs(node)
		if err := errors.Join(lerr, perr); err != nil {
			return err
		}
		for _, name := range names {
			if err := c.remove(ctx, node+"/"+name); err != nil {
				return err
			}
		}
		if len(names) > 0 && ctx.Err() == nil {
			continue
		}
		if werr := awaitExits(ctx, pids); werr != nil {
			return fmt.Errorf("cgroup %s is in use, processes %v: %w", node, pids, err)
		}
	}
}

// kill kills everything in a node and beneath it, and waits until it has ended.
func (c *Cgroups) kill(ctx context.Context, node string) error {
	procs := func() ([]int, error) { return c.procs(node) }
	for {
		pids, err := procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := c.ops.kill(node, procs); err != nil {
			return fmt.Errorf("kill cgroup %s: %w", node, err)
		}
		if err := awaitExits(ctx, pids); err != nil {
			return fmt.Errorf("kill cgroup %s: processes %v: %w", node, pids, err)
		}
	}
}

// procs lists the processes of a node and everything beneath it. A node that does not exist has none.
func (c *Cgroups) procs(node string) ([]int, error) {
	dir := c.trees[0].dir(node)
	pids, err := nodeProcs(dir)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// 0 stands for a process that our pid namespace does not show.
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == 0 })
	names, err := children(dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		below, err := c.procs(node + "/" + name)
		if err != nil {
			return nil, err
		}
		pids = append(pids, below...)
	}
	slices.Sort(pids) // version 1 may list one twice
	return slices.Compact(pids), nil
}

// nodeProcs lists the processes directly in a node.
func nodeProcs(dir string) ([]int, error) {
	data, err := read(dir + "/cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return nil, fmt.Errorf("%s/cgroup.procs: %w", dir, err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Leaf makes a node for processes, without limits of its own when l is nil; of l, CPUs, Memory and Pids count.
//
// With limits, version 2 kills all of a leaf that runs out of memory at once (memory.oom.group). Such a leaf must
// be entered by one command only: a second child that enters while it still shares the supervisor's memory would
// take the supervisor along.
func (g *Group) Leaf(name string, l *Limits) (*Leaf, error) {
	err := checkName("leaf", name)
	if l != nil {
		err = errors.Join(err, l.check(true))
	}
	if err != nil {
		return nil, err
	}
	refused, err := g.c.ops.refused(g.path)
	if err != nil {
		return nil, err
	}
	leaf := &Leaf{g: g, name: name, path: g.path + "/" + name, refusedBefore: refused}
	if err := g.c.make(leaf.path, l, false); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaves = append(g.leaves, leaf.path)
	return leaf, nil
}

// Freeze stops every process of the group, and returns when all stand still. When ctx ends before, they go on.
func (g *Group) Freeze(ctx context.Context) error {
	if err := g.c.ops.freeze(ctx, g.path, true); err != nil {
		thaw := g.c.ops.freeze(context.WithoutCancel(ctx), g.path, false)
		return errors.Join(fmt.Errorf("freeze cgroup %s: %w", g.path, err), thaw)
	}
	return nil
}

// Thaw undoes Freeze.
func (g *Group) Thaw(ctx context.Context) error {
	if err := g.c.ops.freeze(ctx, g.path, false); err != nil {
		return fmt.Errorf("thaw cgroup %s: %w", g.path, err)
	}
	return nil
}

// Kill kills every process of the group, also frozen ones, and returns when all have ended. Reaping is their
// parent's business.
func (g *Group) Kill(ctx context.Context) error { return g.c.kill(ctx, g.path) }

// Procs returns the processes of the group and its leaves, in our pid namespace, sorted.
func (g *Group) Procs() ([]int, error) { return g.c.procs(g.path) }

// Usage returns what the group has used.
func (g *Group) Usage() (Usage, error) {
	names, err := children(g.c.trees[0].dir(g.path))
	if err != nil {
		return Usage{}, err
	}
	for i, name := range names {
		names[i] = g.path + "/" + name
	}
	return g.c.ops.usage(g.path, names)
}

// Remove removes the group and its leaves, in which nothing may run any more. It is idempotent.
func (g *Group) Remove(ctx context.Context) error {
	g.mu.Lock()
	leaves := g.leaves
	g.leaves = nil
	g.mu.Unlock()
	for _, leaf := range leaves { // those that we know of need not be looked for
		if err := g.c.rmdir(leaf); err != nil && !errors.Is(err, syscall.EBUSY) {
			return err
		}
	}
	return g.c.remove(ctx, g.path)
}

// Kill kills every process of the leaf, and returns when all have ended. While the group is frozen, version 1 lets
// nothing of it end: Kill then sends the signal and returns an error.
func (l *Leaf) Kill(ctx context.Context) error { return l.g.c.kill(ctx, l.path) }

// Procs returns the processes of the leaf, in our pid namespace, sorted.
func (l *Leaf) Procs() ([]int, error) { return l.g.c.procs(l.path) }

// Usage returns what the leaf has used.
func (l *Leaf) Usage() (Usage, error) {
	u, err := l.g.c.ops.usage(l.path, nil)
	if err != nil {
		return Usage{}, err
	}
	refused, err := l.g.c.ops.refused(l.g.path)
	u.PidsRefused += refused - l.refusedBefore
	return u, err
}

// Remove removes the leaf, in which nothing may run any more. It is idempotent.
func (l *Leaf) Remove(ctx context.Context) error {
	l.g.mu.Lock()
	l.g.leaves = slices.DeleteFunc(l.g.leaves, func(path string) bool { return path == l.path })
	l.g.mu.Unlock()
	return l.g.c.remove(ctx, l.path)
}

// Entry opens what a process needs to enter the leaf.
func (l *Leaf) Entry() (*Entry, error) { return l.g.c.ops.entry(l.path) }

// WatchOOM returns a channel that gets a value when the OOM killer has killed in the leaf; several kills may give
// one value. The watch ends with ctx. The channel is never closed, so that its end cannot be taken for a kill.
// On version 1 the kernel kills one process only: the caller then kills the leaf.
func (l *Leaf) WatchOOM(ctx context.Context) (<-chan struct{}, error) {
	f, err := l.g.c.ops.oomEvents(l.path)
	if err != nil {
		return nil, fmt.Errorf("watch cgroup %s: %w", l.path, err)
	}
	kills := make(chan struct{}, 1)
	go watchOOM(ctx, f, kills, func(seen int64) (int64, error) { return l.g.c.ops.oomKills(ctx, l.path, seen) })
	return kills, nil
}

// children lists the nodes directly beneath a directory; none when it does not exist.
func children(dir string) ([]string, error) {
	info, err := os.Stat(dir)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if childless(info) {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !gone(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// gone says that a node does not exist, or is being removed (ENODEV).
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

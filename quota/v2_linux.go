package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"
)

// v2 are the operations of version 2: one directory per node.
type v2 struct{ tree tree }

// v2Controllers are enabled on every node down to the leaves.
var v2Controllers = []string{"cpu", "memory", "pids"}

func (v *v2) file(node, name string) string { return v.tree.dir(node) + "/" + name }

// limit also enables the controllers on every node above, which a leaf without limits needs to be counted.
func (v *v2) limit(node string, l *Limits, inner bool) error {
	res := &cgroup2.Resources{CPU: &cgroup2.CPU{}, Memory: &cgroup2.Memory{}, Pids: &cgroup2.Pids{}}
	if l != nil {
		quota, memory, noSwap := cpuQuota(l.CPUs), int64(l.Memory), int64(0)
		group := !inner // of the whole feature it would kill PID 1, and children that still share our memory
		res.CPU.Max = cgroup2.NewCPUMax(&quota, nil)
		res.Memory.Max, res.Memory.Swap, res.Memory.OOMGroup = &memory, &noSwap, &group
		res.Pids.Max = int64(l.Pids)
	}
	// The files of the memory controller appear only when it has been enabled above.
	m, err := cgroup2.NewManager(v.tree.base, "/"+node, &cgroup2.Resources{
		CPU: &cgroup2.CPU{}, Memory: &cgroup2.Memory{}, Pids: &cgroup2.Pids{},
	})
	if err != nil || l == nil {
		return err
	}
	if _, err := os.Stat(v.file(node, "memory.swap.max")); err != nil {
		if swap, serr := swapActive(); serr != nil || swap {
			return fmt.Errorf("this kernel cannot limit swap, and there is some: %w", errors.Join(err, serr))
		}
		res.Memory.Swap = nil
	}
	return m.Update(res)
}

// swapActive says whether the host has any swap area in use.
func swapActive() (bool, error) {
	data, err := os.ReadFile("/proc/swaps") // a heading and a line for each
	return strings.Count(string(data), "\n") > 1, err
}

// freeze is ours: the library's turns without regard to a context.
func (v *v2) freeze(ctx context.Context, node string, frozen bool) error {
	if !frozen {
		return write(v.file(node, "cgroup.freeze"), "0")
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	events, err := eventFile(fd, "events of "+node)
	if err != nil {
		return err
	}
	defer events.Close()
	file := v.file(node, "cgroup.events")
	if _, err := unix.InotifyAddWatch(fd, file, unix.IN_MODIFY); err != nil {
		return &os.PathError{Op: "inotify_add_watch", Path: file, Err: err}
	}
	if err := write(v.file(node, "cgroup.freeze"), "1"); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { events.Close() })
	defer stop()
	buf := make([]byte, 4096)
	for {
		r := reader{}
		if r.key(file, "frozen") == 1 || r.err != nil {
			return r.err
		}
		if _, err := events.Read(buf); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// kill falls back to a loop of ours on kernels before 5.14; frozen tasks of version 2 do die.
func (v *v2) kill(node string, procs func() ([]int, error)) error {
	err := write(v.file(node, "cgroup.kill"), "1")
	if !gone(err) {
		return err
	}
	return v.killEach(node, procs)
}

// killEach does what cgroup.kill does. It freezes first, so that a fork bomb stands still while it is killed.
func (v *v2) killEach(node string, procs func() ([]int, error)) error {
	err := write(v.file(node, "cgroup.freeze"), "1")
	if err == nil {
		err = signalAll(procs)
	}
	if thaw := write(v.file(node, "cgroup.freeze"), "0"); !gone(thaw) {
		err = errors.Join(err, thaw)
	}
	return err
}

// usage reads the few files that matter; the library reads many more, and refused forks are not among them.
func (v *v2) usage(node string, leaves []string) (Usage, error) {
	r := reader{}
	u := Usage{
		CPU:           r.cpuStat(v.file(node, "cpu.stat")),
		MemoryCurrent: Bytes(r.int(v.file(node, "memory.current"))),
		MemoryPeak:    Bytes(r.int(v.file(node, "memory.peak"))), // since Linux 5.19
		PidsCurrent:   Count(r.int(v.file(node, "pids.current"))),
		PidsPeak:      Count(r.int(v.file(node, "pids.peak"))), // since Linux 6.1
		OOMKills:      r.key(v.file(node, "memory.events"), "oom_kill"),
		PidsRefused:   r.key(v.file(node, "pids.events"), "max"),
	}
	if _, err := os.Stat(v.file(node, "pids.events.local")); err == nil {
		return u, r.err
	}
	// Before Linux 6.11 a refused fork is counted only where it happened.
	for _, leaf := range leaves {
		u.PidsRefused += r.key(v.file(leaf, "pids.events"), "max")
	}
	return u, r.err
}

// refused counts the forks that the node's own limit refused: since Linux 6.11 the leaves in which they happened do not.
func (v *v2) refused(node string) (int64, error) {
	r := reader{}
	n := r.key(v.file(node, "pids.events.local"), "max")
	return max(n, 0), r.err
}

func (v *v2) oomEvents(node string) (*os.File, error) {
	m, err := cgroup2.Load("/"+node, cgroup2.WithMountpoint(v.tree.base))
	if err != nil {
		return nil, err
	}
	fd, _, err := m.MemoryEventFD()
	if err != nil {
		return nil, err
	}
	return eventFile(fd, "memory events of "+node)
}

// oomKills need not wait as on version 1: the kernel counts before it sends the event.
func (v *v2) oomKills(_ context.Context, node string, _ int64) (int64, error) {
	r := reader{}
	n := r.key(v.file(node, "memory.events"), "oom_kill")
	return n, r.err
}

func (v *v2) entry(node string) (*Entry, error) {
	fd, err := unix.Open(v.tree.dir(node), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: v.tree.dir(node), Err: err}
	}
	return &Entry{V2: os.NewFile(uintptr(fd), v.tree.dir(node))}, nil
}

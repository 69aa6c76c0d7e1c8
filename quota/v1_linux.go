package quota

import (
	"context"
	"errors"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// v1 are the operations of version 1: one directory per hierarchy.
type v1 struct {
	trees []tree
	// library has the controllers that limit, at the paths that containerd's library wants.
	library cgroup1.Hierarchy
	below   map[cgroup1.Name]string // tree.below of each controller
	memsw   bool                    // memory and swap together can be limited
	legacy  bool                    // memory limits do not count children unless told so (before Linux 5.11)
}

// v1Controllers are in the order in which a process enters their hierarchies: pids first, so that whoever has got
// anywhere is listed there and cannot fork without limit.
var v1Controllers = []string{"pids", "freezer", "memory", "cpu", "cpuacct"}

func newV1(root string, trees []tree) *v1 {
	v := &v1{trees: trees, below: map[cgroup1.Name]string{}}
	for _, t := range trees {
		for _, name := range t.controllers {
			v.below[cgroup1.Name(name)] = t.below
		}
	}
	subsystems := []cgroup1.Subsystem{cgroup1.NewPids(root), cgroup1.NewMemory(root), cgroup1.NewCpu(root)}
	v.library = func() ([]cgroup1.Subsystem, error) { return subsystems, nil }
	_, err := os.Stat(v.file("memory", ".", "memory.memsw.limit_in_bytes"))
	v.memsw = err == nil
	n, err := readInt(v.file("memory", ".", "memory.use_hierarchy"))
	v.legacy = err == nil && n == 0
	return v
}

// file returns the path of a control file in the hierarchy of a controller, "" where there is none.
func (v *v1) file(controller, node, name string) string {
	for _, t := range v.trees {
		if slices.Contains(t.controllers, controller) {
			return t.dir(node) + "/" + name
		}
	}
	return ""
}

// libraryPath places a node for containerd's library, which wants paths below each controller's mount.
func (v *v1) libraryPath(node string) cgroup1.Path {
	return func(name cgroup1.Name) (string, error) { return path.Join("/", v.below[name], node), nil }
}

func (v *v1) limit(node string, l *Limits, inner bool) error {
	if inner && v.legacy {
		if err := v.useHierarchy(); err != nil {
			return err
		}
	}
	if l == nil {
		return nil
	}
	quota, memory, pids := cpuQuota(l.CPUs), int64(l.Memory), int64(l.Pids)
	res := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quota},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
	if v.memsw {
		res.Memory.Swap = &memory // of both together: no swap
	} else {
		never := uint64(0)
		res.Memory.Swappiness = &never
	}
	_, err := cgroup1.New(v.libraryPath(node), res, cgroup1.WithHierarchy(v.library))
	return err
}

// useHierarchy makes memory limits of a node include its children; the setting is inherited.
func (v *v1) useHierarchy() error {
	file := v.file("memory", parentName, "memory.use_hierarchy")
	if n, err := readInt(file); err != nil || n == 1 {
		return err
	}
	return write(file, "1")
}

// cpuPeriod is the kernel's default length of an accounting period in microseconds, in both versions.
const cpuPeriod = 100_000

// cpuQuota is the processor time in microseconds that c allows per period.
func cpuQuota(c CPUs) int64 { return int64(c) * cpuPeriod / int64(CPU) }

func (v *v1) setFrozen(node string, frozen bool) error {
	state := "THAWED"
	if frozen {
		state = "FROZEN"
	}
	return write(v.file("freezer", node, "freezer.state"), state)
}

// freeze is ours: the library's turns without regard to a context. The kernel completes FREEZING when somebody asks
// and has no event for it; asking anew also catches what was forked meanwhile.
func (v *v1) freeze(ctx context.Context, node string, frozen bool) error {
	for delay := settle; ; delay = min(2*delay, 10*settle) {
		if err := v.setFrozen(node, frozen); err != nil || !frozen {
			return err
		}
		state, err := read(v.file("freezer", node, "freezer.state"))
		if err != nil || strings.TrimSpace(string(state)) == "FROZEN" {
			return err
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

// kill freezes first, so that a fork bomb stands still while it is killed. A frozen task does not die before it is
// thawed, so that comes last in any case.
func (v *v1) kill(node string, procs func() ([]int, error)) error {
	err := v.setFrozen(node, true)
	if err == nil || gone(err) { // a process that died between two mkdirs leaves a node without a freezer
		err = signalAll(procs)
	}
	if thaw := v.setFrozen(node, false); !gone(thaw) {
		err = errors.Join(err, thaw)
	}
	if n, ferr := readInt(v.file("freezer", node, "freezer.parent_freezing")); ferr == nil && n == 1 {
		err = errors.Join(err, errors.New("its group is frozen, so it ends only when that is thawed"))
	}
	return err
}

// usage reads the few files that matter; the library reads thirty in three times the time, and neither refused forks nor
// the peak of pids are among them. OOM kills and refused forks are counted where they happen, in the leaves.
func (v *v1) usage(node string, leaves []string) (Usage, error) {
	r := reader{}
	u := Usage{
		CPU:           r.nanoseconds(v.file("cpuacct", node, "cpuacct.usage"), 1),
		MemoryCurrent: Bytes(r.int(v.file("memory", node, "memory.usage_in_bytes"))),
		MemoryPeak:    Bytes(r.int(v.file("memory", node, "memory.max_usage_in_bytes"))),
		PidsCurrent:   Count(r.int(v.file("pids", node, "pids.current"))),
		PidsPeak:      Count(r.int(v.file("pids", node, "pids.peak"))),
	}
	for _, n := range append([]string{node}, leaves...) {
		u.OOMKills += max(0, r.key(v.file("memory", n, "memory.oom_control"), "oom_kill"))
		u.PidsRefused += max(0, r.key(v.file("pids", n, "pids.events"), "max"))
	}
	return u, r.err
}

// refused is 0: a leaf counts all forks that failed in it, whosever limit was hit.
func (v *v1) refused(string) (int64, error) { return 0, nil }

func (v *v1) oomEvents(node string) (*os.File, error) {
	memory := func() ([]cgroup1.Subsystem, error) {
		all, err := v.library()
		return all[1:2], err
	}
	g, err := cgroup1.Load(v.libraryPath(node), cgroup1.WithHierarchy(memory))
	if err != nil {
		return nil, err
	}
	fd, err := g.OOMEventFD()
	if err != nil {
		return nil, err
	}
	return eventFile(int(fd), "oom eventfd of "+node)
}

// oomKills waits a moment for the count to change: the kernel sends the event before it chooses a victim and nothing
// after it has killed. When the limit is the group's, all leaves get the event, and the victim may be in another.
func (v *v1) oomKills(ctx context.Context, node string, seen int64) (int64, error) {
	for delay := settle; ; delay *= 2 {
		r := reader{}
		n := r.key(v.file("memory", node, "memory.oom_control"), "oom_kill")
		if r.err != nil || n > seen || delay > 64*settle {
			return n, r.err
		}
		if err := pause(ctx, delay); err != nil {
			return n, err
		}
	}
}

func (v *v1) entry(node string) (*Entry, error) {
	e := &Entry{}
	for _, t := range v.trees {
		name := t.dir(node) + "/tasks"
		// Not os.OpenFile: it would add the file to the runtime's poller, at half the cost of opening it again.
		fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(&os.PathError{Op: "open", Path: name, Err: err}, e.Close())
		}
		e.Tasks = append(e.Tasks, os.NewFile(uintptr(fd), name))
	}
	return e, nil
}

package isolation

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/quota"
)

// BuildOptions is what runner knows about a sandbox; Build turns it into a Spec.
type BuildOptions struct {
	ID       string
	Hostname string
	Root     Rootfs
	Mounts   []Bind // what the user and the profile add; after the root's own binds, in this order
	Stacks   []Stack
	IDs      IDs
	Limits   quota.Limits
	Weaker   []Control
	Cgroup   *quota.Group
	Init     *quota.Leaf
	Seccomp  *specs.LinuxSeccomp // seccomp.Default() unless a profile says otherwise

	// The first command, for the record: every command is given to Sandbox.Exec.
	Args     []string
	Env      []string
	Cwd      string
	UID, GID uint32
	Terminal bool
}

// Rootfs is a root filesystem: layers (a read-only overlay, or a plain read-only bind when there is one),
// with host paths bound over it.
type Rootfs struct {
	Layers []Layer // newest first; the first holds every mount point
	Binds  []Bind
}

// Bind is a host path shown inside. Sub-mounts of the source come along. Always nosuid and nodev.
type Bind struct {
	Source   string // absolute host path
	Target   string // absolute path inside; must exist there, and no part of it may be a link
	Writable bool

	// Map is MapNone for what belongs to the host (the host root is never idmapped: files that only root may read
	// stay unreadable), MapOwner for what the user hands in: its Owner and Group become IDs.Inside.
	Map          Mapping
	Owner, Group uint32
}

// maskedPaths and readonlyPaths are Docker's lists (moby/oci/defaults.go), and what later kernels added.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys", "/proc/key-users",
	"/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats",
	"/proc/sched_debug", "/proc/scsi", "/proc/slabinfo", "/proc/sysrq-trigger", "/proc/timer_list", "/proc/timer_stats",
	"/proc/vmallocinfo",
}

var readonlyPaths = []string{"/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/tty"}

// devices are the nodes of the private /dev; /dev/ptmx is the seventh, a link into the sandbox's own devpts.
var devices = []specs.LinuxDevice{
	{Path: "/dev/null", Type: "c", Major: 1, Minor: 3},
	{Path: "/dev/zero", Type: "c", Major: 1, Minor: 5},
	{Path: "/dev/full", Type: "c", Major: 1, Minor: 7},
	{Path: "/dev/random", Type: "c", Major: 1, Minor: 8},
	{Path: "/dev/urandom", Type: "c", Major: 1, Minor: 9},
	{Path: "/dev/tty", Type: "c", Major: 5, Minor: 0},
}

// openFiles is the limit on descriptors, soft and hard; an engine lowers it to what the host allows.
const openFilesSoft, openFilesHard = 1024, 524288

// pendingSignals is a number of queued signals and POSIX timers; messageQueues is in bytes.
const pendingSignals, messageQueues = 4096, 256 << 10

// Build makes the Spec of a sandbox. It is deterministic and touches nothing: same options, same Spec.
func Build(o BuildOptions) (*Spec, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", o.ID, err)
	}
	mode := uint32(0o666)
	nodes := slices.Clone(devices)
	for i := range nodes {
		nodes[i].FileMode = (*os.FileMode)(&mode)
	}
	oci := &specs.Spec{
		Version:  specs.Version,
		Hostname: o.Hostname,
		Root:     &specs.Root{Path: o.Root.Layers[0].Path, Readonly: true},
		Process:  o.process(),
		Mounts:   o.mounts(),
		Linux: &specs.Linux{
			UIDMappings:   o.IDs.mappings(o.IDs.Owner),
			GIDMappings:   o.IDs.mappings(o.IDs.OwnerGroup),
			Namespaces:    namespaces(),
			Devices:       nodes,
			Seccomp:       o.Seccomp,
			MaskedPaths:   slices.Clone(maskedPaths),
			ReadonlyPaths: slices.Clone(readonlyPaths),
			CgroupsPath:   "/caisson/" + o.ID,
		},
		Annotations: o.annotations(),
	}
	if !slices.Contains(o.Weaker, ControlCgroups) {
		oci.Linux.Resources = o.resources()
	}
	return &Spec{
		ID: o.ID, OCI: oci, Layers: o.Root.Layers, Stacks: o.Stacks, IDs: o.IDs,
		Weaker: o.Weaker, Cgroup: o.Cgroup, Init: o.Init,
	}, nil
}

func (o *BuildOptions) validate() error {
	switch {
	case o.ID == "" || strings.ContainsAny(o.ID, "/\x00"):
		return errors.New("the id must be a file name")
	case len(o.Root.Layers) == 0:
		return errors.New("the root filesystem has no layer")
	case o.Seccomp == nil:
		return errors.New("no seccomp profile")
	case o.Limits.Tmp <= 0:
		return errors.New("the size of /tmp must be positive")
	case o.IDs.Inside == 0 && !slices.Contains(o.Weaker, ControlNonRoot):
		return errors.New("the command's uid inside must not be 0")
	}
	if err := o.IDs.validate(); err != nil {
		return err
	}
	for _, s := range o.Stacks {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	for _, b := range slices.Concat(o.Root.Binds, o.Mounts) {
		if !path.IsAbs(b.Source) || !clean(b.Target) {
			return fmt.Errorf("mount %q at %q: both must be absolute and clean", b.Source, b.Target)
		}
	}
	return nil
}

func clean(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && p != "/" && !strings.Contains(p, "\x00")
}

func (o *BuildOptions) process() *specs.Process {
	return &specs.Process{
		Terminal:        o.Terminal,
		User:            specs.User{UID: o.UID, GID: o.GID},
		Args:            o.Args,
		Env:             o.Env,
		Cwd:             cmp.Or(o.Cwd, "/workspace"),
		Capabilities:    &specs.LinuxCapabilities{},
		NoNewPrivileges: true,
		Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_CORE"},
			{Type: "RLIMIT_NOFILE", Soft: openFilesSoft, Hard: openFilesHard},
			// These two are counted against whoever made the user namespace, too.
			{Type: "RLIMIT_SIGPENDING", Soft: pendingSignals, Hard: pendingSignals},
			{Type: "RLIMIT_MSGQUEUE", Soft: messageQueues, Hard: messageQueues},
		},
	}
}

func (o *BuildOptions) mounts() []specs.Mount {
	var m []specs.Mount
	for _, b := range o.Root.Binds {
		m = append(m, b.mount(o.IDs))
	}
	devpts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=64"}
	if !o.IDs.Single { // group tty must be mapped
		devpts = append(devpts, "gid=5")
	}
	tmp := []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", int64(o.Limits.Tmp)),
		fmt.Sprintf("nr_inodes=%d", max(int64(o.Limits.Tmp)/4096, 1024))}
	m = append(m,
		specs.Mount{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev", "hidepid=ptraceable"}},
		specs.Mount{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=65536"}},
		specs.Mount{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: devpts},
		specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=67108864"}},
		specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: tmp},
	)
	for _, b := range o.Mounts {
		m = append(m, b.mount(o.IDs))
	}
	return m
}

func (b Bind) mount(ids IDs) specs.Mount {
	access := "ro"
	if b.Writable {
		access = "rw"
	}
	uid, gid := ids.MountMappings(b.Map, b.Owner, b.Group)
	return specs.Mount{Destination: b.Target, Type: "bind", Source: b.Source,
		Options: []string{"rbind", access, "nosuid", "nodev"}, UIDMappings: uid, GIDMappings: gid}
}

func (o *BuildOptions) resources() *specs.LinuxResources {
	const period = 100_000 // microseconds, the kernel's default
	quotaUS := int64(o.Limits.CPUs) * period / 1000
	p, memory, noSwap, pids := uint64(period), int64(o.Limits.Memory), int64(o.Limits.Memory), int64(o.Limits.Pids)
	return &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Quota: &quotaUS, Period: &p},
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &noSwap}, // OCI counts memory and swap together
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
}

// annotations tell what the OCI spec cannot express: the overlay stacks that an engine moves in.
func (o *BuildOptions) annotations() map[string]string {
	a := map[string]string{"dev.caisson.id": o.ID}
	for _, s := range o.Stacks {
		lower := make([]string, len(s.Lower))
		for i, l := range s.Lower {
			lower[i] = l.Path
		}
		a["dev.caisson.stack"+strings.ReplaceAll(s.Target, "/", ".")] =
			"lower=" + strings.Join(lower, ":") + " upper=" + s.Upper
	}
	return a
}

func namespaces() []specs.LinuxNamespace {
	return []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
	}
}

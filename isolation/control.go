package isolation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Control names one thing that an engine enforces. The vocabulary is closed: Controls lists it.
type Control string

// The controls, in the order in which doctor prints them.
const (
	ControlUserNS       Control = "userns"        // root inside is nobody outside
	ControlPIDNS        Control = "pidns"         // sees and signals only itself
	ControlMountNS      Control = "mountns"       // mounts of its own
	ControlNetNS        Control = "netns"         // no host network
	ControlIPCNS        Control = "ipcns"         // no host System V IPC or POSIX queues
	ControlUTSNS        Control = "utsns"         // hostname of its own
	ControlCgroupNS     Control = "cgroupns"      // sees only its own cgroup subtree
	ControlReadonlyRoot Control = "readonly_root" // the root filesystem cannot be written
	ControlProcMasked   Control = "proc_masked"   // kernel interfaces in /proc are hidden or read-only
	ControlPrivateDev   Control = "private_dev"   // /dev of seven nodes
	ControlCapabilities Control = "capabilities"  // all dropped, also from the bounding set
	ControlNoNewPrivs   Control = "no_new_privs"  // setuid binaries give nothing
	ControlSeccomp      Control = "seccomp"       // system call filter
	ControlSession      Control = "session"       // own session; terminals cannot be typed into
	ControlKeyring      Control = "keyring"       // no host keyring
	ControlFDs          Control = "fds"           // no inherited file descriptor
	ControlOverlay      Control = "overlay"       // the workspace is never written
	ControlCgroups      Control = "cgroups"       // CPU, memory and pids limits by the kernel
	ControlNonRoot      Control = "nonroot"       // the command's uid inside is not 0
	ControlIDMap        Control = "idmap"         // a private id range, the workspace idmapped into it
	ControlDiskQuota    Control = "disk_quota"    // bytes and inodes limits by the kernel
	ControlNetworkRules Control = "network_rules" // the egress gateway; rule none needs only netns
)

var controls = []Control{
	ControlUserNS, ControlPIDNS, ControlMountNS, ControlNetNS, ControlIPCNS, ControlUTSNS, ControlCgroupNS,
	ControlReadonlyRoot, ControlProcMasked, ControlPrivateDev, ControlCapabilities, ControlNoNewPrivs,
	ControlSeccomp, ControlSession, ControlKeyring, ControlFDs, ControlOverlay, ControlCgroups,
	ControlNonRoot, ControlIDMap, ControlDiskQuota, ControlNetworkRules,
}

// Controls returns every control, in display order.
func Controls() []Control { return slices.Clone(controls) }

// ParseControl returns the control called s.
func ParseControl(s string) (Control, error) {
	if c := Control(s); slices.Contains(controls, c) {
		return c, nil
	}
	names := make([]string, len(controls))
	for i, c := range controls {
		names[i] = string(c)
	}
	return "", fmt.Errorf("unknown control %q; one of %s", s, strings.Join(names, ", "))
}

// ErrUnsupported is what every UnsupportedError matches with errors.Is.
var ErrUnsupported = errors.New("control not available")

// UnsupportedError says that a required control cannot be enforced here.
type UnsupportedError struct {
	Control Control
	Reason  string // what the kernel or the host answered
	Remedy  string // what the user can do to have it; a command where there is one
	Scope   string // a command that gives it to the caisson that is written after it; "" where there is none
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("cannot enforce %s: %s", e.Control, e.Reason)
}

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// refusals are the errors by which a kernel, or a file system, says that it cannot do what it was asked for.
var refusals = []error{ErrUnsupported, syscall.ENODEV, syscall.ENOSYS, syscall.EOPNOTSUPP, syscall.EINVAL, syscall.EPERM, syscall.EACCES,
	syscall.ELOOP, syscall.EOVERFLOW}

// Refused reports whether err says that the host cannot do something. Any other error, as that of a full or a broken disk, says
// nothing about it.
func Refused(err error) bool {
	return slices.ContainsFunc(refusals, func(no error) bool { return errors.Is(err, no) })
}

// Support is the answer of a probe.
type Support int

// The three answers. Only the first two may be cached.
const (
	Unknown     Support = iota // the probe itself failed
	Available                  // tried, and it works
	Unsupported                // tried, and the host says no
)

func (s Support) String() string {
	return [...]string{"unknown", "available", "unsupported"}[s]
}

// MarshalText writes the word.
func (s Support) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Feature is what a probe found out about one control.
type Feature struct {
	Control Control `json:"control"`
	Support Support `json:"support"`
	Detail  string  `json:"detail,omitempty"` // the mechanism, or the reason why not
	Remedy  string  `json:"remedy,omitempty"`
	Scope   string  `json:"-"` // as UnsupportedError has it
}

// Features is a probe's whole table.
type Features []Feature

// Get returns the feature of c; a control that was not probed is Unknown.
func (f Features) Get(c Control) Feature {
	for _, x := range f {
		if x.Control == c {
			return x
		}
	}
	return Feature{Control: c, Support: Unknown, Detail: "not probed"}
}

// Require returns a *ShortageError of every control of want that is not available and is not in weaker, and the list of
// those that are missing but were waived. Allowed is what may be waived. What could not be asked is named only where nothing
// is known to be missing, which may be why.
func (f Features) Require(want, weaker, allowed []Control) (missing []Control, err error) {
	lacking := map[Support][]*UnsupportedError{}
	for _, c := range want {
		x := f.Get(c)
		switch {
		case x.Support == Available:
		case slices.Contains(weaker, c):
			missing = append(missing, c)
		default:
			lacking[x.Support] = append(lacking[x.Support], x.lacking())
		}
	}
	for _, s := range []Support{Unsupported, Unknown} {
		if len(lacking[s]) > 0 {
			return nil, Shortage(lacking[s], weaker, allowed)
		}
	}
	return missing, nil
}

func (f *Feature) lacking() *UnsupportedError {
	return &UnsupportedError{Control: f.Control, Reason: f.Detail, Remedy: f.Remedy, Scope: f.Scope}
}

package isolation

import (
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
	Cgroup   *quota.Leaf

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
	Target   string // absolute path inside; must exist there
	Writable bool
}

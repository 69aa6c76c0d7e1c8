package isolation

import (
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/quota"
)

// Spec is everything an engine needs to make one sandbox. Build makes it; it is deterministic.
type Spec struct {
	ID     string      // the feature's id; names the cgroup and the hostname
	OCI    *specs.Spec // what `caisson inspect --spec` prints
	Layers []Layer     // the root filesystem, newest first
	Stacks []Stack     // overlay mounts: /workspace and /home/user
	IDs    IDs
	Weaker []Control    // controls that the user waived; the engine may do without them, no others
	Cgroup *quota.Group // the feature's cgroup, for freezing and killing; nil only when Weaker has ControlCgroups
	Init   *quota.Leaf  // the leaf of Cgroup that PID 1 lives in; nil together with it
}

// Stack is an overlay mount, described and not yet made.
type Stack struct {
	Target string  // absolute, inside
	Lower  []Layer // newest first; the workspace last
	Upper  string  // host paths, on one filesystem
	Work   string
}

// Layer is one lower directory of a Stack.
type Layer struct {
	Path string // host path
	Map  Mapping
}

// Mapping says which ids a layer's files have on disk, and so how they get into the sandbox's range.
type Mapping int

// The mappings. A sandbox with a single id, or with IDs.Direct, maps nothing.
const (
	MapNone  Mapping = iota // as they are: host files that stay the host's, layers that hold the range's ids already
	MapOwner                // the host's own ids: idmapped, the workspace's owner and IDs.Inside exchanged
	MapRange                // an image's ids, 0 to 65535: idmapped as they are
)

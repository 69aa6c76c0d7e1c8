package isolation

import (
	"fmt"

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

// Stack is a mount made of layers, described and not yet made. Paths are the host's; one below /proc/self/fd/N may
// lead into a mount that is attached nowhere.
//
//   - Lower, Upper and Work: an overlay.
//   - Upper alone: a bind of Upper, for files that are kept without overlay.
//   - Lower alone: read-only.
type Stack struct {
	Target string  // absolute, inside
	Lower  []Layer // newest first, at most 500; the workspace last
	Upper  string  // on one filesystem with Work
	Work   string
}

// maxLayers is the kernel's: overlay takes no more lower directories.
const maxLayers = 500

// Validate says what is wrong with a stack, without looking at any file.
func (s Stack) Validate() error {
	switch {
	case !clean(s.Target):
		return fmt.Errorf("stack %q: the target must be absolute and clean", s.Target)
	case len(s.Lower) > maxLayers:
		return fmt.Errorf("stack %q has %d layers, more than %d", s.Target, len(s.Lower), maxLayers)
	case len(s.Lower) == 0 && s.Upper == "", (len(s.Lower) > 0 && s.Upper != "") != (s.Work != ""):
		return fmt.Errorf("stack %q is incomplete", s.Target)
	}
	return nil
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

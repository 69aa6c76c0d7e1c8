package promote

import (
	"context"
	"errors"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Bases are the base layers of one workspace.
type Bases struct{}

// OpenBases opens the base layers of a workspace, below dir, and makes what is missing.
func OpenBases(dir, workspace string) (*Bases, error) { return nil, errors.ErrUnsupported }

// Generation is how many promotes the workspace has had.
func (b *Bases) Generation() int { return 0 }

// Above returns the base layers that show the workspace as it was at a generation, in the order of a stack.
func (b *Bases) Above(generation int) []tree.Root { return nil }

// Touched returns the paths that promotes have changed since a generation.
func (b *Bases) Touched(generation int) (map[string]bool, error) { return nil, errors.ErrUnsupported }

// Collect removes the base layers that no checkpoint and no current state of generation oldest or later needs, and
// returns how many bytes that freed.
func (b *Bases) Collect(ctx context.Context, oldest int) (freed int64, err error) {
	return 0, errors.ErrUnsupported
}

// Lock takes the workspace's lock: exclusive to promote, shared to read Above until the mount is known.
func (b *Bases) Lock(ctx context.Context, exclusive bool) (unlock func(), err error) {
	return nil, errors.ErrUnsupported
}

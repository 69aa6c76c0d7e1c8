package tree

import (
	"context"
	"errors"
)

// Restore writes into a fresh upper so that onto with upper above shows from's paths where Match says so, and returns
// the paths that differed.
func Restore(ctx context.Context, from, onto *View, upper string, o RestoreOptions) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// Manifest is what an upper layer looked like.
type Manifest struct{}

// CopyDelta copies what changed in an upper since m into dst.
func CopyDelta(ctx context.Context, upper Root, m *Manifest, dst string, o DeltaOptions) (*Manifest, Delta, error) {
	return nil, Delta{}, errors.ErrUnsupported
}

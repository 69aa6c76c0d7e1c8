package tree

import (
	"context"
	"errors"
)

// Manifest is what an upper layer looked like.
type Manifest struct{}

// CopyDelta copies what changed in an upper since m into dst.
func CopyDelta(ctx context.Context, upper Root, m *Manifest, dst string, o DeltaOptions) (*Manifest, Delta, error) {
	return nil, Delta{}, errors.ErrUnsupported
}

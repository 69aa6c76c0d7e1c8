//go:build !linux

package gitbranch

import (
	"context"
	"errors"
	"fmt"
)

// Write answers errors.ErrUnsupported on systems without workspaces.
func Write(context.Context, Source, Options) (*Report, error) {
	return nil, fmt.Errorf("promoting needs Linux: %w", errors.ErrUnsupported)
}

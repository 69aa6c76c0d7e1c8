//go:build !linux

package live

import (
	"context"
	"errors"
)

func (f *Feature) killOthers(context.Context) error { return errors.ErrUnsupported }

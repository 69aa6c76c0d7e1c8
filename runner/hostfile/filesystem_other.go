//go:build !linux

package hostfile

import "errors"

// Filesystem is known on Linux only.
func Filesystem(string) (uint64, error) { return 0, errors.ErrUnsupported }

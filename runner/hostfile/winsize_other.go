//go:build !linux

package hostfile

import (
	"errors"
	"os"
)

// SetWinsize is not needed where there are no sandboxes.
func SetWinsize(*os.File, uint16, uint16) error { return errors.ErrUnsupported }

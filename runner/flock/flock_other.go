//go:build !unix

package flock

import (
	"errors"
	"os"
)

const nofollow = 0

func lock(*os.File, Mode, bool) error { return errors.ErrUnsupported }

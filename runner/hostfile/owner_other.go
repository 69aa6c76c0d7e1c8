//go:build !unix

package hostfile

import (
	"errors"
	"os"
)

// Owner is not known here.
func Owner(path string) (uid, gid uint32, err error) {
	return 0, 0, &os.PathError{Op: "owner", Path: path, Err: errors.ErrUnsupported}
}

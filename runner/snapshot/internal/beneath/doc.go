// Package beneath reads and writes below a directory without ever leaving it: no symbolic link is followed, no mount
// point crossed, nothing but a regular file or a directory opened. Trees may be hostile (names, depth, modes, types
// that change while we look), and paths may be longer than the kernel takes in one call.
package beneath

import "errors"

// ErrMountPoint is the error of a path that crosses into another mount.
var ErrMountPoint = errors.New("is a mount point, which an overlay does not see through")

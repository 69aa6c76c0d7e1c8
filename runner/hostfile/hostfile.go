// Package hostfile asks what Go's portable interface to files does not tell.
package hostfile

import "time"

// Filesystem is one mounted file system: the type (statfs(2)'s magic number), the device number that its files show, and the
// identity that it gives itself. A device number alone is used again after an umount.
type Filesystem struct{ Type, Device, ID uint64 }

// tick is more than the grain of the times that kernels give files, which is 10 ms at most.
const tick = 20 * time.Millisecond

// Settled reports whether a file that was last changed at a time would show another one if it were changed again now.
func Settled(changed time.Time) bool { return time.Since(changed) > tick }

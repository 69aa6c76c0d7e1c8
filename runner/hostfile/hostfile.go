// Package hostfile asks what Go's portable interface to files does not tell.
package hostfile

// Filesystem is one mounted file system: the type (statfs(2)'s magic number), the device number that its files show, and the
// identity that it gives itself. A device number alone is used again after an umount.
type Filesystem struct{ Type, Device, ID uint64 }

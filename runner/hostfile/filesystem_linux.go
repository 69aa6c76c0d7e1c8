package hostfile

import "golang.org/x/sys/unix"

// Filesystem is the type of the file system that a path lies on: the kernel's magic number, see statfs(2).
func Filesystem(path string) (uint64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(path, &st)
	return uint64(st.Type), err
}

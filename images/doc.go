// Package images provides the root filesystem of a sandbox: the host's own (an allow-list), a plain
// directory, or a tarball that is unpacked once.
//
// A Root is plain data. What is written on the host lies below a cache directory of the caller's and is
// never changed after it has appeared there: skeletons (the mount points and generated files of a root) and
// unpacked tarballs. Nothing here mounts, follows a link of a foreign tree, or needs to be root.
package images

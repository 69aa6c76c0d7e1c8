// Package copytree keeps a feature's layers as whole trees: snapshot.Layers for hosts without overlayfs. Files are cloned
// where the filesystem can (reflink), else copied; layers never share an inode.
//
// A layer is layers/N/w for the workspace and layers/N/h for HOME. The current layer is mounted as it is, by a bind. A
// seal copies it: what is mounted stays, also while processes hold it, so Stacks change only with a reset or a promote.
// Of a live sandbox most is copied before it is stopped; while it stands still, what has changed since.
//
// The base is a layer, too: a copy of the workspace as it was when the generation began for this feature, with a manifest
// (layers/N/base) of what the workspace's objects looked like then. So what others do to the workspace, promotes
// among it, does not show here; a promote finds conflicts by the manifest. The stack of a checkpoint has its own layer and
// its base, that of the current state only the base.
//
// State, checkpoints and recovery are those of package book.
package copytree

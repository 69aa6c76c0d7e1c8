// Package overlay keeps a feature's layers as directories that overlayfs stacks: snapshot.Layers for every filesystem that
// can be an upper layer.
//
// A layer is layers/N/w for the workspace and layers/N/h for HOME, beside overlayfs' scratch directories ww and hw. The
// current layer is the upper of both mounts. Nothing is ever renamed to be sealed: sealing is writing down that the layer
// is finished, and that another, fresh one is current (package book). Mounts, descriptors and paths of the old one stay
// valid, so that it costs the same for every tree.
//
// While processes hold the current layer it cannot be taken away from them: then what changed in it since the last seal is
// copied into a layer of its own, a delta. Deltas of one upper lie on each other and on what lies below the upper; the next
// rotation seals the upper itself, and deltas serve their own checkpoints only.
//
// Below a stack lie the base layers of the generations that the feature has not seen (package promote), and the workspace.
package overlay

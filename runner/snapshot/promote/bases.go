// Package promote hands a change over: into the workspace, all of it or nothing and whatever dies in the middle, or as a
// patch. What a promote takes out of the workspace it keeps in a base layer, which shows the workspace as it was to
// older checkpoints and to other features ([Bases]).
//
// On disk, in the feature's directory: promote.plan, the journal of a promote under way; promote.done once it is
// irrevocable, until the caller calls [Forget]; promote.touched, what an undone promote left with a new ctime.
//
// Beside the features, for each workspace: bases/KEY/state.json, the workspace's identity and its generation, which is
// how many promotes it has had; bases/KEY/G/, what promote G took away, in the form of an overlay layer;
// bases/KEY/G.json, the paths that it changed; bases/KEY/lock. Where the file system takes no marks of layers, all features
// are copies, and of G there is only the list.
package promote

import "github.com/caisson-dev/caisson/runner/snapshot/tree"

// Target says what is promoted, and to which workspace.
type Target struct {
	Dir       string     // the feature's: the journal lies in it
	Workspace string     // absolute, without symbolic links
	Bases     *Bases     // keeps what is taken away, for older checkpoints and other features; nil: nobody needs it
	Old, New  *tree.View // that the change was read from; the last layer of Old is the workspace

	// LockFile serialises the promotes to the workspace. Empty: that of Bases.
	LockFile string

	// Generation is the workspace's that Old shows, with Bases.
	Generation int

	// Seen says how the workspace's object at a path was when Old was made, if Old is a copy of it; false: there was
	// nothing. nil: Old's last layer is the workspace itself.
	Seen func(path string) (tree.Seen, bool)

	// Note is the caller's: Pending returns it until Forget.
	Note []byte
}

// Package snapshot keeps a feature's view of a workspace: an overlay of the user's directory (the base, which is
// never written while work runs) under an upper layer that holds what the sandbox wrote, and a home directory
// beside it. It describes the mounts ([Workspace.Stacks]), reads the exact change from the upper layer
// ([Workspace.Change]), prints it ([Workspace.WriteDiff]) and applies it to the base ([Workspace.Promote]) or
// throws it away ([Workspace.Discard]).
//
// The package mounts nothing and starts nothing. Everything in an upper layer was written by untrusted code, and
// the base may be edited by others at any time: no path is ever resolved through a symbolic link or a mount point,
// on either side (openat2 with RESOLVE_BENEATH, NO_SYMLINKS, NO_MAGICLINKS and NO_XDEV), and nothing but regular
// files is opened for reading.
//
// On disk, below CreateOptions.Dir:
//
//	state.json        what Create recorded, and the start time that conflicts are measured from
//	upper/ work/      the workspace's layer and overlayfs' scratch directory
//	home/lower/       an empty directory, with mount points for caches
//	home/upper/ home/work/
//	promote.plan      the journal of a promote under way; promote.done once it is irrevocable
package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Targets of the two stacks, inside a sandbox.
const (
	WorkspaceTarget = "/workspace"
	HomeTarget      = "/home/user"
)

// The vocabulary that package tree needs as well.
type (
	Change        = tree.Change
	Entry         = tree.Entry
	Kind          = tree.Kind
	FileType      = tree.FileType
	DiffOptions   = tree.DiffOptions
	Owner         = tree.Owner
	Conflict      = tree.Conflict
	ConflictError = tree.ConflictError
	PromoteKind   = tree.PromoteKind
	PromoteReport = tree.PromoteReport
	Note          = tree.Note
	// WorkspaceError says why a directory cannot be used as a workspace.
	WorkspaceError = tree.WorkspaceError
)

// Kinds of changes, types of files and ways of promoting.
const (
	Added    = tree.Added
	Modified = tree.Modified
	Deleted  = tree.Deleted
	ModeOnly = tree.ModeOnly
	TypeOnly = tree.TypeOnly
	LinkOnly = tree.LinkOnly

	File    = tree.File
	Dir     = tree.Dir
	Symlink = tree.Symlink
	Fifo    = tree.Fifo
	Socket  = tree.Socket
	Char    = tree.Char
	Block   = tree.Block

	PromoteApply  = tree.PromoteApply
	PromotePatch  = tree.PromotePatch
	PromoteBranch = tree.PromoteBranch

	MaxPath = tree.MaxPath
)

// Quote returns a path as git prints it: unchanged, or in double quotes with C escapes and octal bytes when it holds
// control characters, quotes, backslashes or bytes outside of ASCII.
func Quote(path string) string { return tree.Quote(path) }

// CreateOptions say where a feature's layers lie and what they lie over.
type CreateOptions struct {
	Dir       string // made if missing; other files in it are left alone
	Workspace string // the base; symbolic links in it are resolved once, here
	Feature   string // the feature's id, which the names of its layers begin with
	Owner     Owner  // host ids that the upper's root and the home get: the mapped owner

	// Bases is a directory, common to all features of a state directory, for what promotes take out of workspaces (see
	// package promote). Empty: one in Dir, so that other features' promotes are edits by others.
	Bases string

	// Journal is a directory for the journal of a promote, and Sync makes Dir durable, where Dir's filesystem does not
	// keep what it synced through a power failure: an image that is mounted without barriers. Empty and nil: Dir, syncfs.
	Journal string
	Sync    func() error

	// Driver is DriverOverlay or DriverCopy, for whoever chooses between the packages; empty: DriverOverlay.
	Driver string

	// UserXattr says that the stacks are mounted with the overlay option userxattr, so that overlayfs keeps its
	// marks in user.overlay.* and not in trusted.overlay.*. It is implied when the caller is not root.
	UserXattr bool
}

// Stack is an overlay mount, described and not made.
type Stack struct {
	Target string  // absolute, inside
	Lower  []Layer // newest first; the workspace last
	Upper  string  // host paths, on one filesystem
	Work   string
}

// Layer is one lower directory of a Stack.
type Layer struct {
	Path string // host path
	Base bool   // holds the host's own ids and must be idmapped
}

// Workspace is a feature's layers on disk. Its methods are safe for concurrent use, except for Promote and Discard,
// which need the feature for themselves: the runner holds the feature's lock.
type Workspace struct {
	dir   string
	state state
}

// state is what state.json holds.
type state struct {
	Version   int       `json:"version"`
	Workspace string    `json:"workspace"` // absolute, without symbolic links
	Inode     uint64    `json:"inode"`     // of the workspace's root
	Birth     time.Time `json:"birth"`     // of the workspace's root; zero where the filesystem has no birth times
	Owner     Owner     `json:"owner"`
	UserXattr bool      `json:"user_xattr,omitempty"`
	Start     time.Time `json:"start"`                // a base object whose ctime is not before it was changed by others
	RootMode  uint32    `json:"root_mode"`            // of the workspace's root at Start: the upper's root began with it
	RootXattr []byte    `json:"root_xattr,omitempty"` // likewise, packed
}

// Path returns the base's path on the host.
func (w *Workspace) Path() string { return w.state.Workspace }

// Dir returns the directory that holds the layers.
func (w *Workspace) Dir() string { return w.dir }

// Start returns the time since when changes of the base by others count as conflicts.
func (w *Workspace) Start() time.Time { return w.state.Start }

// Stacks describes the mounts of /workspace and /home/user, in this order.
func (w *Workspace) Stacks() []Stack {
	return []Stack{
		{
			Target: WorkspaceTarget,
			Lower:  []Layer{{Path: w.state.Workspace, Base: true}},
			Upper:  w.dir + "/upper",
			Work:   w.dir + "/work",
		},
		{
			Target: HomeTarget,
			Lower:  []Layer{{Path: w.dir + "/home/lower"}},
			Upper:  w.dir + "/home/upper",
			Work:   w.dir + "/home/work",
		},
	}
}

// PromoteOptions say how to promote.
type PromoteOptions struct {
	Kind      PromoteKind // empty: PromoteApply
	PatchFile string      // for PromotePatch

	// LockDir is a directory, common to all features of a state directory, for the locks that keep two promotes
	// to one workspace apart. Empty: the directory above the feature's.
	LockDir string

	// Moving is called before the first rename, when what will be taken away has been kept in the base layer of
	// generation: every live feature of the workspace must show it before anything moves. An error refuses the promote.
	// nil: there are no live features but this one.
	Moving func(ctx context.Context, generation int) error
}

// Reasons why a directory cannot be a workspace, or no longer is the one that it was.
var (
	ErrMissing        = tree.ErrMissing
	ErrNotDirectory   = errors.New("is not a directory")
	ErrContainsState  = errors.New("contains the state directory")
	ErrInsideState    = errors.New("lies inside the state directory")
	ErrReplaced       = tree.ErrReplaced
	ErrUnsupported    = errors.New("not available in this version")
	ErrStaleChange    = tree.ErrStaleChange
	ErrMountPoint     = tree.ErrMountPoint
	ErrPathTooLong    = tree.ErrPathTooLong
	ErrUnusableLayers = tree.ErrUnusableLayers
	ErrConflict       = tree.ErrConflict // what a ConflictError is
)

// Check tells whether a directory can be a workspace of the state directory stateDir, which need not exist. Its
// errors are *WorkspaceError.
func Check(workspace, stateDir string) error {
	refuse := func(err error, remedy string) error {
		return &WorkspaceError{Path: workspace, Err: err, Remedy: remedy}
	}
	info, err := os.Stat(workspace)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse(ErrMissing, "name an existing directory with --workspace")
	case err != nil:
		return refuse(err, "name a directory that you may read with --workspace")
	case !info.IsDir():
		return refuse(ErrNotDirectory, "name a directory with --workspace")
	}
	inside, err := contains(workspace, stateDir)
	if err != nil {
		return refuse(err, "")
	}
	if inside {
		return refuse(ErrContainsState, "name a directory below it, or put the state elsewhere with CAISSON_STATE")
	}
	if inside, err = contains(stateDir, workspace); err != nil {
		return refuse(err, "")
	}
	if inside {
		return refuse(ErrInsideState, "name a directory of your own with --workspace")
	}
	return nil
}

// contains reports whether dir is path or one of its parents, by identity and not by name, so that links and bind
// mounts count.
func contains(dir, path string) (bool, error) {
	want, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return false, err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	for {
		if info, err := os.Stat(path); err == nil && os.SameFile(info, want) {
			return true, nil
		}
		parent := filepath.Dir(path)
		if parent == path {
			return false, nil
		}
		path = parent
		// The missing part of a path that does not exist yet may lie below a link.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
	}
}

// Package snapshot is the vocabulary of a feature's layers: what a checkpoint is, what can be done with it ([Layers]), and
// which are kept ([Retain]). The drivers are packages of their own: overlay stacks directories, copytree copies trees
// for hosts without overlayfs. Beneath them lie book (what is on disk beside the layers, and the one commit rule), tree
// (the merged view of a stack, read from the host) and promote (the way back into the workspace).
//
// A feature's view is the workspace, which is never written while work runs, under layers that hold what the sandbox wrote;
// and a HOME beside it. Nothing here mounts or starts anything: the mounts are described ([Layers.Stacks]) and made by
// the isolation engine. Everything in a layer was written by untrusted code, and the workspace may be edited by others at
// any time: no path is ever resolved through a symbolic link or a mount point, on either side.
package snapshot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
	Side          = tree.Side
	Choice        = tree.Choice
	Resolution    = tree.Resolution
	ChoiceError   = tree.ChoiceError
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

	Ours   = tree.Ours
	Theirs = tree.Theirs

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

// Stack is a mount, described and not made: an overlay; read-only if Upper is empty; a bind of Upper if it has no Lower
// and no Work.
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

// PromoteOptions say how to promote.
type PromoteOptions struct {
	Kind      PromoteKind // empty: PromoteApply
	PatchFile string      // for PromotePatch

	// LockDir is not used by drivers that keep base layers: CreateOptions.Bases has the lock.
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
	ErrStayed         = tree.ErrStayed   // what PromoteOptions.Moving answers if it refuses before anything moved
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
	if err := readable(workspace); err != nil {
		return refuse(err, "name a directory that you may read with --workspace")
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

// readable says why the names in a directory, or what they stand for, cannot be had.
func readable(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	_, err = os.Stat(dir + "/.")
	return errors.Join(err, f.Close())
}

// Remove removes a feature's directory with everything in it, whatever the modes and the depth; a missing one is no error.
// With keep, names directly in it, those and the directory itself stay.
func Remove(ctx context.Context, dir string, keep ...string) error {
	return tree.Remove(ctx, dir, keep...)
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

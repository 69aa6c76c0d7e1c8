// Package tree shows stacks of layers as one tree, without mounting them: what overlayfs would show, read from the
// host, and what differs between two such views.
//
// A directory of a view is a list of places, newest first: a layer and a path in it. Which places a name has follows
// from whiteouts, opaque directories and redirects exactly as in fs/overlayfs/namei.c. Two directories whose places
// end alike differ at most in the names that the places before hold; that one rule makes every comparison take time by
// what changed and not by what is there.
//
// Everything in a layer was written by untrusted code, and the workspace below may be edited by others at any time: no
// path is ever resolved through a symbolic link or a mount point (openat2 with RESOLVE_BENEATH, NO_SYMLINKS,
// NO_MAGICLINKS and NO_XDEV), and nothing but regular files is opened for reading.
package tree

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/delta"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// MaxPath is the longest path, in bytes and relative to the workspace, that a change may hold. Longer ones, which
// only a hostile program makes, are an error that names the path's beginning.
const MaxPath = beneath.MaxPath

type (
	// Seen is an object in the state in which it was seen: inode, size, mode, and times.
	Seen = journal.Seen
	// Xattr is one extended attribute.
	Xattr = beneath.Xattr
)

// Owner is a pair of host ids.
type Owner struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
}

// Root is one layer of a view, on the host.
type Root struct {
	Path string // of the directory; only its last component may not be a symbolic link

	// Base marks a directory of the host: the workspace and its base layers. Its ids are the host's own, and it may be
	// edited by others at any time.
	Base bool

	// UserXattr says that overlayfs' marks in this layer are user.overlay.* and not trusted.overlay.*.
	UserXattr bool

	// Plain says that the directory is a whole tree and no overlay's layer: nothing in it is a mark.
	Plain bool

	Feature string // whose layer it is; "" for the workspace and its base layers
	Layer   int    // its number, or a base layer's generation; 0 for the workspace
}

// Stat describes one object of a view.
type Stat struct {
	Type     FileType
	Mode     fs.FileMode // permissions, and fs.ModeSetuid, ModeSetgid and ModeSticky
	Size     int64       // bytes
	Blocks   int64       // of 512 bytes
	UID, GID uint32      // as they are in the layer
	Rdev     uint64
	Mtime    time.Time
	Ctime    time.Time
	Dev, Ino uint64 // of the object in its layer: equal for hard links
	Nlink    uint64
	Link     string  // a symbolic link's target
	Xattrs   []Xattr // the user's, sorted by name
	Root     int     // the layer that shows it, by its place in the view
	Source   string  // and where in it
}

// CompareOptions say what Compare looks at. The zero value compares two finished states.
type CompareOptions struct {
	// Strict reports also what differs in its owner, its modification time, and in which paths are one file.
	Strict bool

	// Only selects the regular files of the new view that are looked at, if they have no other name; nil: all are. Everything
	// else always is.
	Only func(path string) bool

	// Map translates the ids in Base layers to what the sandbox sees. nil: Strict does not compare them.
	Map func(uid, gid uint32) (uint32, uint32)

	// Since says when the feature began: what others changed in the Base layers since then, and the feature too, is
	// known as a conflict. Zero: nobody asks.
	Since time.Time
	// Touched are objects of the base whose ctime is not before Since because of us, by path.
	Touched map[string]Seen
	// RootMode and RootXattr (packed) are how the root began: with Since set, only what differs from them is a change.
	RootMode  uint32
	RootXattr []byte

	// Sums returns the cache of content sums of a layer of the new view, or nil.
	Sums func(root int) Sums
}

// Sums remembers the sums of files' contents, by path in a layer. It is used from several goroutines at once.
type Sums interface {
	Get(path string, s Seen) ([32]byte, bool)
	Put(path string, s Seen, sum [32]byte)
}

// RestoreOptions say what Restore writes.
type RestoreOptions struct {
	Match     func(path string) bool // nil: everything
	Owner     Owner                  // of what has no owner in from: the parents that are made
	UserXattr bool                   // marks are user.overlay.*
	Map       func(uid, gid uint32) (uint32, uint32)
}

type (
	// DeltaOptions say what CopyDelta copies besides what looks changed.
	DeltaOptions = delta.Options
	// Delta is what CopyDelta did.
	Delta = delta.Delta
)

// Pair is two views that a change was read from.
type Pair struct{ Old, New *View }

// DiffOptions select what WriteDiff prints.
type DiffOptions struct {
	Paths    []string // files or directories, relative; empty: all
	Stat     bool     // a histogram of lines per file, and a total
	NameOnly bool     // one quoted path per line
	Context  int      // lines around a change; 0: 3, negative: none
	MaxFile  int64    // larger files are named and not printed, in bytes; 0: 8 MiB
}

// PromoteKind is a way of handing a change over.
type PromoteKind string

const (
	PromoteApply  PromoteKind = "apply"  // change the workspace
	PromotePatch  PromoteKind = "patch"  // write a unified diff to a file
	PromoteBranch PromoteKind = "branch" // commit to a branch of the workspace's git repository (package gitbranch)
)

// PromoteReport says what a promote did.
type PromoteReport struct {
	Kind      PromoteKind `json:"kind"`
	Added     int         `json:"added"`
	Modified  int         `json:"modified"`
	Deleted   int         `json:"deleted"`
	PatchFile string      `json:"patch_file,omitempty"`
	Digest    string      `json:"digest"` // of the change
	Notes     []Note      `json:"notes,omitempty"`

	Branch string `json:"branch,omitempty"` // below refs/heads
	Commit string `json:"commit,omitempty"` // that it names now, 40 hexadecimal digits
	Parent string `json:"parent,omitempty"` // of that; "" for a first commit
	Files  int    `json:"files,omitempty"`  // in which the commit differs from its parent

	Resolved []Resolution `json:"resolved,omitempty"` // conflicts, by the word of the user

	// Generation is the workspace's after an apply: how many promotes it has had.
	Generation int `json:"generation,omitempty"`
}

// Note is something about one path that the user should know.
type Note struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Conflict is a path that the feature and others changed since Start.
type Conflict struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`

	// The three sides, where a promote is refused; elsewhere nil.
	Base   *Side `json:"base,omitempty"`   // what the feature began with; nil: nobody kept it
	Ours   *Side `json:"ours,omitempty"`   // the workspace's, now
	Theirs *Side `json:"theirs,omitempty"` // the feature's
}

type plainConflict Conflict

// conflictJSON has a path that is not UTF-8 twice: readable, and exact.
type conflictJSON struct {
	plainConflict
	Raw string `json:"path_base64,omitempty"`
}

func (c Conflict) toJSON() conflictJSON {
	j := conflictJSON{plainConflict: plainConflict(c)}
	j.Path, j.Raw = encodeRaw(c.Path)
	return j
}

func (j *conflictJSON) conflict() (c Conflict, err error) {
	c = Conflict(j.plainConflict)
	c.Path, err = decodeRaw(j.Path, j.Raw)
	return c, err
}

// MarshalJSON keeps the bytes of a path that is not valid UTF-8.
func (c Conflict) MarshalJSON() ([]byte, error) { return json.Marshal(c.toJSON()) }

// UnmarshalJSON takes those bytes back.
func (c *Conflict) UnmarshalJSON(data []byte) (err error) {
	var j conflictJSON
	if err = json.Unmarshal(data, &j); err == nil {
		*c, err = j.conflict()
	}
	return err
}

// Side is what one side of a conflict has at its path.
type Side struct {
	Kind   Kind     `json:"kind,omitempty"`   // what became of the base; "" for the base itself, and for a side that is like it
	Type   FileType `json:"type,omitempty"`   // "": nothing is there
	Mode   string   `json:"mode,omitempty"`   // octal, four digits
	Size   int64    `json:"size,omitempty"`   // of files, in bytes
	Link   string   `json:"link,omitempty"`   // a symbolic link's target
	SHA256 string   `json:"sha256,omitempty"` // of a file of at most 64 MiB, in hexadecimal
}

// Which side a conflict is resolved to.
const (
	Ours   = "ours"   // the workspace's: the change leaves the path alone
	Theirs = "theirs" // the feature's: it replaces what the workspace has
)

// Choice resolves conflicts by name: doublestar globs of their paths, which take in what is below, unless that is named
// itself.
type Choice struct {
	Ours, Theirs []string
}

// Resolution is a conflict that was resolved.
type Resolution struct {
	Conflict
	Side string `json:"side"` // Ours or Theirs
}

type resolutionJSON struct {
	conflictJSON
	Side string `json:"side"`
}

// MarshalJSON is the conflict's, and the side.
func (r Resolution) MarshalJSON() ([]byte, error) {
	return json.Marshal(resolutionJSON{r.Conflict.toJSON(), r.Side})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (r *Resolution) UnmarshalJSON(data []byte) (err error) {
	var j resolutionJSON
	if err = json.Unmarshal(data, &j); err == nil {
		r.Side = j.Side
		r.Conflict, err = j.conflict()
	}
	return err
}

// Resolved says that a change was read anew from the workspace as others made it, and what of it was left out or put over
// theirs.
type Resolved struct {
	Generation int // of the workspace that it was read from
	Paths      []Resolution
	Notes      []Note // what goes beside that
}

// ChoiceError is a choice that cannot be: a name that fits no conflict, or two sides at once.
type ChoiceError struct{ Path, Reason string }

func (e *ChoiceError) Error() string { return Quote(e.Path) + ": " + e.Reason }

// ErrStayed is the refusal to move live features onto a new base layer before any of them has: nothing of it is left.
// After another refusal the layer stays, because some may be on it.
var ErrStayed = errors.New("no feature was moved")

// ErrConflict is what a [ConflictError] is.
var ErrConflict = errors.New("base_changed")

// ConflictError is a promote's refusal: nothing was changed.
type ConflictError struct{ Conflicts []Conflict }

func (e *ConflictError) Error() string {
	if len(e.Conflicts) == 0 {
		return "the workspace was changed by others"
	}
	first := e.Conflicts[0]
	if len(e.Conflicts) == 1 {
		return fmt.Sprintf("the workspace was changed by others: %s: %s", Quote(first.Path), first.Reason)
	}
	return fmt.Sprintf("the workspace was changed by others at %d paths, first %s: %s",
		len(e.Conflicts), Quote(first.Path), first.Reason)
}

// Is reports whether target is ErrConflict.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Reasons why layers or a workspace cannot be used.
var (
	ErrMissing        = errors.New("does not exist")
	ErrReplaced       = errors.New("is not the directory that the feature was started on")
	ErrStaleChange    = errors.New("the change was not read from this workspace by this process")
	ErrMountPoint     = beneath.ErrMountPoint
	ErrPathTooLong    = beneath.ErrPathTooLong
	ErrUnusableLayers = errors.New("the feature's layers are damaged")
)

// WorkspaceError says why Path cannot be used as a workspace. Err is one of the reasons above, or the system's.
type WorkspaceError struct {
	Path, Remedy string
	Err          error
}

func (e *WorkspaceError) Error() string { return fmt.Sprintf("workspace %s %v", Quote(e.Path), e.Err) }

func (e *WorkspaceError) Unwrap() error { return e.Err }

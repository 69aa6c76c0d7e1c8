package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// What Change, Diff and OpenFile take besides checkpoint ids.
const (
	Base    = "base"    // the workspace as the feature's generation sees it
	Current = "current" // what the sandbox sees now, sealed or not
)

// Drivers.
const (
	DriverOverlay = "overlay"
	DriverCopy    = "copy"
)

// LayerRef names a layer: a directory layers/N of a feature, with one directory each for the workspace and HOME.
type LayerRef struct {
	Feature string `json:"feature"`
	Layer   int    `json:"layer"`
}

// OpenOptions say which feature's layers to open.
type OpenOptions struct {
	Dir     string // as in CreateOptions
	Feature string // the feature's id
	Bases   string // as in CreateOptions

	// Resolve finds the directory (OpenOptions.Dir) of another feature whose layers this one was forked from. It is
	// called when such a layer is first needed, for each feature once. nil: there are none.
	Resolve func(feature string) (dir string, err error)

	// Journal is a directory for the journal of a promote, and Sync makes Dir durable, where Dir's filesystem does not
	// keep what it synced through a power failure: an image that is mounted without barriers. Empty and nil: Dir, syncfs.
	Journal string
	Sync    func() error

	// ReadOnly opens without recovering and without removing what a crash left: beside a supervisor that has the
	// feature's lock. Methods that write fail with fs.ErrPermission.
	ReadOnly bool
}

// Info is what does not need a look at the layers.
type Info struct {
	Driver     string    `json:"driver"`
	Workspace  string    `json:"workspace"`
	Feature    string    `json:"feature"`
	Head       string    `json:"head"`       // the checkpoint that the current state began from, "" for the base
	Generation int       `json:"generation"` // of the workspace that the feature sees
	Depth      int       `json:"depth"`      // layers of the current stack, without the base's
	Start      time.Time `json:"start"`      // since when changes of the base by others count as conflicts
	Owner      Owner     `json:"owner"`
}

// Record is a checkpoint as it lies on disk. Nothing in it changes once it is written, but for Stack (a squash) and
// AliasOf (found to be equal to its parent).
type Record struct {
	ID         string          `json:"id"`
	Parent     string          `json:"parent,omitempty"` // "" is the base
	AliasOf    string          `json:"alias_of,omitempty"`
	Feature    string          `json:"feature"` // that sealed it: another one's for the checkpoint that a fork began from
	Created    time.Time       `json:"created"`
	Generation int             `json:"generation"`
	Depth      int             `json:"depth"`            // layers, without the base's
	Bytes      int64           `json:"bytes,omitempty"`  // of its own layer, allocated; 0 before Index
	Inodes     int64           `json:"inodes,omitempty"` // likewise
	Meta       json.RawMessage `json:"meta,omitempty"`   // the caller's
	Layer      int             `json:"layer,omitempty"`  // its own layer; 0 for an alias and for one without
	Stack      []LayerRef      `json:"stack,omitempty"`  // newest first
	Origin     Origin          `json:"origin"`
	Bare       bool            `json:"bare,omitempty"` // an import that holds everything: the base does not show below Stack

	// Damaged says why the checkpoint cannot be used, "" if it can: its file or a layer of its stack is missing or
	// unreadable. Of a file that cannot be read nothing but ID is known.
	Damaged string `json:"-"`
}

// Origin is how the workspace was when the line of checkpoints began on it.
type Origin struct {
	Start     time.Time `json:"start"`                // a base object whose ctime is not before it was changed by others
	RootMode  uint32    `json:"root_mode"`            // of the workspace's root
	RootXattr []byte    `json:"root_xattr,omitempty"` // likewise, packed
}

// Live is how Seal deals with processes that hold the workspace.
type Live struct {
	// Pause stops every process of the sandbox.
	Pause func(ctx context.Context) (Paused, error)
}

// Paused is a sandbox in which nothing moves.
type Paused struct {
	Mapped []string     // "TARGET/path" of files that are mapped shared and writable
	Resume func() error // is called once, whatever happens
}

// SealOptions say what to seal as.
type SealOptions struct {
	ID   string          // of the checkpoint: new, a plain file name
	Meta json.RawMessage // kept in the Record

	// Live is set while processes hold the workspace or HOME: what changed is copied and Current's directories stay.
	// nil: nobody holds them, the current layer becomes the checkpoint's, and Stacks has new ones to mount.
	Live *Live
}

// Sealed is what Seal did.
type Sealed struct {
	Record
	Alias       bool          // nothing had changed: the record only names its parent, and Stacks are as before
	Rotated     bool          // Stacks changed: mount them
	Pause       time.Duration // how long the sandbox stood still, of a live one
	Copied      int           // files
	CopiedBytes int64
}

// ResetOptions say what to go back to.
type ResetOptions struct {
	To     string   // a checkpoint, or Base
	Paths  []string // doublestar globs relative to the workspace; nil: everything, HOME too
	Skip   []string // globs of what stays as it is, with Paths
	DryRun bool     // only report
}

// ResetReport is what Reset did, or would do.
type ResetReport struct {
	To        string     `json:"to"`
	Paths     []string   `json:"paths,omitempty"`     // that changed; nil when everything was reset and not compared
	Conflicts []Conflict `json:"conflicts,omitempty"` // base paths that others edited and that therefore show as they are now
}

// Usage is what a feature's layers take.
type Usage struct {
	Bytes       int64 // allocated
	Inodes      int64
	Layers      int
	Checkpoints int

	ByCheckpoint map[string]int64 // bytes that go when this checkpoint alone is dropped
}

// Indexed is what is known of a checkpoint after a look at all that it changes.
type Indexed struct {
	ID      string
	Digest  string       // of the workspace's identity, the generation and everything that differs from the base
	Counts  ChangeCounts // against the parent, workspace and HOME
	AliasOf string       // the parent, when it is exactly equal
	Bytes   int64        // allocated by the checkpoint's own layer
	Inodes  int64
}

// ChangeCounts sums a change up.
type ChangeCounts struct {
	Added    int   `json:"added"`
	Modified int   `json:"modified"`
	Deleted  int   `json:"deleted"`
	Bytes    int64 `json:"bytes"`
}

// Layers are one feature's: a tree of sealed checkpoints and one current state that a sandbox writes to. Every
// driver's Create, Open and Fork return one, and package snapshottest is the contract that they keep.
//
// A checkpoint's life: Seal makes it (immutable from then on), Index computes what can be computed later, Sync makes it
// durable, Squash may change how it is stored, Drop forgets it and Collect frees its space. Current begins on the base
// or on a checkpoint (Reset, Fork), takes what the sandbox writes through the mounts that Stacks describe, and goes on
// from its own Seal.
//
// What changes Stacks (a rotating Seal, Reset, Rebase, Promote) is done when it returns, atomically: whatever kills the
// process, a later Open finds the state before or the state after. The caller mounts the new Stacks then and detaches
// the old ones; what is written through the old ones afterwards is lost or damages a checkpoint, so it makes sure
// that nobody holds them.
//
// The caller holds the feature's lock. Methods are safe for concurrent use: reading ones run beside all others,
// writing ones after each other.
//
// Errors: ErrCheckpoint for an id that is not this feature's; *DamageError for what is on disk and not usable;
// *WorkspaceError for a workspace that is gone; ErrDepth.
type Layers interface {
	Info() Info

	// Stacks describes the mounts of the current state, workspace first, then HOME. Prepare comes before each mount.
	Stacks() []Stack
	// StacksAt describes read-only mounts of a checkpoint, for gates.
	StacksAt(id string) ([]Stack, error)
	// Prepare readies Stacks to be mounted (again).
	Prepare() error
	// HomeMountpoint makes an empty directory or file at a path relative to HOME for something to be mounted on, with
	// its parents, all owned by o. It shows in every state. What exists with the right type is left.
	HomeMountpoint(path string, dir bool, o Owner) error
	// Pin keeps promotes by other features away until release: from before Stacks is called until the mounts are
	// known to those who ask live features to move (PromoteOptions.Moving).
	Pin(ctx context.Context) (release func(), err error)

	// Records lists the checkpoints, oldest first, also damaged ones.
	Records() ([]Record, error)
	// Refs lists every layer that the feature needs, other features' among them.
	Refs() ([]LayerRef, error)

	// Seal makes the current state a checkpoint. It waits for nothing that grows with the size of the tree, unless
	// SealOptions.Live is set.
	Seal(ctx context.Context, o SealOptions) (Sealed, error)
	// Reset makes the current state that of a checkpoint, wholly or at some paths. What was not sealed is lost: the
	// caller seals first. Without Paths it takes the same time for every tree.
	Reset(ctx context.Context, o ResetOptions) (*ResetReport, error)
	// Rebase takes up what promotes of other features took out of the workspace, so that it still shows here.
	Rebase() error
	// Index reads a checkpoint. It takes long and belongs into the background.
	Index(ctx context.Context, id string) (Indexed, error)
	// Sync makes everything sealed so far durable.
	Sync(ctx context.Context) error

	// Change compares two states of the workspace: checkpoints, Base or Current.
	Change(ctx context.Context, from, to string) (*Change, error)
	// Same reports whether two such states are equal in content and modes, of the workspace and of HOME. Times do not count.
	Same(ctx context.Context, a, b string) (bool, error)
	// WriteDiff prints what Change returned.
	WriteDiff(ctx context.Context, c *Change, w io.Writer, o DiffOptions) error
	// OpenFile opens a regular file of a state's workspace for reading.
	OpenFile(at, path string) (*os.File, error)
	// Readlink returns what a symbolic link of a state's workspace says. fs.ErrNotExist, also for what is no link.
	Readlink(at, path string) (string, error)
	// Conflicts lists the paths of a change from Base that others changed in the workspace as well.
	Conflicts(ctx context.Context, c *Change) ([]Conflict, error)
	// Resolve returns what is to be promoted of a change from Base whose conflicts are resolved: read anew from the workspace
	// as it is now, without what stays as others made it. Change.Resolved says which. *ConflictError with the conflicts that
	// the choice does not name; *ChoiceError.
	Resolve(ctx context.Context, c *Change, o Choice) (*Change, error)
	// Promote hands a change from Base over. Applying what Current or its checkpoint shows begins the feature anew on the
	// next generation: Stacks change, and Head is "".
	Promote(ctx context.Context, c *Change, o PromoteOptions) (*PromoteReport, error)

	// Squash makes long runs of layers one each; force takes short ones, too. Nothing observable changes. It returns how
	// many layers fewer the head's stack has.
	Squash(ctx context.Context, force bool) (removed int, err error)
	// Drop forgets checkpoints, but not the head: ErrHead. What others are made of stays as long as they do.
	Drop(ctx context.Context, ids ...string) error
	// Collect frees what no checkpoint, no current state and no other feature (needed, their Refs) needs, in bytes; less
	// than that while another method reads. Mounts it knows nothing of: needed has the Stack of a checkpoint that is
	// mounted, and nobody calls it between a change of Stacks and the end of their exchange.
	Collect(ctx context.Context, needed []LayerRef) (freed int64, err error)

	// Export writes a checkpoint as an OCI layer tar and returns the digest of the uncompressed archive, sha256:HEX.
	Export(ctx context.Context, id string, w io.Writer, o ExportOptions) (digest string, err error)
	// Import makes a checkpoint of such a tar: a child of the head, or of the base for a full one. Current stays.
	Import(ctx context.Context, r io.Reader, o ImportOptions) (Record, error)

	Usage(ctx context.Context) (Usage, error)
	Close() error
}

// ExportOptions say what to export.
type ExportOptions struct {
	Full bool // everything that shows; else what differs from the parent
	Home bool // HOME instead of the workspace
	Zstd bool
}

// ImportOptions say what is expected of an archive.
type ImportOptions struct {
	ID       string // of the new checkpoint
	Home     bool   // the archive is of HOME
	Digest   string // that the uncompressed archive must have, sha256:HEX; "" does not check
	Meta     json.RawMessage
	MaxBytes int64 // more is refused; 0: 1 GiB
}

var (
	// ErrCheckpoint is an id that no checkpoint of the feature has.
	ErrCheckpoint = errors.New("no such checkpoint")
	// ErrHead refuses to drop the checkpoint that the current state lies on.
	ErrHead = errors.New("the feature's current state lies on it")
	// ErrDepth refuses a checkpoint on too many layers: overlayfs stacks at most 500.
	ErrDepth = errors.New("too many layers")
	// ErrHeld is a live process in the way.
	ErrHeld = errors.New("held by a live process")
	// ErrPlatform is every answer on systems without overlayfs.
	ErrPlatform = fmt.Errorf("workspaces need Linux: %w", errors.ErrUnsupported)
)

// DamageError names something on disk that cannot be used. The rest can.
type DamageError struct {
	Path string // host path
	ID   string // the checkpoint that is lost by it, if one is
	Err  error
}

func (e *DamageError) Error() string {
	if e.ID != "" {
		return fmt.Sprintf("checkpoint %s is damaged: %s: %v", e.ID, Quote(e.Path), e.Err)
	}
	return fmt.Sprintf("%s is damaged: %v", Quote(e.Path), e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

// Is reports that damage is ErrUnusableLayers.
func (e *DamageError) Is(target error) bool { return target == ErrUnusableLayers }

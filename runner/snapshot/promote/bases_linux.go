package promote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Bases are the base layers of one workspace. Base layer g holds what the workspace's g-th promote took away: a feature
// of generation i sees its own layers on i+1, i+2, … and on the workspace, and so what that was after promote i.
type Bases struct {
	dir       string // of this workspace
	workspace string // absolute, without symbolic links
	inode     uint64
	birth     time.Time

	mu    sync.Mutex
	state basesState // as last read
}

// basesState is what state.json of the bases holds. It is replaced by rename, by whoever has the lock exclusively.
type basesState struct {
	Version    int       `json:"version"`
	Workspace  string    `json:"workspace"`
	Inode      uint64    `json:"inode"`
	Birth      time.Time `json:"birth"`
	Generation int       `json:"generation"`

	// Void are the generations whose promote was undone when others may have been on their base layer already: that
	// shows the same as the workspace, and stays as long as any other.
	Void []int `json:"void,omitempty"`
}

const (
	basesStateFile = "state.json"
	basesLock      = "lock"
)

// OpenBases opens the base layers of a workspace, below dir, which is one for all features of a state directory, and makes
// what is missing. Errors are *tree.WorkspaceError when the workspace is gone.
func OpenBases(dir, workspace string) (*Bases, error) {
	real, err := filepath.EvalSymlinks(workspace)
	var ws *beneath.Root
	if err == nil {
		ws, err = beneath.OpenRoot(real)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = tree.ErrMissing
	}
	if err != nil {
		return nil, &tree.WorkspaceError{Path: workspace, Err: err, Remedy: "put the directory back, or discard the feature"}
	}
	defer ws.Close()
	b := &Bases{workspace: real}
	if b.inode, b.birth, err = beneath.Identity(ws.FD); err != nil {
		return nil, ws.Fail("stat", ".", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", real, b.inode, b.birth.UnixNano()))
	b.dir = filepath.Join(dir, hex.EncodeToString(key[:12]))
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return nil, err
	}
	return b, b.read()
}

// read brings state up to date: other processes promote, too.
func (b *Bases) read() error {
	path := filepath.Join(b.dir, basesStateFile)
	data, err := os.ReadFile(path)
	s := basesState{Version: 1, Workspace: b.workspace, Inode: b.inode, Birth: b.birth}
	if err == nil {
		err = json.Unmarshal(data, &s)
		if err == nil && (s.Version != 1 || s.Generation < 0) {
			err = journal.ErrVersion
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %w", path, tree.ErrUnusableLayers, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b.mu.Lock()
	b.state = s
	b.mu.Unlock()
	return nil
}

func (b *Bases) now() basesState {
	_ = b.read() // what cannot be read is as it was
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// write publishes a state, durably.
func (b *Bases) write(s basesState) error {
	data, err := json.Marshal(&s)
	if err == nil {
		err = journal.WriteFile(b.dir, basesStateFile, data)
	}
	if err == nil {
		err = b.read()
	}
	return err
}

// Generation is how many promotes the workspace has had, undone ones that others saw among them.
func (b *Bases) Generation() int { return b.now().Generation }

// Above returns the base layers that show the workspace as it was at a generation, in the order of a stack. The caller
// holds the lock, shared, until its mount is known to those who move live features.
func (b *Bases) Above(generation int) []tree.Root {
	var all []tree.Root
	for _, g := range b.now().after(generation) {
		all = append(all, tree.Root{Path: b.path(g), Base: true, UserXattr: os.Geteuid() != 0, Layer: g})
	}
	return all
}

// after lists the generations after one, but for void ones.
func (s basesState) after(generation int) []int {
	var all []int
	for g := max(generation, 0) + 1; g <= s.Generation; g++ {
		if !slices.Contains(s.Void, g) {
			all = append(all, g)
		}
	}
	return all
}

func (b *Bases) path(g int) string { return filepath.Join(b.dir, strconv.Itoa(g)) }

func (b *Bases) list(g int) string { return strconv.Itoa(g) + ".json" }

// Touched returns the paths that promotes have changed since a generation. Errors are tree.ErrUnusableLayers.
func (b *Bases) Touched(generation int) (map[string]bool, error) {
	s := b.now()
	all := map[string]bool{}
	for _, g := range s.after(generation) {
		path := filepath.Join(b.dir, b.list(g))
		data, err := os.ReadFile(path)
		var paths [][]byte
		if err == nil {
			err = json.Unmarshal(data, &paths)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %w", path, tree.ErrUnusableLayers, err)
		}
		for _, p := range paths {
			all[string(p)] = true
		}
	}
	return all, nil
}

// Collect removes the base layers that no checkpoint and no current state of generation oldest or later needs, and what
// was never published, and returns how many bytes that freed.
func (b *Bases) Collect(ctx context.Context, oldest int) (freed int64, err error) {
	unlock, err := b.Lock(ctx, true)
	if err != nil {
		return 0, err
	}
	defer unlock()
	last := b.now().Generation
	names, err := os.ReadDir(b.dir)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, n := range names {
		g, err := strconv.Atoi(strings.TrimSuffix(n.Name(), ".json")) // its list, when there is no more of it
		if err != nil || g > oldest && g <= last {
			continue
		}
		freed += allocated(b.path(g))
		errs = append(errs, b.drop(ctx, g))
	}
	return freed, errors.Join(errs...)
}

// CollectUnused removes the base layers below dir of all workspaces, which may be gone, that no feature is on any more,
// and returns how many bytes that freed. used gets a workspace's path.
func CollectUnused(ctx context.Context, dir string, used func(workspace string) bool) (freed int64, err error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return 0, ignoreMissing(err)
	}
	var errs []error
	for _, n := range names {
		b := &Bases{dir: filepath.Join(dir, n.Name())}
		if err := b.read(); err != nil || b.state.Workspace == "" || used(b.state.Workspace) {
			errs = append(errs, err)
			continue
		}
		more, err := b.Collect(ctx, b.state.Generation)
		freed += more
		errs = append(errs, err)
	}
	return freed, errors.Join(errs...)
}

// drop removes a base layer.
func (b *Bases) drop(ctx context.Context, g int) error {
	return errors.Join(tree.Remove(ctx, b.path(g)), ignoreMissing(os.Remove(filepath.Join(b.dir, b.list(g)))))
}

// allocated sums up what only a directory's files take, in bytes: those with a link elsewhere stay.
func allocated(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil && (beneath.IsDir(&st) || st.Nlink == 1) {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes
}

// Lock takes the workspace's lock: exclusive to promote, shared to read Above until the mount is known. When ctx ends
// first, its cause is the error.
func (b *Bases) Lock(ctx context.Context, exclusive bool) (unlock func(), err error) {
	how := unix.LOCK_SH
	if exclusive {
		how = unix.LOCK_EX
	}
	return flock(ctx, filepath.Join(b.dir, basesLock), how)
}

// publish makes base layer g part of what features of earlier generations see.
func (b *Bases) publish(g int) error {
	s := b.now()
	s.Generation = g
	return b.write(s)
}

// unpublish takes a generation back that nobody has seen.
func (b *Bases) unpublish(g int) error {
	s := b.now()
	s.Generation = g - 1
	return b.write(s)
}

// retract takes a base layer back whose promote was undone. Once it was published it stays, because somebody may be on
// it, but means nothing any more.
func (b *Bases) retract(ctx context.Context, g int) error {
	s := b.now()
	if s.Generation < g {
		return b.drop(ctx, g)
	}
	if slices.Contains(s.Void, g) {
		return nil
	}
	s.Void = append(s.Void, g)
	return b.write(s)
}

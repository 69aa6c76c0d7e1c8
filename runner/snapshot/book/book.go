// Package book keeps what a feature's layers are: one file of state, one file per checkpoint, and the numbers of the
// layers. Both drivers use it; it knows nothing of what is in a layer.
//
// On disk, in the feature's directory:
//
//	state.json            State: what is current, and what it lies on
//	checkpoints/ID.json   a snapshot.Record and the Identity; never changed but for its stack, sizes and alias
//	layers/N/             the driver's; numbers are given once and never again
//	layers/N/layer.json   exists in a sealed layer, and names the checkpoint that sealed it
//
// There is one commit point: the rename of state.json. Everything is prepared under numbers and names that it does not
// refer to, then it is renamed. Whatever cuts a change short, the state is the old one or the new one, and recovery is one
// rule: what state.json and the checkpoints do not name is garbage. A checkpoint counts only if its layer is not the
// current one, its number has been given (Layer < Next) and the layer's own file names it; any other is the rest of a seal
// that was cut short. Deleting comes after the commit.
//
// Nothing here waits for the disk: Sync does.
package book

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Version is the layout's. Version 1 had one upper layer and no checkpoints.
const Version = 2

// Names in a feature's directory.
const (
	StateFile      = "state.json"
	CheckpointsDir = "checkpoints"
	LayersDir      = "layers"
	LayerFile      = "layer.json"
)

// Step is called after every rename and removal that a crash can come after. Tests replace it.
var Step = func(string) {}

// Identity is what never changes in a feature. Every checkpoint has a copy, so that the state can be made anew of any.
type Identity struct {
	Driver    string         `json:"driver"`
	Feature   string         `json:"feature"`
	Workspace string         `json:"workspace"` // absolute, without symbolic links
	Inode     uint64         `json:"inode"`     // of the workspace's root
	Birth     time.Time      `json:"birth"`     // likewise; zero where the filesystem has no birth times
	Owner     snapshot.Owner `json:"owner"`
	UserXattr bool           `json:"user_xattr,omitempty"`
}

// State is what state.json holds.
type State struct {
	Version int `json:"version"`
	Identity
	Origin     snapshot.Origin `json:"origin"`
	Generation int             `json:"generation"` // of the workspace that the feature sees

	Head    string              `json:"head,omitempty"`   // the newest checkpoint of the current line; "" is the base
	Current int                 `json:"current"`          // the layer that is written to
	Ground  string              `json:"ground,omitempty"` // the checkpoint that the current layer was made on
	Lower   []snapshot.LayerRef `json:"lower,omitempty"`  // Ground's stack, as it is mounted below the current layer
	Bare    bool                `json:"bare,omitempty"`   // Ground's
	Next    int                 `json:"next"`             // the first number that was never given

	Extra json.RawMessage `json:"extra,omitempty"` // the driver's own, committed with the rest
}

// Copied reports that the head holds a copy of what is in the current layer, which lies on Ground and not on the head.
func (s *State) Copied() bool { return s.Head != s.Ground }

// Book is the state of one feature, in memory and on disk. Its methods are safe for concurrent use; those that
// write must have the feature for themselves.
type Book struct {
	dir string

	mu      sync.Mutex
	state   State
	records map[string]snapshot.Record // as read or written, not judged
}

// Create makes the book of a new feature in dir, which exists, with checkpoints of another feature that it begins from.
// Version and Next are filled in. The error is fs.ErrExist for a directory that has one.
func Create(dir string, s State, add ...snapshot.Record) (*Book, error) {
	path := filepath.Join(dir, StateFile)
	if _, err := os.Lstat(path); err == nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	s.Version = Version
	s.Next = max(s.Next, s.Current+1)
	b := &Book{dir: dir, state: s, records: map[string]snapshot.Record{}}
	for _, r := range add {
		if err := b.writeRecord(r, s.Identity); err != nil {
			return nil, err
		}
		b.records[r.ID] = r
	}
	if err := b.write(StateFile, s); err != nil {
		return nil, err
	}
	return b, nil
}

// Open opens what Create made. Errors are fs.ErrNotExist, snapshot.ErrUnsupported for another version and
// *snapshot.DamageError.
func Open(dir string) (*Book, error) {
	path := filepath.Join(dir, StateFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	b := &Book{dir: dir, records: map[string]snapshot.Record{}}
	if err := json.Unmarshal(data, &b.state); err != nil {
		return nil, &snapshot.DamageError{Path: path, Err: err}
	}
	if v := b.state.Version; v > 0 && v != Version {
		return nil, fmt.Errorf("%s: layout version %d: %w", path, b.state.Version, snapshot.ErrUnsupported)
	}
	if b.state.Version <= 0 || b.state.Current <= 0 || b.state.Next <= b.state.Current || b.state.Workspace == "" {
		return nil, &snapshot.DamageError{Path: path, Err: errors.New("holds no state")}
	}
	return b, nil
}

// Dir returns the feature's directory.
func (b *Book) Dir() string { return b.dir }

// Layer returns the directory of a layer of this feature.
func (b *Book) Layer(n int) string { return LayerDir(b.dir, n) }

// LayerDir returns the directory of a layer.
func LayerDir(dir string, n int) string { return filepath.Join(dir, LayersDir, strconv.Itoa(n)) }

// State returns the state. Its slices must not be changed.
func (b *Book) State() State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// Commit makes next the state, with new checkpoints. Until its last rename the old state is the valid one; after an error
// it still is, unless the error is that of a disk that failed after the rename.
func (b *Book) Commit(next State, add ...snapshot.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range add {
		if err := b.seal(r, next.Identity); err != nil {
			return errors.Join(err, b.unseal(add))
		}
	}
	next.Version = Version
	if err := b.write(StateFile, next); err != nil {
		return errors.Join(err, b.unseal(add))
	}
	b.state = next
	for _, r := range add {
		b.records[r.ID] = r
	}
	return nil
}

// seal writes what makes a layer a checkpoint's, but for the state.
func (b *Book) seal(r snapshot.Record, id Identity) error {
	if r.Layer != 0 {
		if err := b.writeLayer(r.Layer, layerFile{r.ID}); err != nil {
			return err
		}
	}
	return b.writeRecord(r, id)
}

// writeLayer marks a layer as sealed, without a rename: before the commit nobody looks at the file.
func (b *Book) writeLayer(n int, f layerFile) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.Layer(n), LayerFile), append(data, '\n'), 0o600); err != nil {
		return err
	}
	Step("wrote " + LayerFile)
	return nil
}

// SealLayer marks a layer as sealed for no checkpoint of its own: one that a squash made. Its number counts as given from
// the next Commit on.
func (b *Book) SealLayer(n int) error {
	return b.writeLayer(n, layerFile{})
}

func (b *Book) writeRecord(r snapshot.Record, id Identity) error {
	name := filepath.Join(CheckpointsDir, r.ID+".json")
	err := b.write(name, recordFile{r, id})
	if errors.Is(err, fs.ErrNotExist) { // the first
		if err = os.Mkdir(filepath.Join(b.dir, CheckpointsDir), 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			err = b.write(name, recordFile{r, id})
		}
	}
	return err
}

// unseal takes back what seal did.
func (b *Book) unseal(add []snapshot.Record) error {
	var errs []error
	for _, r := range add {
		errs = append(errs, remove(b.recordPath(r.ID)))
		if r.Layer != 0 {
			errs = append(errs, remove(filepath.Join(b.Layer(r.Layer), LayerFile)))
		}
	}
	return errors.Join(errs...)
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// layerFile is what layer.json holds.
type layerFile struct {
	ID string `json:"id"` // of the checkpoint
}

// recordFile is what a checkpoint's file holds.
type recordFile struct {
	snapshot.Record
	Identity Identity `json:"identity"`
}

// write writes a file below the feature's directory by rename.
func (b *Book) write(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, name)
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return errors.Join(err, remove(tmp))
	}
	Step("wrote " + filepath.Base(name))
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, remove(tmp))
	}
	Step("renamed " + filepath.Base(name))
	return nil
}

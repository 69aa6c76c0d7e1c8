package book

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// errNothing is the end of a repair.
var errNothing = errors.New("no checkpoint is left to make a state of")

// Repair names everything that cannot be used: damaged files and missing layers.
func (b *Book) Repair() ([]snapshot.DamageError, error) {
	if err := b.Sweep(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.records = map[string]snapshot.Record{} // as they are on disk
	b.mu.Unlock()
	all, err := b.Records()
	if err != nil {
		return nil, err
	}
	var found []snapshot.DamageError
	for i := range all {
		if r := &all[i]; r.Damaged != "" {
			found = append(found, snapshot.DamageError{Path: b.recordPath(r.ID), ID: r.ID, Err: errors.New(r.Damaged)})
		}
	}
	return found, nil
}

// Restore makes a new state.json where that cannot be read: a line that goes on from the newest checkpoint that can be
// used. What was not sealed is lost. makeCurrent makes the layer that is written to, on that state. The damaged file
// stays beside the new one as state.json.damaged.
func Restore(dir string, makeCurrent func(b *Book) error) (*Book, error) {
	path := filepath.Join(dir, StateFile)
	b := &Book{dir: dir, records: map[string]snapshot.Record{}}
	numbers, err := b.Numbers()
	if err != nil {
		return nil, err
	}
	for _, n := range numbers {
		b.state.Next = max(b.state.Next, n+1)
	}
	head, err := b.newest()
	if err != nil {
		return nil, err
	}
	if head == nil {
		return nil, &snapshot.DamageError{Path: path, Err: errNothing}
	}
	r := head.Record
	b.state = State{
		Version: Version, Identity: head.Identity, Origin: r.Origin, Generation: r.Generation,
		Head: r.ID, Ground: r.ID, Lower: r.Stack, Bare: r.Bare, Current: b.state.Next, Next: b.state.Next + 1,
	}
	if err := makeCurrent(b); err != nil {
		return nil, err
	}
	if err := os.Rename(path, path+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return b, b.write(StateFile, b.state)
}

// newest finds the checkpoint to go on from.
func (b *Book) newest() (*recordFile, error) {
	ids, err := b.ids()
	if err != nil {
		return nil, err
	}
	var best *recordFile
	layers := map[int]error{}
	for _, id := range ids {
		data, err := os.ReadFile(b.recordPath(id))
		var f recordFile
		if err != nil || json.Unmarshal(data, &f) != nil || f.ID != id || f.AliasOf != "" {
			continue
		}
		b.state.Identity = f.Identity
		if b.judgeLayer(id, f.Layer, f.Stack) != nil || b.missing(&f.Record, layers) != nil {
			continue
		}
		if best == nil || f.Created.After(best.Created) || f.Created.Equal(best.Created) && f.Layer > best.Layer {
			best = &f
		}
	}
	return best, nil
}

// Identify reads who a feature was from any of its checkpoints: for messages about one whose state is damaged.
func Identify(dir string) (Identity, error) {
	b := &Book{dir: dir, records: map[string]snapshot.Record{}}
	f, err := b.newest()
	if err == nil && f == nil {
		err = fmt.Errorf("%s: %w", dir, errNothing)
	}
	if err != nil {
		return Identity{}, err
	}
	return f.Identity, nil
}

// Unusable adds to what is damaged the checkpoints that need what is not this feature's and not there.
func Unusable(dir string, all []snapshot.Record, found []snapshot.DamageError) []snapshot.DamageError {
	for i := range all {
		r := &all[i]
		named := slices.ContainsFunc(found, func(e snapshot.DamageError) bool { return e.ID == r.ID })
		if r.Damaged != "" && !named {
			found = append(found, snapshot.DamageError{Path: dir, ID: r.ID, Err: errors.New(r.Damaged)})
		}
	}
	return found
}

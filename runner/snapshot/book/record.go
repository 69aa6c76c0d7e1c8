package book

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// errCutShort marks the record of a seal that was not committed.
var errCutShort = errors.New("was not committed")

// CheckID refuses what cannot be the id of a checkpoint: it becomes a file's name.
func CheckID(id string) error {
	ok := id != "" && len(id) <= 128 && id != snapshot.Base && id != snapshot.Current && id[0] != '.'
	for _, c := range []byte(id) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-", c) >= 0)
	}
	if !ok {
		return fmt.Errorf("%s: %w", snapshot.Quote(id), snapshot.ErrCheckpoint)
	}
	return nil
}

func (b *Book) recordPath(id string) string {
	return filepath.Join(b.dir, CheckpointsDir, id+".json")
}

// Record returns a checkpoint. Errors are snapshot.ErrCheckpoint and *snapshot.DamageError.
func (b *Book) Record(id string) (snapshot.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.record(id)
}

func (b *Book) record(id string) (snapshot.Record, error) {
	if err := CheckID(id); err != nil {
		return snapshot.Record{}, err
	}
	r, known := b.records[id]
	if !known {
		var err error
		if r, err = b.read(id); err != nil {
			return r, err
		}
		b.records[id] = r
	}
	if err := b.judge(&r); err != nil {
		if errors.Is(err, errCutShort) {
			delete(b.records, id)
			return snapshot.Record{}, fmt.Errorf("%s: %w", id, snapshot.ErrCheckpoint)
		}
		r.Damaged = err.Error()
		return r, err
	}
	return r, nil
}

// read reads a checkpoint's file.
func (b *Book) read(id string) (snapshot.Record, error) {
	path := b.recordPath(id)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return snapshot.Record{}, fmt.Errorf("%s: %w", id, snapshot.ErrCheckpoint)
	}
	var f recordFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && f.ID != id {
		err = errors.New("is of another checkpoint")
	}
	if err != nil {
		return snapshot.Record{ID: id}, &snapshot.DamageError{Path: path, ID: id, Err: err}
	}
	return f.Record, nil
}

// judge tells whether a record is a committed checkpoint with its own layer in place.
func (b *Book) judge(r *snapshot.Record) error {
	if r.Layer == 0 || r.Feature != b.state.Feature {
		return nil
	}
	if r.Layer == b.state.Current || r.Layer >= b.state.Next {
		return errCutShort
	}
	return b.judgeLayer(r.ID, r.Layer, r.Stack)
}

// judgeLayer looks whether a layer that a record calls its own was sealed for it. One that a squash took the place of
// is not in the record's stack any more.
func (b *Book) judgeLayer(id string, n int, stack []snapshot.LayerRef) error {
	if !slices.Contains(stack, snapshot.LayerRef{Feature: b.state.Feature, Layer: n}) {
		return nil
	}
	path := filepath.Join(b.Layer(n), LayerFile)
	data, err := os.ReadFile(path)
	var f layerFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	switch {
	case err != nil:
		return &snapshot.DamageError{Path: path, ID: id, Err: err}
	case f.ID != id:
		return errCutShort
	}
	return nil
}

// Records lists the committed checkpoints, oldest first. Damaged ones have Damaged set.
func (b *Book) Records() ([]snapshot.Record, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids, err := b.ids()
	if err != nil {
		return nil, err
	}
	all := make([]snapshot.Record, 0, len(ids))
	layers := map[int]error{}
	for _, id := range ids {
		r, err := b.record(id)
		if errors.Is(err, snapshot.ErrCheckpoint) {
			continue
		}
		if err == nil {
			err = b.missing(&r, layers)
		}
		if err != nil {
			r.Damaged = err.Error()
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y snapshot.Record) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Layer, y.Layer), cmp.Compare(x.ID, y.ID))
	})
	return all, nil
}

// missing looks for layers of this feature that a record needs and that are not there. seen remembers the answers.
func (b *Book) missing(r *snapshot.Record, seen map[int]error) error {
	for _, l := range r.Stack {
		if l.Feature != b.state.Feature {
			continue
		}
		err, known := seen[l.Layer]
		if !known {
			_, err = os.Stat(filepath.Join(b.Layer(l.Layer), LayerFile))
			seen[l.Layer] = err
		}
		if err != nil {
			return &snapshot.DamageError{Path: b.Layer(l.Layer), ID: r.ID, Err: err}
		}
	}
	return nil
}

// ids lists the checkpoints that have a file.
func (b *Book) ids() ([]string, error) {
	list, err := os.ReadDir(filepath.Join(b.dir, CheckpointsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range list {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && CheckID(id) == nil {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Rewrite replaces a checkpoint's file: its stack by an equal one, its sizes or what it is an alias of.
func (b *Book) Rewrite(r snapshot.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.record(r.ID); err != nil {
		return err
	}
	r.Damaged = ""
	if err := b.writeRecord(r, b.state.Identity); err != nil {
		return err
	}
	b.records[r.ID] = r
	return nil
}

// Add commits a checkpoint that the state does not name and that has no layer of its own: an alias, or one of another
// feature. Its file is the commit.
func (b *Book) Add(r snapshot.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.writeRecord(r, b.state.Identity); err != nil {
		return err
	}
	b.records[r.ID] = r
	return nil
}

// Drop forgets checkpoints; those that are not there are no error. An alias of one becomes a checkpoint of its own, and the
// head, if it was that. Otherwise the head cannot be dropped: snapshot.ErrHead.
func (b *Book) Drop(ids ...string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if err := CheckID(id); err != nil {
			return err
		}
	}
	heir, err := b.heirs(ids)
	if err != nil {
		return err
	}
	if slices.Contains(ids, b.state.Head) {
		next := b.state
		if next.Head = heir[b.state.Head]; next.Head == "" {
			return fmt.Errorf("%s: %w", b.state.Head, snapshot.ErrHead)
		}
		if next.Ground == b.state.Head {
			next.Ground = next.Head
		}
		if err := b.write(StateFile, next); err != nil {
			return err
		}
		b.state = next
	}
	for _, id := range ids {
		if err := remove(b.recordPath(id)); err != nil {
			return err
		}
		delete(b.records, id)
		Step("dropped")
	}
	return nil
}

// heirs makes checkpoints of the aliases of those that will be dropped, and returns one for each.
func (b *Book) heirs(dropped []string) (map[string]string, error) {
	all, err := b.ids()
	if err != nil {
		return nil, err
	}
	heir := map[string]string{}
	for _, id := range all {
		if slices.Contains(dropped, id) {
			continue
		}
		r, err := b.record(id)
		if err != nil || r.AliasOf == "" || !slices.Contains(dropped, r.AliasOf) {
			continue
		}
		heir[r.AliasOf] = id
		r.AliasOf = ""
		if err := b.writeRecord(r, b.state.Identity); err != nil {
			return nil, err
		}
		b.records[id] = r
	}
	return heir, nil
}

// Realias lets aliases of a checkpoint that becomes one itself name what that means.
func (b *Book) Realias(from, to string) error {
	all, err := b.Records()
	if err != nil {
		return err
	}
	for i := range all {
		if r := &all[i]; r.AliasOf == from && r.Damaged == "" {
			r.AliasOf = to
			if err := b.Rewrite(*r); err != nil {
				return err
			}
		}
	}
	return nil
}

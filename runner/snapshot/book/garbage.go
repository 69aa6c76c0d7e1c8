package book

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Refs lists every layer that the state and the checkpoints need, of this feature and of others, each once.
func (b *Book) Refs() ([]snapshot.LayerRef, error) {
	all, err := b.Records()
	if err != nil {
		return nil, err
	}
	s := b.State()
	refs := append([]snapshot.LayerRef{{Feature: s.Feature, Layer: s.Current}}, s.Lower...)
	for i := range all {
		refs = append(refs, all[i].Stack...)
	}
	slices.SortFunc(refs, compareRefs)
	return slices.Compact(refs), nil
}

func compareRefs(x, y snapshot.LayerRef) int {
	if c := strings.Compare(x.Feature, y.Feature); c != 0 {
		return c
	}
	return x.Layer - y.Layer
}

// Garbage lists the layers that neither this feature nor those that are forked from it (needed: their Refs) need. While a
// checkpoint's file cannot be read, what it needs is not known, and nothing that is sealed is garbage.
func (b *Book) Garbage(needed []snapshot.LayerRef) ([]int, error) {
	refs, err := b.Refs()
	if err != nil {
		return nil, err
	}
	all, err := b.Records()
	if err != nil {
		return nil, err
	}
	unknown := slices.ContainsFunc(all, func(r snapshot.Record) bool { return r.Damaged != "" && r.Feature == "" })
	keep := map[int]bool{}
	s := b.State()
	for _, r := range slices.Concat(refs, needed) {
		if r.Feature == s.Feature {
			keep[r.Layer] = true
		}
	}
	numbers, err := b.Numbers()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(numbers, func(n int) bool {
		if keep[n] || !unknown {
			return keep[n]
		}
		_, err := os.Lstat(filepath.Join(b.Layer(n), LayerFile))
		return err == nil && n < s.Next
	}), nil
}

// Numbers lists the layers that have a directory, in no order.
func (b *Book) Numbers() ([]int, error) {
	list, err := os.ReadDir(filepath.Join(b.dir, LayersDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range list {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// Sweep removes the files of seals that were cut short, and half-written ones.
func (b *Book) Sweep() error {
	list, err := os.ReadDir(filepath.Join(b.dir, CheckpointsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	layer := filepath.Join(b.Layer(b.state.Current), LayerFile)
	errs := []error{remove(filepath.Join(b.dir, StateFile+".tmp")), remove(layer)}
	for _, e := range list {
		name := e.Name()
		if strings.HasSuffix(name, ".tmp") {
			errs = append(errs, remove(filepath.Join(b.dir, CheckpointsDir, name)))
			continue
		}
		id, ok := strings.CutSuffix(name, ".json")
		if !ok || CheckID(id) != nil {
			continue
		}
		if _, err := b.record(id); errors.Is(err, snapshot.ErrCheckpoint) {
			errs = append(errs, remove(b.recordPath(id)))
		}
	}
	return errors.Join(errs...)
}

package overlay

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Runs of layers become one: 16 that were sealed become one of level 1, 8 of level 1 one of level 2, and so on. A chain of
// 500 checkpoints is then about 25 layers deep, and every layer is copied a few times in its life.
func runLength(level int) int {
	if level == 0 {
		return 16
	}
	return 8
}

// Squash makes one layer of each long run in the head's stack. The layers that go in stay as long as a checkpoint among them
// needs them; mounted stacks stay as they are until they are exchanged.
func (l *layers) Squash(ctx context.Context, force bool) (removed int, err error) {
	for {
		n, err := l.squashOne(ctx, force)
		if n == 0 || err != nil {
			return removed, err
		}
		removed += n
	}
}

func (l *layers) squashOne(ctx context.Context, force bool) (removed int, err error) {
	stack, run, level, err := l.choose(force)
	if err != nil || run == nil {
		return 0, err
	}
	n, err := l.reserve()
	if err != nil {
		return 0, err
	}
	err = l.merge(ctx, n, run, stack)
	if err == nil {
		err = l.replace(run, n, level)
	}
	l.mu.Lock()
	delete(l.busy, n)
	l.mu.Unlock()
	if err != nil {
		return 0, errors.Join(err, l.discard(n))
	}
	return len(run) - 1, nil
}

// choose finds the run to squash, and what lies below it.
func (l *layers) choose(force bool) (below, run []snapshot.LayerRef, level int, err error) {
	unlock, err := l.write()
	if err != nil {
		return nil, nil, 0, err
	}
	defer unlock()
	s := l.book.State()
	head := l.ground(&s)
	if r, err := l.book.Record(s.Head); err == nil {
		head = r.Stack
	}
	levels := make([]int, len(head))
	for i, ref := range head {
		if levels[i], err = l.level(ref); err != nil {
			return nil, nil, 0, err
		}
	}
	from, to := findRun(head, levels, l.feature, force)
	if to == from {
		return nil, nil, 0, nil
	}
	return slices.Clone(head[to:]), slices.Clone(head[from:to]), slices.Max(levels[from:to]) + 1, nil
}

// findRun returns the oldest run of layers of one level that is long enough; any two with force.
func findRun(stack []snapshot.LayerRef, levels []int, feature string, force bool) (from, to int) {
	end := len(stack)
	for end > 0 && stack[end-1].Feature != feature {
		end-- // another feature's are not ours to join
	}
	if force {
		if end < 2 {
			return 0, 0
		}
		return 0, end
	}
	for to = end; to > 0; to = from {
		from = to - 1
		for from > 0 && levels[from-1] == levels[to-1] {
			from--
		}
		if n := runLength(levels[to-1]); to-from >= n {
			return to - n, to
		}
	}
	return 0, 0
}

// levelFile says, in a layer that a squash made, of which level it is.
const levelFile = "level"

func (l *layers) level(ref snapshot.LayerRef) (int, error) {
	dir, err := l.places.Layer(ref)
	if err != nil {
		return 0, err
	}
	data, err := os.ReadFile(filepath.Join(dir, levelFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, &snapshot.DamageError{Path: filepath.Join(dir, levelFile), Err: err}
	}
	return n, nil
}

// reserve takes a layer that is filled without the lock.
func (l *layers) reserve() (int, error) {
	unlock, err := l.write()
	if err != nil {
		return 0, err
	}
	defer unlock()
	n, err := l.take()
	if err == nil {
		l.busy[n] = true
	}
	return n, err
}

// merge fills layer n with what run shows over below.
func (l *layers) merge(ctx context.Context, n int, run, below []snapshot.LayerRef) error {
	s := l.book.State()
	under := place{stack: below, generation: s.Generation, origin: s.Origin, bare: s.Bare}
	l.reading.RLock()
	defer l.reading.RUnlock()
	for _, p := range parts {
		all, err := l.rootsOf(&s, &place{stack: run, bare: true}, p.name)
		if err != nil {
			return err
		}
		v, err := l.view(&under, p.name)
		if err != nil {
			return err
		}
		err = tree.Merge(ctx, all[:len(run)], v, filepath.Join(l.book.Layer(n), p.name))
		if err := errors.Join(err, v.Close()); err != nil {
			return err
		}
	}
	return nil
}

// replace puts layer n in the place of run, in the head first and then in every checkpoint above the run.
func (l *layers) replace(run []snapshot.LayerRef, n, level int) error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.WriteFile(filepath.Join(l.book.Layer(n), levelFile), []byte(strconv.Itoa(level)), 0o600); err != nil {
		return err
	}
	if err := l.book.SealLayer(n); err != nil {
		return err
	}
	// From here on the number counts as given.
	if err := l.commit(l.book.State()); err != nil {
		return err
	}
	all, err := l.book.Records()
	if err != nil {
		return err
	}
	head := l.book.State().Head
	if i := slices.IndexFunc(all, func(r snapshot.Record) bool { return r.ID == head }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	for i := range all {
		r := &all[i]
		at := find(r.Stack, run)
		if r.Damaged != "" || at < 0 {
			continue
		}
		r.Stack = slices.Replace(slices.Clone(r.Stack), at, at+len(run), snapshot.LayerRef{Feature: l.feature, Layer: n})
		r.Depth = len(r.Stack)
		if err := l.book.Rewrite(*r); err != nil {
			return err
		}
	}
	return nil
}

// find returns where run begins in stack, -1 if it is not in it as a whole.
func find(stack, run []snapshot.LayerRef) int {
	for i := range len(stack) - len(run) + 1 {
		if slices.Equal(stack[i:i+len(run)], run) {
			return i
		}
	}
	return -1
}

package copytree

import (
	"context"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
)

// Squash has nothing to do: every layer is a whole tree.
func (l *layers) Squash(context.Context, bool) (removed int, err error) {
	return 0, l.Prepare()
}

// Drop forgets checkpoints.
func (l *layers) Drop(_ context.Context, ids ...string) error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	return l.book.Drop(ids...)
}

// Collect frees what nobody needs.
func (l *layers) Collect(ctx context.Context, needed []snapshot.LayerRef) (freed int64, err error) {
	if err := l.giveUp(needed); err != nil {
		return 0, err
	}
	return l.book.Free(ctx)
}

// giveUp renames what nobody needs. Who read from it has finished, and nobody will begin.
func (l *layers) giveUp(needed []snapshot.LayerRef) error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	if err := l.book.Sweep(); err != nil {
		return err
	}
	numbers, err := l.book.Garbage(needed)
	if err != nil {
		return err
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	for _, n := range numbers {
		if err := l.book.SetAside(n); err != nil {
			return err
		}
	}
	return nil
}

// Sync makes what is sealed durable.
func (l *layers) Sync(context.Context) error { return l.sync() }

func (l *layers) sync() error {
	if l.durable != nil {
		return l.durable()
	}
	return book.Syncfs(l.dir)
}

// size measures a layer. What is shared with others by reflinks is counted in each.
func (l *layers) size(ctx context.Context, n int) (bytes, inodes int64, err error) {
	used, err := dirs.Measure(ctx, l.book.Layer(n))
	return used.Bytes, used.Inodes, err
}

// Usage adds up what the feature's layers take.
func (l *layers) Usage(ctx context.Context) (snapshot.Usage, error) {
	all, err := l.book.Records()
	if err != nil {
		return snapshot.Usage{}, err
	}
	numbers, err := l.book.Numbers()
	if err != nil {
		return snapshot.Usage{}, err
	}
	s := l.book.State()
	u := snapshot.Usage{Layers: len(numbers), Checkpoints: len(all), ByCheckpoint: map[string]int64{}}
	users := map[int][]string{s.Current: {snapshot.Current}}
	for _, ref := range s.Lower {
		users[ref.Layer] = append(users[ref.Layer], snapshot.Current)
	}
	for i := range all {
		u.ByCheckpoint[all[i].ID] = 0
		for j, ref := range all[i].Stack {
			if ref.Feature == s.Feature && (j == 0 || ref != all[i].Stack[0]) {
				users[ref.Layer] = append(users[ref.Layer], all[i].ID)
			}
		}
	}
	for _, n := range numbers {
		bytes, inodes, err := l.size(ctx, n)
		if err != nil {
			return u, err
		}
		u.Bytes += bytes
		u.Inodes += inodes
		if list := users[n]; len(list) == 1 && list[0] != snapshot.Current {
			u.ByCheckpoint[list[0]] += bytes
		}
	}
	return u, nil
}

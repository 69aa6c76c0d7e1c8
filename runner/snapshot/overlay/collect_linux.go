package overlay

import (
	"context"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/promote"
)

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
	if freed, err = l.book.Free(ctx); err != nil {
		return freed, err
	}
	return freed, l.trim(ctx)
}

// giveUp renames what nobody needs, unless somebody is reading.
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
	if !l.reading.TryLock() {
		return nil // next time: an export may take long, and seals must not wait for it
	}
	defer l.reading.Unlock()
	for _, n := range numbers {
		if n == l.spare || l.busy[n] {
			continue
		}
		if err := l.book.SetAside(n); err != nil {
			return err
		}
		l.forget(n)
	}
	return nil
}

// CanKeep says why features of a state directory cannot be layers, nil when they can: what promotes take out of workspaces is
// kept in the directory bases, below the layers.
func CanKeep(bases string) error { return promote.CanKeep(bases) }

// CollectBases frees what promotes to a workspace took away and no feature needs any more: none has a current state or a
// checkpoint of a generation before oldest. bases is snapshot.CreateOptions.Bases.
func CollectBases(ctx context.Context, bases, workspace string, oldest int) (freed int64, err error) {
	b, err := promote.OpenBases(bases, workspace)
	if err != nil {
		return 0, err
	}
	return b.Collect(ctx, oldest)
}

// CollectUnusedBases frees what promotes took away from workspaces that no feature is on any more; they may be gone. used
// gets a workspace's path.
func CollectUnusedBases(ctx context.Context, bases string, used func(workspace string) bool) (freed int64, err error) {
	return promote.CollectUnused(ctx, bases, used)
}

// Sync makes what is sealed durable, and does what the next seal would otherwise have to wait for: it makes the next layer
// and removes the scratch directories of the sealed ones, which take inodes.
func (l *layers) Sync(ctx context.Context) error {
	if err := l.trim(ctx); err != nil {
		return err
	}
	if err := l.spareLayer(); err != nil {
		return err
	}
	return l.sync()
}

// spareLayer makes the layer that the next seal will need.
func (l *layers) spareLayer() error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	defer unlock()
	if l.spare == 0 {
		l.spare, err = l.take()
	}
	return err
}

// trim removes the scratch directories of layers that were sealed since the last time. Their mounts are gone, or going and
// will never write again.
func (l *layers) trim(ctx context.Context) error {
	unlock, err := l.write()
	if err != nil {
		return err
	}
	done := l.untrimmed
	l.untrimmed = nil
	unlock()
	for _, n := range done {
		for _, work := range []string{"ww", "hw"} {
			if err := snapshot.Remove(ctx, filepath.Join(l.book.Layer(n), work)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sync makes the feature's files durable.
func (l *layers) sync() error {
	if l.durable != nil {
		return l.durable()
	}
	return book.Syncfs(l.dir)
}

// size measures what shows of a sealed layer, once: without the scratch directories, which go.
func (l *layers) size(ctx context.Context, n int) (dirs.Usage, error) {
	if known, ok := l.sizes.Load(n); ok {
		if u, ok := known.(dirs.Usage); ok {
			return u, nil
		}
	}
	var sum dirs.Usage
	for _, p := range parts {
		used, err := dirs.Measure(ctx, filepath.Join(l.book.Layer(n), p.name))
		if err != nil {
			return sum, err
		}
		sum.Bytes += used.Bytes
		sum.Inodes += used.Inodes
	}
	l.sizes.Store(n, sum)
	return sum, nil
}

// Usage adds up what the feature's directory takes.
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
	users := map[int][]string{}
	for i := range all {
		for _, ref := range all[i].Stack {
			if ref.Feature == s.Feature {
				users[ref.Layer] = append(users[ref.Layer], all[i].ID)
			}
		}
		u.ByCheckpoint[all[i].ID] = 0
	}
	for _, ref := range s.Lower {
		if ref.Feature == s.Feature {
			users[ref.Layer] = append(users[ref.Layer], snapshot.Current)
		}
	}
	for _, n := range numbers {
		if n == s.Current {
			continue
		}
		used, err := l.size(ctx, n)
		if err != nil {
			return u, err
		}
		u.Bytes += used.Bytes
		u.Inodes += used.Inodes
		if list := users[n]; len(list) == 1 && list[0] != snapshot.Current {
			u.ByCheckpoint[list[0]] += used.Bytes
		}
	}
	used, err := dirs.Measure(ctx, l.book.Layer(s.Current))
	u.Bytes += used.Bytes
	u.Inodes += used.Inodes
	return u, err
}

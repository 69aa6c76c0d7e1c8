package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
	"github.com/caisson-dev/caisson/runner/snapshot/layertar"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// ids finds a feature's translation of ids: its owner is the sandbox's user.
func (l *layers) ids() (dirs.IDs, error) {
	s := l.book.State()
	var st unix.Stat_t
	if err := unix.Stat(s.Workspace, &st); err != nil {
		return dirs.IDs{}, &fs.PathError{Op: "stat", Path: s.Workspace, Err: err}
	}
	return dirs.NewIDs(dirs.Owner(s.Owner), dirs.Owner{UID: st.Uid, GID: st.Gid}, s.UserXattr), nil
}

// Export writes a checkpoint as an OCI layer.
func (l *layers) Export(ctx context.Context, id string, w io.Writer, o snapshot.ExportOptions) (digest string, err error) {
	p, err := l.at(id)
	if err != nil {
		return "", err
	}
	ids, err := l.ids()
	if err != nil {
		return "", err
	}
	part := parts[0].name
	if o.Home {
		part = parts[1].name
	}
	release, err := l.hold(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	now, err := l.view(&p, part)
	if err != nil {
		return "", err
	}
	defer now.Close()
	var old *tree.View
	if !o.Full {
		below, err := l.below(id, &p)
		if err != nil {
			return "", err
		}
		if old, err = l.view(&below, part); err != nil {
			return "", err
		}
		defer old.Close()
	}
	s := l.book.State()
	result, err := layertar.Write(ctx, old, now, w, layertar.Options{
		Zstd: o.Zstd, UserXattr: s.UserXattr, IDs: ids.Inside, BaseIDs: ids.BaseInside,
	})
	return result.Digest, err
}

// below is what an export is written against: the parent, or the base.
func (l *layers) below(id string, p *place) (place, error) {
	if p.id == "" {
		return place{generation: p.generation, origin: p.origin}, nil
	}
	r, err := l.book.Record(id)
	if err != nil {
		return place{}, err
	}
	parent, _ := l.parent(&r)
	return parent, nil
}

// Import makes a checkpoint of an archive.
func (l *layers) Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Record, error) {
	if err := book.CheckID(o.ID); err != nil {
		return snapshot.Record{}, err
	}
	n, err := l.reserve()
	if err != nil {
		return snapshot.Record{}, err
	}
	record, err := l.readTar(ctx, r, o, n)
	l.mu.Lock()
	delete(l.busy, n)
	l.mu.Unlock()
	if err != nil {
		return snapshot.Record{}, errors.Join(err, l.discard(n))
	}
	return record, nil
}

// readTar fills layer n and makes it a checkpoint's.
func (l *layers) readTar(ctx context.Context, r io.Reader, o snapshot.ImportOptions, n int) (snapshot.Record, error) {
	s := l.book.State()
	rec := snapshot.Record{
		ID: o.ID, Parent: l.meant(s.Head), Feature: s.Feature, Created: time.Now().UTC(), Meta: o.Meta,
		Generation: s.Generation, Origin: s.Origin, Bare: s.Bare, Layer: n,
	}
	below := place{generation: s.Generation, origin: s.Origin, bare: s.Bare}
	if s.Head != "" {
		var err error
		if below, err = l.at(s.Head); err != nil {
			return rec, err
		}
	}
	fresh := s
	fresh.Lower = below.stack
	if err := l.dress(&fresh, n); err != nil {
		return rec, err
	}
	result, err := l.unpack(ctx, r, o, n, &below)
	if err != nil {
		return rec, err
	}
	if o.Digest != "" && o.Digest != result.Digest {
		return rec, fmt.Errorf("the archive has digest %s, not %s", result.Digest, o.Digest)
	}
	rec.Stack = append([]snapshot.LayerRef{{Feature: s.Feature, Layer: n}}, below.stack...)
	if result.Full && !o.Home {
		rec.Parent, rec.Bare, rec.Stack = "", true, rec.Stack[:1]
	}
	if rec.Depth = len(rec.Stack); rec.Depth > maxDepth {
		return rec, fmt.Errorf("%w: %d; squash first", snapshot.ErrDepth, rec.Depth)
	}
	unlock, err := l.write()
	if err != nil {
		return rec, err
	}
	defer unlock()
	if _, err := l.book.Record(o.ID); !errors.Is(err, snapshot.ErrCheckpoint) {
		return rec, fmt.Errorf("checkpoint %s: %w", o.ID, fs.ErrExist)
	}
	l.untrimmed = append(l.untrimmed, n)
	return rec, l.commit(l.book.State(), rec)
}

// unpack reads the archive into its part of layer n.
func (l *layers) unpack(ctx context.Context, r io.Reader, o snapshot.ImportOptions, n int, below *place) (layertar.Result, error) {
	part := parts[0].name
	if o.Home {
		part = parts[1].name
	}
	ids, err := l.ids()
	if err != nil {
		return layertar.Result{}, err
	}
	l.reading.RLock()
	defer l.reading.RUnlock()
	under, err := l.view(below, part)
	if err != nil {
		return layertar.Result{}, err
	}
	defer under.Close()
	return layertar.Read(ctx, r, l.book.Layer(n)+"/"+part, layertar.Options{
		UserXattr: l.book.State().UserXattr, IDs: ids.ToLayer, MaxBytes: o.MaxBytes, Below: under,
	})
}

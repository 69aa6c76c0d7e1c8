package copytree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/layertar"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

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
	below := p.under()
	if r, err := l.book.Record(id); err == nil && r.Parent != "" {
		if parent, err := l.at(r.Parent); err == nil {
			below = parent
		}
	}
	part := workspace
	if o.Home {
		part = home
	}
	err = l.with(&below, &p, part, func(old, now *tree.View) error {
		if o.Full {
			old = nil
		}
		result, err := layertar.Write(ctx, old, now, w, layertar.Options{Zstd: o.Zstd, IDs: ids.Inside, BaseIDs: ids.BaseInside})
		digest = result.Digest
		return err
	})
	return digest, err
}

// Import makes a checkpoint of an archive: a copy of the head that the archive was applied to.
func (l *layers) Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Record, error) {
	unlock, err := l.write()
	if err != nil {
		return snapshot.Record{}, err
	}
	defer unlock()
	if err := l.unused(o.ID); err != nil {
		return snapshot.Record{}, err
	}
	n, err := l.take()
	if err != nil {
		return snapshot.Record{}, err
	}
	rec, err := l.unpack(ctx, r, o, n)
	if err == nil {
		err = l.commit(l.book.State(), rec)
	}
	if err != nil {
		return snapshot.Record{}, errors.Join(err, l.discard(n))
	}
	return rec, nil
}

// unpack fills layer n.
func (l *layers) unpack(ctx context.Context, r io.Reader, o snapshot.ImportOptions, n int) (snapshot.Record, error) {
	s := l.book.State()
	rec := l.record(snapshot.SealOptions{ID: o.ID, Meta: o.Meta}, &s)
	below, err := l.at(snapshot.Base)
	if s.Head != "" {
		below, err = l.at(s.Head)
	}
	if err != nil {
		return rec, err
	}
	ids, err := l.ids()
	if err != nil {
		return rec, err
	}
	if err := l.fill(ctx, n, &below); err != nil {
		return rec, err
	}
	part := workspace
	if o.Home {
		part = home
	}
	result, err := layertar.Read(ctx, r, filepath.Join(book.LayerDir(l.dir, n), part), layertar.Options{
		Whole: true, IDs: ids.ToLayer, MaxBytes: o.MaxBytes,
	})
	if err != nil {
		return rec, err
	}
	if o.Digest != "" && o.Digest != result.Digest {
		return rec, fmt.Errorf("the archive has digest %s, not %s", result.Digest, o.Digest)
	}
	rec.Layer, rec.Stack = n, []snapshot.LayerRef{{Feature: s.Feature, Layer: n}, below.base}
	if result.Full && !o.Home {
		rec.Parent = ""
	}
	return rec, nil
}

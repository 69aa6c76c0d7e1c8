package overlay

import (
	"context"
	"errors"
	"io"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/book"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

type copied struct{}

func (l *layers) sums(*tree.View) func(root int) tree.Sums { return nil }

// sync makes the feature's files durable.
func (l *layers) sync() error {
	r, err := beneath.OpenRoot(l.dir)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := unix.Syncfs(r.FD); err != nil {
		return r.Fail("syncfs", ".", err)
	}
	return nil
}

func (l *layers) sealCopy(ctx context.Context, o snapshot.SealOptions, s *book.State) (snapshot.Sealed, error) {
	return snapshot.Sealed{}, errors.ErrUnsupported
}

func (l *layers) Sync(ctx context.Context) error { return l.sync() }

func (l *layers) Index(ctx context.Context, id string) (snapshot.Indexed, error) {
	return snapshot.Indexed{}, errors.ErrUnsupported
}

func (l *layers) Squash(ctx context.Context, force bool) (removed int, err error) {
	return 0, errors.ErrUnsupported
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

func (l *layers) Collect(ctx context.Context, needed []snapshot.LayerRef) (freed int64, err error) {
	return 0, errors.ErrUnsupported
}

func (l *layers) Export(ctx context.Context, id string, w io.Writer, o snapshot.ExportOptions) (digest string, err error) {
	return "", errors.ErrUnsupported
}

func (l *layers) Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Record, error) {
	return snapshot.Record{}, errors.ErrUnsupported
}

func (l *layers) Usage(ctx context.Context) (snapshot.Usage, error) {
	return snapshot.Usage{}, errors.ErrUnsupported
}

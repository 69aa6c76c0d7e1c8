package overlay

import (
	"context"
	"errors"
	"io"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

func (l *layers) Export(ctx context.Context, id string, w io.Writer, o snapshot.ExportOptions) (digest string, err error) {
	return "", errors.ErrUnsupported
}

func (l *layers) Import(ctx context.Context, r io.Reader, o snapshot.ImportOptions) (snapshot.Record, error) {
	return snapshot.Record{}, errors.ErrUnsupported
}

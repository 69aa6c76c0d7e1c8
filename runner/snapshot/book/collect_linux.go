package book

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
)

// gone marks, in its name, a layer that is being removed.
const gone = ".gone"

// SetAside takes a layer's number away from it: whoever still reads it can, nobody finds it any more.
func (b *Book) SetAside(n int) error {
	if err := os.Rename(b.Layer(n), b.Layer(n)+gone); err != nil {
		return err
	}
	Step("renamed layer")
	return nil
}

// Free removes the layers that were set aside, also before a crash, and adds up what they took, in bytes.
func (b *Book) Free(ctx context.Context) (freed int64, err error) {
	list, err := os.ReadDir(filepath.Join(b.dir, LayersDir))
	if err != nil {
		return 0, err
	}
	for _, e := range list {
		if !strings.HasSuffix(e.Name(), gone) {
			continue
		}
		path := filepath.Join(b.dir, LayersDir, e.Name())
		used, err := dirs.Measure(ctx, path)
		if err == nil {
			err = snapshot.Remove(ctx, path)
		}
		if err != nil {
			return freed, err
		}
		freed += used.Bytes
		Step("removed layer")
	}
	return freed, nil
}

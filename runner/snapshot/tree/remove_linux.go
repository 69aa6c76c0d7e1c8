package tree

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Remove removes a feature's directory with everything in it, whatever the modes and the depth, also one that was
// never completed; a missing one is no error. With keep, names directly in it, those and the directory itself stay.
func Remove(ctx context.Context, dir string, keep ...string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	at, names := filepath.Dir(dir), []string{filepath.Base(dir)}
	if len(keep) > 0 {
		at = dir
	}
	r, err := beneath.OpenRoot(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer r.Close()
	if len(keep) > 0 {
		if names, err = beneath.ReadNames(r.FD, make([]byte, 64<<10), nil); err != nil {
			return r.Fail("read", ".", err)
		}
	}
	for _, name := range names {
		if slices.Contains(keep, name) {
			continue
		}
		if err := r.RemoveAll(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

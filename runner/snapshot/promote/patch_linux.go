package promote

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// patchFile is the largest file whose content a patch holds, in bytes: both sides of it are in memory at once, and a hole
// without end costs a task nothing.
const patchFile = 64 << 20

// Patch writes the change as a unified diff to a file, by rename. What that cannot hold, the report notes: binary files,
// those of more than 64 MiB, and what is neither file nor link nor directory.
func Patch(ctx context.Context, t Target, c *tree.Change, path string) (*tree.PromoteReport, error) {
	if path == "" {
		return nil, &fs.PathError{Op: "patch", Path: path, Err: fs.ErrInvalid}
	}
	tmp := path + "." + rand.Text()[:8] + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return nil, err
	}
	err = errors.Join(tree.Pair{Old: t.Old, New: t.New}.WriteDiff(ctx, c, f, tree.DiffOptions{MaxFile: patchFile}), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(tmp))
	}
	r := report(c, tree.PromotePatch)
	r.PatchFile = path
	for i := range c.Entries {
		e := &c.Entries[i]
		switch {
		case e.Binary:
			note(r, e, "binary: named in the patch, but not contained")
		case max(e.Size, e.OldSize) > patchFile:
			note(r, e, "more than 64 MiB: named in the patch, but not contained")
		case e.Type == tree.Dir && e.Kind != tree.Added, e.Type != "" && e.Type != tree.Dir && e.Type != tree.File && e.Type != tree.Symlink:
			note(r, e, "a "+string(e.Type)+": a patch cannot hold it")
		}
	}
	return r, nil
}

func note(r *tree.PromoteReport, e *tree.Entry, text string) {
	r.Notes = append(r.Notes, tree.Note{Path: e.Path, Text: text})
}

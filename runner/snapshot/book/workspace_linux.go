package book

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/dirs"
)

// Begin looks at the workspace and makes a feature's directory: dir is absolute, s is what the state begins with. Errors:
// *snapshot.WorkspaceError; fs.ErrExist where there is a feature already.
func Begin(driver string, o snapshot.CreateOptions) (dir string, s State, err error) {
	s.Identity = Identity{Driver: driver, Feature: o.Feature, Owner: o.Owner, UserXattr: o.UserXattr || os.Geteuid() != 0}
	if dir, err = filepath.Abs(o.Dir); err != nil {
		return dir, s, err
	}
	if s.Workspace, err = filepath.EvalSymlinks(o.Workspace); err == nil {
		s.Workspace, err = filepath.Abs(s.Workspace)
	}
	if err != nil {
		return dir, s, &snapshot.WorkspaceError{Path: o.Workspace, Err: err, Remedy: "name an existing directory"}
	}
	ws, err := beneath.OpenRoot(s.Workspace)
	if err != nil {
		return dir, s, &snapshot.WorkspaceError{Path: s.Workspace, Err: err, Remedy: "name a directory that you may read"}
	}
	defer ws.Close()
	path := filepath.Join(dir, StateFile)
	if _, err := os.Lstat(path); err == nil {
		return dir, s, &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	if err := os.MkdirAll(filepath.Join(dir, LayersDir), 0o700); err != nil {
		return dir, s, err
	}
	if s.Inode, s.Birth, err = beneath.Identity(ws.FD); err != nil {
		return dir, s, ws.Fail("stat", ".", err)
	}
	s.Origin, err = originOf(ws, dir)
	return dir, s, err
}

// originOf notes how the workspace is now, by the clock of the feature's directory.
func originOf(ws *beneath.Root, dir string) (snapshot.Origin, error) {
	look, err := dirs.LookOf(ws.FD)
	if err != nil {
		return snapshot.Origin{}, ws.Fail("stat", ".", err)
	}
	d, err := beneath.OpenRoot(dir)
	if err != nil {
		return snapshot.Origin{}, err
	}
	defer d.Close()
	start, err := beneath.Stamp(d.FD)
	if err != nil {
		return snapshot.Origin{}, fmt.Errorf("%s: start time: %w", dir, err)
	}
	return snapshot.Origin{Start: start, RootMode: look.Mode, RootXattr: []byte(beneath.PackXattrs(look.Xattrs))}, nil
}

// OriginNow notes how the workspace is now: after a promote.
func (b *Book) OriginNow() (snapshot.Origin, error) {
	ws, err := beneath.OpenRoot(b.State().Workspace)
	if err != nil {
		return snapshot.Origin{}, err
	}
	defer ws.Close()
	return originOf(ws, b.dir)
}

// CheckWorkspace makes sure that the workspace is the one that the feature was started on. Errors: *snapshot.WorkspaceError.
func (b *Book) CheckWorkspace() error {
	s := b.State()
	r, err := beneath.OpenRoot(s.Workspace)
	if err == nil {
		inode, birth, failed := beneath.Identity(r.FD)
		err = failed
		r.Close()
		if err == nil && (inode != s.Inode || !birth.Equal(s.Birth)) {
			err = snapshot.ErrReplaced
		}
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = snapshot.ErrMissing
	}
	return &snapshot.WorkspaceError{Path: s.Workspace, Err: err, Remedy: "put the directory back, or discard the feature"}
}

// Syncfs writes out the filesystem that a directory lies on.
func Syncfs(dir string) error {
	r, err := beneath.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := unix.Syncfs(r.FD); err != nil {
		return r.Fail("syncfs", ".", err)
	}
	return nil
}

package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

const stateFile = "state.json"

// Create makes the layers of a new feature. It does not wait for the disk: a feature that a power failure cut short
// is damaged or gone, as is what its sandbox wrote, because overlays are mounted volatile. Errors are
// *WorkspaceError for the workspace and fs.ErrExist for a directory that holds layers already.
func Create(o CreateOptions) (*Workspace, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	base, err := filepath.EvalSymlinks(o.Workspace)
	if err == nil {
		base, err = filepath.Abs(base)
	}
	if err != nil {
		return nil, &WorkspaceError{Path: o.Workspace, Err: err, Remedy: "name an existing directory"}
	}
	ws, err := beneath.OpenRoot(base)
	if err != nil {
		return nil, &WorkspaceError{Path: base, Err: err, Remedy: "name a directory that you may read"}
	}
	defer ws.Close()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	w := &Workspace{dir: dir, state: state{
		Version: 1, Workspace: base, Owner: o.Owner, UserXattr: o.UserXattr || os.Geteuid() != 0,
	}}
	if _, err := os.Lstat(filepath.Join(dir, stateFile)); err == nil {
		return nil, &fs.PathError{Op: "create", Path: filepath.Join(dir, stateFile), Err: fs.ErrExist}
	}
	if w.state.Inode, w.state.Birth, err = beneath.Identity(ws.FD); err != nil {
		return nil, ws.Fail("stat", ".", err)
	}
	if err := w.makeLayers(ws); err != nil {
		return nil, err
	}
	if err := w.begin(); err != nil {
		return nil, err
	}
	return w, w.save(false)
}

// makeLayers makes upper, work and home, and records how the base's root looks.
func (w *Workspace) makeLayers(base *beneath.Root) error {
	if err := w.makeUpper("upper", base); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(w.dir, "work"), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(w.dir, "home"), 0o700); err != nil {
		return err
	}
	for _, d := range []struct {
		name  string
		owner Owner
	}{
		{"lower", w.state.Owner}, {"upper", w.state.Owner}, {"work", Owner{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}},
	} {
		path := filepath.Join(w.dir, "home", d.name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		if err := chownDir(path, d.owner); err != nil {
			return err
		}
	}
	return nil
}

// chownDir gives one of our own directories to owner, with mode 0755.
func chownDir(path string, o Owner) error {
	r, err := beneath.OpenRoot(path)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := beneath.Chown(r.FD, o.UID, o.GID); err != nil {
		return r.Fail("chown", ".", err)
	}
	if err := unix.Fchmod(r.FD, 0o755); err != nil {
		return r.Fail("chmod", ".", err)
	}
	return nil
}

// makeUpper makes an empty upper layer whose root looks like the base's, which it covers.
func (w *Workspace) makeUpper(name string, base *beneath.Root) error {
	path := filepath.Join(w.dir, name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	upper, err := beneath.OpenRoot(path)
	if err != nil {
		return err
	}
	defer upper.Close()
	var st unix.Stat_t
	if err := unix.Fstat(base.FD, &st); err != nil {
		return base.Fail("stat", ".", err)
	}
	attrs, err := beneath.ReadXattrs(base.FD, beneath.IsUserXattr)
	if err != nil {
		return base.Fail("getxattr", ".", err)
	}
	w.state.RootMode, w.state.RootXattr = st.Mode&0o7777, []byte(beneath.PackXattrs(attrs))
	err = errors.Join(
		beneath.Chown(upper.FD, w.state.Owner.UID, w.state.Owner.GID),
		beneath.SetXattrs(upper.FD, attrs),
		unix.Fchmod(upper.FD, st.Mode&0o7777),
		beneath.SetMtime(upper.FD, st.Mtim),
	)
	if err != nil {
		return upper.Fail("create", ".", err)
	}
	return nil
}

// begin sets a new start time, by the clock of the feature's directory.
func (w *Workspace) begin() error {
	dir, err := os.Open(w.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if w.state.Start, err = beneath.Stamp(int(dir.Fd())); err != nil {
		return fmt.Errorf("%s: start time: %w", w.dir, err)
	}
	return nil
}

// save writes state.json by rename. sync makes it durable.
func (w *Workspace) save(sync bool) error {
	data, err := json.Marshal(&w.state)
	if err != nil {
		return err
	}
	tmp := filepath.Join(w.dir, stateFile+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if sync && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(w.dir, stateFile)); err != nil || !sync {
		return err
	}
	return journal.SyncDir(w.dir)
}

// Open opens the layers that Create made in dir. A promote that was cut short must be recovered first. Errors are
// fs.ErrNotExist and ErrUnusableLayers.
func Open(dir string) (*Workspace, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	w := &Workspace{dir: dir}
	if err := json.Unmarshal(data, &w.state); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", filepath.Join(dir, stateFile), ErrUnusableLayers, err)
	}
	if w.state.Version != 1 {
		return nil, fmt.Errorf("%s: version %d: %w", filepath.Join(dir, stateFile), w.state.Version, ErrUnsupported)
	}
	return w, nil
}

// openBase opens the workspace and makes sure that it is the one that the feature was started on.
func (w *Workspace) openBase() (*beneath.Root, error) {
	refuse := func(err error) error {
		return &WorkspaceError{Path: w.state.Workspace, Err: err, Remedy: "put the directory back, or discard the feature"}
	}
	r, err := beneath.OpenRoot(w.state.Workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(ErrMissing)
	}
	if err != nil {
		return nil, refuse(err)
	}
	inode, birth, err := beneath.Identity(r.FD)
	if err == nil && (inode != w.state.Inode || !birth.Equal(w.state.Birth)) {
		err = ErrReplaced
	}
	if err != nil {
		r.Close()
		return nil, refuse(err)
	}
	return r, nil
}

// Prepare readies the work directories for the next mount: overlayfs refuses layers that were mounted volatile,
// until its mark is gone.
func (w *Workspace) Prepare() error {
	for _, work := range []string{"work", "home/work"} {
		path := filepath.Join(w.dir, work)
		if err := Remove(context.Background(), filepath.Join(path, "work")); err != nil {
			return err
		}
	}
	return nil
}

// HomeMountpoint makes an empty directory or file at a path relative to /home/user for something to be mounted on,
// with its parents, all owned by o. What exists already with the right type is left.
func (w *Workspace) HomeMountpoint(path string, dir bool, o Owner) error {
	if !filepath.IsLocal(path) || filepath.Clean(path) == "." {
		return &fs.PathError{Op: "mount point", Path: path, Err: fs.ErrInvalid}
	}
	home, err := beneath.OpenRoot(filepath.Join(w.dir, "home", "lower"))
	if err != nil {
		return err
	}
	defer home.Close()
	parts := strings.Split(filepath.Clean(path), "/")
	for i := range parts {
		sub := strings.Join(parts[:i+1], "/")
		if err := makePoint(home, sub, dir || i < len(parts)-1, o); err != nil {
			return home.Fail("mount point", sub, err)
		}
	}
	return nil
}

func makePoint(r *beneath.Root, path string, dir bool, o Owner) error {
	at := beneath.Cursor{Root: r}
	defer at.Close()
	parent, name, err := at.Parent(path)
	if err != nil {
		return err
	}
	flags, mode := beneath.ReadFile, uint32(0o644)
	if dir {
		flags, mode = beneath.ReadDir, 0o755
		if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	} else if fd, err := unix.Openat(parent, name, unix.O_CREAT|unix.O_EXCL|beneath.ReadFile, 0o600); err == nil {
		unix.Close(fd)
	} else if !errors.Is(err, unix.EEXIST) {
		return err
	}
	fd, err := beneath.OpenAt(parent, name, flags)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if beneath.IsDir(&st) != dir || !dir && !beneath.IsFile(&st) {
		return unix.EEXIST
	}
	return errors.Join(beneath.Chown(fd, o.UID, o.GID), unix.Fchmod(fd, mode))
}

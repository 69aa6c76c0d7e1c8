package disk

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// attachedVolume is an image on older kernels: mounted at disk/mounts/ID of the state directory for all openers, of which the
// last one takes it away again. What a killed one leaves, the next opener uses, or Clean takes away. It is not in the
// feature's own directory, for that one moves when it is removed, and a mount would move with it.
type attachedVolume struct {
	imageVolume
	place *place
	use   *os.File // openers lock it, shared: the image's own lock is the device's too
}

const (
	mountsName = "mounts" // in disk/ of the state directory
	useSuffix  = ".lock"
)

// mounted is where an attached unit is mounted.
func (p *place) mounted() string { return filepath.Join(p.state, "disk", mountsName, p.id) }

func openUse(p *place) (*os.File, error) {
	return os.OpenFile(p.mounted()+useSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

func openAttached(ctx context.Context, p *place) (_ volume, err error) {
	if err := os.MkdirAll(p.mounted(), 0o700); err != nil {
		return nil, err
	}
	use, err := openUse(p)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = use.Close()
		}
	}()
	if err := flock(use, unix.LOCK_SH); err != nil {
		return nil, err
	}
	if !mountpoint(p.mounted()) {
		if err := attachMount(ctx, p); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenFile(p.mounted(), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &attachedVolume{imageVolume{root}, p, use}, nil
}

func attachMount(ctx context.Context, p *place) error {
	v, err := openDetached(ctx, p)
	if err != nil {
		return err
	}
	err = unix.MoveMount(int(v.root.Fd()), "", unix.AT_FDCWD, p.mounted(), unix.MOVE_MOUNT_F_EMPTY_PATH)
	_ = v.close()
	if err != nil {
		return os.NewSyscallError("move_mount", err)
	}
	return os.NewSyscallError("mount", unix.Mount("", p.mounted(), "", unix.MS_PRIVATE, ""))
}

func (v *attachedVolume) top() string { return v.place.mounted() }

func (v *attachedVolume) close() error {
	unlock, err := v.place.lock()
	if err != nil {
		return err
	}
	defer unlock()
	err = v.root.Close()
	if flock(v.use, unix.LOCK_EX|unix.LOCK_NB) == nil { // the last one
		err = errors.Join(err, detach(v.place))
	}
	return errors.Join(err, v.use.Close())
}

// mountpoint says whether something is mounted at path.
func mountpoint(path string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// detach takes a unit's attached mount away, with what that took. The caller has the store's lock.
func detach(p *place) error {
	if mountpoint(p.mounted()) {
		if err := unix.Unmount(p.mounted(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: p.mounted(), Err: err}
		}
	}
	for _, name := range []string{p.mounted(), p.mounted() + useSuffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// cleanMounts takes the mounts away that killed processes left.
func (s *Store) cleanMounts() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.state, "disk", mountsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var done []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), useSuffix) {
			continue
		}
		p, err := s.place(e.Name())
		if err != nil {
			return done, err
		}
		use, err := openUse(p)
		if err != nil {
			return done, err
		}
		if flock(use, unix.LOCK_EX|unix.LOCK_NB) == nil {
			if err = detach(p); err == nil {
				done = append(done, "mount "+p.mounted())
			}
		}
		if err := errors.Join(err, use.Close()); err != nil {
			return done, err
		}
	}
	return done, nil
}

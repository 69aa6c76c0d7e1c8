package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
)

// mount makes a detached mount of a file system and returns its root. A parameter without "=" is a flag.
func mount(kind string, attributes int, parameters ...string) (*os.File, error) {
	ctx, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen "+kind, err)
	}
	defer func() { _ = unix.Close(ctx) }()
	for _, p := range parameters {
		key, value, set := strings.Cut(p, "=")
		if set {
			err = unix.FsconfigSetString(ctx, key, value)
		} else {
			err = unix.FsconfigSetFlag(ctx, key)
		}
		if err != nil {
			return nil, explain(ctx, "fsconfig "+p, err)
		}
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return nil, explain(ctx, "mount "+kind, err)
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return nil, os.NewSyscallError("fsmount "+kind, err)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// explain adds what the kernel says about a failed mount.
func explain(ctx int, what string, err error) error {
	text := make([]byte, 1024)
	if n, rerr := unix.Read(ctx, text); rerr == nil && n > 0 {
		return fmt.Errorf("%s: %w (%s)", what, err, strings.TrimSpace(string(text[:n])))
	}
	return os.NewSyscallError(what, err)
}

// procPath is a path to an open file that is good for this process only.
func procPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// detachedUppers says whether overlayfs takes upper directories of detached mounts: since 6.15 (commit "fs: allow to clone
// detached mounts").
var detachedUppers = sync.OnceValue(func() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 15)
})

// trim is FITRIM of everything; the loop device makes holes in the image of it.
func trim(dir string) error {
	const fitrim = 0xc0185879
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	all := struct{ start, length, least uint64 }{length: 1<<64 - 1}
	err = ioctl(f, fitrim, &all)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a host's file system without holes: then it stays large
	}
	return os.NewSyscallError("FITRIM", err)
}

// giveBack makes holes of the parts of an image that were allocated and never written, and says what is left. They read as
// zeros before and after, so this needs no knowledge of what is in it.
func (p *place) giveBack() (quota.Bytes, error) {
	f, err := os.OpenFile(p.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	const worth = int64(quota.MiB)
	for at := int64(0); at < int64(p.Size); {
		hole, err := unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
		if err != nil {
			return 0, os.NewSyscallError("lseek", err)
		}
		if at, err = unix.Seek(int(f.Fd()), hole, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			at = int64(p.Size)
		} else if err != nil {
			return 0, os.NewSyscallError("lseek", err)
		}
		if at-hole < worth {
			continue
		}
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, hole, at-hole)
		if errors.Is(err, unix.EOPNOTSUPP) {
			break
		}
		if err != nil {
			return 0, os.NewSyscallError("fallocate", err)
		}
	}
	return allocated(p.image()), nil
}

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

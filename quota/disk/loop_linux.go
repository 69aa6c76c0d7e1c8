package disk

import (
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

const (
	loopControl = "/dev/loop-control"
	loopMajor   = 7
	loopName    = "caisson" // of every device of ours, as losetup shows it
)

// attach makes a loop device for an image. It goes away when nobody uses it any more. Two devices on one image would
// destroy it: the caller knows that it has none, and has the store's lock unless nobody else knows the image yet.
func attach(image *os.File) (*os.File, error) {
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	// Between the two calls somebody else may take the device: then the next free one. Each turn one of us gets on.
	const turns = 256
	for range turns {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, os.NewSyscallError("LOOP_CTL_GET_FREE", err)
		}
		l, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = configure(l, image)
		if err == nil {
			return l, nil
		}
		_ = l.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("no loop device in %d turns: %w", turns, unix.EBUSY)
}

// openLoop makes the device's node where /dev is not the kernel's own (in containers).
func openLoop(n int) (*os.File, error) {
	path := "/dev/loop" + strconv.Itoa(n)
	l, err := os.OpenFile(path, os.O_RDWR, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return l, err
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// configure sets everything in one call, so that no half-configured device is ever seen (kernel 5.8).
func configure(l, image *os.File) error {
	c := unix.LoopConfig{Fd: uint32(image.Fd()), Size: blockSize}
	c.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	copy(c.Info.File_name[:], loopName)
	if err := unix.IoctlLoopConfigure(int(l.Fd()), &c); err != nil {
		return os.NewSyscallError("LOOP_CONFIGURE", err)
	}
	return nil
}

// attached finds the device that has an image; nil when there is none.
func attached(image *os.File) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	bound, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, file := range bound {
		name, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(name), imageName) {
			continue // gone meanwhile, or not of ours
		}
		n, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(filepath.Dir(filepath.Dir(file))), "loop"))
		if err != nil {
			continue
		}
		// Once it is open it cannot go away; so it is looked at after that.
		l, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		info, err := unix.IoctlLoopGetStatus64(int(l.Fd()))
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			return l, nil
		}
		_ = l.Close()
	}
	return nil, nil
}

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

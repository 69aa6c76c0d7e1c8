package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
	"github.com/caisson-dev/caisson/quota/disk/internal/loop"
)

// images is the mechanism Ext4: a file system in an image. What a killed process leaves is in order, for the kernel unmounts
// it then; after a loss of power it is checked (recoverImage). So there is no journal: with one, to mount and unmount takes
// half as long again.
type images struct{}

func (images) lockFile(p *place) string { return p.image() }

// plan looks for the template, which says how large the image must be.
func (images) plan(ctx context.Context, p *place) error {
	t, err := p.template(ctx, p.limits())
	if err != nil {
		return err
	}
	p.Size, p.Free, p.FreeInodes, p.from = t.Size, t.Free, t.FreeInodes, t
	return nil
}

// create makes an image of the template and mounts it. It is whole before it has its name.
func (images) create(_ context.Context, p *place) error {
	tmp := p.image() + newSuffix
	err := p.furnishImage(tmp)
	if err == nil {
		err = os.Rename(tmp, p.image())
	}
	if err != nil {
		return errors.Join(noRoom(p, err), os.Remove(tmp))
	}
	return nil
}

// furnishImage allocates an image and copies the template through its device: what is written there is in the device's cache
// when it is mounted. Written to the file before, it would go to the host's disk and back, for an attached file is synced.
func (p *place) furnishImage(file string) error {
	image, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	if err := flock(image, unix.LOCK_SH); err != nil { // see openDetached
		return err
	}
	if err := p.allocateNew(image); err != nil {
		return err
	}
	l, err := loop.Attach(image)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	if err := p.from.copy(l); err != nil {
		return err
	}
	root, err := mountImage(l)
	if err != nil {
		return err
	}
	p.made = &imageVolume{root: root}
	return nil
}

// allocateNew gives a new image its size and its blocks.
func (p *place) allocateNew(image *os.File) error {
	h, err := p.host()
	if err != nil {
		return err
	}
	noCow(image)
	if err := image.Truncate(int64(p.Size)); err != nil || h.memory {
		return err
	}
	if err := unix.Fallocate(int(image.Fd()), 0, 0, int64(p.Size)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return os.NewSyscallError("fallocate", err)
	}
	return nil
}

// noRoom gives a full host its type.
func noRoom(p *place, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.Join(&RoomError{Asked: p.Size, Of: "file system of " + p.state, Remedy: "free space on the host, or remove features (`caisson rm`)"}, err)
	}
	return err
}

// allocate gives a whole image its blocks: a sparse one would fail inside with EIO when the host is full.
func (p *place) allocate() error {
	h, err := p.host()
	if err != nil || h.memory { // there a block is memory, and stays in it for good
		return err
	}
	f, err := os.OpenFile(p.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err := unix.Fallocate(int(f.Fd()), 0, 0, int64(p.Size)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return errors.Join(noRoom(p, os.NewSyscallError("fallocate", err)), f.Close())
	}
	return f.Close()
}

func (images) open(ctx context.Context, p *place) (volume, error) {
	if !detachedUppers() {
		return openAttached(ctx, p)
	}
	return openDetached(ctx, p)
}

func openDetached(ctx context.Context, p *place) (*imageVolume, error) {
	if v := p.made; v != nil {
		p.made = nil
		return v, nil
	}
	// The device holds this very open file, and with it the lock: as long as the kernel uses it, the image is in use.
	image, err := os.OpenFile(p.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = image.Close() }()
	if err := flock(image, unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return nil, err
	}
	l, err := loop.Find(image, imageName)
	if err == nil && l == nil {
		if err = recoverImage(ctx, p, image); err == nil {
			l, err = loop.Attach(image)
		}
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	root, err := mountImage(l)
	if err != nil {
		return nil, err
	}
	return &imageVolume{root: root}, nil
}

// mountImage mounts a device. Tables of inodes that were never used are not zeroed in the background: that would be 50 MB
// of writing for each feature. Without barriers an unmount, or an fsync inside, does not wait for the host's disk; what must
// survive a loss of power is synced by Unit.Sync.
func mountImage(l *os.File) (*os.File, error) {
	return mount("ext4", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME,
		"source="+l.Name(), "noinit_itable", "nobarrier")
}

// idle returns the blocks that are free inside to the host.
func (images) idle(ctx context.Context, p *place) (quota.Bytes, error) {
	v, err := openDetached(ctx, p)
	if err != nil {
		return 0, err
	}
	err = trim(v.top())
	if err := errors.Join(err, v.close()); err != nil {
		return 0, err
	}
	return allocated(p.image()), nil
}

func (images) remove(p *place) error {
	if p.made != nil {
		_ = p.made.close()
	}
	if err := detach(p); err != nil {
		return err
	}
	for _, name := range []string{p.image() + newSuffix, p.image()} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// recoverImage checks a file system that was not unmounted: the power was lost. The caller knows that nobody has it attached.
func recoverImage(ctx context.Context, p *place, image *os.File) error {
	clean, err := ext4.Clean(image)
	switch {
	case errors.Is(err, ext4.ErrNone):
		return fmt.Errorf("%w: feature %s: %w", ErrDamaged, p.id, err)
	case err != nil || clean:
		return err
	}
	if err := ext4.Repair(ctx, image); err != nil {
		return fmt.Errorf("%w: feature %s was open when the power was lost, and its disk must be checked: %w", ErrDamaged, p.id, err)
	}
	return nil
}

// imageVolume is a detached mount.
type imageVolume struct{ root *os.File }

func (v *imageVolume) top() string { return procPath(v.root) }

func (v *imageVolume) usage(r *record) (Usage, error) { return statUsage(v.root, r) }

// statUsage counts from what was free when the file system was new.
func statUsage(root *os.File, r *record) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return Usage{}, os.NewSyscallError("fstatfs", err)
	}
	return Usage{
		Used:   r.Free - quota.Bytes(int64(st.Bavail)*st.Frsize) - slackBytes,
		Inodes: r.FreeInodes - quota.Count(st.Ffree) - slackInodes,
	}, nil
}

// sync makes durable what is in the unit. The file system itself asks for no barriers (mountImage), so the image's own
// file is synced after it.
func (v *imageVolume) sync(p *place) error {
	root, err := os.Open(v.top())
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := unix.Syncfs(int(root.Fd())); err != nil {
		return os.NewSyscallError("syncfs", err)
	}
	image, err := os.OpenFile(p.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(image.Sync(), image.Close())
}

func (v *imageVolume) close() error { return v.root.Close() }

// Requests of ext4 and of loop devices.
const (
	ext4Resize  = 0x40086610 // EXT4_IOC_RESIZE_FS
	setCapacity = 0x4c07     // LOOP_SET_CAPACITY
)

// resize makes a limit smaller by filling up what is to be missing, and larger by emptying that first, then by growing.
// Inodes are there from the beginning and become no more than they were then.
func (v *imageVolume) resize(ctx context.Context, p *place, next *record) error {
	if (next.Inodes == nil) != (p.Inodes == nil) {
		return fmt.Errorf("%w: a limit of inodes cannot be added or taken away; fork the feature", ErrResize)
	}
	if next.Inodes != nil {
		if err := v.resizeInodes(p, next); err != nil {
			return err
		}
	}
	more := next.Bytes - p.Bytes
	if more == 0 {
		return nil
	}
	filler, err := os.OpenFile(filepath.Join(v.top(), ballastName, fillerName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = filler.Close() }()
	info, err := filler.Stat()
	if err != nil {
		return err
	}
	fill := quota.Bytes(info.Size()) - more
	if fill < 0 {
		if err := v.grow(p, next, -fill); err != nil {
			return err
		}
		fill = 0
	}
	if err := resizeFile(filler, int64(fill)); err != nil {
		return errors.Join(fmt.Errorf("%w: it holds more than %s: %w", ErrResize, next.Bytes, err), resizeFile(filler, info.Size()))
	}
	next.Free += more
	return nil
}

// resizeFile changes the size of a file of allocated blocks.
func resizeFile(f *os.File, size int64) error {
	if err := f.Truncate(size); err != nil || size == 0 {
		return err
	}
	return os.NewSyscallError("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, size))
}

// resizeInodes adds or removes empty files.
func (v *imageVolume) resizeInodes(p *place, next *record) error {
	more := int(*next.Inodes - *p.Inodes)
	dir := filepath.Join(v.top(), ballastName, surplusName)
	have := surplusIn(dir)
	if more > have {
		return fmt.Errorf("%w: a feature's disk is made for its inodes, and this one for at most %d; fork it", ErrResize, int(*p.Inodes)+have)
	}
	for n := range max(more, 0) { // the last ones, so that they stay numbered without a gap
		if err := os.Remove(filepath.Join(dir, strconv.Itoa(have-1-n))); err != nil {
			return err
		}
	}
	if more < 0 {
		if err := fillInodes(dir, have, -more); err != nil {
			return fmt.Errorf("%w: it holds more than %d inodes: %w", ErrResize, *next.Inodes, err)
		}
	}
	next.FreeInodes += quota.Count(more)
	return nil
}

// grow makes the image larger until at least so many more bytes are free, and takes what is too much into the next limit.
func (v *imageVolume) grow(p *place, next *record, more quota.Bytes) error {
	before, inodes, err := v.free()
	if err != nil {
		return err
	}
	image, err := os.OpenFile(p.image(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = image.Close() }()
	l, err := loop.Find(image, imageName)
	if err != nil || l == nil {
		return errors.Join(err, fmt.Errorf("%w: its loop device is gone", ErrDamaged))
	}
	defer func() { _ = l.Close() }()
	const turns = 8
	for range turns {
		now, have, err := v.free()
		if err == nil && have > inodes && next.Inodes != nil { // they come with the blocks, and were not asked for
			dir := filepath.Join(v.top(), ballastName, surplusName)
			err = fillInodes(dir, surplusIn(dir), int(have-inodes))
		}
		if err != nil || now-before >= more {
			return err
		}
		lack := more - (now - before)
		next.Size += (lack + lack/32 + ext4.BlockSize) / ext4.BlockSize * ext4.BlockSize
		if err := v.growTo(image, l, next.Size); err != nil {
			return errors.Join(fmt.Errorf("%w: %w", ErrResize, err), image.Truncate(int64(p.Size)), unix.IoctlSetInt(int(l.Fd()), setCapacity, 0))
		}
	}
	return fmt.Errorf("%w: it does not grow", ErrResize)
}

func (v *imageVolume) free() (quota.Bytes, quota.Count, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(v.root.Fd()), &st); err != nil {
		return 0, 0, os.NewSyscallError("fstatfs", err)
	}
	return quota.Bytes(int64(st.Bavail) * st.Frsize), quota.Count(st.Ffree), nil
}

// surplusIn counts the files that take inodes away.
func surplusIn(dir string) int {
	have, _ := os.ReadDir(dir) // without the directory there are none
	return len(have)
}

func (v *imageVolume) growTo(image, l *os.File, size quota.Bytes) error {
	if err := unix.Fallocate(int(image.Fd()), 0, 0, int64(size)); err != nil {
		return os.NewSyscallError("fallocate", err)
	}
	if err := unix.IoctlSetInt(int(l.Fd()), setCapacity, 0); err != nil {
		return os.NewSyscallError("LOOP_SET_CAPACITY", err)
	}
	dir, err := os.Open(v.top())
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	blocks := uint64(size / ext4.BlockSize)
	err = ioctl(dir, ext4Resize, &blocks)
	if errors.Is(err, unix.EPERM) {
		return errors.New("the kernel lets only CAP_SYS_RESOURCE make it larger than it was made; fork the feature instead")
	}
	return os.NewSyscallError("EXT4_IOC_RESIZE_FS", err)
}

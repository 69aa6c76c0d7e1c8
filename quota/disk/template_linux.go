package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
	"github.com/caisson-dev/caisson/quota/disk/internal/loop"
)

// What a unit has over its limit, besides the ballast, for the directories that layers need before anything is written.
const (
	slackBytes  = 128 * quota.KiB
	slackInodes = quota.Count(20)
)

const (
	templatePrefix  = "ext4-"
	templateVersion = 4
	newSuffix       = ".new"
)

// template is an empty image with its ballast, to be copied: STATE/disk/ext4-*.img, valid when the .json is there.
type template struct {
	Size       quota.Bytes `json:"size"`
	Free       quota.Bytes `json:"free"` // for everybody, once it is mounted
	FreeInodes quota.Count `json:"free_inodes"`

	file string
}

// Warm prepares what Create needs for these limits, and may take 50 ms when that is done for the first time: the template
// of an image. It is safe to call it beside everything else.
func (s *Store) Warm(ctx context.Context, m Mechanism, l Limits) error {
	if m != Ext4 {
		return nil
	}
	_, err := s.template(ctx, l)
	return err
}

func (s *Store) template(ctx context.Context, l Limits) (*template, error) {
	inodes := "none"
	if l.Inodes != nil {
		inodes = l.Inodes.String()
	}
	base := filepath.Join(s.state, "disk", fmt.Sprintf("%s%d-%s-%s", templatePrefix, templateVersion, l.Bytes, inodes))
	if t, err := readTemplate(base); err == nil {
		return t, nil
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	t, err := readTemplate(base)
	if err != nil {
		t, err = makeTemplate(ctx, base, l)
	}
	return t, err
}

func readTemplate(base string) (*template, error) {
	data, err := os.ReadFile(base + ".json")
	if err != nil {
		return nil, err
	}
	t := template{file: base + ".img"}
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, err
	}
	now := time.Now() // for Clean: it is in use
	if err := os.Chtimes(t.file, now, now); err != nil {
		return nil, err
	}
	return &t, os.Chtimes(base+".json", now, now)
}

// makeTemplate tries sizes until what is free is enough: mkfs and the kernel keep parts of a file system for themselves that
// nobody but they can tell beforehand. What is too much is filled up.
func makeTemplate(ctx context.Context, base string, l Limits) (*template, error) {
	t := &template{file: base + ".img"}
	tmp := t.file + newSuffix
	defer func() { _ = os.Remove(tmp) }()
	want := l.Bytes + slackBytes
	size := firstSize(l)
	const turns = 8
	for range turns {
		t.Size = (size + ext4.BlockSize - 1) / ext4.BlockSize * ext4.BlockSize
		if err := t.format(ctx, tmp, l); err != nil {
			return nil, err
		}
		if t.Free >= want {
			return t, t.save(tmp, base)
		}
		// A little more than what lacks, for what the kernel keeps of that.
		size = t.Size + (want-t.Free)*21/20 + 64*quota.KiB
	}
	return nil, fmt.Errorf("mkfs.ext4 makes no image with %s free: %w", want, errors.ErrUnsupported)
}

// inodesFor is how many a file system with these limits needs; 0 leaves it to mkfs.
func inodesFor(l Limits) quota.Count {
	if l.Inodes == nil {
		return 0
	}
	const reserved, ours = 11, 2 // by ext4; the directory for what counts, the filler
	return *l.Inodes + slackInodes + BallastInodes + reserved + ours
}

// firstSize is a guess: inodes of 256 bytes, 2 % (at most 4,096 blocks) that the kernel keeps, bitmaps.
func firstSize(l Limits) quota.Bytes {
	need := l.Bytes + slackBytes + Ballast + quota.Bytes(inodesFor(l))*256
	if l.Inodes == nil {
		need += need / 16 // an inode for each block
	}
	return need + min(need/50, 4096*ext4.BlockSize) + need/2048 + 128*quota.KiB
}

func (t *template) save(tmp, base string) error {
	if err := os.Rename(tmp, t.file); err != nil {
		return err
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+".json"+newSuffix, data, 0o600); err != nil {
		return err
	}
	return os.Rename(base+".json"+newSuffix, base+".json")
}

// format makes the file system, mounts it once and puts the ballast in.
func (t *template) format(ctx context.Context, file string, l Limits) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(int64(t.Size)); err != nil {
		return err
	}
	if err := ext4.Format(ctx, f, int64(t.Size), int64(inodesFor(l))); err != nil {
		return err
	}
	device, err := loop.Attach(f)
	if err != nil {
		return err
	}
	defer func() { _ = device.Close() }()
	root, err := mountImage(device)
	if err != nil {
		return err
	}
	return errors.Join(t.furnish(root, l), root.Close())
}

// furnish puts in what every unit has, and takes away what is more than its limits.
func (t *template) furnish(root *os.File, l Limits) error {
	top := procPath(root)
	if err := os.Remove(filepath.Join(top, "lost+found")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Chmod(top, 0o700); err != nil {
		return err
	}
	if err := furnish(top); err != nil {
		return err
	}
	filler, err := os.Create(filepath.Join(top, ballastName, fillerName))
	if err != nil {
		return err
	}
	defer func() { _ = filler.Close() }()
	if err := t.look(root); err != nil {
		return err
	}
	if l.Inodes != nil {
		// mkfs rounds up for every group of blocks.
		surplus := int(t.FreeInodes - *l.Inodes - slackInodes)
		if surplus > int(*l.Inodes/100) {
			if err := fillInodes(filepath.Join(top, ballastName, surplusName), 0, surplus-1); err != nil { // and their directory
				return err
			}
		}
	}
	if err := t.look(root); err != nil {
		return err
	}
	// A few blocks more or less are no matter.
	if surplus := t.Free - l.Bytes - slackBytes; surplus > 8*ext4.BlockSize {
		if err := resizeFile(filler, int64(surplus/ext4.BlockSize-4)*ext4.BlockSize); err != nil {
			return err
		}
	}
	return t.look(root)
}

// look notes what is free.
func (t *template) look(root *os.File) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	t.Free, t.FreeInodes = quota.Bytes(int64(st.Bavail)*st.Frsize), quota.Count(st.Ffree)
	return nil
}

// Names in the ballast: what is too much.
const (
	fillerName  = "filler"
	surplusName = "surplus"
)

// fillInodes makes n empty files that stay, numbered from first.
func fillInodes(dir string, first, n int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for i := range n {
		if err := unix.Mknod(filepath.Join(dir, strconv.Itoa(first+i)), unix.S_IFREG, 0); err != nil {
			return os.NewSyscallError("mknod", err)
		}
	}
	return nil
}

// copy fills an empty image or its device.
func (t *template) copy(dst *os.File) error {
	src, err := os.Open(t.file)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	if err := copyData(src, dst); err != nil {
		return err
	}
	return ext4.NewUUID(dst)
}

// noCow keeps btrfs from writing a block elsewhere each time, for which it would need space that is not allocated.
func noCow(f *os.File) {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil || st.Type != unix.BTRFS_SUPER_MAGIC {
		return
	}
	const noCow = 0x00800000 // FS_NOCOW_FL
	_ = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, noCow)
}

// copyData copies what is not a hole: some 200 KB.
func copyData(src, dst *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	buffer := make([]byte, 128<<10)
	for at := int64(0); at < info.Size(); {
		if at, err = unix.Seek(int(src.Fd()), at, unix.SEEK_DATA); errors.Is(err, unix.ENXIO) {
			return nil
		} else if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		end, err := unix.Seek(int(src.Fd()), at, unix.SEEK_HOLE)
		if err != nil {
			return os.NewSyscallError("lseek", err)
		}
		for at < end {
			n, err := src.ReadAt(buffer[:min(int64(len(buffer)), end-at)], at)
			if err != nil {
				return err
			}
			if _, err := dst.WriteAt(buffer[:n], at); err != nil {
				return err
			}
			at += int64(n)
		}
	}
	return nil
}

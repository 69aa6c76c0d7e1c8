package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
)

// subvolumes is the mechanism Btrfs: features/ID/disk is a subvolume with a limited qgroup.
type subvolumes struct{ unplanned }

// Numbers of include/uapi/linux/btrfs{,_tree}.h.
const (
	btrfsSubvolCreate = 0x5000940e
	btrfsSnapDestroy  = 0x5000940f
	btrfsTreeSearch   = 0xd0009411
	btrfsInoLookup    = 0xd0009412
	btrfsQgroupCreate = 0x4010942a
	btrfsQgroupLimit  = 0x8030942b

	quotaTree    = 8
	statusKey    = 240 // BTRFS_QGROUP_STATUS_KEY
	infoKey      = 242 // BTRFS_QGROUP_INFO_KEY
	limitReferer = 1   // BTRFS_QGROUP_LIMIT_MAX_RFER
)

// volArgs is struct btrfs_ioctl_vol_args.
type volArgs struct {
	_    int64
	name [4088]byte
}

func (subvolumes) lockFile(p *place) string { return p.plain() }

func subvolume(request uint, path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	var args volArgs
	copy(args.name[:len(args.name)-1], filepath.Base(path))
	if err := ioctl(dir, request, &args); err != nil {
		return &os.PathError{Op: "btrfs subvolume", Path: path, Err: err}
	}
	return nil
}

func (subvolumes) create(_ context.Context, p *place) error {
	if p.Inodes != nil {
		return fmt.Errorf("btrfs counts no inodes: %w", errors.ErrUnsupported)
	}
	if err := subvolume(btrfsSubvolCreate, p.plain()); err != nil {
		return err
	}
	if err := os.Chmod(p.plain(), 0o700); err != nil {
		return err
	}
	if err := limitSubvolume(p.plain(), p.Bytes); err != nil {
		return err
	}
	return p.makeContent()
}

// limitSubvolume limits what is referred to; no two subvolumes of ours share anything.
func limitSubvolume(path string, bytes quota.Bytes) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	var args struct{ group, flags, referred, exclusive, _, _ uint64 }
	args.flags, args.referred = limitReferer, uint64(bytes+slackBytes) // group 0 is the directory's own
	return os.NewSyscallError("BTRFS_IOC_QGROUP_LIMIT", ioctl(dir, btrfsQgroupLimit, &args))
}

func (subvolumes) open(_ context.Context, p *place) (volume, error) {
	return subvolumeVolume{directory{p.plain()}}, nil
}

func (subvolumes) idle(_ context.Context, p *place) (quota.Bytes, error) {
	u, err := subvolumeVolume{directory{p.plain()}}.usage(&p.record)
	return max(u.Used, 0) + slackBytes, err
}

func (subvolumes) remove(p *place) error {
	dir, err := os.Open(p.plain())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	id, err := subvolumeID(dir)
	_ = dir.Close()
	if err != nil {
		return os.RemoveAll(p.plain()) // it is none
	}
	if err := subvolume(btrfsSnapDestroy, p.plain()); err != nil {
		return err
	}
	dropGroup(p.dir, id)
	return nil
}

// dropGroup removes the qgroup of a subvolume that is gone. The kernel does it itself since 6.12; before that, it can
// refuse while it still deletes in the background, and a group of nothing costs nothing.
func dropGroup(path string, id uint64) {
	dir, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = dir.Close() }()
	args := struct{ create, id uint64 }{id: id}
	_ = ioctl(dir, btrfsQgroupCreate, &args)
}

type subvolumeVolume struct{ directory }

// usage has the kernel finish its transaction first: until then the counters are those of the last one.
func (v subvolumeVolume) usage(*record) (Usage, error) {
	dir, err := os.Open(v.path)
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return Usage{}, os.NewSyscallError("syncfs", err)
	}
	id, err := subvolumeID(dir)
	if err != nil {
		return Usage{}, err
	}
	info, err := quotaItem(dir, infoKey, id)
	if err != nil {
		return Usage{}, err
	}
	referred := binary.LittleEndian.Uint64(info[8:]) // generation, referred, …
	return Usage{Used: quota.Bytes(referred) - slackBytes}, nil
}

func (v subvolumeVolume) resize(_ context.Context, _ *place, next *record) error {
	if next.Inodes != nil {
		return fmt.Errorf("%w: btrfs counts no inodes", ErrResize)
	}
	u, err := v.usage(next)
	if err != nil {
		return err
	}
	if u.Used > next.Bytes {
		return fmt.Errorf("%w: it holds more than that", ErrResize)
	}
	return limitSubvolume(v.path, next.Bytes)
}

// reserve needs no ballast: the limit itself can move.
func (v subvolumeVolume) reserve(r *record, free bool) error {
	if free {
		return limitSubvolume(v.path, r.Bytes+Ballast)
	}
	return limitSubvolume(v.path, r.Bytes)
}

// subvolumeID returns the id of the subvolume that dir is the top of.
func subvolumeID(dir *os.File) (uint64, error) {
	const firstFree = 256 // BTRFS_FIRST_FREE_OBJECTID, the inode of every subvolume's top
	var args struct {
		tree, object uint64
		name         [4080]byte
	}
	args.object = firstFree
	if err := ioctl(dir, btrfsInoLookup, &args); err != nil {
		return 0, os.NewSyscallError("BTRFS_IOC_INO_LOOKUP", err)
	}
	return args.tree, nil
}

// quotaItem reads an item of the quota tree: its key's type and offset name it. fs.ErrNotExist when there is none.
func quotaItem(dir *os.File, kind uint32, offset uint64) ([]byte, error) {
	var args struct {
		tree, minObject, maxObject, minOffset, maxOffset, minTrans, maxTrans uint64
		minType, maxType, items, _                                           uint32
		_                                                                    [4]uint64
		buffer                                                               [3992]byte
	}
	args.tree, args.minOffset, args.maxOffset, args.maxTrans = quotaTree, offset, offset, 1<<64-1
	args.minType, args.maxType, args.items = kind, kind, 1
	if err := ioctl(dir, btrfsTreeSearch, &args); err != nil {
		return nil, os.NewSyscallError("BTRFS_IOC_TREE_SEARCH", err)
	}
	const header = 32 // transid, objectid, offset, type, len
	size := binary.NativeEndian.Uint32(args.buffer[28:])
	if args.items == 0 || size < 24 || size > uint32(len(args.buffer)-header) {
		return nil, fs.ErrNotExist
	}
	return args.buffer[header : header+size], nil
}

// enforcesGroups says whether the btrfs of dir keeps limits of qgroups.
func enforcesGroups(dir *os.File) error {
	status, err := quotaItem(dir, statusKey, 0) // version, generation, flags
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("its quotas are not switched on")
	case err != nil:
		return err
	case binary.LittleEndian.Uint64(status[16:])&1 == 0:
		return errors.New("its quotas are switched off")
	}
	return nil
}

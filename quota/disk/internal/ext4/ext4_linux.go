// Package ext4 makes and looks at images of ext4 file systems, with e2fsprogs and by their superblock.
package ext4

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// ErrNone says that an image holds no ext4 file system.
var ErrNone = errors.New("no ext4 file system")

// BlockSize is that of every image, in bytes.
const BlockSize = 4096

// features are named one by one: what an image is does not depend on the host's /etc/mke2fs.conf.
const features = "none,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink," +
	"extra_isize,metadata_csum,metadata_csum_seed"

// groupSize is how many blocks a group has. Without a journal ext4 gives no inode out again that was deleted in the last
// minutes, and passes over all of those of the group for each file that is made (recently_deleted() in ialloc.c): with 25,000
// inodes in a group that took 1,100 µs instead of 30 after as many deletes, with 768 it is 36.
func groupSize(size, inodes int64) int64 {
	const inGroup, least, most, groups = 768, 256, 8 * BlockSize, 4096
	blocks := size / BlockSize
	if inodes == 0 {
		inodes = blocks
	}
	n := max(blocks*inGroup/inodes, blocks/groups)
	return min(max(n, least), most) / 8 * 8
}

// Format makes an empty file system of blocks of 4096 bytes with mkfs.ext4(8); 0 inodes leaves their number to it.
func Format(ctx context.Context, image *os.File, size, inodes int64) error {
	program, err := Tool("mkfs.ext4")
	if err != nil {
		return err
	}
	args := []string{"-q", "-F", "-O", features, "-b", strconv.Itoa(BlockSize), "-I", "256", "-m", "0",
		"-E", "lazy_itable_init=1,nodiscard,root_owner=0:0,packed_meta_blocks=1",
		"-g", strconv.FormatInt(groupSize(size, inodes), 10)}
	if inodes > 0 {
		args = append(args, "-N", strconv.FormatInt(inodes, 10))
	} else {
		args = append(args, "-i", strconv.Itoa(BlockSize))
	}
	c := exec.CommandContext(ctx, program, append(args, Inherited)...)
	c.Env = []string{"MKE2FS_CONFIG=/dev/null", "LC_ALL=C"}
	c.ExtraFiles = []*os.File{image}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", program, err, bytes.TrimSpace(out))
	}
	return nil
}

// Inherited is what a program sees as the first of its ExtraFiles: whatever the image's path is, it is no option, and it
// may be good for this process only.
const Inherited = "/proc/self/fd/3"

// Tool finds a program of e2fsprogs (exec.ErrNotFound), which are in directories that are not in every PATH.
func Tool(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, name))
	}
	if err != nil {
		return "", fmt.Errorf("%s (package e2fsprogs): %w", name, exec.ErrNotFound)
	}
	return path, nil
}

// Fields of the superblock, which is at byte 1024 (Documentation/filesystems/ext4/super.rst).
const (
	superAt       = 1024
	superState    = 0x3a
	superUUID     = 0x68
	superChecksum = 0x3fc
	superSize     = 1024

	stateValid = 1
	stateError = 2
)

func readSuper(image *os.File) ([]byte, error) {
	super := make([]byte, superSize)
	if _, err := image.ReadAt(super, superAt); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s is too short: %w", image.Name(), ErrNone)
	} else if err != nil {
		return nil, err
	}
	const magicAt, magic = 0x38, 0xef53
	if binary.LittleEndian.Uint16(super[magicAt:]) != magic {
		return nil, fmt.Errorf("%s is no ext4 image: %w", image.Name(), ErrNone)
	}
	return super, nil
}

// NewUUID makes an image another one than its template: overlayfs tells lower layers apart by it. The template has the
// feature metadata_csum_seed, so that nothing else depends on it.
func NewUUID(image *os.File) error {
	super, err := readSuper(image)
	if err != nil {
		return err
	}
	uuid := super[superUUID : superUUID+16]
	_, _ = rand.Read(uuid)
	uuid[6], uuid[8] = uuid[6]&0x0f|0x40, uuid[8]&0x3f|0x80 // RFC 9562, version 4
	// ext4 has the checksum without the final complement.
	sum := ^crc32.Checksum(super[:superChecksum], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(super[superChecksum:], sum)
	_, err = image.WriteAt(super, superAt)
	return err
}

// Clean says whether the file system was unmounted, and has no errors that the kernel knows of. ErrNone.
func Clean(image *os.File) (bool, error) {
	super, err := readSuper(image)
	if err != nil {
		return false, err
	}
	state := binary.LittleEndian.Uint16(super[superState:])
	return state&stateValid != 0 && state&stateError == 0, nil
}

// UUID is the file system's. ErrNone.
func UUID(image *os.File) (uuid [16]byte, err error) {
	super, err := readSuper(image)
	if err == nil {
		copy(uuid[:], super[superUUID:])
	}
	return uuid, err
}

// Repair runs e2fsck(8) on an image that nobody has attached.
func Repair(ctx context.Context, image *os.File) error {
	fsck, err := Tool("e2fsck")
	if err != nil {
		return err
	}
	const repaired, reboot = 1, 2 // exit status bits of e2fsck(8)
	c := exec.CommandContext(ctx, fsck, "-f", "-y", Inherited)
	c.ExtraFiles = []*os.File{image}
	out, err := c.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 && exit.ExitCode()&^(repaired|reboot) == 0 {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("e2fsck cannot repair it: %w: %.300s", err, out)
	}
	return nil
}

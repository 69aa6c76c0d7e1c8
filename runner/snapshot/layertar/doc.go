// Package layertar writes what differs between two views of layers as an OCI image layer, and reads such an archive
// into a layer.
//
// An archive is a function of what the two views show and of nothing else: not of the layers' number, redirects, opaque
// marks or extents, not of the order of names on disk, not of the version of a library. So an archive that was read
// and is written again has the same digest.
//
//	deleted name             .wh.NAME, an empty file
//	everything that was      .wh..wh..opq in a directory; a full archive begins with it
//	user.* attributes        PAX SCHILY.xattr.user.*; % and = in a name are written as GNU tar does, %25 and %3D
//	times                    PAX mtime, to the nanosecond
//	blocks of zeros          GNU sparse format 1.0, decided by content: holes are 4 KiB or larger
//	hard links               the first name of a group has the content; a group with one changed name is written whole
//	parents                  every directory above an entry is an entry
//
// A name that begins with .wh. cannot be written (ErrName). Sockets and devices are left out and named in the Result.
//
// Reading fails closed: a name that is absolute, has "..", goes through a link or a file, or comes twice; a hard link to
// what the archive does not hold; a device; an attribute of overlayfs; an end that is missing; more than the limit.
// The host follows no link of an archive.
package layertar

import (
	"errors"
	"fmt"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Options say how to write and to read.
type Options struct {
	Zstd      bool // write compressed; Read finds out by itself, and takes gzip, too
	UserXattr bool // overlayfs' marks in the layer that Read makes are user.overlay.*, not trusted.overlay.*

	// IDs translates owners: of a layer to the archive's (Write), of the archive to the layer's (Read). BaseIDs does so
	// for what lies in layers that have the host's own ids (tree.Root.Base). nil keeps them.
	IDs, BaseIDs func(uid, gid uint32) (uint32, uint32)

	MaxBytes int64 // of the uncompressed archive, for Read; 0: 1 GiB
	Parallel int   // processors for zstd; 0: 1

	// Below is what the new layer will lie on: Read takes from it the attributes of parents that the archive does not
	// name. nil: they are 0755.
	Below *tree.View

	// Whole says that Read's directory is a whole tree and no overlay layer: names are deleted and not covered.
	Whole bool
}

// Result is what an archive was.
type Result struct {
	Digest string // of the uncompressed archive, sha256:HEX
	Bytes  int64  // of the uncompressed archive
	Full   bool   // it shows everything: the layer is to lie on nothing

	// Skipped are sockets and devices that an archive cannot have.
	Skipped []string
}

// Why an archive cannot be read or written.
var (
	ErrName      = errors.New("a name with the prefix .wh. means a deletion in an archive")
	ErrUnsafe    = errors.New("the archive is not safe to read")
	ErrTooLarge  = errors.New("the archive is larger than allowed")
	ErrTruncated = errors.New("the archive has no end")
	ErrChanged   = errors.New("changed while it was read")
)

// EntryError names the entry of an archive that was refused. It is ErrUnsafe.
type EntryError struct{ Name, Reason string }

func (e *EntryError) Error() string {
	name := e.Name
	if len(name) > 512 {
		name = name[:512] + "..."
	}
	return fmt.Sprintf("archive entry %s: %s", beneath.Quote(name), e.Reason)
}

// Is reports that a refused entry is ErrUnsafe.
func (e *EntryError) Is(target error) bool { return target == ErrUnsafe }

const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"

	defaultMax = 1 << 30
)

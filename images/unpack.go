package images

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// limits bound what an archive may unpack to: a few bytes of one can promise exabytes.
type limits struct {
	entries int
	bytes   int64 // of all files, holes included
}

var defaultLimits = limits{entries: 4 << 20, bytes: 64 << 30}

// kind is what the unpacker has made at a path.
type kind byte

const (
	kindDir kind = iota + 1
	kindFile
	kindLink
)

// meta is what a directory gets when everything in it is there.
type meta struct {
	mode     fs.FileMode
	uid, gid int
	modTime  time.Time
}

// unpacker writes entries below root, a fresh directory that nobody else writes to. Kinds is therefore the
// truth about what exists, and no decision rests on what a path leads to.
type unpacker struct {
	root  *os.Root
	left  limits
	kinds map[string]kind
	dirs  map[string]meta
	chown bool // as root, files get the archive's owners
}

// unpack writes the archive in r below dir, which is empty.
func unpack(r io.Reader, dir string, l limits) error {
	plain, err := decompress(r)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	u := &unpacker{
		root: root, left: l, chown: os.Geteuid() == 0,
		kinds: map[string]kind{".": kindDir}, dirs: map[string]meta{".": {mode: 0o755}},
	}
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("not a tar archive, or a damaged one: %w", err)
		}
		if err := u.add(h, t); err != nil {
			return fmt.Errorf("entry %.200q: %w", h.Name, err)
		}
	}
	if err := whole(plain, l.bytes); err != nil {
		return err
	}
	if err := u.plausible(); err != nil {
		return err
	}
	return u.finish()
}

// whole reads what follows the archive in its compressed stream: only at the end of that its sums are compared. What follows
// the stream and is none is nobody's.
func whole(plain io.Reader, most int64) error {
	most += 1 << 20 // padding
	n, err := io.Copy(io.Discard, io.LimitReader(plain, most))
	switch {
	case n == most:
		return errors.New("the archive unpacks to more than is allowed")
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, zstd.ErrMagicMismatch), errors.Is(err, xz.ErrFormat),
		errors.Is(err, bzip2.StructuralError("bad magic value in continuation file")):
		return nil
	case err != nil:
		return fmt.Errorf("damaged: %w", err)
	}
	return nil
}

// decompress looks at the first bytes for what the archive is.
func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	magic, err := b.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.HasPrefix(magic, []byte("BZh")):
		return bzip2.NewReader(b), nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return unzstd(b)
	case bytes.HasPrefix(magic, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		return xz.NewReader(b, maxWindow)
	}
	return b, nil
}

// maxWindow bounds the memory that a zstd or xz archive may ask for: what zstd's own tools accept, 128 MiB, and twice what
// `xz -9` needs.
const maxWindow = 128 << 20

// unzstd decompresses on the reader's own goroutine, so that nothing is left when it is given up.
func unzstd(r io.Reader) (io.Reader, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return d, nil
}

// add writes one entry.
func (u *unpacker) add(h *tar.Header, r io.Reader) error {
	switch h.Typeflag {
	case tar.TypeXGlobalHeader, tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return nil
	case tar.TypeDir, tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeSymlink, tar.TypeLink:
	default:
		return fmt.Errorf("entries of type %q are not supported", h.Typeflag)
	}
	if u.left.entries--; u.left.entries < 0 {
		return errors.New("the archive has too many entries")
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if err := u.parents(name); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.directory(name, h)
	}
	switch u.kinds[name] {
	case kindDir:
		return errors.New("it would replace a directory")
	case kindFile, kindLink: // the last entry of a name is the one that counts
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		return u.symlink(name, h)
	case tar.TypeLink:
		return u.hardlink(name, h)
	}
	return u.file(name, h, r)
}

// parents makes the directories above name that the archive leaves out. All of them are directories of ours:
// what lies behind a link is refused, wherever the link leads.
func (u *unpacker) parents(name string) error {
	for i := range len(name) {
		if name[i] != '/' {
			continue
		}
		switch up := name[:i]; u.kinds[up] {
		case kindDir:
		case 0:
			if err := u.mkdir(up, meta{mode: 0o755}); err != nil {
				return err
			}
		default:
			return fmt.Errorf("it lies below %q, which is not a directory", up)
		}
	}
	return nil
}

func (u *unpacker) mkdir(name string, m meta) error {
	if err := u.root.Mkdir(name, 0o700); err != nil {
		return err
	}
	u.kinds[name], u.dirs[name] = kindDir, m
	return nil
}

func (u *unpacker) directory(name string, h *tar.Header) error {
	m := meta{mode: mode(h, 0o1777), uid: owner(h.Uid), gid: owner(h.Gid), modTime: h.ModTime}
	switch u.kinds[name] {
	case kindDir:
		u.dirs[name] = m
		return nil
	case kindFile, kindLink:
		if err := u.root.Remove(name); err != nil {
			return err
		}
	}
	return u.mkdir(name, m)
}

// symlink makes a link with whatever target: it is only ever followed inside a sandbox.
func (u *unpacker) symlink(name string, h *tar.Header) error {
	if h.Linkname == "" || strings.ContainsRune(h.Linkname, 0) {
		return errors.New("a link without a proper target")
	}
	if err := u.root.Symlink(h.Linkname, name); err != nil {
		return err
	}
	u.kinds[name] = kindLink
	return u.lchown(name, owner(h.Uid), owner(h.Gid))
}

func (u *unpacker) hardlink(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return fmt.Errorf("hard link to %q: %w", h.Linkname, err)
	}
	delete(u.kinds, name) // a link to itself is one to nothing
	if u.kinds[target] != kindFile {
		return fmt.Errorf("hard link to %q, which is not an earlier file of the archive", h.Linkname)
	}
	if err := u.root.Link(target, name); err != nil {
		return err
	}
	u.kinds[name] = kindFile
	return nil
}

func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	if u.left.bytes -= h.Size; h.Size < 0 || u.left.bytes < 0 {
		return errors.New("the archive unpacks to more than is allowed")
	}
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	u.kinds[name] = kindFile
	err = errors.Join(copySparse(f, r, h.Size), f.Close())
	if err == nil {
		err = u.lchown(name, owner(h.Uid), owner(h.Gid))
	}
	if err == nil {
		err = u.root.Chmod(name, mode(h, 0o777))
	}
	if err == nil && !h.ModTime.IsZero() {
		err = u.root.Chtimes(name, h.ModTime, h.ModTime)
	}
	return err
}

// copySparse copies size bytes and leaves holes for blocks of zeros.
func copySparse(f *os.File, r io.Reader, size int64) error {
	buf := make([]byte, 64<<10)
	zero := make([]byte, len(buf))
	for at := int64(0); at < size; {
		n, err := io.ReadFull(r, buf[:min(size-at, int64(len(buf)))])
		if err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := f.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		at += int64(n)
	}
	return f.Truncate(size)
}

// plausible refuses what is no root filesystem: nothing, or an image in a registry's own format.
func (u *unpacker) plausible() error {
	if len(u.kinds) == 1 {
		return errors.New("it holds no files")
	}
	image := u.kinds["oci-layout"] == kindFile || u.kinds["manifest.json"] == kindFile
	if image && u.kinds["usr"] == 0 && u.kinds["bin"] == 0 {
		return errors.New("it is an image in layers, not a root filesystem; make one with: docker export $(docker create IMAGE) -o FILE")
	}
	return nil
}

// finish gives directories their modes and times, the deepest first: one that forbids its owner to write, or
// whose time the entries in it would change, gets them when all is in it.
func (u *unpacker) finish() error {
	depth := func(name string) int {
		if name == "." {
			return -1
		}
		return strings.Count(name, "/")
	}
	deepest := func(a, b string) int { return cmp.Compare(depth(b), depth(a)) }
	for _, name := range slices.SortedFunc(maps.Keys(u.dirs), deepest) {
		m := u.dirs[name]
		err := u.lchown(name, m.uid, m.gid)
		if err == nil {
			err = u.root.Chmod(name, m.mode)
		}
		if err == nil && !m.modTime.IsZero() {
			err = u.root.Chtimes(name, m.modTime, m.modTime)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) lchown(name string, uid, gid int) error {
	if !u.chown {
		return nil
	}
	return u.root.Lchown(name, uid, gid)
}

// mode is an entry's mode, of the bits in keep. setuid and setgid are in no keep.
func mode(h *tar.Header, keep fs.FileMode) fs.FileMode {
	m := fs.FileMode(h.Mode) & keep & 0o777
	if h.Mode&0o1000 != 0 && keep&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// owner is an id of a sandbox's range; what lies outside becomes nobody's.
func owner(id int) int {
	if id < 0 || id > 65535 {
		return 65534
	}
	return id
}

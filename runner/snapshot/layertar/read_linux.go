package layertar

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Read makes of an archive, plain or compressed with zstd or gzip, an overlay layer in upper: an empty directory that
// nobody else uses, or, with Options.Whole, a tree to apply the archive to. After an error upper is of no use. Errors
// are *EntryError, ErrTooLarge, ErrTruncated, *fs.PathError for upper, and r's.
func Read(ctx context.Context, r io.Reader, upper string, o Options) (Result, error) {
	limit := o.MaxBytes
	if limit == 0 {
		limit = defaultMax
	}
	plain, done, err := decompress(r)
	if err != nil {
		return Result{}, err
	}
	defer done()
	in := &stream{ctx: ctx, r: plain, limit: limit, sum: sha256.New()}
	root, err := beneath.OpenRoot(upper)
	if err != nil {
		return Result{}, err
	}
	root.Ours = true
	w := &placer{
		o: o, root: root, at: beneath.Cursor{Root: root}, holes: 64 * limit,
		placed: map[string]sort{}, buf: make([]byte, 256<<10),
	}
	err = w.all(ctx, in)
	w.at.Close()
	if err = errors.Join(err, root.Close()); err != nil {
		return Result{}, err
	}
	return Result{Digest: digest(in.sum), Bytes: in.bytes, Full: w.placed["."] == opaqueDir, Skipped: nil}, nil
}

// decompress finds out how an archive is compressed.
func decompress(r io.Reader) (plain io.Reader, done func(), err error) {
	b := bufio.NewReaderSize(r, 64<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(b)
		return z, func() {}, err
	}
	return b, func() {}, nil
}

// stream is an uncompressed archive: it counts, sums up and remembers the end.
type stream struct {
	ctx   context.Context
	r     io.Reader
	limit int64
	bytes int64
	sum   hash.Hash
	zeros int64 // how many the last bytes were
}

func (s *stream) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	n, err := s.r.Read(b)
	s.bytes += int64(n)
	s.sum.Write(b[:n])
	if last := bytes.TrimRight(b[:n], "\x00"); len(last) > 0 {
		s.zeros = 0
		s.zeros += int64(n - len(last))
	} else {
		s.zeros += int64(n)
	}
	if s.bytes > s.limit {
		return 0, ErrTooLarge
	}
	return n, err
}

// sort is what the archive put at a path.
type sort byte

const (
	nothing   sort = iota
	directory      // of the archive
	opaqueDir      // and nothing shows through it
	implied        // a parent that the archive does not name
	other          // anything but a directory
	covered        // a whiteout
)

// all reads every entry and sets the directories' attributes at the end.
func (w *placer) all(ctx context.Context, in *stream) error {
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if err := w.entry(ctx, t, h, name); err != nil {
			if errors.Is(err, ErrUnsafe) {
				return err // it is named, and where it would have come to lie helps nobody
			}
			return w.root.Fail("import", name, err)
		}
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	if in.zeros < 2*blockSize {
		return ErrTruncated
	}
	return w.finish()
}

// cleanName checks a path of the archive and returns it as views write it.
func cleanName(name string) (string, error) {
	refuse := func(reason string) (string, error) { return "", &EntryError{name, reason} }
	switch {
	case name == "":
		return refuse("has no name")
	case name[0] == '/':
		return refuse("is absolute")
	case len(name) > tree.MaxPath:
		return refuse("is too long")
	case strings.IndexByte(name, 0) >= 0:
		return refuse("has a NUL")
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "..":
			return refuse("leaves the layer")
		case len(part) > 255:
			return refuse("is too long")
		}
	}
	return path.Clean(name), nil
}

// entry places one entry.
func (w *placer) entry(ctx context.Context, t *tar.Reader, h *tar.Header, name string) error {
	dir, last := path.Split(name)
	dir = path.Clean(dir)
	if strings.Contains("/"+dir, "/"+whiteout) {
		return &EntryError{h.Name, "lies in a whiteout"}
	}
	if hidden, ok := strings.CutPrefix(last, whiteout); ok {
		switch {
		case h.Typeflag != tar.TypeReg:
			return &EntryError{h.Name, "is a whiteout and no file"}
		case last == opaque:
			return w.opaque(ctx, dir)
		case hidden == "" || hidden == "." || hidden == ".." || strings.HasPrefix(hidden, whiteout):
			return &EntryError{h.Name, "is no whiteout that we know"}
		}
		return w.cover(ctx, path.Join(dir, hidden))
	}
	if name == "." && h.Typeflag != tar.TypeDir {
		return &EntryError{h.Name, "replaces the root"}
	}
	m, err := w.metaOf(h)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return w.dir(ctx, name, m)
	case tar.TypeReg, tar.TypeGNUSparse:
		return w.file(ctx, name, m, t)
	case tar.TypeSymlink:
		return w.symlink(ctx, name, m, h.Linkname)
	case tar.TypeLink:
		target, err := cleanName(h.Linkname)
		if err != nil {
			return err
		}
		return w.link(ctx, name, target)
	case tar.TypeFifo:
		return w.fifo(ctx, name, m)
	case tar.TypeChar, tar.TypeBlock:
		return &EntryError{h.Name, "is a device"}
	}
	return &EntryError{h.Name, fmt.Sprintf("is of the unknown type %q", h.Typeflag)}
}

// metaOf takes an entry's attributes.
func (w *placer) metaOf(h *tar.Header) (meta, error) {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) > 1<<32-2 || int64(h.Gid) > 1<<32-2 {
		return meta{}, &EntryError{h.Name, "has no owner that there is"}
	}
	m := meta{
		mode: uint32(h.Mode) & 0o7777, uid: uint32(h.Uid), gid: uint32(h.Gid), mtime: h.ModTime, size: h.Size,
		sparse: h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.realsize"] != "" || h.PAXRecords["GNU.sparse.size"] != "",
	}
	if w.o.IDs != nil {
		m.uid, m.gid = w.o.IDs(m.uid, m.gid)
	}
	for key, value := range h.PAXRecords {
		name, ok := xattrName(key)
		switch {
		case !ok:
		case strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay."):
			return meta{}, &EntryError{h.Name, "has an attribute of overlayfs"}
		case beneath.IsUserXattr(name):
			m.xattrs = append(m.xattrs, beneath.Xattr{Name: name, Value: []byte(value)})
		}
	}
	return m, nil
}

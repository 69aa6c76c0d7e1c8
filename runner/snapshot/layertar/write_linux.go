package layertar

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Write writes what new shows and old does not; with old nil, all of new. Nobody may change the layers meanwhile. Errors
// are ErrName, ErrChanged, the views' and w's.
func Write(ctx context.Context, old, new *tree.View, w io.Writer, o Options) (Result, error) {
	p := &plan{ctx: ctx, o: o, buf: make([]byte, 256<<10)}
	if err := p.make(old, new); err != nil {
		return Result{}, err
	}
	var z *zstd.Encoder
	if o.Zstd {
		var err error
		z, err = zstd.NewWriter(w, zstd.WithEncoderConcurrency(max(o.Parallel, 1)))
		if err != nil {
			return Result{}, err
		}
		w = z
	}
	out := &writer{plan: p, view: new, w: w, sum: sha256.New(), firsts: map[inode]string{}}
	err := out.all(old == nil)
	if z != nil {
		// A frame that is closed after an error would look whole.
		if err != nil {
			z.Reset(nil)
		}
		err = errors.Join(err, z.Close())
	}
	if err != nil {
		return Result{}, err
	}
	return Result{
		Digest: digest(out.sum), Bytes: out.bytes, Full: old == nil, Skipped: p.skipped,
	}, nil
}

func digest(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// writer writes the entries of a plan.
type writer struct {
	*plan
	view   *tree.View
	w      io.Writer
	sum    hash.Hash
	bytes  int64
	firsts map[inode]string // a group of hard links → the name that has the content
}

func (w *writer) put(b []byte) error {
	w.sum.Write(b)
	n, err := w.w.Write(b)
	w.bytes += int64(n)
	return err
}

func (w *writer) all(full bool) error {
	for i := range w.entries {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		e := &w.entries[i]
		if err := w.entry(e); err != nil {
			return fmt.Errorf("export %s: %w", tree.Quote(e.path), err)
		}
		if e.path == "." && full {
			if err := w.put((&header{kind: typeFile, name: opaque}).encode()); err != nil {
				return err
			}
		}
	}
	return w.put(make([]byte, 2*blockSize))
}

// entry writes one path.
func (w *writer) entry(e *entry) error {
	if err := representable(e.path); err != nil {
		return err
	}
	if e.gone {
		dir, name := beneath.Split(e.path)
		return w.put((&header{kind: typeFile, name: beneath.Join(dir, whiteout+name)}).encode())
	}
	s := &e.stat
	h := header{name: e.path, mode: int64(tree.UnixMode(s.Mode)), uid: s.UID, gid: s.GID, mtime: s.Mtime, pax: map[string]string{}}
	if ids := w.ids(s); ids != nil {
		h.uid, h.gid = ids(s.UID, s.GID)
	}
	for _, x := range s.Xattrs {
		h.pax[xattrKey(x.Name)] = string(x.Value)
	}
	if s.Type != tree.Dir && s.Nlink > 1 {
		key := inodeOf(s)
		if first, ok := w.firsts[key]; ok {
			return w.put((&header{kind: typeLink, name: e.path, link: first, mtime: s.Mtime}).encode())
		}
		w.firsts[key] = e.path
	}
	switch s.Type {
	case tree.Dir:
		h.kind, h.name = typeDir, e.path+"/"
	case tree.Symlink:
		h.kind, h.link, h.mode = typeSymlink, s.Link, 0o777
	case tree.Fifo:
		h.kind = typeFifo
	default:
		h.kind = typeFile
		return w.file(e, &h)
	}
	return w.put(h.encode())
}

func (w *writer) ids(s *tree.Stat) func(uid, gid uint32) (uint32, uint32) {
	if w.view.Layers()[s.Root].Base {
		return w.o.BaseIDs
	}
	return w.o.IDs
}

// representable refuses a name that reading would take for a mark.
func representable(path string) error {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasPrefix(part, whiteout) {
			return ErrName
		}
	}
	return nil
}

// file writes a regular file.
func (w *writer) file(e *entry, h *header) error {
	f, err := w.view.Open(e.path)
	if err != nil {
		return err
	}
	defer f.Close()
	h.size = e.stat.Size
	spans, sparse, err := dataSpans(f, h.size, w.buf)
	if err != nil {
		return err
	}
	var before []byte
	if sparse {
		before = sparseMap(spans, h.size)
		h.pax["GNU.sparse.major"], h.pax["GNU.sparse.minor"] = "1", "0"
		h.pax["GNU.sparse.name"], h.pax["GNU.sparse.realsize"] = e.path, fmt.Sprint(h.size)
		h.size = int64(len(before))
		for _, s := range spans {
			h.size += s.to - s.from
		}
	}
	if err := errors.Join(w.put(h.encode()), w.put(before)); err != nil {
		return err
	}
	for _, s := range spans {
		if err := w.data(f, s); err != nil {
			return err
		}
	}
	if n := h.size % blockSize; n > 0 {
		return w.put(make([]byte, blockSize-n))
	}
	return nil
}

// data writes one range of a file.
func (w *writer) data(f *os.File, s span) error {
	for off := s.from; off < s.to; {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		n, err := f.ReadAt(w.buf[:min(int64(len(w.buf)), s.to-off)], off)
		if n == 0 {
			if errors.Is(err, io.EOF) {
				err = ErrChanged
			}
			return err
		}
		if err := w.put(w.buf[:n]); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

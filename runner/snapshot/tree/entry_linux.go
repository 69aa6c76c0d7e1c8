package tree

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
)

const (
	// small is the largest file that is read in one piece, in bytes.
	small = 1 << 20
	// block is the unit of a content's digest: blocks of zeros are left out of it, holes or not.
	block = 64 << 10
	// keepAll is how much of contents a worker keeps for who prints the change: to open a small file once more costs more
	// than all that is done with it.
	keepAll = 4 << 20
	// binaryProbe is how much git looks at to tell text from binary.
	binaryProbe = 8000
)

var zeros [block]byte

// entry decides what became of one path that is in at least one of the views.
func (f *found) entry(j *job, name string, n, o *side) error {
	newDir, oldDir := n.ok && beneath.IsDir(&n.st), o.ok && beneath.IsDir(&o.st)
	if f.Only != nil && !oldDir && n.ok && beneath.IsFile(&n.st) && n.st.Nlink < 2 {
		if path := beneath.Join(j.path, name); !f.Only(path) {
			if o.ok {
				f.same = append(f.same, path) // or not: what was here may have been renamed to what is selected
			}
			return nil
		}
	}
	e, err := f.describe(j, name, n, o)
	if err != nil {
		return err
	}
	switch {
	case !n.ok:
		e.Kind = Deleted
	case !o.ok:
		e.Kind = Added
	case e.Type != e.OldType:
		e.Kind = TypeOnly
	}
	lonely := e.Kind == Added && !n.base && j.parts.inPlace() && j.parts.touched
	next := &job{path: e.Path, stale: j.stale, lonely: lonely}
	if oldDir {
		next.old = &seat{j.parts.old.places, name}
	}
	switch {
	case newDir:
		// The directory's own job opens it and completes its entry.
		next.entry, next.now = e, &seat{j.parts.now.places, name}
		f.push(next)
		return nil
	case oldDir:
		f.push(next)
	case lonely:
		f.orphan(n, name, e.Path)
	}
	if n.ok {
		if !n.base && n.st.Nlink > 1 {
			key := linkKey{n.root, n.st.Ino}
			f.links[key] = append(f.links[key], e.Path)
		}
		if err := f.decide(e, name, n, o); err != nil {
			return err
		}
		if e.Kind == "" && f.Strict && f.differs(e) {
			e.Kind = Modified
		}
	}
	switch {
	case e.Kind != "":
		f.emit(e, j.stale)
	case !n.base && n.st.Nlink > 1:
		f.judge(e, j.stale)
		f.twins = append(f.twins, *e)
	}
	return nil
}

// describe fills in what stat and readlink tell.
func (f *found) describe(j *job, name string, n, o *side) (*Entry, error) {
	e := &Entry{Path: beneath.Join(j.path, name)}
	v := &Detail{}
	if n.ok {
		v.New, v.Root, v.Source = n.st, n.root, beneath.Join(j.parts.now.places[n.at].path, name)
	}
	if o.ok {
		v.Old, v.OldRoot, v.OldSource = o.st, o.root, beneath.Join(j.parts.old.places[o.at].path, name)
	}
	e.describe(v, n.ok, o.ok)
	var err error
	if e.Type == Symlink {
		if e.Link, err = beneath.ReadLink(n.dir, name); err != nil {
			return nil, f.now.roots[n.root].Fail("readlink", v.Source, err)
		}
	}
	if e.OldType == Symlink {
		if e.OldLink, err = beneath.ReadLink(o.dir, name); err != nil {
			return nil, f.old.roots[o.root].Fail("readlink", v.OldSource, err)
		}
	}
	return e, nil
}

func (e *Entry) describe(v *Detail, hasNew, hasOld bool) {
	e.detail = v
	if e.Path == "" {
		e.Path = "."
	}
	if hasNew {
		e.Type, e.Mode = TypeOf(&v.New), FileMode(v.New.Mode)
		if e.Type == File {
			e.Size = v.New.Size
		}
	}
	if hasOld {
		e.OldType, e.OldMode = TypeOf(&v.Old), FileMode(v.Old.Mode)
		if e.OldType == File {
			e.OldSize = v.Old.Size
		}
	}
}

// decide completes the entry of something that is no directory. Its kind stays empty if nothing changed.
func (f *found) decide(e *Entry, name string, n, o *side) error {
	if e.Type == File {
		err := f.decideFile(e, name, n, o)
		if beneath.Gone(err) { // a live sandbox replaced it a moment ago
			e.Kind = ""
			return nil
		}
		return err
	}
	if e.Kind != "" {
		return nil
	}
	switch {
	case e.Link != e.OldLink:
		e.Kind = LinkOnly
	case n.st.Rdev != o.st.Rdev:
		e.Kind = Modified
	case e.Mode != e.OldMode && e.Type != Symlink:
		e.Kind = ModeOnly
	default:
		f.same = append(f.same, e.Path)
	}
	return nil
}

// decideFile reads a regular file, and its counterpart where that can still be equal.
func (f *found) decideFile(e *Entry, name string, n, o *side) error {
	from := f.now.roots[n.root]
	open := from.OpenListed
	if n.base {
		open = from.OpenFile
	}
	fd, err := open(n.dir, name)
	if err != nil {
		return from.Fail("open", e.detail.Source, err)
	}
	defer unix.Close(fd)
	m, err := layer.ReadMarks(fd, f.now.layers[n.root].mark())
	if err == nil && m.Metacopy && !n.base && !f.now.layers[n.root].Plain {
		err = ErrUnusableLayers
	}
	if err == nil && m.User {
		e.Xattrs = true
		e.detail.Xattrs, err = f.userXattrs(fd)
	}
	if err != nil {
		return from.Fail("getxattr", e.detail.Source, err)
	}
	data, err := f.content(e, fd)
	if err != nil {
		return from.Fail("read", e.detail.Source, err)
	}
	if e.Kind != "" {
		e.detail.text = f.keep(data)
		return nil
	}
	equal, old, err := f.sameFile(e, name, data, o)
	if err != nil {
		return f.old.roots[o.root].Fail("compare", e.detail.OldSource, err)
	}
	switch {
	case !equal:
		e.Kind = Modified
		e.detail.text, e.detail.oldText = f.keep(data), f.keep(old)
	case e.Mode != e.OldMode:
		e.Kind = ModeOnly
	default:
		f.same = append(f.same, e.Path)
	}
	return nil
}

// content computes the digest of a file and whether it is binary. A small file's content is returned, too.
func (f *found) content(e *Entry, fd int) ([]byte, error) {
	if e.detail.New.Size > small {
		return nil, f.sumLarge(e, fd)
	}
	n, err := beneath.ReadFull(fd, f.buf[:e.detail.New.Size])
	if err != nil {
		return nil, err
	}
	data := f.buf[:n]
	e.Binary = isBinary(data)
	h := sha256.New()
	for off := 0; off < n; off += block {
		addBlock(h, int64(off), data[off:min(off+block, n)])
	}
	e.detail.Sum = finish(h, int64(n))
	return data, nil
}

func (f *found) sumLarge(e *Entry, fd int) error {
	n, err := beneath.ReadFull(fd, f.buf[:binaryProbe])
	if err != nil {
		return err
	}
	d := e.detail
	e.Binary = isBinary(f.buf[:n])
	known, seen := f.sums[d.Root], journal.See(&d.New)
	if known != nil {
		if sum, ok := known.Get(d.Source, seen); ok {
			d.Sum = sum
			return nil
		}
	}
	d.Sum, err = sumFile(fd, d.New.Size, f.buf)
	if known != nil && err == nil {
		known.Put(d.Source, seen, d.Sum)
	}
	return err
}

func isBinary(data []byte) bool { return bytes.IndexByte(data[:min(len(data), binaryProbe)], 0) >= 0 }

// keep copies a content that is in a buffer; nil when there is none, or no room.
func (f *found) keep(data []byte) []byte {
	if data == nil || f.kept+len(data) > keepAll {
		return nil
	}
	f.kept += len(data)
	if f.room == nil || len(data) > cap(f.room)-len(f.room) {
		f.room = make([]byte, 0, max(block, len(data)))
	}
	at := len(f.room)
	f.room = append(f.room, data...)
	return f.room[at:len(f.room):len(f.room)]
}

// sameFile compares a file with its counterpart in the base: size, then attributes, then content. What it read of a small
// one is returned, too.
func (f *found) sameFile(e *Entry, name string, data []byte, o *side) (same bool, old []byte, err error) {
	if e.Size != e.OldSize && e.detail.Xattrs == "" && !beneath.HasUserXattrs(o.dir, name, f.buf2) {
		return false, nil, nil // without opening it
	}
	fd, err := f.old.roots[o.root].OpenFile(o.dir, name)
	if beneath.Gone(err) {
		return false, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	defer unix.Close(fd)
	attrs, err := f.userXattrs(fd)
	if err != nil {
		return false, nil, err
	}
	e.Xattrs = attrs != e.detail.Xattrs
	if e.Xattrs || e.Size != e.OldSize {
		return false, nil, nil
	}
	if e.Size > small {
		sum, err := sumFile(fd, e.OldSize, f.buf2)
		return sum == e.detail.Sum, nil, err
	}
	n, err := beneath.ReadFull(fd, f.buf2[:e.OldSize])
	return err == nil && bytes.Equal(data, f.buf2[:n]), f.buf2[:n], err
}

// sumFile computes a content's digest without reading holes.
func sumFile(fd int, size int64, buf []byte) ([32]byte, error) {
	h := sha256.New()
	for off := int64(0); off < size; {
		data, err := unix.Seek(fd, off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO):
			return finish(h, size), nil
		case errors.Is(err, unix.EINVAL):
			data = off // a filesystem without SEEK_DATA
		case err != nil:
			return [32]byte{}, err
		}
		off = data &^ (block - 1)
		n, err := beneath.Retry(func() (int, error) { return unix.Pread(fd, buf, off) })
		if err != nil {
			return [32]byte{}, err
		}
		if n == 0 {
			break
		}
		// Whole blocks only, except at the end: the digest must not depend on how much a read returned.
		if n > block {
			n &^= block - 1
		} else if off+int64(n) < size {
			if n, err = readBlock(fd, buf[:block], off, n); err != nil {
				return [32]byte{}, err
			}
		}
		for at := 0; at < n; at += block {
			addBlock(h, off+int64(at), buf[at:min(at+block, n)])
		}
		off += int64(n)
	}
	return finish(h, size), nil
}

// readBlock completes a block of which n bytes are there already.
func readBlock(fd int, b []byte, off int64, n int) (int, error) {
	for n < len(b) {
		m, err := beneath.Retry(func() (int, error) { return unix.Pread(fd, b[n:], off+int64(n)) })
		if m == 0 || err != nil {
			return n, err
		}
		n += m
	}
	return n, nil
}

func addBlock(h hash.Hash, off int64, b []byte) {
	if bytes.Equal(b, zeros[:len(b)]) {
		return
	}
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(off))
	h.Write(at[:])
	h.Write(b)
}

func finish(h hash.Hash, size int64) (sum [32]byte) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(size))
	h.Write(n[:])
	h.Sum(sum[:0])
	return sum
}

// orphan notes a copy of a base object whose place in the base is empty, in a directory that others changed.
func (f *found) orphan(n *side, name, path string) {
	buf := make([]byte, 256)
	size, err := unix.Lgetxattr(beneath.ProcFD(n.dir)+"/"+name, f.now.layers[n.root].mark()+"origin", buf)
	if err == nil {
		f.orphans = append(f.orphans, orphan{path, string(buf[:size])})
	}
}

var fileTypes = map[uint32]FileType{
	unix.S_IFREG: File, unix.S_IFDIR: Dir, unix.S_IFLNK: Symlink, unix.S_IFIFO: Fifo,
	unix.S_IFSOCK: Socket, unix.S_IFCHR: Char, unix.S_IFBLK: Block,
}

// typeBits is the inverse of TypeOf.
func typeBits(t FileType) uint32 {
	for bits, name := range fileTypes {
		if name == t {
			return bits
		}
	}
	return 0
}

// TypeOf is the type that stat tells.
func TypeOf(st *unix.Stat_t) FileType { return fileTypes[st.Mode&unix.S_IFMT] }

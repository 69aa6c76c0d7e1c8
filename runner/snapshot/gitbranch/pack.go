package gitbranch

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// maxObject is the largest tree or commit that is read, in bytes; maxChain the longest chain of deltas, git's own limit.
const (
	maxObject = 64 << 20
	maxChain  = 4096
)

var (
	errLarge   = fmt.Errorf("more than %d MiB", maxObject>>20)
	errMissing = errors.New("is missing")
)

// pack is a pack and its index (gitformat-pack(5)), which are read where they are needed and never as a whole: an index of a
// large repository takes hundreds of megabytes.
type pack struct {
	index, data io.ReaderAt
	count       int64
}

const (
	indexHeader = 8
	indexNames  = indexHeader + 256*4
	hashSize    = int64(len(plumbing.Hash{}))
)

// openIndex reads the header of an index of version 2.
func openIndex(index, data io.ReaderAt) (*pack, error) {
	head := make([]byte, indexNames)
	if _, err := index.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if !bytes.Equal(head[:indexHeader], []byte("\xfftOc\x00\x00\x00\x02")) {
		return nil, errors.New("an index of another version than 2")
	}
	return &pack{index, data, int64(binary.BigEndian.Uint32(head[indexNames-4:]))}, nil
}

// fanout returns how many objects have a first byte of at most b.
func (p *pack) fanout(b int) (int64, error) {
	if b < 0 {
		return 0, nil
	}
	n, err := p.number(indexHeader + int64(b)*4)
	return min(n, p.count), err
}

func (p *pack) number(at int64) (int64, error) {
	var b [4]byte
	_, err := p.index.ReadAt(b[:], at)
	return int64(binary.BigEndian.Uint32(b[:])), err
}

// find returns where an object lies in the pack; -1 if it is not in it.
func (p *pack) find(h plumbing.Hash) (int64, error) {
	low, err := p.fanout(int(h[0]) - 1)
	if err != nil {
		return -1, err
	}
	high, err := p.fanout(int(h[0]))
	for low < high && err == nil {
		mid := (low + high) / 2
		var name plumbing.Hash
		if _, err = p.index.ReadAt(name[:], indexNames+mid*hashSize); err != nil {
			break
		}
		switch c := bytes.Compare(h[:], name[:]); {
		case c == 0:
			return p.offset(mid)
		case c < 0:
			high = mid
		default:
			low = mid + 1
		}
	}
	return -1, err
}

// offset reads where the n-th object lies: in a table of 31 bits, or of 64 beyond that.
func (p *pack) offset(n int64) (int64, error) {
	after := indexNames + p.count*(hashSize+4)
	at, err := p.number(after + n*4)
	if err != nil || at>>31 == 0 {
		return at, err
	}
	var b [8]byte
	_, err = p.index.ReadAt(b[:], after+p.count*4+(at&(1<<31-1))*8)
	return int64(binary.BigEndian.Uint64(b[:]) &^ (1 << 63)), err
}

// read returns an object that lies at an offset.
func (p *pack) read(at int64) (t plumbing.ObjectType, data []byte, err error) {
	var deltas [][]byte
	total := 0
	for {
		var base int64
		if t, data, base, err = p.entry(at); err != nil {
			return t, nil, err
		}
		if !t.IsDelta() {
			break
		}
		deltas = append(deltas, data)
		if total += len(data); len(deltas) > maxChain || total > maxObject {
			return t, nil, errDamaged
		}
		at = base
	}
	for _, d := range slices.Backward(deltas) {
		_, n := binary.Uvarint(d) // the base's size
		size, m := binary.Uvarint(d[max(n, 0):])
		if n <= 0 || m <= 0 || size > maxObject {
			return t, nil, errDamaged
		}
		if data, err = packfile.PatchDelta(data, d); err != nil {
			return t, nil, err
		}
	}
	return t, data, nil
}

// entry reads one object or delta, and where a delta's base is.
func (p *pack) entry(at int64) (t plumbing.ObjectType, data []byte, base int64, err error) {
	r := bufio.NewReader(io.NewSectionReader(p.data, at, 1<<62))
	b, err := r.ReadByte()
	t, size := plumbing.ObjectType(b>>4&7), int64(b&15)
	for shift := 4; b&0x80 != 0 && err == nil; shift += 7 {
		if b, err = r.ReadByte(); shift > 32 {
			return t, nil, 0, errDamaged
		}
		size |= int64(b&0x7f) << shift
	}
	switch {
	case err != nil:
	case size > maxObject:
		err = errLarge
	case t == plumbing.OFSDeltaObject:
		base, err = negative(r)
		if base = at - base; base <= 0 || base >= at {
			err = errors.Join(err, errDamaged)
		}
	case t == plumbing.REFDeltaObject:
		var h plumbing.Hash
		if _, err = io.ReadFull(r, h[:]); err == nil {
			base, err = p.find(h)
		}
		if base < 0 {
			err = errors.Join(err, errMissing)
		}
	case !t.Valid():
		err = errDamaged
	}
	if err != nil {
		return t, nil, 0, err
	}
	z, err := zlib.NewReader(r)
	if err != nil {
		return t, nil, 0, err
	}
	defer z.Close()
	data = make([]byte, size)
	_, err = io.ReadFull(z, data)
	return t, data, base, err
}

// negative reads the distance to a base, in git's own coding.
func negative(r *bufio.Reader) (n int64, err error) {
	b, err := r.ReadByte()
	n = int64(b & 0x7f)
	for b&0x80 != 0 && err == nil {
		if b, err = r.ReadByte(); n >= 1<<50 {
			return 0, errDamaged
		}
		n = (n+1)<<7 | int64(b&0x7f)
	}
	return n, err
}

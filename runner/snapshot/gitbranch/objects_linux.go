package gitbranch

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
)

// packFiles is an open pack.
type packFiles struct {
	*pack
	path        string // of the pack, in the repository
	index, data *os.File
}

// Close closes both files.
func (p *packFiles) Close() error { return errors.Join(p.index.Close(), p.data.Close()) }

// loose is where an object of its own lies.
func loose(h plumbing.Hash) string {
	name := h.String()
	return "objects/" + name[:2] + "/" + name[2:]
}

// read returns a tree or a commit, whose name proves that it is the right one.
func (r *repository) read(h plumbing.Hash, want plumbing.ObjectType) ([]byte, error) {
	t, data, err := r.readLoose(h)
	if missing(err) {
		t, data, err = r.readPacked(h)
	}
	if err == nil && (t != want || plumbing.ComputeHash(t, data) != h) {
		err = errDamaged
	}
	if err != nil {
		return nil, &Error{Reason: fmt.Sprintf("the %s %s of the repository cannot be read: %v", want, h, err), Remedy: "git fsck tells more"}
	}
	return data, nil
}

func (r *repository) readLoose(h plumbing.Hash) (t plumbing.ObjectType, data []byte, err error) {
	f, err := r.file(loose(h))
	if err != nil {
		return t, nil, err
	}
	defer f.Close()
	return decodeLoose(f)
}

// maxHeader is how long the header of an object can be, in bytes: a type, a blank, decimal digits, and a NUL.
const maxHeader = 32

// decodeLoose reads an object as it lies in a file of its own. go-git's reader believes its header: any length of a type, and
// sizes below zero.
func decodeLoose(from io.Reader) (t plumbing.ObjectType, data []byte, err error) {
	z, err := zlib.NewReader(from)
	if err != nil {
		return t, nil, err
	}
	defer z.Close()
	r := bufio.NewReader(z)
	head, err := r.Peek(maxHeader)
	if err != nil && !errors.Is(err, io.EOF) { // small objects end before
		return t, nil, err
	}
	head, _, whole := bytes.Cut(head, []byte{0})
	kind, digits, _ := strings.Cut(string(head), " ")
	size, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || !whole {
		return t, nil, errDamaged
	}
	if size > maxObject {
		return t, nil, errLarge
	}
	if t, err = plumbing.ParseObjectType(kind); err != nil {
		return t, nil, errDamaged
	}
	data = make([]byte, size)
	if _, err = r.Discard(len(head) + 1); err == nil {
		_, err = io.ReadFull(r, data)
	}
	return t, data, err
}

func (r *repository) readPacked(h plumbing.Hash) (t plumbing.ObjectType, data []byte, err error) {
	p, at, err := r.findPacked(h)
	if err == nil && p == nil {
		err = errMissing
	}
	if err != nil {
		return t, nil, err
	}
	return p.read(at)
}

// findPacked finds the pack that an object lies in, and where; nil if it is in none.
func (r *repository) findPacked(h plumbing.Hash) (*packFiles, int64, error) {
	if err := r.openPacks(); err != nil {
		return nil, 0, err
	}
	for _, p := range r.packs {
		if at, err := p.find(h); err != nil || at >= 0 {
			return p, at, err
		}
	}
	return nil, 0, nil
}

// openPacks opens every pack, once: the first that cannot be read is the answer from then on, because nobody knows what is in it.
func (r *repository) openPacks() error {
	if r.looked {
		return r.unread
	}
	r.looked = true
	names, err := r.names("objects/pack")
	for _, n := range names {
		name, ok := strings.CutSuffix(n, ".idx")
		if err != nil || !ok || !strings.HasPrefix(name, "pack-") {
			continue
		}
		var p *packFiles
		if p, err = r.openPack("objects/pack/" + name); err == nil {
			r.packs = append(r.packs, p)
		}
	}
	r.unread = err
	return err
}

// openPack opens a pack and its index; name is without their endings.
func (r *repository) openPack(name string) (*packFiles, error) {
	index, err := r.file(name + ".idx")
	if err != nil {
		return nil, err
	}
	data, err := r.file(name + ".pack")
	if err != nil {
		return nil, errors.Join(err, index.Close())
	}
	p := &packFiles{index: index, data: data, path: name + ".pack"}
	if p.pack, err = openIndex(index, data); err != nil {
		_ = p.Close() // read only
		return nil, &Error{Reason: fmt.Sprintf(".git/%s.idx cannot be read: %v", name, err), Remedy: "git repack -ad writes it anew"}
	}
	return p, nil
}

package gitbranch

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/objfile"
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
	o, err := objfile.NewReader(f)
	if err != nil {
		return t, nil, err
	}
	defer o.Close()
	t, size, err := o.Header()
	if err == nil && size > maxObject {
		err = errLarge
	}
	if err != nil {
		return t, nil, err
	}
	data = make([]byte, size)
	_, err = io.ReadFull(o, data)
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

// openPacks opens every pack, once.
func (r *repository) openPacks() error {
	if r.packs != nil {
		return nil
	}
	names, err := r.names("objects/pack")
	if err != nil {
		return err
	}
	r.packs = []*packFiles{}
	for _, n := range names {
		name, ok := strings.CutSuffix(n, ".idx")
		if !ok || !strings.HasPrefix(name, "pack-") {
			continue
		}
		index, err := r.file("objects/pack/" + n)
		if err != nil {
			return err
		}
		p := &packFiles{index: index, path: "objects/pack/" + name + ".pack"}
		if p.data, err = r.file(p.path); err != nil {
			return errors.Join(err, index.Close())
		}
		r.packs = append(r.packs, p)
		if p.pack, err = openIndex(index, p.data); err != nil {
			return &Error{Reason: fmt.Sprintf(".git/objects/pack/%s cannot be read: %v", n, err), Remedy: "git repack -ad writes it anew"}
		}
	}
	return nil
}

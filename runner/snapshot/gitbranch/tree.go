package gitbranch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// node is one name of a tree that is being changed: what the parent's commit has, read when it is needed.
type node struct {
	mode  filemode.FileMode
	hash  plumbing.Hash
	names map[string]*node // of a directory that was read; nil: not yet
	dirty bool
}

// errDamaged is a tree that git would not read either.
var errDamaged = errors.New("the object is damaged")

// decodeTree reads the names of a tree object.
func decodeTree(data []byte) (map[string]*node, error) {
	names := map[string]*node{}
	for len(data) > 0 {
		head, rest, ok := bytes.Cut(data, []byte{0})
		mode, name, ok2 := strings.Cut(string(head), " ")
		bits, err := strconv.ParseUint(mode, 8, 32)
		if !ok || !ok2 || err != nil || name == "" || strings.Contains(name, "/") || len(rest) < len(plumbing.Hash{}) || names[name] != nil {
			return nil, errDamaged
		}
		n := &node{mode: filemode.FileMode(bits)}
		data = rest[copy(n.hash[:], rest):]
		names[name] = n
	}
	return names, nil
}

// encodeTree is the inverse. git orders names as if those of directories ended with a slash.
func encodeTree(names map[string]*node) []byte {
	order := func(name string) string {
		if names[name].mode == filemode.Dir {
			name += "/"
		}
		return name
	}
	var b bytes.Buffer
	for _, name := range slices.SortedFunc(maps.Keys(names), func(a, b string) int { return cmp.Compare(order(a), order(b)) }) {
		n := names[name]
		fmt.Fprintf(&b, "%o %s\x00", uint32(n.mode), name)
		b.Write(n.hash[:])
	}
	return b.Bytes()
}

// editor changes a tree. read gets the content of a tree object.
type editor struct {
	root *node
	read func(plumbing.Hash) ([]byte, error)
}

// list returns the names in a directory.
func (t *editor) list(n *node) (map[string]*node, error) {
	if n.names == nil {
		n.names = map[string]*node{}
		if !n.hash.IsZero() {
			data, err := t.read(n.hash)
			if err == nil {
				n.names, err = decodeTree(data)
			}
			if err != nil {
				return nil, fmt.Errorf("tree %s: %w", n.hash, err)
			}
		}
	}
	return n.names, nil
}

// find returns what is at a path, or the first thing above it that is no directory; nil if there is nothing.
func (t *editor) find(path string) (n *node, at string, err error) {
	n = t.root
	for at != path {
		names, err := t.list(n)
		if err != nil {
			return nil, "", err
		}
		part, _, _ := strings.Cut(strings.TrimPrefix(path[len(at):], "/"), "/")
		if n = names[part]; n == nil {
			return nil, "", nil
		}
		at = strings.TrimPrefix(at+"/"+part, "/")
		if n.mode != filemode.Dir {
			return n, at, nil
		}
	}
	return n, at, nil
}

// set puts something at a path; directories above it are made, also in place of a file. nil removes, with everything
// below.
func (t *editor) set(path string, leaf *node) error {
	n := t.root
	for {
		part, rest, deeper := strings.Cut(path, "/")
		names, err := t.list(n)
		if err != nil {
			return err
		}
		next := names[part]
		if leaf == nil && (next == nil || deeper && next.mode != filemode.Dir) {
			return nil
		}
		n.dirty = true
		switch {
		case !deeper && leaf == nil:
			delete(names, part)
			return nil
		case !deeper:
			names[part] = leaf
			return nil
		case next == nil || next.mode != filemode.Dir:
			next = &node{mode: filemode.Dir}
			names[part] = next
		}
		n, path = next, rest
	}
}

// changed counts the files in which a directory differs from the one that it was, zero for none.
func (t *editor) changed(was plumbing.Hash, n *node) (files int, err error) {
	if !n.dirty && n.hash == was {
		return 0, nil
	}
	old, err := t.list(&node{mode: filemode.Dir, hash: was})
	if err != nil {
		return 0, err
	}
	now, err := t.list(n)
	if err != nil {
		return 0, err
	}
	for name, o := range old {
		if now[name] == nil {
			files += t.side(o, nil, &err)
		}
	}
	for name, x := range now {
		files += t.side(old[name], x, &err)
	}
	return files, err
}

// side counts for one name; either may be nil.
func (t *editor) side(o, n *node, err *error) (files int) {
	dirs := [2]*node{{}, {}}
	for i, x := range []*node{o, n} {
		if x != nil && x.mode == filemode.Dir {
			dirs[i] = x
		}
	}
	isFile := func(x *node) bool { return x != nil && x.mode != filemode.Dir }
	switch {
	case isFile(o) && isFile(n) && o.mode == n.mode && o.hash == n.hash:
		return 0
	case isFile(o) || isFile(n):
		files++
	}
	more, failed := t.changed(dirs[0].hash, dirs[1])
	*err = errors.Join(*err, failed)
	return files + more
}

// write makes the objects of every directory that was changed, those below first. Directories without names are no part
// of a tree.
func (t *editor) write(n *node, put func(data []byte) (plumbing.Hash, error)) (err error) {
	if !n.dirty {
		return nil
	}
	for name, sub := range n.names {
		if sub.mode != filemode.Dir || !sub.dirty {
			continue
		}
		if err := t.write(sub, put); err != nil {
			return err
		}
		if len(sub.names) == 0 {
			delete(n.names, name)
		}
	}
	if len(n.names) > 0 || n == t.root {
		n.hash, err = put(encodeTree(n.names))
	}
	return err
}

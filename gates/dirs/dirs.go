// Package dirs makes a gates.Change of two directories, so that gates can be tried out without a task.
package dirs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson/gates"
)

// MaxEntries is how many paths a directory may have.
const MaxEntries = 200_000

// Dirs is what one directory differs in from another. Nothing is read through a link.
type Dirs struct {
	Change gates.Change // everything in it works until Close

	now, base *os.Root
}

// Open compares dir with base; without a base everything in dir is new. The error names a directory that cannot be
// read; a file that cannot is in the change, and an error when it is opened.
func Open(ctx context.Context, dir, base string) (_ *Dirs, err error) {
	d := &Dirs{}
	defer func() {
		if err != nil {
			_ = d.Close()
		}
	}()
	if d.now, err = os.OpenRoot(dir); err != nil {
		return nil, err
	}
	now, err := list(ctx, d.now)
	if err != nil {
		return nil, err
	}
	var old map[string]entry
	if base != "" {
		if d.base, err = os.OpenRoot(base); err != nil {
			return nil, err
		}
		if old, err = list(ctx, d.base); err != nil {
			return nil, err
		}
	}
	if err := d.compare(ctx, old, now); err != nil {
		return nil, err
	}
	c := &d.Change
	c.Open = opener(d.now, now)
	c.OpenOld = opener(d.base, old)
	c.Lookup = func(p string) (gates.FileType, bool) { e, ok := old[p]; return e.kind, ok }
	c.Readlink = func(p string) (string, bool) { e, ok := old[p]; return e.link, ok && e.kind == gates.TypeSymlink }
	return d, nil
}

// Close lets go of the directories.
func (d *Dirs) Close() error {
	var errs []error
	for _, r := range []*os.Root{d.now, d.base} {
		if r != nil {
			errs = append(errs, r.Close())
		}
	}
	return errors.Join(errs...)
}

// entry is one path of a directory.
type entry struct {
	kind gates.FileType
	info fs.FileInfo
	link string
}

// list reads a whole directory.
func list(ctx context.Context, root *os.Root) (map[string]entry, error) {
	out := map[string]entry{}
	for todo := []string{"."}; len(todo) > 0; {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		names, err := readDir(root, dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			p := path.Join(dir, name)
			e := entry{}
			if e.info, err = root.Lstat(p); err != nil {
				return nil, err
			}
			if e.kind = gates.TypeOf(e.info.Mode()); e.kind == gates.TypeSymlink {
				if e.link, err = root.Readlink(p); err != nil {
					return nil, err
				}
			}
			if out[p] = e; len(out) > MaxEntries {
				return nil, fmt.Errorf("%s has more than %d files", root.Name(), MaxEntries)
			}
			if e.kind == gates.TypeDir {
				todo = append(todo, p)
			}
		}
	}
	return out, nil
}

func readDir(root *os.Root, dir string) ([]string, error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// opener opens what list saw: a file that is another one by now is refused.
func opener(root *os.Root, entries map[string]entry) func(string) (io.ReadCloser, error) {
	return func(p string) (io.ReadCloser, error) {
		e, ok := entries[p]
		if !ok || e.kind != gates.TypeFile {
			return nil, fs.ErrNotExist
		}
		f, err := root.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo in its place must not hold us
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !os.SameFile(info, e.info) {
			return nil, errors.Join(errors.New("has changed while it was looked at"), err, f.Close())
		}
		return f, nil
	}
}

// modeBits are those that a change has.
const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

// compare fills Entries and the digests.
func (d *Dirs) compare(ctx context.Context, old, now map[string]entry) error {
	sum := sha256.New()
	for p, n := range now {
		e := gates.Entry{Path: p, Kind: gates.KindAdded, Type: n.kind, Mode: n.info.Mode() & modeBits, Link: n.link}
		if n.kind == gates.TypeFile {
			e.Size = n.info.Size()
		}
		o, existed := old[p]
		if existed {
			e.OldType, e.OldMode, e.OldLink = o.kind, o.info.Mode()&modeBits, o.link
			if o.kind == gates.TypeFile {
				e.OldSize = o.info.Size()
			}
			kind, err := d.kind(ctx, p, o, n)
			if err != nil {
				return err
			}
			if kind == "" {
				continue
			}
			e.Kind = kind
		}
		d.Change.Entries = append(d.Change.Entries, e)
	}
	for p, o := range old {
		if _, ok := now[p]; !ok {
			d.Change.Entries = append(d.Change.Entries, gates.Entry{Path: p, Kind: gates.KindDeleted, OldType: o.kind, OldMode: o.info.Mode() & modeBits, OldLink: o.link})
		}
	}
	slices.SortFunc(d.Change.Entries, func(a, b gates.Entry) int {
		return strings.Compare(strings.ReplaceAll(a.Path, "/", "\x00"), strings.ReplaceAll(b.Path, "/", "\x00"))
	})
	for i := range d.Change.Entries {
		e := &d.Change.Entries[i]
		if e.Kind != gates.KindDeleted && e.Type == gates.TypeFile {
			e.Binary = d.binary(e.Path, now)
		}
		fmt.Fprintf(sum, "%q %s %s %v %d %q\n", e.Path, e.Kind, e.Type, e.Mode, e.Size, e.Link)
	}
	d.Change.Digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return nil
}

// probeBytes is how much of a file says whether it is text.
const probeBytes = 8000

// binary says whether there is a NUL in the first bytes. What cannot be read is told by whoever wants to read it.
func (d *Dirs) binary(p string, now map[string]entry) bool {
	f, err := opener(d.now, now)(p)
	if err != nil {
		return false
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, probeBytes))
	return err == nil && bytes.IndexByte(head, 0) >= 0
}

// kind says how p differs, "" when it does not.
func (d *Dirs) kind(ctx context.Context, p string, o, n entry) (gates.Kind, error) {
	switch {
	case o.kind != n.kind:
		return gates.KindType, nil
	case o.link != n.link:
		return gates.KindLink, nil
	}
	if n.kind == gates.TypeFile {
		if same, err := d.same(ctx, p, o, n); err != nil || !same { // what cannot be read may be another
			return gates.KindModified, context.Cause(ctx)
		}
	}
	if o.info.Mode()&modeBits != n.info.Mode()&modeBits {
		return gates.KindMode, nil
	}
	return "", nil
}

// same compares the contents of a file.
func (d *Dirs) same(ctx context.Context, p string, o, n entry) (bool, error) {
	if o.info.Size() != n.info.Size() {
		return false, nil
	}
	a, err := opener(d.base, map[string]entry{p: o})(p)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := opener(d.now, map[string]entry{p: n})(p)
	if err != nil {
		return false, err
	}
	defer b.Close()
	var x, y [64 << 10]byte
	for {
		if err := context.Cause(ctx); err != nil {
			return false, err
		}
		i, err := io.ReadFull(a, x[:])
		j, err2 := io.ReadFull(b, y[:])
		if !bytes.Equal(x[:i], y[:j]) {
			return false, nil
		}
		if err != nil || err2 != nil {
			return true, ignoreEnd(err, err2)
		}
	}
}

func ignoreEnd(errs ...error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
	}
	return nil
}

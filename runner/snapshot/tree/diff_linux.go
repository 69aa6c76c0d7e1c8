package tree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/unified"
)

const (
	defaultContext = 3
	defaultMaxFile = 8 << 20
	// noFile is the name of the side on which there is nothing.
	noFile = "/dev/null"
)

// differ renders entries; each worker has its own.
type differ struct {
	now, old []beneath.Cursor // of each layer
	buf      [2][]byte        // what was read of the old side, and of the new
	out      bytes.Buffer
	stats    []unified.File
	o        DiffOptions
}

// errTooLarge is a file that MaxFile leaves out.
var errTooLarge = errors.New("too large to show")

// WriteDiff prints a change in git's unified format, which git apply and patch take. What that format cannot hold
// (empty directories, fifos, attributes, files above MaxFile) is told in lines that begin with "caisson:", which
// they skip. The change must have been read from these views by this process, and they not have changed since.
func (p Pair) WriteDiff(ctx context.Context, c *Change, out io.Writer, o DiffOptions) error {
	if !c.Of(p.Old, p.New) {
		return ErrStaleChange
	}
	if o.Context == 0 {
		o.Context = defaultContext
	}
	o.Context = max(o.Context, 0)
	if o.MaxFile == 0 {
		o.MaxFile = defaultMaxFile
	}
	todo := c.selected(o.Paths)
	if o.NameOnly {
		return writeNames(out, todo)
	}
	workers := make([]*differ, max(2, min(4, runtime.GOMAXPROCS(0))))
	for i := range workers {
		d := &differ{o: o}
		d.now, d.old = p.New.cursors(), p.Old.cursors()
		defer closeAll(d.now)
		defer closeAll(d.old)
		workers[i] = d
	}
	stats, err := renderAll(ctx, workers, todo, out)
	if err == nil && o.Stat {
		err = unified.WriteStat(out, stats)
	}
	return err
}

func (v *View) cursors() []beneath.Cursor {
	all := make([]beneath.Cursor, len(v.roots))
	for i, r := range v.roots {
		all[i].Root = r
	}
	return all
}

func closeAll(all []beneath.Cursor) {
	for i := range all {
		all[i].Close()
	}
}

// shown is an entry to render. quiet directories are told by what lies below them.
type shown struct {
	*Entry
	quiet bool
}

func (c *Change) selected(paths []string) []shown {
	var todo []shown
	for i := range c.Entries {
		e := &c.Entries[i]
		wanted := len(paths) == 0
		for _, p := range paths {
			wanted = wanted || Below(e.Path, strings.TrimSuffix(p, "/"))
		}
		if !wanted {
			continue
		}
		quiet := (e.Type == Dir) != (e.OldType == Dir) && (e.Kind == Added || e.Kind == Deleted) &&
			i+1 < len(c.Entries) && Below(c.Entries[i+1].Path, e.Path)
		todo = append(todo, shown{e, quiet})
	}
	return todo
}

func writeNames(out io.Writer, todo []shown) error {
	var b bytes.Buffer
	for _, e := range todo {
		b.WriteString(Quote(e.Path))
		b.WriteByte('\n')
	}
	_, err := out.Write(b.Bytes())
	return err
}

// renderAll renders in rounds, one batch of entries for each worker, and prints each round in order.
func renderAll(ctx context.Context, workers []*differ, todo []shown, out io.Writer) ([]unified.File, error) {
	const batch = 64
	var all []unified.File
	errs := make([]error, len(workers))
	for len(todo) > 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var round sync.WaitGroup
		for i, d := range workers {
			part := todo[:min(batch, len(todo))]
			todo = todo[len(part):]
			d.out.Reset()
			d.stats = d.stats[:0]
			round.Go(func() { errs[i] = d.render(part) })
		}
		round.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		for _, d := range workers {
			all = append(all, d.stats...)
			if _, err := out.Write(d.out.Bytes()); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func (d *differ) render(part []shown) error {
	for _, e := range part {
		var err error
		switch {
		case d.o.Stat:
			err = d.stat(e)
		case e.Kind == TypeOnly:
			// As git does: the old one goes, the new one comes.
			gone, made := *e.Entry, *e.Entry
			gone.Kind, gone.Type = Deleted, ""
			made.Kind, made.OldType = Added, ""
			err = errors.Join(d.text(&gone, false), d.text(&made, false))
		default:
			err = d.text(e.Entry, e.quiet)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// textual reports the types that git's format knows.
func textual(t FileType) bool { return t == File || t == Symlink || t == "" }

// text prints one entry.
func (d *differ) text(e *Entry, quiet bool) error {
	if !textual(e.Type) || !textual(e.OldType) {
		if !quiet {
			fmt.Fprintf(&d.out, "caisson: %s: %s\n", Quote(e.Path), remark(e))
		}
		return nil
	}
	old, now, err := d.contents(e)
	if err != nil && !errors.Is(err, errTooLarge) {
		return err
	}
	binary := err == nil && (isBinary(old) || isBinary(now) || e.Binary)
	differs := err != nil || binary || !bytes.Equal(old, now)
	if e.Xattrs {
		fmt.Fprintf(&d.out, "caisson: %s: extended attributes differ\n", Quote(e.Path))
	}
	if e.Mode == e.OldMode && !differs && e.Type == e.OldType {
		return nil
	}
	d.header(e)
	a, b := Quote("a/"+e.Path), Quote("b/"+e.Path)
	if e.OldType == "" {
		a = noFile
	}
	if e.Type == "" {
		b = noFile
	}
	switch {
	case err != nil:
		fmt.Fprintf(&d.out, "caisson: %s: %v (%d bytes before, %d after)\n", Quote(e.Path), err, e.OldSize, e.Size)
	case binary:
		fmt.Fprintf(&d.out, "Binary files %s and %s differ\n", a, b)
	case differs:
		return unified.Hunks(&d.out, unified.Text{Name: a, Content: str(old)}, unified.Text{Name: b, Content: str(now)}, d.o.Context)
	}
	return nil
}

// remark says in words what happened to what is neither file nor link.
func remark(e *Entry) string {
	switch e.Kind {
	case Added:
		return fmt.Sprintf("new %s, mode %s", e.Type, Octal(e.Mode))
	case Deleted:
		return fmt.Sprintf("deleted %s, mode %s", e.OldType, Octal(e.OldMode))
	case TypeOnly:
		return fmt.Sprintf("%s became %s", e.OldType, e.Type)
	}
	var what []string
	if e.Mode != e.OldMode {
		what = append(what, fmt.Sprintf("mode %s became %s", Octal(e.OldMode), Octal(e.Mode)))
	}
	if e.Xattrs {
		what = append(what, "extended attributes differ")
	}
	if len(what) == 0 {
		what = append(what, "changed")
	}
	return fmt.Sprintf("%s: %s", e.Type, strings.Join(what, ", "))
}

// header prints git's lines about names and modes. Modes are the true ones, of which git itself keeps only two.
func (d *differ) header(e *Entry) {
	fmt.Fprintf(&d.out, "diff --git %s %s\n", Quote("a/"+e.Path), Quote("b/"+e.Path))
	switch {
	case e.OldType == "":
		fmt.Fprintf(&d.out, "new file mode %s\n", gitMode(e.Type, e.Mode))
	case e.Type == "":
		fmt.Fprintf(&d.out, "deleted file mode %s\n", gitMode(e.OldType, e.OldMode))
	case e.Mode != e.OldMode:
		fmt.Fprintf(&d.out, "old mode %s\nnew mode %s\n", gitMode(e.OldType, e.OldMode), gitMode(e.Type, e.Mode))
	}
}

// str views bytes as a string; nobody writes to them while it is in use.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// contents returns what a file held or a link said on both sides, valid until the next call.
func (d *differ) contents(e *Entry) (old, now []byte, err error) {
	if e.Kind == ModeOnly {
		return nil, nil, nil
	}
	if max(e.Size, e.OldSize) > d.o.MaxFile {
		return nil, nil, errTooLarge
	}
	switch e.OldType {
	case Symlink:
		old = []byte(e.OldLink)
	case File:
		v := e.detail
		if old, err = read(v.oldText, &d.old[v.OldRoot], v.OldSource, &d.buf[0], e.OldSize); err != nil {
			return nil, nil, err
		}
	}
	switch e.Type {
	case Symlink:
		now = []byte(e.Link)
	case File:
		v := e.detail
		if now, err = read(v.text, &d.now[v.Root], v.Source, &d.buf[1], e.Size); err != nil {
			return nil, nil, err
		}
	}
	return old, now, nil
}

// read returns a content that is known, or that of a file, in a buffer that grows.
func read(known []byte, at *beneath.Cursor, path string, buf *[]byte, size int64) ([]byte, error) {
	if known != nil {
		return known, nil
	}
	dir, name, err := at.Parent(path)
	if err != nil {
		return nil, at.Root.Fail("open", path, err)
	}
	fd, err := at.Root.OpenFile(dir, name)
	if err != nil {
		return nil, at.Root.Fail("open", path, err)
	}
	defer unix.Close(fd)
	if int64(cap(*buf)) < size {
		*buf = make([]byte, size)
	}
	data := (*buf)[:size]
	n, err := beneath.ReadFull(fd, data)
	if err != nil {
		return nil, at.Root.Fail("read", path, err)
	}
	return data[:n], nil
}

// stat counts one entry's lines.
func (d *differ) stat(e shown) error {
	s := unified.File{Path: e.Path}
	switch {
	case e.quiet:
		return nil
	case !textual(e.Type) || !textual(e.OldType), e.Kind == ModeOnly:
		s.Note = remark(e.Entry)
	default:
		old, now, err := d.contents(e.Entry)
		if err != nil && !errors.Is(err, errTooLarge) {
			return err
		}
		if err != nil || e.Binary || isBinary(old) {
			s.Note = fmt.Sprintf("Bin %d -> %d bytes", e.OldSize, e.Size)
		} else if s.Count(str(old), str(now)); s.Added+s.Deleted == 0 && e.Xattrs {
			s.Note = remark(e.Entry)
		}
	}
	d.stats = append(d.stats, s)
	return nil
}

// gitMode is a mode with the file's type, as git prints it.
func gitMode(t FileType, m fs.FileMode) string {
	if t == Symlink {
		return "120000"
	}
	return fmt.Sprintf("10%s", Octal(m))
}

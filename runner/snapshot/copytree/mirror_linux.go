package copytree

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/layer"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// manifest is how the objects of a tree looked: path → object.
type manifest map[string]tree.Seen

// mirror makes a directory a copy of what a view shows, in one pass or in two: the second one copies what has changed
// since the first began.
type mirror struct {
	view    *tree.View
	root    *beneath.Root
	to      *layer.Writer
	sources []beneath.Cursor // of the view's layers
	seen    manifest
	started time.Time // by the clock of the copied files
}

// newMirror begins a copy into dst, an empty directory. ids translates the owners of what lies in host layers.
func newMirror(v *tree.View, dst string, ids func(uid, gid uint32) (uint32, uint32)) (*mirror, error) {
	root, err := beneath.OpenRoot(dst)
	if err != nil {
		return nil, err
	}
	root.Ours = true
	m := &mirror{view: v, root: root, to: layer.NewWriter(root, ""), seen: manifest{}}
	m.to.Map = ids
	for i := range v.Layers() {
		m.sources = append(m.sources, beneath.Cursor{Root: v.At(i)})
	}
	return m, nil
}

// racy is how coarse a filesystem's clock may be: what was changed so short a time before it was looked at may be changed
// again without a trace.
const racy = 10 * time.Millisecond

// pass copies what the mirror has not seen as it is now. again selects what is copied in any case.
func (m *mirror) pass(ctx context.Context, again func(path string) bool) error {
	began := time.Now()
	now := make(manifest, len(m.seen))
	var todo []object
	err := m.view.Walk(ctx, func(path string, s tree.Stat) error {
		seen := seenOf(&s)
		was, known := m.seen[path]
		now[path] = seen
		if !known || was != seen || s.Type != tree.Dir && (again(path) || !s.Ctime.Before(m.started.Add(-racy))) {
			todo = append(todo, object{path, s, known})
		}
		return nil
	})
	if err == nil {
		err = m.vanish(ctx, now, todo)
	}
	for i := range todo {
		if err != nil {
			return err
		}
		var done bool
		if done, err = m.put(ctx, &todo[i]); !done {
			delete(now, todo[i].path) // a live sandbox removed it; the next pass looks again
		}
	}
	m.seen, m.started = now, began
	return err
}

// object is something to copy.
type object struct {
	path  string
	stat  tree.Stat
	known bool // was copied before
}

// put copies one object. It is not done when its source has disappeared.
func (m *mirror) put(ctx context.Context, o *object) (done bool, err error) {
	at := &m.sources[o.stat.Root]
	src := layer.Source{Root: at.Root, Base: m.view.Layers()[o.stat.Root].Base}
	name := unroot(o.path)
	if o.stat.Type == tree.Dir {
		fd, err := at.Root.Open(o.stat.Source, beneath.ReadDir)
		if err != nil {
			return lost(at.Root, o.stat.Source, err)
		}
		defer unix.Close(fd)
		if err = m.to.Dir(name, fd, &src); err == nil && o.known {
			err = m.reset(name, &o.stat)
		}
		return err == nil, ignoreGone(err)
	}
	if src.Dir, src.Name, err = at.Parent(o.stat.Source); err == nil {
		err = beneath.StatAt(src.Dir, src.Name, &src.Stat)
	}
	if err != nil {
		return lost(at.Root, o.stat.Source, err)
	}
	if beneath.IsDir(&src.Stat) {
		return false, nil
	}
	err = m.to.Copy(ctx, &src, name)
	return err == nil, ignoreGone(err)
}

func lost(r *beneath.Root, path string, err error) (done bool, _ error) {
	if beneath.Gone(err) {
		return false, nil
	}
	return false, r.Fail("open", path, err)
}

func ignoreGone(err error) error {
	if beneath.Gone(err) {
		return nil
	}
	return err
}

// vanish removes what is not there any more, and what will be copied again: hard links are made to what is copied anew.
func (m *mirror) vanish(ctx context.Context, now manifest, todo []object) error {
	var remove []string
	for path := range m.seen {
		if _, ok := now[path]; !ok {
			remove = append(remove, path)
		}
	}
	for i := range todo {
		o := &todo[i]
		wasDir := m.seen[o.path].Mode&unix.S_IFMT == unix.S_IFDIR
		if o.known && (o.stat.Type != tree.Dir || !wasDir) {
			remove = append(remove, o.path)
		}
	}
	slices.SortFunc(remove, tree.ComparePaths)
	gone := ""
	for _, path := range remove {
		if gone != "" && tree.Below(path, gone) {
			continue
		}
		gone = path
		if err := m.to.Forget(ctx, path); ignoreGone(err) != nil {
			return err
		}
	}
	return nil
}

func (m *mirror) reset(name string, s *tree.Stat) error {
	fd, err := m.root.Open(name, beneath.ReadDir)
	if err != nil {
		return m.root.Fail("open", name, err)
	}
	defer unix.Close(fd)
	if err := beneath.SetXattrs(fd, s.Xattrs); err != nil {
		return m.root.Fail("set attributes", name, err)
	}
	return nil
}

// finish sets what had to wait and frees everything; with an error, it only frees.
func (m *mirror) finish(err error) error {
	if err == nil {
		err = m.to.Finish()
	}
	m.to.Abandon()
	for i := range m.sources {
		m.sources[i].Close()
	}
	return errors.Join(err, m.root.Close())
}

// copyView makes dst a copy of a view that nobody changes.
func copyView(ctx context.Context, v *tree.View, dst string, ids func(uid, gid uint32) (uint32, uint32)) (manifest, error) {
	m, err := newMirror(v, dst, ids)
	if err != nil {
		return nil, err
	}
	err = m.finish(m.pass(ctx, never))
	return m.seen, err
}

func never(string) bool { return false }

// seenOf is journal.See of what a view tells.
func seenOf(s *tree.Stat) tree.Seen {
	return tree.Seen{
		Inode: s.Ino, Size: s.Size, Mode: typeBits[s.Type] | tree.UnixMode(s.Mode), Mtime: clock(s.Mtime), Ctime: clock(s.Ctime),
	}
}

func clock(t time.Time) [2]int64 { return [2]int64{t.Unix(), int64(t.Nanosecond())} }

var typeBits = map[tree.FileType]uint32{
	tree.File: unix.S_IFREG, tree.Dir: unix.S_IFDIR, tree.Symlink: unix.S_IFLNK, tree.Fifo: unix.S_IFIFO,
	tree.Socket: unix.S_IFSOCK, tree.Char: unix.S_IFCHR, tree.Block: unix.S_IFBLK,
}

func unroot(path string) string {
	if path == "." {
		return ""
	}
	return path
}

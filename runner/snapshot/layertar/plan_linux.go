package layertar

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// inode names a file of a view, whatever its paths.
type inode struct{ dev, ino uint64 }

func inodeOf(s *tree.Stat) inode { return inode{s.Dev, s.Ino} }

// entry is one path of an archive to be.
type entry struct {
	path string
	gone bool // a whiteout
	stat tree.Stat
}

// plan is what an archive will hold, in the order of tree.ComparePaths.
type plan struct {
	ctx     context.Context
	o       Options
	buf     []byte
	entries []entry
	skipped []string
}

// listed is a view in memory.
type listed struct {
	*tree.View
	paths  []string
	stats  map[string]tree.Stat
	groups map[inode][]string
}

// read walks a view. What an archive cannot hold is not there.
func (p *plan) read(v *tree.View, skipped *[]string) (*listed, error) {
	l := &listed{View: v, stats: map[string]tree.Stat{}, groups: map[inode][]string{}}
	err := v.Walk(p.ctx, func(path string, s tree.Stat) error {
		switch s.Type {
		case tree.File, tree.Dir, tree.Symlink, tree.Fifo:
		default:
			if skipped != nil {
				*skipped = append(*skipped, path)
			}
			return nil
		}
		l.paths = append(l.paths, path)
		l.stats[path] = s
		if s.Type != tree.Dir && s.Nlink > 1 {
			l.groups[inodeOf(&s)] = append(l.groups[inodeOf(&s)], path)
		}
		return nil
	})
	return l, err
}

// make decides what to write.
func (p *plan) make(old, new *tree.View) error {
	now, err := p.read(new, &p.skipped)
	if err != nil {
		return err
	}
	then := &listed{}
	if old != nil {
		if then, err = p.read(old, nil); err != nil {
			return err
		}
	}
	wanted := map[string]bool{".": true}
	for _, path := range now.paths {
		same, err := p.same(then, now, path)
		if err != nil {
			return err
		}
		if same {
			continue
		}
		wanted[path] = true
		if s := now.stats[path]; s.Type != tree.Dir && s.Nlink > 1 {
			for _, twin := range now.groups[inodeOf(&s)] {
				wanted[twin] = true
			}
		}
	}
	for _, path := range then.paths {
		if _, ok := now.stats[path]; ok {
			continue
		}
		above, _ := beneath.Split(path)
		if s, ok := now.stats[root(above)]; ok && s.Type == tree.Dir {
			p.entries = append(p.entries, entry{path: path, gone: true})
			p.parents(wanted, path)
		}
	}
	for _, path := range now.paths {
		if wanted[path] {
			p.parents(wanted, path)
		}
	}
	for path := range wanted {
		p.entries = append(p.entries, entry{path: path, stat: now.stats[path]})
	}
	slices.SortFunc(p.entries, func(a, b entry) int {
		return tree.ComparePaths(unroot(a.path), unroot(b.path))
	})
	return nil
}

// root names the root as views do.
func root(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func unroot(path string) string {
	if path == "." {
		return ""
	}
	return path
}

// parents adds the directories above a path.
func (p *plan) parents(wanted map[string]bool, path string) {
	for {
		path, _ = beneath.Split(path)
		if path == "" || wanted[path] {
			return
		}
		wanted[path] = true
	}
}

// same reports that both views show the same at a path, in every respect that an archive keeps.
func (p *plan) same(then, now *listed, path string) (bool, error) {
	a, ok := then.stats[path]
	if !ok {
		return false, nil
	}
	b := now.stats[path]
	if a.Type != b.Type || a.Mode != b.Mode && a.Type != tree.Symlink || !a.Mtime.Equal(b.Mtime) || a.Link != b.Link {
		return false, nil
	}
	if p.owner(then, &a) != p.owner(now, &b) || !slices.EqualFunc(a.Xattrs, b.Xattrs, func(x, y tree.Xattr) bool {
		return x.Name == y.Name && string(x.Value) == string(y.Value)
	}) {
		return false, nil
	}
	if a.Type == tree.Dir {
		return true, nil
	}
	if !slices.Equal(both(then, now, &a, then), both(then, now, &b, now)) {
		return false, nil
	}
	if a.Type != tree.File || inodeOf(&a) == inodeOf(&b) && a.Ctime.Equal(b.Ctime) {
		return true, nil
	}
	if a.Size != b.Size {
		return false, nil
	}
	return p.sameContent(then, now, path)
}

// both are the names of a file's group that exist in both views.
func both(then, now *listed, s *tree.Stat, in *listed) []string {
	var out []string
	for _, path := range in.groups[inodeOf(s)] {
		_, old := then.stats[path]
		_, new := now.stats[path]
		if old && new {
			out = append(out, path)
		}
	}
	if len(out) < 2 {
		return nil
	}
	return out
}

func (p *plan) owner(l *listed, s *tree.Stat) [2]uint32 {
	ids := p.o.IDs
	if l.Layers()[s.Root].Base {
		ids = p.o.BaseIDs
	}
	uid, gid := s.UID, s.GID
	if ids != nil {
		uid, gid = ids(uid, gid)
	}
	return [2]uint32{uid, gid}
}

func (p *plan) sameContent(then, now *listed, path string) (same bool, err error) {
	a, err := then.Open(path)
	if err != nil {
		return false, err
	}
	defer a.Close()
	b, err := now.Open(path)
	if err != nil {
		return false, err
	}
	defer b.Close()
	return beneath.SameContent(p.ctx, int(a.Fd()), int(b.Fd()), p.buf)
}

package plain

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Action is one operation with all its arguments: doing it to two equal trees leaves two equal trees.
type Action struct {
	Text   string
	writes []string // paths whose file is changed, and so copied up, when it succeeds
	do     func(s *Site) error
}

// Gen makes random actions.
type Gen struct {
	*rand.Rand
	Root  bool // may do what only root may
	n     int
	dirs  []string // that there are, "." first
	files []string // and what is no directory
}

// Names are what paths are made of, the first five most often.
var Names = []string{"a", "b", "c", "d", "e", "ü", "sp ace", "new\nline", "-x", "%3D=", "a,b:c", `back\slash`, "\xff\xfe"}

func (g *Gen) name() string {
	if g.IntN(8) == 0 {
		return Names[g.IntN(len(Names))]
	}
	return Names[g.IntN(5)]
}

// Look notes what there is, so that most actions find something to do.
func (g *Gen) Look(root string) {
	g.dirs, g.files = []string{"."}, nil
	_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		path = path[len(root)+1:]
		if d.IsDir() {
			g.dirs = append(g.dirs, path)
		} else {
			g.files = append(g.files, path)
		}
		return nil
	})
}

// file is most often something that is there and no directory.
func (g *Gen) file() string {
	if len(g.files) == 0 || g.IntN(10) == 0 {
		return g.fresh()
	}
	return g.files[g.IntN(len(g.files))]
}

// path is anything that is there, most often.
func (g *Gen) path() string {
	if len(g.dirs) < 2 || g.IntN(3) > 0 {
		return g.file()
	}
	return g.dirs[1+g.IntN(len(g.dirs)-1)]
}

// deep is a path that not much lies below.
func (g *Gen) deep() string {
	p := g.path()
	for range 3 {
		if q := g.path(); strings.Count(q, "/") > strings.Count(p, "/") {
			p = q
		}
	}
	return p
}

// fresh is a name in a directory, most often a new one.
func (g *Gen) fresh() string {
	if g.IntN(15) == 0 && len(g.files) > 0 { // below what is no directory, or a link
		return g.files[g.IntN(len(g.files))] + "/" + g.name()
	}
	dir := "."
	if len(g.dirs) > 0 {
		dir = g.dirs[g.IntN(len(g.dirs))]
	}
	if strings.Count(dir, "/") > 4 {
		dir = "."
	}
	return filepath.Join(dir, g.name())
}

// either is new or old.
func (g *Gen) either() string {
	if g.IntN(2) == 0 {
		return g.fresh()
	}
	return g.path()
}

// content is random, of a random length, now and then with blocks of zeros.
func (g *Gen) content() []byte {
	b := bytes.Repeat([]byte{byte('a' + g.IntN(26))}, g.IntN(200))
	if g.IntN(10) == 0 {
		b = bytes.Repeat([]byte{byte(g.IntN(3))}, g.IntN(40000))
	}
	return fmt.Appendf(b, "%d\n", g.IntN(1000))
}

// operation makes an action of one sort.
type operation struct {
	name   string
	weight int
	make   func(g *Gen) Action
}

// operations are what the property test does to a tree.
var operations = []operation{
	{"write", 20, func(g *Gen) Action {
		p, b := g.either(), g.content()
		return Action{p, []string{p}, on(p, withFile(unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, writeAll(b, 0)))}
	}},
	{"append", 8, func(g *Gen) Action {
		p, b := g.file(), g.content()
		return Action{p, []string{p}, on(p, withFile(unix.O_WRONLY|unix.O_APPEND, writeAll(b, -1)))}
	}},
	{"overwrite", 5, func(g *Gen) Action {
		p, b, off := g.file(), g.content(), int64(g.IntN(100))
		return Action{p, []string{p}, on(p, withFile(unix.O_RDWR, writeAll(b, off)))}
	}},
	{"truncate", 5, func(g *Gen) Action {
		p, n := g.file(), int64(g.IntN(300))
		return Action{p, []string{p}, on(p, withFile(unix.O_WRONLY, func(fd int) error { return unix.Ftruncate(fd, n) }))}
	}},
	{"sparse", 3, func(g *Gen) Action {
		p, b, off := g.either(), g.content(), int64(1+g.IntN(64))<<16
		return Action{p, []string{p}, on(p, withFile(unix.O_CREAT|unix.O_WRONLY, writeAll(b, off)))}
	}},
	{"punch", 2, func(g *Gen) Action {
		p, off := g.file(), int64(g.IntN(4))<<12
		return Action{p, []string{p}, on(p, withFile(unix.O_RDWR, func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, 8192)
		}))}
	}},
	{"replace", 6, func(g *Gen) Action {
		p, tmp, b := g.either(), fmt.Sprintf("tmp%d", g.n), g.content()
		return Action{p, nil, onTwo(tmp, p, func(tmp, full string) error {
			if err := os.WriteFile(tmp, b, 0o644); err != nil {
				return err
			}
			if err := unix.Rename(tmp, full); err != nil {
				return errors.Join(err, unix.Unlink(tmp))
			}
			return nil
		})}
	}},
	{"rename", 12, func(g *Gen) Action {
		a, b := g.path(), g.either()
		return Action{a + " to " + b, moved(a, b, a), onTwo(a, b, unix.Rename)}
	}},
	{"exchange", 4, func(g *Gen) Action {
		a, b := g.path(), g.path()
		return Action{a + " and " + b, moved(a, b, a, b), onTwo(a, b, func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		})}
	}},
	{"mkdir", 12, func(g *Gen) Action {
		p := g.fresh()
		return Action{p, nil, on(p, func(full string) error { return unix.Mkdir(full, 0o755) })}
	}},
	{"remove", 4, func(g *Gen) Action {
		p := g.deep()
		return Action{p, nil, on(p, removeTree)}
	}},
	{"unlink", 5, func(g *Gen) Action {
		p := g.file()
		return Action{p, nil, on(p, unix.Unlink)}
	}},
	{"link", 7, func(g *Gen) Action {
		a, b := g.file(), g.fresh()
		return Action{a + " as " + b, []string{a}, onTwo(a, b, func(a, b string) error {
			return unix.Linkat(unix.AT_FDCWD, a, unix.AT_FDCWD, b, 0)
		})}
	}},
	{"symlink", 5, func(g *Gen) Action {
		p, target := g.fresh(), []string{"a", "b/c", "nowhere", "/etc/passwd", "../../../../tmp", "\xff"}[g.IntN(6)]
		return Action{p + " -> " + target, nil, on(p, func(full string) error { return unix.Symlink(target, full) })}
	}},
	{"chmod", 6, func(g *Gen) Action {
		p, mode := g.path(), []uint32{0o644, 0o600, 0o755, 0o4755, 0o2755, 0o6711, 0o1777, 0o700}[g.IntN(8)]
		if g.Root && g.IntN(6) == 0 {
			mode = 0
		}
		return Action{fmt.Sprintf("%s %o", p, mode), []string{p}, on(p, func(full string) error { return chmod(full, mode) })}
	}},
	{"chown", 4, func(g *Gen) Action {
		p, uid, gid := g.path(), g.IntN(3), g.IntN(3)
		if !g.Root {
			uid, gid = os.Geteuid(), os.Getegid()
		}
		return Action{fmt.Sprintf("%s %d:%d", p, uid, gid), []string{p},
			on(p, func(full string) error { return unix.Lchown(full, uid, gid) })}
	}},
	{"xattr", 6, func(g *Gen) Action {
		p, name, value := g.path(), "user."+[]string{"x", "y", "a=b%"}[g.IntN(3)], g.content()[:1]
		if g.IntN(3) == 0 {
			return Action{p + " -" + name, []string{p}, on(p, func(full string) error { return unix.Lremovexattr(full, name) })}
		}
		value = append(value, 0, '\n', byte(g.IntN(256)))
		return Action{p + " " + name, []string{p}, on(p, func(full string) error { return unix.Lsetxattr(full, name, value, 0) })}
	}},
	{"mkfifo", 3, func(g *Gen) Action {
		p := g.fresh()
		return Action{p, nil, on(p, func(full string) error { return unix.Mkfifo(full, 0o640) })}
	}},
	{"socket", 2, func(g *Gen) Action {
		p := g.fresh()
		return Action{p, nil, on(p, bindSocket)}
	}},
	{"retype", 6, func(g *Gen) Action {
		p, kind := g.deep(), g.IntN(4)
		return Action{fmt.Sprint(p, " as ", kind), nil, on(p, func(full string) error {
			if err := removeTree(full); err != nil {
				return err
			}
			return []func() error{
				func() error { return os.WriteFile(full, []byte("again\n"), 0o644) },
				func() error { return unix.Mkdir(full, 0o711) },
				func() error { return unix.Symlink("again", full) },
				func() error { return unix.Mkfifo(full, 0o600) },
			}[kind]()
		})}
	}},
	{"mtime", 8, func(g *Gen) Action {
		p, t := g.path(), unix.Timespec{Sec: int64(g.IntN(1e9)), Nsec: int64(g.IntN(1e9))}
		return Action{p, []string{p}, on(p, func(full string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, full, []unix.Timespec{{Nsec: unix.UTIME_OMIT}, t}, unix.AT_SYMLINK_NOFOLLOW)
		})}
	}},
}

// moved are the paths that a rename writes to: none, if it is one to itself.
func moved(a, b string, paths ...string) []string {
	if a == b {
		return nil
	}
	return paths
}

// Action makes one of a random sort.
func (g *Gen) Action() Action {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := g.IntN(total)
	g.n++
	if len(g.dirs)+len(g.files) > 120 && g.IntN(4) == 0 { // keep it small
		p := g.path()
		return Action{"remove " + p, nil, on(p, removeTree)}
	}
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			a := o.make(g)
			a.Text = o.name + " " + a.Text
			return a
		}
	}
	panic("unreachable")
}

package snapshottest

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

// action is one operation with all its arguments: doing it to two equal trees leaves two equal trees.
type action struct {
	text   string
	writes []string // paths whose file is changed, and so copied up, when it succeeds
	do     func(s *site) error
}

// site is a tree that actions are done to. No symbolic link in a path is followed, so that nothing leaves the tree.
type site struct {
	root string
	fds  []int
}

// at returns a path for calls that do not follow the last component.
func (s *site) at(path string) (string, error) {
	root, err := unix.Open(s.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(root)
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	}
	fd, err := unix.Openat2(root, filepath.Dir(path), &how)
	if err != nil {
		return "", err
	}
	s.fds = append(s.fds, fd)
	return fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(path)), nil
}

// run does an action and frees what it opened.
func (s *site) run(a action) error {
	err := a.do(s)
	closeAll(s.fds)
	s.fds = nil
	return err
}

// on makes an operation of a call on one path.
func on(path string, call func(full string) error) func(*site) error {
	return func(s *site) error {
		full, err := s.at(path)
		if err != nil {
			return err
		}
		return call(full)
	}
}

// onTwo makes an operation of a call on two paths.
func onTwo(a, b string, call func(a, b string) error) func(*site) error {
	return func(s *site) error {
		x, err := s.at(a)
		if err != nil {
			return err
		}
		y, err := s.at(b)
		if err != nil {
			return err
		}
		return call(x, y)
	}
}

// withFile opens a regular file and nothing else.
func withFile(flags int, use func(fd int) error) func(full string) error {
	return func(full string) error {
		fd, err := unix.Open(full, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			return unix.EINVAL
		}
		return use(fd)
	}
}

// gen makes random actions.
type gen struct {
	*rand.Rand
	root  bool // may do what only root may
	n     int
	dirs  []string // that there are, "." first
	files []string // and what is no directory
}

var names = []string{"a", "b", "c", "d", "e", "ü", "sp ace", "new\nline", "-x", "%3D=", "a,b:c", `back\slash`, "\xff\xfe"}

func (g *gen) name() string {
	if g.IntN(8) == 0 {
		return names[g.IntN(len(names))]
	}
	return names[g.IntN(5)]
}

// look notes what there is, so that most actions find something to do.
func (g *gen) look(root string) {
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
func (g *gen) file() string {
	if len(g.files) == 0 || g.IntN(10) == 0 {
		return g.fresh()
	}
	return g.files[g.IntN(len(g.files))]
}

// path is anything that is there, most often.
func (g *gen) path() string {
	if len(g.dirs) < 2 || g.IntN(3) > 0 {
		return g.file()
	}
	return g.dirs[1+g.IntN(len(g.dirs)-1)]
}

// deep is a path that not much lies below.
func (g *gen) deep() string {
	p := g.path()
	for range 3 {
		if q := g.path(); strings.Count(q, "/") > strings.Count(p, "/") {
			p = q
		}
	}
	return p
}

// fresh is a name in a directory, most often a new one.
func (g *gen) fresh() string {
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
func (g *gen) either() string {
	if g.IntN(2) == 0 {
		return g.fresh()
	}
	return g.path()
}

// content is random, of a random length, now and then with blocks of zeros.
func (g *gen) content() []byte {
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
	make   func(g *gen) action
}

// operations are what the property test does to a tree.
var operations = []operation{
	{"write", 20, func(g *gen) action {
		p, b := g.either(), g.content()
		return action{p, []string{p}, on(p, withFile(unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, writeAll(b, 0)))}
	}},
	{"append", 8, func(g *gen) action {
		p, b := g.file(), g.content()
		return action{p, []string{p}, on(p, withFile(unix.O_WRONLY|unix.O_APPEND, writeAll(b, -1)))}
	}},
	{"overwrite", 5, func(g *gen) action {
		p, b, off := g.file(), g.content(), int64(g.IntN(100))
		return action{p, []string{p}, on(p, withFile(unix.O_RDWR, writeAll(b, off)))}
	}},
	{"truncate", 5, func(g *gen) action {
		p, n := g.file(), int64(g.IntN(300))
		return action{p, []string{p}, on(p, withFile(unix.O_WRONLY, func(fd int) error { return unix.Ftruncate(fd, n) }))}
	}},
	{"sparse", 3, func(g *gen) action {
		p, b, off := g.either(), g.content(), int64(1+g.IntN(64))<<16
		return action{p, []string{p}, on(p, withFile(unix.O_CREAT|unix.O_WRONLY, writeAll(b, off)))}
	}},
	{"punch", 2, func(g *gen) action {
		p, off := g.file(), int64(g.IntN(4))<<12
		return action{p, []string{p}, on(p, withFile(unix.O_RDWR, func(fd int) error {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, 8192)
		}))}
	}},
	{"replace", 6, func(g *gen) action {
		p, tmp, b := g.either(), fmt.Sprintf("tmp%d", g.n), g.content()
		return action{p, nil, onTwo(tmp, p, func(tmp, full string) error {
			if err := os.WriteFile(tmp, b, 0o644); err != nil {
				return err
			}
			if err := unix.Rename(tmp, full); err != nil {
				return errors.Join(err, unix.Unlink(tmp))
			}
			return nil
		})}
	}},
	{"rename", 12, func(g *gen) action {
		a, b := g.path(), g.either()
		return action{a + " to " + b, moved(a, b, a), onTwo(a, b, unix.Rename)}
	}},
	{"exchange", 4, func(g *gen) action {
		a, b := g.path(), g.path()
		return action{a + " and " + b, moved(a, b, a, b), onTwo(a, b, func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		})}
	}},
	{"mkdir", 12, func(g *gen) action {
		p := g.fresh()
		return action{p, nil, on(p, func(full string) error { return unix.Mkdir(full, 0o755) })}
	}},
	{"remove", 4, func(g *gen) action {
		p := g.deep()
		return action{p, nil, on(p, removeTree)}
	}},
	{"unlink", 5, func(g *gen) action {
		p := g.file()
		return action{p, nil, on(p, unix.Unlink)}
	}},
	{"link", 7, func(g *gen) action {
		a, b := g.file(), g.fresh()
		return action{a + " as " + b, []string{a}, onTwo(a, b, func(a, b string) error {
			return unix.Linkat(unix.AT_FDCWD, a, unix.AT_FDCWD, b, 0)
		})}
	}},
	{"symlink", 5, func(g *gen) action {
		p, target := g.fresh(), []string{"a", "b/c", "nowhere", "/etc/passwd", "../../../../tmp", "\xff"}[g.IntN(6)]
		return action{p + " -> " + target, nil, on(p, func(full string) error { return unix.Symlink(target, full) })}
	}},
	{"chmod", 6, func(g *gen) action {
		p, mode := g.path(), []uint32{0o644, 0o600, 0o755, 0o4755, 0o2755, 0o6711, 0o1777, 0o700}[g.IntN(8)]
		if g.root && g.IntN(6) == 0 {
			mode = 0
		}
		return action{fmt.Sprintf("%s %o", p, mode), []string{p}, on(p, func(full string) error { return chmod(full, mode) })}
	}},
	{"chown", 4, func(g *gen) action {
		p, uid, gid := g.path(), g.IntN(3), g.IntN(3)
		if !g.root {
			uid, gid = os.Geteuid(), os.Getegid()
		}
		return action{fmt.Sprintf("%s %d:%d", p, uid, gid), []string{p},
			on(p, func(full string) error { return unix.Lchown(full, uid, gid) })}
	}},
	{"xattr", 6, func(g *gen) action {
		p, name, value := g.path(), "user."+[]string{"x", "y", "a=b%"}[g.IntN(3)], g.content()[:1]
		if g.IntN(3) == 0 {
			return action{p + " -" + name, []string{p}, on(p, func(full string) error { return unix.Lremovexattr(full, name) })}
		}
		value = append(value, 0, '\n', byte(g.IntN(256)))
		return action{p + " " + name, []string{p}, on(p, func(full string) error { return unix.Lsetxattr(full, name, value, 0) })}
	}},
	{"mkfifo", 3, func(g *gen) action {
		p := g.fresh()
		return action{p, nil, on(p, func(full string) error { return unix.Mkfifo(full, 0o640) })}
	}},
	{"socket", 2, func(g *gen) action {
		p := g.fresh()
		return action{p, nil, on(p, bindSocket)}
	}},
	{"retype", 6, func(g *gen) action {
		p, kind := g.deep(), g.IntN(4)
		return action{fmt.Sprint(p, " as ", kind), nil, on(p, func(full string) error {
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
	{"mtime", 8, func(g *gen) action {
		p, t := g.path(), unix.Timespec{Sec: int64(g.IntN(1e9)), Nsec: int64(g.IntN(1e9))}
		return action{p, []string{p}, on(p, func(full string) error {
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

// action makes one of a random sort.
func (g *gen) action() action {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	n := g.IntN(total)
	g.n++
	if len(g.dirs)+len(g.files) > 120 && g.IntN(4) == 0 { // keep it small
		p := g.path()
		return action{"remove " + p, nil, on(p, removeTree)}
	}
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			a := o.make(g)
			a.text = o.name + " " + a.text
			return a
		}
	}
	panic("unreachable")
}

// writeAll writes at an offset; -1 is wherever the descriptor stands.
func writeAll(b []byte, off int64) func(fd int) error {
	return func(fd int) error {
		var err error
		if off < 0 {
			_, err = unix.Write(fd, b)
		} else {
			_, err = unix.Pwrite(fd, b, off)
		}
		return err
	}
}

func bindSocket(full string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: full})
}

func chmod(full string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return unix.EOPNOTSUPP
	case unix.S_IFDIR:
		mode |= 0o700 // a model that nobody can enter is no use
	}
	return unix.Chmod(full, mode)
}

// removeTree removes whatever lies at a path; that nothing does is an error.
func removeTree(full string) error {
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.Unlink(full)
	}
	return os.RemoveAll(full)
}

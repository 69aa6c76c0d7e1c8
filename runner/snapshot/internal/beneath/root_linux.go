package beneath

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// resolve keeps every lookup on its side: no symbolic link, no mount point, nothing above the starting directory.
const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// PathMax is the kernel's PATH_MAX: the most that one call takes, with the final NUL.
const PathMax = 4096

// flags for reading. A fifo that replaced a file must not block us, nor a link be followed.
const (
	ReadFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	ReadDir  = ReadFile | unix.O_DIRECTORY
	PathOnly = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// Root is a directory that paths are resolved beneath.
type Root struct {
	FD   int
	Path string // for errors
	Ours bool   // nobody else uses it: modes that keep us out may be changed until Close

	mu      sync.Mutex
	widened []widened
}

// widened is a directory whose mode is not what it was.
type widened struct {
	path string
	mode uint32
}

// OpenRoot opens a directory of the user or of ours; only its last component may not be a link.
func OpenRoot(path string) (*Root, error) {
	fd, err := Retry(func() (int, error) { return unix.Open(path, ReadDir, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Root{FD: fd, Path: path}, nil
}

// Close closes the root and puts modes back that were in the way.
func (r *Root) Close() error {
	var errs []error
	for _, w := range slices.Backward(r.widened) {
		fd, err := r.open(w.path, PathOnly)
		if err == nil {
			err = unix.Chmod(ProcFD(fd), w.mode)
			unix.Close(fd)
		}
		if err != nil && !Gone(err) {
			errs = append(errs, r.Fail("chmod", w.path, err))
		}
	}
	return errors.Join(append(errs, unix.Close(r.FD))...)
}

// Fail makes an error that names path below the root.
func (r *Root) Fail(op, path string, err error) error {
	if errors.Is(err, unix.EXDEV) {
		err = ErrMountPoint
	}
	if len(path) > 512 {
		path = path[:512] + "..."
	}
	return &fs.PathError{Op: op, Path: r.Path + "/" + Quote(path), Err: err}
}

// Open opens path, which may be longer than the kernel takes at once. "" and "." are the root itself.
func (r *Root) Open(path string, flags int) (int, error) {
	fd, err := r.open(path, flags)
	if !r.Ours || os.Geteuid() == 0 {
		return fd, err
	}
	return r.enter(path, flags, fd, err)
}

// enter makes sure that an opened directory can be used, by its owner and without privileges: that its mode and those
// above it allow reading and searching.
func (r *Root) enter(path string, flags, fd int, err error) (int, error) {
	switch {
	case err == nil && flags&unix.O_DIRECTORY != 0:
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o500 == 0o500 {
			return fd, err
		}
		unix.Close(fd)
	case !errors.Is(err, unix.EACCES):
		return fd, err
	}
	for i := range len(path) + 1 {
		if i == len(path) || path[i] == '/' {
			if err := r.widen(path[:i]); err != nil {
				return -1, err
			}
		}
	}
	return r.open(path, flags)
}

// widen lets us into one directory, if it is that, until Close.
func (r *Root) widen(path string) error {
	fd, err := r.open(path, PathOnly)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !IsDir(&st) || st.Mode&0o500 == 0o500 {
		return err
	}
	if err := unix.Chmod(ProcFD(fd), st.Mode&0o7777|0o700); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.widened = append(r.widened, widened{path, st.Mode & 0o7777})
	return nil
}

func (r *Root) open(path string, flags int) (int, error) {
	if path == "" {
		path = "."
	}
	dir := r.FD
	for len(path) >= PathMax {
		cut := strings.LastIndexByte(path[:PathMax-1], '/')
		if cut <= 0 {
			return -1, unix.ENAMETOOLONG
		}
		next, err := OpenAt(dir, path[:cut], PathOnly|unix.O_DIRECTORY)
		if dir != r.FD {
			unix.Close(dir)
		}
		if err != nil {
			return -1, err
		}
		dir, path = next, path[cut+1:]
	}
	fd, err := OpenAt(dir, path, flags)
	if dir != r.FD {
		unix.Close(dir)
	}
	return fd, err
}

// noAtime is unset once the kernel has refused O_NOATIME, which only a file's owner and root may ask for.
var noAtime atomic.Bool

func init() { noAtime.Store(true) }

// OpenAt opens a path of less than PATH_MAX bytes beneath dir.
func OpenAt(dir int, path string, flags int) (int, error) {
	if flags&unix.O_ACCMODE == unix.O_RDONLY && flags&unix.O_PATH == 0 && noAtime.Load() {
		fd, err := openHow(dir, path, flags|unix.O_NOATIME)
		if !errors.Is(err, unix.EPERM) {
			return fd, err
		}
		noAtime.Store(os.Geteuid() == 0)
	}
	return openHow(dir, path, flags)
}

func openHow(dir int, path string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags), Resolve: resolve}
	return Retry(func() (int, error) { return unix.Openat2(dir, path, &how) })
}

// openForced opens what its own mode forbids to its owner, who we are: the mode is widened for a moment. Nobody else
// uses the tree.
func openForced(dir int, path string, flags int) (int, error) {
	at, err := OpenAt(dir, path, PathOnly)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, err
	}
	if !IsFile(&st) && !IsDir(&st) || int(st.Uid) != os.Geteuid() {
		return -1, unix.EACCES
	}
	name := ProcFD(at)
	if err := unix.Chmod(name, st.Mode&0o7777|0o700); err != nil {
		return -1, err
	}
	fd, err := OpenAt(dir, path, flags)
	return fd, errors.Join(err, unix.Chmod(name, st.Mode&0o7777))
}

// ProcFD names an open file for calls that know no descriptors.
func ProcFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Retry repeats a call that a signal or a concurrent rename interrupted. A file under a lease answers EAGAIN, too,
// and for long, so that ends.
func Retry[T any](call func() (T, error)) (v T, err error) {
	for range 256 {
		v, err = call()
		if err != unix.EINTR && err != unix.EAGAIN { //nolint:errorlint // the kernel's own value
			break
		}
	}
	return v, err
}

// OpenFile opens a regular file below dir for reading. Anything else is unix.ENOENT.
func (r *Root) OpenFile(dir int, name string) (int, error) {
	fd, err := r.OpenListed(dir, name)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !IsFile(&st) {
		unix.Close(fd)
		return -1, errors.Join(err, unix.ENOENT)
	}
	return fd, nil
}

// OpenListed is OpenFile for what stat just called a regular file, in a tree where nobody makes devices.
func (r *Root) OpenListed(dir int, name string) (int, error) {
	fd, err := OpenAt(dir, name, ReadFile)
	if errors.Is(err, unix.EACCES) && r.Ours {
		return openForced(dir, name, ReadFile)
	}
	return fd, err
}

// Cursor resolves the parents of paths that come in order, keeping the last one open.
type Cursor struct {
	Root *Root
	path string
	fd   int
	used bool
}

// Dir returns an open descriptor of a directory, valid until the next call.
func (c *Cursor) Dir(path string) (int, error) {
	if c.used && c.path == path {
		return c.fd, nil
	}
	fd, err := c.Root.Open(path, ReadDir)
	if err != nil {
		return -1, err
	}
	c.Close()
	c.path, c.fd, c.used = path, fd, true
	return fd, nil
}

// Parent returns the directory that holds path, and path's last component.
func (c *Cursor) Parent(path string) (dir int, name string, err error) {
	above, name := Split(path)
	dir, err = c.Dir(above)
	return dir, name, err
}

// Holds reports whether the directory that is open is path, or below it.
func (c *Cursor) Holds(path string) bool {
	return c.used && (c.path == path || strings.HasPrefix(c.path, path+"/"))
}

// Close frees what is open; the cursor can be used again.
func (c *Cursor) Close() {
	if c.used {
		unix.Close(c.fd)
		c.used = false
	}
}

// Stat describes what a path is, without following a link.
func (r *Root) Stat(path string, st *unix.Stat_t) error {
	fd, err := r.Open(path, PathOnly)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}

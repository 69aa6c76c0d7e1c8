package gitbranch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/objfile"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// stagePrefix is what git prune takes for garbage.
const stagePrefix = "tmp_objdir-caisson-"

// beginStage makes the directory for new objects.
func (r *repository) beginStage() error {
	r.stage = "objects/" + stagePrefix + rand.Text()[:12]
	fd, err := r.makeDirs(r.stage)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// dropStage removes what is left of it.
func (r *repository) dropStage() error {
	dir, name := beneath.Split(r.stage)
	fd, err := r.git.Open(dir, beneath.ReadDir)
	if err != nil {
		return r.git.Fail("open", dir, err)
	}
	objects := &beneath.Root{FD: fd, Path: r.git.Path + "/" + dir}
	return errors.Join(objects.RemoveAll(context.Background(), name), objects.Close())
}

// put writes an object of size bytes into the stage, through go-git's writer, and returns its name.
func (r *repository) put(t plumbing.ObjectType, size int64, from io.Reader) (h plumbing.Hash, err error) {
	dir, err := r.git.Open(r.stage, beneath.ReadDir)
	if err != nil {
		return h, r.git.Fail("open", r.stage, err)
	}
	defer unix.Close(dir)
	const tmp = "new"
	f, err := r.create(dir, tmp, 0o444)
	if err != nil {
		return h, r.git.Fail("create", r.stage+"/"+tmp, err)
	}
	h, err = encode(f, t, size, from)
	if err = errors.Join(err, f.Close()); err != nil {
		return h, errors.Join(err, unix.Unlinkat(dir, tmp, 0))
	}
	if err := unix.Renameat2(dir, tmp, dir, h.String(), unix.RENAME_NOREPLACE); errors.Is(err, unix.EEXIST) {
		return h, unix.Unlinkat(dir, tmp, 0) // the same content twice
	} else if err != nil {
		return h, err
	}
	r.fresh = append(r.fresh, h)
	return h, nil
}

// errSize is a file that is not as long as it was said to be.
var errSize = errors.New("the file changed while it was read")

func encode(to io.Writer, t plumbing.ObjectType, size int64, from io.Reader) (plumbing.Hash, error) {
	w := objfile.NewWriter(to)
	err := w.WriteHeader(t, size)
	var n int64
	if err == nil {
		n, err = io.Copy(w, io.LimitReader(from, size))
	}
	if err == nil && n != size {
		err = errSize
	}
	err = errors.Join(err, w.Close())
	return w.Hash(), err
}

// publish makes everything in the stage durable and moves it to its place. What the repository has already is only made
// new: git removes unreachable objects by their age.
func (r *repository) publish() error {
	if err := syncfs(r.git.FD); err != nil {
		return r.git.Fail("syncfs", "", err)
	}
	stage, err := r.git.Open(r.stage, beneath.ReadDir)
	if err != nil {
		return r.git.Fail("open", r.stage, err)
	}
	defer unix.Close(stage)
	step("staged")
	for _, h := range r.fresh {
		if err := r.place(stage, h.String()); err != nil {
			return err
		}
		step("placed")
	}
	if err := syncfs(r.git.FD); err != nil {
		return r.git.Fail("syncfs", "", err)
	}
	return nil
}

// syncfs makes a filesystem durable. Tests that do not lose power replace it: it waits for everybody's writes.
var syncfs = unix.Syncfs

func (r *repository) place(stage int, name string) error {
	if had, err := r.freshen(plumbing.NewHash(name)); err != nil || had {
		return err
	}
	dir, err := r.makeDirs("objects/" + name[:2])
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	err = unix.Renameat2(stage, name, dir, name[2:], unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return nil // somebody was faster, and it is the same
	}
	if err != nil {
		return r.git.Fail("rename", "objects/"+name, err)
	}
	return nil
}

// freshen gives an object that the repository has a new time: its own file, or the pack's.
func (r *repository) freshen(h plumbing.Hash) (bool, error) {
	path := loose(h)
	if there, err := r.there(path); err != nil {
		return false, err
	} else if !there {
		p, _, err := r.findPacked(h)
		if err != nil || p == nil {
			return false, err
		}
		path = p.path
	}
	dir, name := beneath.Split(path)
	fd, err := r.git.Open(dir, beneath.ReadDir)
	if err != nil {
		return false, r.git.Fail("open", dir, err)
	}
	defer unix.Close(fd)
	err = beneath.SetMtimeAt(fd, name, unix.Timespec{Nsec: unix.UTIME_NOW}, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return false, nil // another's: a copy of our own then, as git does
	}
	return err == nil, err
}

// step is called at every point at which the process may die. Tests replace it.
var step = func(string) {}

// makeDirs opens a directory of the repository and makes what is missing of it.
func (r *repository) makeDirs(path string) (int, error) {
	dir, err := r.git.Open("", beneath.ReadDir)
	for at := ""; err == nil && at != path; {
		name, _, _ := strings.Cut(strings.TrimPrefix(path[len(at):], "/"), "/")
		at = beneath.Join(at, name)
		var next int
		next, err = r.makeDir(dir, name)
		unix.Close(dir)
		dir = next
	}
	if err != nil {
		return -1, r.git.Fail("mkdir", path, err)
	}
	return dir, nil
}

// makeDir opens a directory, and makes it if it is missing: the owner's, with the mode that git gives it.
func (r *repository) makeDir(dir int, name string) (int, error) {
	err := unix.Mkdirat(dir, name, 0o777)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, openErr := beneath.OpenAt(dir, name, beneath.ReadDir)
	if openErr != nil || err != nil {
		return fd, openErr
	}
	if err = r.own(fd, true); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// own gives what we made to the repository's owner, with the mode that core.sharedRepository asks for.
func (r *repository) own(fd int, dir bool) error {
	if err := beneath.Chown(fd, r.owner.UID, r.owner.GID); err != nil {
		return err
	}
	if r.shared == 0 {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	// As calc_shared_perm of git's path.c.
	more := r.shared
	if st.Mode&0o200 == 0 {
		more &^= 0o222
	}
	if st.Mode&0o100 != 0 {
		more |= more & 0o444 >> 2
	}
	if dir {
		more |= unix.S_ISGID
	}
	return unix.Fchmod(fd, st.Mode&0o7777|more)
}

// create makes a new file.
func (r *repository) create(dir int, name string, mode uint32) (*os.File, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := beneath.Retry(func() (int, error) { return unix.Openat(dir, name, flags, mode) })
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := r.own(fd, false); err != nil {
		return nil, errors.Join(err, f.Close(), unix.Unlinkat(dir, name, 0))
	}
	return f, nil
}

// make makes a new file with a content, durably.
func (r *repository) make(dir int, name string, mode uint32, content []byte) error {
	f, err := r.create(dir, name, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, unix.Unlinkat(dir, name, 0))
	}
	return nil
}

// append adds a line to a file, which it makes if it is missing.
func (r *repository) append(dir int, name, line string) error {
	err := r.make(dir, name, 0o666, []byte(line))
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	const flags = unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := beneath.OpenAt(dir, name, flags)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(line)
	return errors.Join(err, f.Sync(), f.Close())
}

// stamp is a person and a time in git's form.
func stamp(p Person, when time.Time) string {
	return fmt.Sprintf("%s <%s> %d +0000", p.Name, p.Email, when.Unix())
}

package gitbranch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/go-git/gcfg"
	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// maxText is the largest file of the repository's own that is read as a whole, in bytes.
const maxText = 4 << 20

// repository is an open .git directory.
type repository struct {
	git    *beneath.Root
	work   *beneath.Root
	owner  tree.Owner // of what we make
	shared uint32     // what core.sharedRepository adds to modes
	reflog string     // core.logAllRefUpdates, in small letters
	packs  []*packFiles
	looked bool            // for packs
	unread error           // why a pack could not be read
	stage  string          // where new objects lie until all are durable, in objects/
	fresh  []plumbing.Hash // what lies there, under its name in hexadecimal
}

// openRepository opens the repository of a workspace, if it is of the one kind that this package knows.
func openRepository(workspace string) (*repository, error) {
	work, err := beneath.OpenRoot(workspace)
	if err != nil {
		return nil, err
	}
	r := &repository{work: work}
	if err = r.open(); err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *repository) open() error {
	var st unix.Stat_t
	err := beneath.StatAt(r.work.FD, ".git", &st)
	switch {
	case missing(err):
		return &Error{Reason: "the workspace has no .git directory", Remedy: "promote as apply or patch, or make the workspace a repository with git init"}
	case err != nil:
		return r.work.Fail("stat", ".git", err)
	case beneath.IsLink(&st):
		return &Error{Reason: ".git of the workspace is a symbolic link, which may lead anywhere", Remedy: "promote as patch, and apply that with git"}
	case !beneath.IsDir(&st):
		return &Error{Reason: ".git of the workspace is a file: it is a worktree or a submodule, whose repository lies elsewhere",
			Remedy: "promote as patch, and apply that with git; or start the feature in the main worktree"}
	}
	fd, err := r.work.Open(".git", beneath.ReadDir)
	if err != nil {
		return r.work.Fail("open", ".git", err)
	}
	r.git = &beneath.Root{FD: fd, Path: r.work.Path + "/.git"}
	if err := r.git.Stat("objects", &st); err != nil || !beneath.IsDir(&st) {
		return &Error{Reason: ".git of the workspace is no git repository: it has no directory objects", Remedy: "promote as apply or patch"}
	}
	r.owner = tree.Owner{UID: st.Uid, GID: st.Gid}
	return nil
}

// Close frees what is open.
func (r *repository) Close() error {
	var errs []error
	for _, p := range r.packs {
		errs = append(errs, p.Close())
	}
	if r.git != nil {
		errs = append(errs, r.git.Close())
	}
	return errors.Join(append(errs, r.work.Close())...)
}

// check refuses what this package does not know.
func (r *repository) check() error {
	refuse := func(format string, args ...any) error {
		return &Error{Reason: fmt.Sprintf(format, args...), Remedy: "promote as patch, and apply that with git"}
	}
	c, err := r.config("config")
	if err != nil {
		return err
	}
	if truth(c["extensions.worktreeconfig"]) {
		more, err := r.config("config.worktree")
		if err != nil {
			return err
		}
		for k, v := range more {
			c[k] = v
		}
	}
	if v := c["core.repositoryformatversion"]; v != "" && v != "0" && v != "1" {
		return refuse("the repository is of format %s, which is not known", v)
	}
	for k, v := range c {
		if name, ok := strings.CutPrefix(k, "extensions."); ok && !knownExtension(name, v) {
			return refuse("the repository has the extension %s = %s, which is not known", name, v)
		}
	}
	for path, what := range map[string]string{
		"commondir": "is a worktree's", "objects/info/alternates": "borrows objects of another one (objects/info/alternates)",
		"reftable": "keeps its references in reftables",
	} {
		if there, err := r.there(path); err != nil || there {
			return errors.Join(err, refuse("the repository %s, which is not supported", what))
		}
	}
	if truth(c["core.bare"]) {
		return refuse("the repository is bare")
	}
	if c["core.worktree"] != "" {
		return refuse("the repository's worktree is elsewhere (core.worktree)")
	}
	r.reflog = strings.ToLower(c["core.logallrefupdates"])
	r.shared, err = sharing(c["core.sharedrepository"])
	return err
}

// knownExtension reports what changes nothing for us.
func knownExtension(name, value string) bool {
	switch name {
	case "noop", "noop-v1", "worktreeconfig", "relativeworktrees", "preciousobjects":
		return true
	case "objectformat":
		return value == "sha1"
	case "refstorage":
		return value == "files"
	}
	return false
}

// truth reads a boolean as git does: numbers are, too, and may end in k, m or g.
func truth(s string) bool {
	s = strings.ToLower(s)
	switch s {
	case "true", "yes", "on":
		return true
	}
	n, err := strconv.ParseInt(strings.TrimRight(s, "kmg"), 0, 64)
	return err == nil && n != 0
}

// sharing reads core.sharedRepository: the bits that git adds to the modes of what it makes.
func sharing(s string) (uint32, error) {
	switch s = strings.ToLower(s); s {
	case "", "umask", "false", "no", "off", "0":
		return 0, nil
	case "group", "true", "yes", "on", "1":
		return 0o660, nil
	case "all", "world", "everybody", "2":
		return 0o664, nil
	}
	bits, err := strconv.ParseUint(s, 8, 12)
	if err != nil || bits&0o600 != 0o600 {
		return 0, &Error{Reason: "core.sharedRepository is " + s + ", which git does not know", Remedy: "correct .git/config"}
	}
	return uint32(bits) & 0o666, nil
}

// config reads a file of the repository's configuration, by section.key in small letters; of a key that is given several
// times the last one counts, and one without a value is true. Nothing that it includes is read, as git does to find out what a repository is.
func (r *repository) config(name string) (map[string]string, error) {
	all := map[string]string{}
	data, err := r.text(name)
	if missing(err) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	// go-git's own reader takes a key without a value for one with an empty value, which is false.
	err = gcfg.ReadWithCallback(bytes.NewReader(data), func(section, sub, key, value string, bare bool) error {
		if bare {
			value = "true"
		}
		if sub == "" && key != "" {
			all[strings.ToLower(section+"."+key)] = value
		}
		return nil
	})
	if err != nil {
		return nil, &Error{Reason: fmt.Sprintf(".git/%s cannot be read: %v", name, err), Remedy: "correct it, or promote as patch"}
	}
	return all, nil
}

// text reads a small regular file of the repository.
func (r *repository) text(path string) ([]byte, error) {
	f, err := r.file(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err == nil && len(data) > maxText {
		err = r.git.Fail("read", path, errLarge)
	}
	return data, err
}

// errSpecial is something else where git has a file.
var errSpecial = errors.New("is no regular file")

// file opens a regular file of the repository for reading. Only what is not there at all is missing.
func (r *repository) file(path string) (*os.File, error) {
	fd, err := r.git.Open(path, beneath.ReadFile)
	if err != nil {
		return nil, r.git.Fail("open", path, err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && !beneath.IsFile(&st) {
		err = errSpecial
	}
	if err != nil {
		unix.Close(fd)
		return nil, r.git.Fail("open", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// missing reports that nothing has a path. A symbolic link, also one that leads nowhere, is something.
func missing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }

// there reports whether the repository has something at a path.
func (r *repository) there(path string) (bool, error) {
	var st unix.Stat_t
	err := r.git.Stat(path, &st)
	if missing(err) {
		return false, nil
	}
	return err == nil, err
}

// names lists a directory; none if it is missing.
func (r *repository) names(path string) ([]string, error) {
	fd, err := r.git.Open(path, beneath.ReadDir)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, r.git.Fail("open", path, err)
	}
	defer unix.Close(fd)
	return beneath.ReadNames(fd, make([]byte, 32<<10), nil)
}

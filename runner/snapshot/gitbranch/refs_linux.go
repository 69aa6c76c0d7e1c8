package gitbranch

import (
	"bufio"
	"errors"
	"fmt"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

const heads = "refs/heads/"

// head returns the commit of HEAD, zero before the first one.
func (r *repository) head() (plumbing.Hash, error) {
	text, err := r.line("HEAD")
	if err != nil {
		return plumbing.ZeroHash, err
	}
	if ref, ok := strings.CutPrefix(text, "ref: "); ok {
		return r.resolve(strings.TrimSpace(ref))
	}
	return parseHash("HEAD", text)
}

// line reads a file of one line; "" if it is missing.
func (r *repository) line(path string) (string, error) {
	data, err := r.text(path)
	if missing(err) || errors.Is(err, errSpecial) && r.isDir(path) { // the directory of other references
		err = nil
	}
	text, _, _ := strings.Cut(string(data), "\n")
	return text, err
}

func (r *repository) isDir(path string) bool {
	var st unix.Stat_t
	return r.git.Stat(path, &st) == nil && beneath.IsDir(&st)
}

func parseHash(where, text string) (plumbing.Hash, error) {
	if text = strings.TrimSpace(text); !plumbing.IsHash(text) {
		return plumbing.ZeroHash, &Error{Reason: fmt.Sprintf("%s of the repository names no commit", where), Remedy: "promote as patch, and apply that with git"}
	}
	return plumbing.NewHash(text), nil
}

// resolve returns what a reference names, zero if it does not exist.
func (r *repository) resolve(ref string) (plumbing.Hash, error) {
	for _, part := range strings.Split(ref, "/") {
		if part == "" || part == "." || part == ".." {
			return plumbing.ZeroHash, &Error{Reason: fmt.Sprintf("the repository has a reference %q", ref), Remedy: "check out a branch"}
		}
	}
	text, err := r.line(ref)
	switch {
	case err != nil:
		return plumbing.ZeroHash, err
	case strings.HasPrefix(text, "ref:"):
		return plumbing.ZeroHash, &Error{Reason: ref + " is a symbolic reference, which is not supported", Remedy: "check out the branch that it names"}
	case text != "":
		return parseHash(ref, text)
	}
	var found plumbing.Hash
	err = r.packedRefs(func(name, hash string) (err error) {
		if name == ref {
			found, err = parseHash(ref, hash)
		}
		return err
	})
	return found, err
}

// packedRefs calls do with every reference in packed-refs.
func (r *repository) packedRefs(do func(name, hash string) error) error {
	f, err := r.file("packed-refs")
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := s.Text()
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, "^") {
			continue
		}
		if hash, name, ok := strings.Cut(line, " "); ok {
			if err := do(name, hash); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

// inUse refuses a branch that is checked out here or in a worktree, or that a rebase or a bisection will go back to.
func (r *repository) inUse(branch string) error {
	places := []string{""}
	names, err := r.names("worktrees")
	if err != nil {
		return err
	}
	for _, n := range names {
		places = append(places, "worktrees/"+n+"/")
	}
	for _, p := range places {
		for _, file := range []string{"HEAD", "rebase-merge/head-name", "rebase-apply/head-name", "BISECT_START"} {
			text, err := r.line(p + file)
			if err != nil {
				return err
			}
			name := strings.TrimSpace(strings.TrimPrefix(text, "ref:"))
			if name == heads+branch || file == "BISECT_START" && name == branch {
				return &Error{Reason: fmt.Sprintf("the branch %s is in use (.git/%s)", branch, p+file), Remedy: "name another one with --branch"}
			}
		}
	}
	return nil
}

// crossing refuses a name that cannot be beside another: a branch a has no place for a/b.
func (r *repository) crossing(branch string) error {
	ref := heads + branch
	clash := func(other string) error {
		return &Error{Reason: fmt.Sprintf("the branch %s cannot be beside the branch %s", branch, strings.TrimPrefix(other, heads)),
			Remedy: "name another one with --branch", Exists: true}
	}
	for i := len(heads); i < len(ref); i++ {
		if ref[i] != '/' {
			continue
		}
		var st unix.Stat_t
		if err := r.git.Stat(ref[:i], &st); err == nil && !beneath.IsDir(&st) {
			return clash(ref[:i])
		}
	}
	if other, err := r.firstBelow(ref); err != nil || other != "" {
		return errors.Join(err, clash(other))
	}
	return r.packedRefs(func(name, _ string) error {
		if strings.HasPrefix(name, ref+"/") || strings.HasPrefix(ref, name+"/") {
			return clash(name)
		}
		return nil
	})
}

// firstBelow finds a file below a directory; directories that git left empty are none.
func (r *repository) firstBelow(dir string) (string, error) {
	names, err := r.names(dir)
	if err != nil {
		return "", err
	}
	for _, n := range names {
		var st unix.Stat_t
		path := dir + "/" + n
		if err := r.git.Stat(path, &st); err != nil || !beneath.IsDir(&st) {
			return path, err
		}
		if found, err := r.firstBelow(path); err != nil || found != "" {
			return found, err
		}
	}
	return "", nil
}

// move is a reference's way from one commit to another.
type move struct {
	branch   string
	old, new plumbing.Hash
	who, why string // for the reflog
	text     string // of the new commit
	again    bool   // an earlier try may have left its lock
}

// update moves a branch as git does: under its lock, if it still is where it was.
func (r *repository) update(m *move) error {
	if err := r.crossing(m.branch); err != nil {
		return err
	}
	path, name := beneath.Split(heads + m.branch)
	dir, err := r.makeDirs(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := r.lock(m, dir, name); err != nil {
		return err
	}
	step("locked")
	if err = r.commitRef(m, dir, name); err != nil {
		return errors.Join(err, unix.Unlinkat(dir, name+lockSuffix, 0))
	}
	return unix.Fsync(dir)
}

// lockSuffix is git's.
const lockSuffix = ".lock"

// lock makes git's lock of a branch, with what the branch is to be. It comes whole or not at all, so that whoever finds it after
// our death can tell whose it is.
func (r *repository) lock(m *move, dir int, name string) error {
	path := heads + m.branch + lockSuffix
	stage, err := r.git.Open(r.stage, beneath.ReadDir)
	if err != nil {
		return r.git.Fail("open", r.stage, err)
	}
	defer unix.Close(stage)
	const tmp = "lock"
	if err := r.make(stage, tmp, 0o666, []byte(m.new.String()+"\n")); err != nil {
		return r.git.Fail("lock", path, err)
	}
	place := func() error { return unix.Renameat2(stage, tmp, dir, name+lockSuffix, unix.RENAME_NOREPLACE) }
	err = place()
	if errors.Is(err, unix.EEXIST) && m.again && r.ours(path, m) {
		err = errors.Join(unix.Unlinkat(dir, name+lockSuffix, 0), place())
	}
	if errors.Is(err, unix.EEXIST) {
		return &Error{Reason: fmt.Sprintf(".git/%s is there: git is at work on that branch, or died at it", path),
			Remedy: "wait, or remove the file when no git runs"}
	}
	if err != nil {
		return r.git.Fail("lock", path, err)
	}
	return nil
}

// ours reports whether a lock is that of an earlier try: it names a commit of the same. What cannot be read is another's.
func (r *repository) ours(path string, m *move) bool {
	text, err := r.line(path)
	if err != nil || !plumbing.IsHash(text) {
		return false
	}
	same, err := r.same(plumbing.NewHash(text), m.text)
	return same && err == nil
}

// commitRef makes the lock the reference.
func (r *repository) commitRef(m *move, dir int, name string) error {
	now, err := r.resolve(heads + m.branch)
	if err == nil && now != m.old {
		err = &Error{Reason: fmt.Sprintf("the branch %s was moved by others meanwhile", m.branch), Remedy: "look at it, then promote again"}
	}
	if err == nil {
		err = r.inUse(m.branch)
	}
	if err == nil {
		err = r.log(m)
	}
	if err != nil {
		return err
	}
	// Empty directories of a branch that was below this name are in the way of the file.
	if err := r.removeEmpty(dir, name); err != nil {
		return err
	}
	if err := unix.Renameat(dir, name+lockSuffix, dir, name); err != nil {
		return r.git.Fail("rename", heads+m.branch, err)
	}
	return nil
}

// removeEmpty removes a directory that holds nothing but such directories.
func (r *repository) removeEmpty(dir int, name string) error {
	fd, err := beneath.OpenAt(dir, name, beneath.ReadDir)
	if missing(err) { // or a file, which the rename replaces
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := beneath.ReadNames(fd, make([]byte, 4096), nil)
	for _, n := range names {
		err = errors.Join(err, r.removeEmpty(fd, n))
	}
	return errors.Join(err, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
}

// log adds to the branch's reflog, if the repository keeps them.
func (r *repository) log(m *move) error {
	path, name := beneath.Split("logs/" + heads + m.branch)
	if r.reflog != "" && !truth(r.reflog) && r.reflog != "always" {
		if there, err := r.there(path + "/" + name); err != nil || !there {
			return err
		}
	}
	dir, err := r.makeDirs(path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return r.append(dir, name, fmt.Sprintf("%s %s %s\tcaisson: %s\n", m.old, m.new, m.who, m.why))
}

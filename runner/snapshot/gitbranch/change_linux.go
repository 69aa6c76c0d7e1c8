package gitbranch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// applier brings a change into a tree, and says what is not as one may expect.
type applier struct {
	Source
	repo  *repository
	to    *editor
	notes []tree.Note

	changed map[string]*tree.Entry // by path
	rules   map[string]*rules      // of directories
	ignored map[string]int         // what was left out, by the topmost ignored path
}

// rules are what a directory says of what is below it.
type rules struct {
	ignore, attributes []rule
	repository         bool // it holds another repository
}

func (a *applier) note(path, format string, args ...any) {
	a.notes = append(a.notes, tree.Note{Path: path, Text: fmt.Sprintf(format, args...)})
}

// apply brings all of the change in.
func (a *applier) apply(ctx context.Context) error {
	own := 0
	for i := range a.Change.Entries {
		e := &a.Change.Entries[i]
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if e.Path == "." {
			continue // a tree has no mode
		}
		if tree.Below(e.Path, ".git") {
			own++
			continue
		}
		if err := a.entry(e); err != nil {
			return err
		}
	}
	if own > 0 {
		a.note(".git", "%s left out: no commit holds the repository itself", paths(own))
	}
	for _, top := range slices.Sorted(maps.Keys(a.ignored)) {
		a.note(top, "%s left out: ignored by .gitignore", paths(a.ignored[top]))
	}
	slices.SortStableFunc(a.notes, func(x, y tree.Note) int { return tree.ComparePaths(x.Path, y.Path) })
	return nil
}

func paths(n int) string {
	if n == 1 {
		return "1 path is"
	}
	return fmt.Sprintf("%d paths are", n)
}

// entry brings one path in.
func (a *applier) entry(e *tree.Entry) error {
	was, at, err := a.to.find(e.Path)
	if err != nil {
		return err
	}
	if was != nil && was.mode == filemode.Submodule {
		return &Error{Reason: fmt.Sprintf("%s is in the submodule %s, which is a repository of its own", tree.Quote(e.Path), tree.Quote(at)),
			Remedy: "undo that in the feature, or promote as patch"}
	}
	above := at != e.Path // something in the parent is where the workspace has a directory
	leaf := !above && was != nil && was.mode != filemode.Dir
	switch e.Type {
	case "", tree.Dir: // a directory comes with what is in it
		if !leaf {
			return nil
		}
		return a.to.set(e.Path, nil)
	case tree.File, tree.Symlink:
		return a.file(e, was, leaf)
	}
	a.note(e.Path, "a %s is left out: git knows none", e.Type)
	if !leaf {
		return nil
	}
	return a.to.set(e.Path, nil)
}

// file brings a file or a symbolic link in. was is what the parent has there or above it, if anything; tracked says there.
func (a *applier) file(e *tree.Entry, was *node, tracked bool) error {
	if !tracked {
		top, err := a.untracked(e)
		if err != nil || top != "" {
			a.ignored[top]++
			return err
		}
	}
	if why := forbidden(e.Path, e.Type == tree.Symlink); why != "" {
		return &Error{Reason: fmt.Sprintf("%s cannot be committed: %s", tree.Quote(e.Path), why), Remedy: "undo that in the feature, or promote as patch"}
	}
	now := &node{mode: modeOf(e)}
	if tracked && e.Kind == tree.ModeOnly && now.mode == was.mode {
		return nil // of modes, git knows the executable bit
	}
	if err := a.compare(e, was, tracked); err != nil {
		return err
	}
	var err error
	if now.hash, err = a.blob(e); err != nil {
		return fmt.Errorf("%s: %w", tree.Quote(e.Path), err)
	}
	if tracked && now.mode == was.mode && now.hash == was.hash {
		return nil
	}
	if filter, err := a.filter(e); err != nil {
		return err
	} else if filter != "" {
		a.note(e.Path, "%s of .gitattributes is not run: committed as it is", filter)
	}
	return a.to.set(e.Path, now)
}

func modeOf(e *tree.Entry) filemode.FileMode {
	switch {
	case e.Type == tree.Symlink:
		return filemode.Symlink
	case e.Mode&0o100 != 0:
		return filemode.Executable
	}
	return filemode.Regular
}

// blob writes an entry's content.
func (a *applier) blob(e *tree.Entry) (plumbing.Hash, error) {
	if e.Type == tree.Symlink {
		return a.repo.put(plumbing.BlobObject, int64(len(e.Link)), strings.NewReader(e.Link))
	}
	f, err := a.Open(e.Path)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	h, err := a.repo.put(plumbing.BlobObject, e.Size, f)
	return h, errors.Join(err, f.Close())
}

// compare notes where the parent is not what the feature began with: the commit has more there than the feature did.
func (a *applier) compare(e *tree.Entry, was *node, tracked bool) error {
	switch {
	case was == nil && e.OldType == "":
	case was != nil && !tracked && e.OldType == tree.Dir:
	case was != nil && !tracked:
		a.note(e.Path, "HEAD has something else at this place or above it, which the commit replaces")
	case was == nil && e.OldType != tree.Dir:
		a.note(e.Path, "is in the workspace, but not in HEAD: committed as a new file")
	case tracked && e.OldType == "":
		a.note(e.Path, "was in HEAD, but not in the workspace")
	case tracked:
		h, err := a.old(e)
		if err != nil {
			return err
		}
		if h != was.hash {
			a.note(e.Path, "was not as in HEAD when the feature began: the commit has that difference, too")
		}
	}
	return nil
}

// old is the name that an entry's old content has.
func (a *applier) old(e *tree.Entry) (h plumbing.Hash, err error) {
	switch e.OldType {
	case tree.Symlink:
		return plumbing.ComputeHash(plumbing.BlobObject, []byte(e.OldLink)), nil
	case tree.File:
		f, err := a.Old(e.Path)
		if err != nil {
			return h, err
		}
		hasher := plumbing.NewHasher(plumbing.BlobObject, e.OldSize)
		_, err = io.Copy(hasher, io.LimitReader(f, e.OldSize))
		return hasher.Sum(), errors.Join(err, f.Close())
	}
	return h, nil
}

// untracked looks at a path that the parent does not have: it returns the topmost part of it that is ignored, and refuses
// what lies in another repository.
func (a *applier) untracked(e *tree.Entry) (top string, err error) {
	for i := 0; i <= len(e.Path); i++ {
		if i < len(e.Path) && e.Path[i] != '/' {
			continue
		}
		path := e.Path[:i]
		ignored, err := a.ignores(path, i < len(e.Path))
		if err != nil || ignored {
			return path, err
		}
		if i == len(e.Path) {
			break
		}
		r, err := a.rulesOf(path)
		if err != nil {
			return "", err
		}
		if r.repository {
			return "", &Error{Reason: fmt.Sprintf("%s is in %s, which is a repository of its own", tree.Quote(e.Path), tree.Quote(path)),
				Remedy: "undo that in the feature, or promote as patch"}
		}
	}
	return "", nil
}

// ignores asks the directories above a path, the nearest first; in each the last line that matches decides.
func (a *applier) ignores(path string, dir bool) (bool, error) {
	found := false
	err := a.above(path, func(r *rules, relative string) bool {
		for _, x := range slices.Backward(r.ignore) {
			if x.matches(relative, dir) {
				found = !x.keep
				return true
			}
		}
		return false
	})
	return found, err
}

// filter tells what .gitattributes would have run over a file.
func (a *applier) filter(e *tree.Entry) (filter string, err error) {
	if e.Type != tree.File {
		return "", nil
	}
	err = a.above(e.Path, func(r *rules, relative string) bool {
		for _, x := range slices.Backward(r.attributes) {
			if x.matches(relative, false) {
				filter = x.filter
				return true
			}
		}
		return false
	})
	if strings.HasPrefix(filter, "-") || strings.HasPrefix(filter, "!") {
		filter = ""
	}
	return filter, err
}

// above calls do with the rules of each directory above a path, the nearest first, and the path relative to it, until it
// answers true.
func (a *applier) above(path string, do func(r *rules, relative string) bool) error {
	for at := path; at != ""; {
		at, _ = beneath.Split(at)
		r, err := a.rulesOf(at)
		if err != nil {
			return err
		}
		if do(r, strings.TrimPrefix(path[len(at):], "/")) {
			return nil
		}
	}
	return nil
}

// rulesOf reads what a directory says, as the change leaves it.
func (a *applier) rulesOf(dir string) (*rules, error) {
	if r := a.rules[dir]; r != nil {
		return r, nil
	}
	ignore, err := a.text(beneath.Join(dir, ".gitignore"))
	if err != nil {
		return nil, err
	}
	attributes, err := a.text(beneath.Join(dir, ".gitattributes"))
	if err != nil {
		return nil, err
	}
	r := &rules{ignore: ignoreRules(ignore), attributes: attributeRules(attributes)}
	if dir != "" {
		var st unix.Stat_t
		r.repository = a.repo.work.Stat(dir+"/.git", &st) == nil
	}
	a.rules[dir] = r
	return r, nil
}

// text reads a file of patterns from the state that is committed; "" if there is none.
func (a *applier) text(path string) (string, error) {
	open := a.Old
	if e := a.changed[path]; e != nil {
		if e.Type != tree.File {
			return "", nil
		}
		open = a.Open
	}
	f, err := open(path)
	if beneath.Gone(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	_, err = io.Copy(&b, io.LimitReader(f, maxRules+1))
	if err == nil && b.Len() > maxRules {
		err = &Error{Reason: fmt.Sprintf("%s has more than %d MiB", tree.Quote(path), maxRules>>20), Remedy: "make it smaller"}
	}
	return b.String(), errors.Join(err, f.Close())
}

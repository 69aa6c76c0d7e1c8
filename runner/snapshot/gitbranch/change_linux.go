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
	ctx   context.Context
	repo  *repository
	to    *editor
	notes []tree.Note

	changed map[string]*tree.Entry // by path
	rules   map[string]*rules      // of directories
	ignored map[string]int         // what was left out, by the topmost ignored path

	parsed map[patterns][]rule // what is in many directories is kept once
	bytes  int                 // of all files of patterns that were read
	count  int                 // of the rules in parsed
}

// patterns is a .gitignore or .gitattributes.
type patterns struct{ name, text string }

// rules are what a directory says of what is below it.
type rules struct {
	ignore, attributes []rule
	repository         bool // it holds another repository
}

func (a *applier) note(path, format string, args ...any) {
	a.notes = append(a.notes, tree.Note{Path: path, Text: fmt.Sprintf(format, args...)})
}

// apply brings all of the change in.
func (a *applier) apply() error {
	own := 0
	for i := range a.Change.Entries {
		e := &a.Change.Entries[i]
		if err := context.Cause(a.ctx); err != nil {
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
	x, err := a.decides(path, dir, func(r *rules) []rule { return r.ignore })
	return x != nil && !x.keep, err
}

// filter tells what .gitattributes would have run over a file.
func (a *applier) filter(e *tree.Entry) (string, error) {
	if e.Type != tree.File {
		return "", nil
	}
	x, err := a.decides(e.Path, false, func(r *rules) []rule { return r.attributes })
	if x == nil || strings.HasPrefix(x.filter, "-") || strings.HasPrefix(x.filter, "!") {
		return "", err
	}
	return x.filter, err
}

// decides returns the last rule that matches a path, of the nearest directory above it that has one; nil if none does.
func (a *applier) decides(path string, dir bool, of func(*rules) []rule) (*rule, error) {
	for at := path; at != ""; {
		at, _ = beneath.Split(at)
		r, err := a.rulesOf(at)
		if err != nil {
			return nil, err
		}
		all, relative := of(r), strings.TrimPrefix(path[len(at):], "/")
		for i := range slices.Backward(all) {
			if a.ctx.Err() != nil {
				return nil, context.Cause(a.ctx)
			}
			if all[i].matches(relative, dir) {
				return &all[i], nil
			}
		}
	}
	return nil, nil
}

// rulesOf reads what a directory says, as the change leaves it.
func (a *applier) rulesOf(dir string) (*rules, error) {
	if r := a.rules[dir]; r != nil {
		return r, nil
	}
	r := &rules{}
	var err error
	if r.ignore, err = a.parse(dir, ".gitignore", ignoreRules); err != nil {
		return nil, err
	}
	if r.attributes, err = a.parse(dir, ".gitattributes", attributeRules); err != nil {
		return nil, err
	}
	if dir != "" {
		var st unix.Stat_t
		r.repository = a.repo.work.Stat(dir+"/.git", &st) == nil
	}
	a.rules[dir] = r
	return r, nil
}

// parse reads the rules in a directory's file of patterns.
func (a *applier) parse(dir, name string, read func(text string) []rule) ([]rule, error) {
	path := beneath.Join(dir, name)
	text, err := a.text(path)
	if err != nil || text == "" {
		return nil, err
	}
	key := patterns{name, text}
	all, known := a.parsed[key]
	if !known {
		all = read(text)
		if a.count += len(all); a.count > maxRules {
			return nil, &Error{Reason: fmt.Sprintf("with %s, .gitignore and .gitattributes have more than %d patterns", tree.Quote(path), maxRules),
				Remedy: "make them fewer, or promote as patch"}
		}
		a.parsed[key] = all
	}
	return all, nil
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
	_, err = io.Copy(&b, io.LimitReader(f, maxPatterns+1))
	a.bytes += b.Len()
	switch {
	case err != nil:
	case b.Len() > maxPatterns:
		err = &Error{Reason: fmt.Sprintf("%s has more than %d MiB", tree.Quote(path), maxPatterns>>20), Remedy: "make it smaller"}
	case a.bytes > maxAllPatterns:
		err = &Error{Reason: fmt.Sprintf("with %s, .gitignore and .gitattributes have more than %d MiB", tree.Quote(path), maxAllPatterns>>20),
			Remedy: "make them smaller, or promote as patch"}
	}
	return b.String(), errors.Join(err, f.Close())
}

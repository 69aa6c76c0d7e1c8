package gitbranch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// Write commits a change to a branch. Paths that HEAD does not have and that .gitignore files of the committed state name are
// left out, as are sockets, fifos, devices and .git itself; the report notes it. Refused, as *Error, are submodules and nested
// repositories, names that git forbids, a branch that exists (without Force) or that is checked out, and a change of which
// nothing is left. Attributes and settings that would change a file's content are not obeyed: it is committed as it is.
func Write(ctx context.Context, s Source, o Options) (report *Report, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	r, err := openRepository(o.Workspace)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m, err := r.begin(&o)
	if err != nil {
		return nil, err
	}
	if err := r.beginStage(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.dropStage()) }()
	report, err = r.commit(ctx, s, &o, m)
	if err != nil {
		return nil, err
	}
	if o.Again {
		done, err := r.same(m.old, m.text)
		if err != nil {
			return nil, err
		}
		if done {
			report.Commit = m.old.String()
			return report, nil
		}
	}
	if err := m.mayReplace(&o); err != nil {
		return nil, err
	}
	if err := r.publish(); err != nil {
		return nil, err
	}
	step("published")
	if err := r.update(m); err != nil {
		return nil, err
	}
	step("updated")
	return report, nil
}

// check refuses what would make a commit that git does not read.
func (o *Options) check() error {
	if err := CheckName(o.Branch); err != nil {
		return err
	}
	for _, text := range []string{o.Author.Name, o.Author.Email} {
		if strings.ContainsAny(text, "<>\n\x00") || strings.TrimSpace(text) == "" || !utf8.ValidString(text) {
			return &Error{Reason: fmt.Sprintf("%q cannot be in an author", text), Remedy: "correct the profile: author: NAME <EMAIL>"}
		}
	}
	if strings.TrimSpace(o.Message) == "" || strings.Contains(o.Message, "\x00") || !utf8.ValidString(o.Message) {
		return &Error{Reason: "the message is empty, holds a NUL byte or is no UTF-8", Remedy: "name another one with --message"}
	}
	return nil
}

// begin finds the parent, and where the branch is now.
func (r *repository) begin(o *Options) (*move, error) {
	if err := r.inUse(o.Branch); err != nil {
		return nil, err
	}
	if err := r.crossing(o.Branch); err != nil {
		return nil, err
	}
	old, err := r.resolve(heads + o.Branch)
	if err != nil {
		return nil, err
	}
	subject, _, _ := strings.Cut(strings.TrimSpace(o.Message), "\n")
	m := &move{branch: o.Branch, old: old, who: stamp(o.Author, o.When), why: subject, again: o.Again}
	if o.Again {
		return m, nil // what is there may be what is to be
	}
	return m, m.mayReplace(o)
}

// mayReplace refuses a branch that exists, unless it is to be replaced.
func (m *move) mayReplace(o *Options) error {
	if m.old.IsZero() || o.Force {
		return nil
	}
	return &Error{Reason: fmt.Sprintf("the branch %s exists", o.Branch), Exists: true,
		Remedy: "name another one with --branch, or replace it with --force (its reflog keeps the old commit)"}
}

// same reports whether a commit, if there is one, is what a text says, made at another time.
func (r *repository) same(commit plumbing.Hash, text string) (bool, error) {
	if commit.IsZero() {
		return false, nil
	}
	data, err := r.read(commit, plumbing.CommitObject)
	return err == nil && essence(string(data)) == essence(text), err
}

// essence is the text of a commit without what is another one whenever the same is committed anew: the times, and the name of
// the checkpoint, whose content is the tree's.
func essence(text string) string {
	head, message, _ := strings.Cut(text, "\n\n")
	lines := strings.Split(head, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "author ") || strings.HasPrefix(line, "committer ") {
			lines[i] = line[:strings.LastIndexByte(line, '>')+1]
		}
	}
	body := slices.DeleteFunc(strings.Split(message, "\n"), func(line string) bool { return strings.HasPrefix(line, CheckpointTrailer) })
	return strings.Join(lines, "\n") + "\n\n" + strings.Join(body, "\n")
}

// commit writes every object into the stage.
func (r *repository) commit(ctx context.Context, s Source, o *Options, m *move) (*Report, error) {
	parent, err := r.head()
	if err != nil {
		return nil, err
	}
	root := &node{mode: filemode.Dir, dirty: true}
	if !parent.IsZero() {
		if root.hash, err = r.treeOf(parent); err != nil {
			return nil, err
		}
	}
	before := root.hash
	a := &applier{Source: s, ctx: ctx, repo: r, changed: map[string]*tree.Entry{}, rules: map[string]*rules{}, ignored: map[string]int{},
		parsed: map[patterns][]rule{},
		to:     &editor{root: root, read: func(h plumbing.Hash) ([]byte, error) { return r.read(h, plumbing.TreeObject) }}}
	for i := range s.Change.Entries {
		a.changed[s.Change.Entries[i].Path] = &s.Change.Entries[i]
	}
	if err := a.apply(); err != nil {
		return nil, err
	}
	files, err := a.to.changed(before, root)
	if err != nil {
		return nil, err
	}
	if files == 0 {
		return nil, &Error{Reason: "HEAD has all of the change that a commit can hold", Remedy: notesRemedy(a.notes), Nothing: true}
	}
	put := func(data []byte) (plumbing.Hash, error) {
		return r.put(plumbing.TreeObject, int64(len(data)), bytes.NewReader(data))
	}
	if err := a.to.write(root, put); err != nil {
		return nil, err
	}
	m.text = commitText(root.hash, parent, m.who, o.Message)
	if m.new, err = r.put(plumbing.CommitObject, int64(len(m.text)), strings.NewReader(m.text)); err != nil {
		return nil, err
	}
	report := &Report{Branch: o.Branch, Commit: m.new.String(), Files: files, Notes: a.notes}
	if !parent.IsZero() {
		report.Parent = parent.String()
	}
	return report, nil
}

// notesRemedy says what was left out of a commit of nothing.
func notesRemedy(notes []tree.Note) string {
	if len(notes) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: %s", tree.Quote(notes[0].Path), notes[0].Text)
}

func commitText(root, parent plumbing.Hash, who, message string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", root)
	if !parent.IsZero() {
		fmt.Fprintf(&b, "parent %s\n", parent)
	}
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, strings.TrimRight(message, "\n"))
	return b.String()
}

// treeOf returns the tree of a commit.
func (r *repository) treeOf(commit plumbing.Hash) (plumbing.Hash, error) {
	data, err := r.read(commit, plumbing.CommitObject)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	name, ok := strings.CutPrefix(line, "tree ")
	if !ok {
		return plumbing.ZeroHash, &Error{Reason: fmt.Sprintf("the commit %s has no tree", commit), Remedy: "git fsck tells more"}
	}
	return parseHash("the commit "+commit.String(), name)
}

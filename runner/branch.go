package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/gitbranch"
)

// BranchOptions say what a promotion as PromoteBranch commits where.
type BranchOptions struct {
	Name    string `json:"name,omitempty"`    // below refs/heads; "" is caisson/FEATURE
	Message string `json:"message,omitempty"` // "" says what was promoted
	Force   bool   `json:"force,omitempty"`   // the branch may exist, and is replaced
}

// defaultAuthor is that of a feature whose profile is older than the key.
const defaultAuthor = "caisson <caisson@localhost>"

// check refuses what no branch can be. The zero value is right for every kind.
func (o *BranchOptions) check(kind string) error {
	if kind != PromoteBranch {
		if *o != (BranchOptions{}) {
			return refuse(CodeUsage, "promote as branch", "a branch, a message and force are for a promotion as branch")
		}
		return nil
	}
	if o.Name == "" {
		return nil
	}
	return repositoryError(gitbranch.CheckName(o.Name))
}

// repositoryError gives a refusal of package gitbranch its code.
func repositoryError(err error) error {
	e, ok := errors.AsType[*gitbranch.Error](err)
	switch {
	case !ok:
		return err
	case e.Nothing:
		return refuse(CodeNothingToDo, e.Remedy, "%s", e.Reason)
	case e.Exists:
		return refuse(CodeExists, e.Remedy, "%s", e.Reason)
	}
	return refuse(CodeRepository, e.Remedy, "%s", e.Reason)
}

// handed is what a kind of promotion hands over of a change: a commit never holds the repository itself, in which a feature
// may have made commits of its own.
func handed(c *snapshot.Change, kind string) *snapshot.Change {
	if kind != PromoteBranch {
		return c
	}
	return c.Select(func(e *snapshot.Entry) bool { return e.Path != ".git" && !strings.HasPrefix(e.Path, ".git/") })
}

// wanted is the change from the base that is to be promoted: what the kind can hold, with conflicts resolved by name.
func (x *session) wanted(ctx context.Context, at string, o *PromoteOptions) (*judged, error) {
	c, err := x.layers.Change(ctx, snapshot.Base, at)
	if err != nil {
		return nil, err
	}
	state := toHand(x.layers, at, c, o.Kind)
	if len(o.Choice.Ours)+len(o.Choice.Theirs) > 0 {
		state.part = true
		state.change, err = x.layers.Resolve(ctx, state.change, o.Choice)
	}
	return state, x.conflict(err)
}

// conflict gives the errors of conflicts and their resolution a code and a remedy.
func (x *session) conflict(err error) error {
	if e, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		return conflictError(e, x.feature.Name)
	}
	if e, ok := errors.AsType[*snapshot.ChoiceError](err); ok {
		return refuse(CodeUsage, "caisson promote "+x.feature.Name+" lists the conflicts", "%v", e)
	}
	return err
}

// branch commits a sealed state. What the workspace has at the same paths by now is a conflict, as it is for the other kinds:
// the commit would undo it.
func (x *session) branch(ctx context.Context, full *snapshot.Change, o *PromoteOptions, at string) (*snapshot.PromoteReport, error) {
	c := handed(full, o.Kind)
	if c.Resolved == nil {
		var err error
		if c, err = x.layers.Resolve(ctx, c, snapshot.Choice{}); err != nil {
			return nil, err
		}
	}
	author, err := x.author(ctx)
	if err != nil {
		return nil, err
	}
	old, done, err := x.before(c)
	if err != nil {
		return nil, err
	}
	defer done()
	s := gitbranch.Source{Change: c, Old: old, Open: func(path string) (io.ReadCloser, error) { return x.layers.OpenFile(at, path) }}
	made, err := gitbranch.Write(ctx, s, gitbranch.Options{
		Workspace: x.feature.Workspace, Branch: cmp.Or(o.Branch.Name, gitbranch.Prefix+x.feature.Name), Force: o.Branch.Force,
		Again: o.again, Author: author, When: time.Now(), Message: cmp.Or(o.Branch.Message, x.message(ctx, c, at)),
	})
	if err != nil {
		return nil, repositoryError(err)
	}
	r := &snapshot.PromoteReport{Kind: snapshot.PromoteBranch, Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Digest: c.Digest,
		Branch: made.Branch, Commit: made.Commit, Parent: made.Parent, Files: made.Files, Notes: made.Notes}
	if c.Resolved != nil {
		r.Resolved, r.Notes = c.Resolved.Paths, append(r.Notes, c.Resolved.Notes...)
	}
	if n := len(full.Entries) - len(handed(full, o.Kind).Entries); n > 0 {
		r.Notes = append(r.Notes, snapshot.Note{Path: ".git", Text: "left out: no commit holds the repository itself"})
	}
	return r, nil
}

// before opens files as they were before a change: in the base, or in the workspace if it was read from that.
func (x *session) before(c *snapshot.Change) (open func(path string) (io.ReadCloser, error), done func(), err error) {
	if c.Resolved == nil {
		return func(path string) (io.ReadCloser, error) { return x.layers.OpenFile(snapshot.Base, path) }, func() {}, nil
	}
	root, err := os.OpenRoot(x.feature.Workspace)
	if err != nil {
		return nil, nil, err
	}
	return func(path string) (io.ReadCloser, error) { return openRegular(root, path) }, func() { _ = root.Close() }, nil
}

// openRegular opens a regular file of the workspace, following no link in its last element and without waiting for the other
// end of a fifo.
func openRegular(root *os.Root, path string) (*os.File, error) {
	before, err := root.Lstat(path)
	if err != nil {
		return nil, err
	}
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || !os.SameFile(before, info) {
		return nil, errors.Join(os.ErrNotExist, err, f.Close())
	}
	return f, nil
}

// author is who the profile says commits.
func (x *session) author(ctx context.Context) (gitbranch.Person, error) {
	policy, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return gitbranch.Person{}, err
	}
	name, email, err := profiles.ParseAuthor(cmp.Or(policy.Author, defaultAuthor))
	return gitbranch.Person{Name: name, Email: email}, err
}

// message says what was promoted.
func (x *session) message(ctx context.Context, c *snapshot.Change, at string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "caisson: %s\n\n%d added, %d modified, %d deleted\n\nCaisson-Feature: %s\n", x.feature.Name, c.Added, c.Modified, c.Deleted, x.feature.ID)
	if record, err := x.s.opt.Journal.Checkpoint(ctx, x.feature.ID, at); err == nil && record.TaskID != "" {
		fmt.Fprintf(&b, "Caisson-Task: %s\n", record.TaskID)
	}
	fmt.Fprintf(&b, "%s%s\n", gitbranch.CheckpointTrailer, at)
	return b.String()
}

// how says for the audit log in which way something was promoted, with every conflict that was resolved.
func how(kind string, r *snapshot.PromoteReport) string {
	if r == nil {
		return kind
	}
	if r.Branch != "" {
		kind += fmt.Sprintf("; branch %s is %s", r.Branch, r.Commit)
	}
	for _, x := range r.Resolved {
		kind += fmt.Sprintf("; %s %s", x.Side, snapshot.Quote(x.Path))
	}
	return kind
}

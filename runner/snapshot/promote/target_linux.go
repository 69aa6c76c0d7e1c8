package promote

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// base opens the workspace: the last layer of Old, unless that is a copy.
func (t *Target) base() (*beneath.Root, func(), error) {
	if t.Seen == nil {
		return t.Old.At(len(t.Old.Layers()) - 1), func() {}, nil
	}
	r, err := beneath.OpenRoot(t.Workspace)
	if errors.Is(err, fs.ErrNotExist) {
		err = &tree.WorkspaceError{Path: t.Workspace, Err: tree.ErrMissing, Remedy: "put the directory back, or discard the feature"}
	}
	if err != nil {
		return nil, nil, err
	}
	return r, func() { r.Close() }, nil
}

// Apply changes the workspace: all of it or, after any error, nothing, also when the process or the machine dies in the
// middle (see [Recover]). Then the journal says "done" until the caller has begun the feature anew, and calls
// [Forget].
//
// With Bases, what the promote will take away is kept in a base layer first. When that is published, and before anything
// in the workspace changes, moving is called with the new generation: every live feature of the workspace has to show
// the new base layer when it returns, and its error refuses the promote; one that is tree.ErrStayed says that none moved.
// Apply holds the workspace's lock meanwhile. A change of nothing makes no generation.
//
// New objects get the owner of the directory that they are put into and its default access control list, others keep theirs,
// with their access control lists and security labels. Content, modes, times, user.* attributes, links and holes are promoted; sockets and
// devices are not, which the report notes.
//
// An error of cleaning up comes with the new state in place, and a report: Recover finishes, as after a crash. Other
// errors: *tree.ConflictError when others changed the same paths, also while promoting; tree.ErrStaleChange.
func Apply(ctx context.Context, t Target, c *tree.Change, moving func(ctx context.Context, generation int) error) (*tree.PromoteReport, error) {
	if !c.Of(t.Old, t.New) {
		return nil, tree.ErrStaleChange
	}
	if t.LockFile == "" && t.Bases == nil {
		return nil, fs.ErrInvalid
	}
	if t.LockFile == "" {
		t.LockFile = filepath.Join(t.Bases.dir, basesLock)
	}
	unlocks, err := t.locks(ctx)
	defer unlocks()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{journal.PlanFile, journal.DoneFile} {
		if _, err := os.Lstat(filepath.Join(t.Dir, name)); err == nil {
			return nil, fmt.Errorf("%s: an earlier promote was cut short: %w", t.Dir, tree.ErrUnusableLayers)
		}
	}
	base, done, err := t.base()
	if err != nil {
		return nil, err
	}
	defer done()
	p := &promotion{
		t: t, c: c, base: base, seen: t.seen(c), dirs: map[string]*journal.DirOp{}, owners: map[string]heir{},
		report: report(c, tree.PromoteApply), moving: moving,
	}
	found, err := conflicts(ctx, &t, base, c, p.seen)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return nil, t.refuse(found, c)
	}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	committed, err := p.run(ctx)
	if !committed {
		return nil, err
	}
	return p.report, err
}

// locks takes the lock of the promotes to the workspace, and that of its base layers, if that is another.
func (t *Target) locks(ctx context.Context) (unlock func(), err error) {
	var all []func()
	unlock = func() {
		for _, u := range slices.Backward(all) {
			u()
		}
	}
	files := []string{t.LockFile}
	if t.Bases != nil {
		files = append(files, filepath.Join(t.Bases.dir, basesLock))
	}
	for _, f := range slices.Compact(files) {
		u, err := lock(ctx, f)
		if err != nil {
			return unlock, err
		}
		all = append(all, u)
	}
	return unlock, nil
}

// prepare begins the plan.
func (p *promotion) prepare() error {
	inode, birth, err := beneath.Identity(p.base.FD)
	if err != nil {
		return p.base.Fail("stat", ".", err)
	}
	p.plan = journal.Plan{
		Version: journal.Version, Lock: p.t.LockFile, Note: p.t.Note,
		Workspace: p.t.Workspace, Inode: inode, Birth: birth,
	}
	if r := p.c.Resolved; r != nil {
		for _, x := range r.Paths {
			p.plan.Disputed = append(p.plan.Disputed, []byte(x.Path))
		}
	}
	return nil
}

func report(c *tree.Change, kind tree.PromoteKind) *tree.PromoteReport {
	r := &tree.PromoteReport{Kind: kind, Added: c.Added, Modified: c.Modified, Deleted: c.Deleted, Digest: c.Digest}
	if c.Resolved != nil {
		r.Resolved, r.Notes = c.Resolved.Paths, slices.Clone(c.Resolved.Notes)
	}
	return r
}

// openWorkspace opens the workspace that a plan is about, and makes sure that it is the same.
func openWorkspace(p *journal.Plan) (*beneath.Root, error) {
	refuse := func(err error) error {
		return &tree.WorkspaceError{Path: p.Workspace, Err: err, Remedy: "put the directory back, or discard the feature"}
	}
	r, err := beneath.OpenRoot(p.Workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, refuse(tree.ErrMissing)
	}
	if err != nil {
		return nil, refuse(err)
	}
	inode, birth, err := beneath.Identity(r.FD)
	if err == nil && (inode != p.Inode || !birth.Equal(p.Birth)) {
		err = tree.ErrReplaced
	}
	if err != nil {
		r.Close()
		return nil, refuse(err)
	}
	return r, nil
}

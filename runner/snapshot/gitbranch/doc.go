// Package gitbranch hands a change over as a commit on a branch of the workspace's git repository. It writes objects and one
// reference, and never runs git, a hook or a filter, nor reads the user's configuration. The index, the files of the checkout
// and every branch that is checked out somewhere stay as they are.
//
// The repository is the one in the workspace's own directory .git on the host, as it is now: what the feature did to its view
// of it plays no part. Everything in it is opened beneath that directory without following a link, and what is not known to
// be understood is refused by name: another format or extension, alternates, worktrees and submodules, a bare repository.
//
// The commit's parent is the commit of HEAD. Its tree is that one's with the paths of the change applied, no others: what
// the user has not committed is no part of it, except in files that the feature changed, whose content is the feature's.
//
// New objects lie in a directory of their own (which git removes as garbage) until all are durable; then they are renamed to
// their places, and the reference comes last, under git's own lock. Whatever dies in between leaves unreachable objects.
package gitbranch

import (
	"io"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// CheckpointTrailer begins the line of a message that names the sealed state. Who tries again seals anew, and has another name.
const CheckpointTrailer = "Caisson-Checkpoint: "

// Prefix is what the names of branches begin with unless they are chosen.
const Prefix = "caisson/"

// Source is a change, and where its files can be read.
type Source struct {
	Change *tree.Change
	Open   func(path string) (io.ReadCloser, error) // regular files as the change left them
	Old    func(path string) (io.ReadCloser, error) // as they were before it
}

// Person is an author or committer.
type Person struct{ Name, Email string }

// Options say what to commit where.
type Options struct {
	Workspace string // absolute
	Branch    string // below refs/heads
	Force     bool   // the branch may exist: it becomes the new commit, and its reflog has the old one
	Again     bool   // an earlier try may have died at any point: what it made of the same is taken for done, its lock is removed
	Author    Person // the committer, too
	When      time.Time
	Message   string // UTF-8; ends with one newline in the commit
}

// Report is what was written.
type Report struct {
	Branch string // below refs/heads
	Commit string // 40 hexadecimal digits
	Parent string // likewise; "" for a first commit
	Files  int    // paths that differ from the parent's
	Notes  []tree.Note
}

// Error is a refusal: nothing was changed in the repository, but for objects that nobody refers to.
type Error struct {
	Reason string // one sentence without a full stop
	Remedy string

	// Nothing says that the parent has all of the change already; Exists that the branch is there.
	Nothing, Exists bool
}

func (e *Error) Error() string { return e.Reason }

package tree

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// The walk compares two views of the workspace by path. The old view is the base. The new view is what the sandbox
// saw: overlayfs' merge of the upper layer with the base, whose directories may show another base directory than
// that of their own name (a redirect, made by a rename) or none (opaque). Where a directory is merged with its own
// place, only the names in the upper can differ; everywhere else all names of both views are compared.

// detail is what promoting needs of a walk.
type detail struct {
	key       string            // of the views, to refuse another's change
	conflicts []Conflict        // that belong to no entry, or are known already
	linked    map[string]string // path → the first path of the change with the same inode, changed or not
}

// Detail is the part of an Entry that is not for printing: for those who carry the change out.
type Detail struct {
	New, Old unix.Stat_t // zero where there is nothing
	Sum      [32]byte    // of the new content
	Xattrs   string      // of the new side: the user's, packed
	Root     int         // the layer of the new view that holds the new side
	Source   string      // and where in it
	Conflict string      // reason
}

// Source is where the new side lies: a layer of the new view, by its place in it, and a path in the layer.
func (e *Entry) Source() (root int, path string) {
	if e.detail == nil {
		return 0, ""
	}
	return e.detail.Root, e.detail.Source
}

// Detail returns what Compare found out besides; nil in an entry that it did not make.
func (e *Entry) Detail() *Detail { return e.detail }

// marks is what overlayfs and the user wrote into a file's extended attributes.
type marks struct {
	opaque, origin, metacopy, redirected bool
	redirect                             string
	user                                 string // the user's, packed
}

// job is a directory that is in one of the views or in both.
type job struct {
	path  string
	entry *Entry // of the directory itself, when it is in the new view; completed by decideDir
	upper bool   // it is in the upper layer

	// lower is the base directory whose names show through, if merged. For one in the upper it is where the
	// parent's says, before its own marks were read.
	lower  string
	merged bool

	old    bool // the base has a directory at path, too
	lonely bool // it is new, in a directory that others changed: they may have removed what was there
	stale  bool // a directory above it in the base is hidden from the sandbox and was changed by others

	parts *parts // of a directory that is already open: compare names
	names []string
}

// parts are the open directories that a job's names are looked up in; -1 is none.
type parts struct {
	upper, lower, old int
	touched           bool // by others: the old directory's ctime is not before the start
	users             atomic.Int32
}

func (p *parts) release() {
	if p.users.Add(-1) > 0 {
		return
	}
	for _, fd := range []int{p.upper, p.lower, p.old} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// inPlace reports that the directory shows its own place in the base and is in the upper.
func (j *job) inPlace() bool { return j.upper && j.merged && j.lower == j.path }

// batch is how many names of a large directory one worker compares at once.
const batch = 256

type walk struct {
	upper, base *beneath.Root
	mark        string // prefix of overlayfs' attributes
	start       time.Time
	touched     map[string]journal.Seen
	rootMode    uint32
	rootXattr   string

	mu      sync.Mutex
	wake    sync.Cond
	queue   []*job
	pending int
	err     error
}

// found is what one worker saw.
type found struct {
	*walk
	buf, buf2 []byte
	entries   []Entry
	conflicts []Conflict
	orphans   []orphan
	twins     []Entry             // in the upper with several links, and otherwise no different from the base
	same      []string            // in the upper, but as in the base
	links     map[uint64][]string // what has several links in the upper, by inode
}

// orphan is a copy of a base object, no directory, that is not at its path any more: the feature renamed it, or others
// removed it.
type orphan struct{ path, origin string }

// Compare reads what became of old in new. Entries, counts and digest are exact when nobody writes to either;
// otherwise they are what was met. Errors name the path.
func Compare(ctx context.Context, old, now *View, o CompareOptions) (*Change, error) {
	if len(now.roots) != 2 || len(old.roots) != 1 {
		return nil, errors.ErrUnsupported
	}
	k := &walk{
		upper: now.roots[0], base: old.roots[0], mark: now.layers[0].mark(), start: o.Since,
		rootMode: o.RootMode, rootXattr: string(o.RootXattr), touched: o.Touched,
	}
	k.wake.L = &k.mu
	all, err := k.run(ctx)
	if err != nil {
		return nil, err
	}
	c, err := gather(k, all)
	if err == nil {
		c.detail.key = keyOf(old, now)
	}
	return c, err
}

// run compares everything, from the root on, on two workers or more.
func (k *walk) run(ctx context.Context) ([]*found, error) {
	stop := context.AfterFunc(ctx, func() { k.fail(context.Cause(ctx)) })
	defer stop()
	k.push(&job{upper: true, merged: true, old: true, entry: &Entry{Path: "."}})
	all := make([]*found, max(2, min(4, runtime.GOMAXPROCS(0))))
	var group sync.WaitGroup
	for i := range all {
		f := &found{walk: k, links: map[uint64][]string{}, buf: make([]byte, small), buf2: make([]byte, small)}
		all[i] = f
		group.Go(f.work)
	}
	group.Wait()
	for _, j := range k.queue {
		if j.parts != nil {
			j.parts.release()
		}
	}
	return all, k.err
}

func (k *walk) push(jobs ...*job) {
	k.mu.Lock()
	k.queue = append(k.queue, jobs...)
	k.pending += len(jobs)
	k.mu.Unlock()
	k.wake.Broadcast()
}

func (k *walk) fail(err error) {
	k.mu.Lock()
	if k.err == nil {
		k.err = err
	}
	k.mu.Unlock()
	k.wake.Broadcast()
}

// next waits for a job; nil means that the walk is over.
func (k *walk) next(done bool) *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if done {
		k.pending--
	}
	for len(k.queue) == 0 && k.pending > 0 && k.err == nil {
		k.wake.Wait()
	}
	if k.pending == 0 || k.err != nil {
		k.wake.Broadcast()
		return nil
	}
	// The newest first: depth before breadth keeps the queue short.
	j := k.queue[len(k.queue)-1]
	k.queue = k.queue[:len(k.queue)-1]
	return j
}

func (f *found) work() {
	for j := f.next(false); j != nil; j = f.next(true) {
		err := f.do(j)
		if err != nil {
			f.fail(err)
		}
	}
}

func (f *found) do(j *job) error {
	if j.parts == nil {
		if err := f.openDir(j); err != nil || j.parts == nil {
			return err
		}
	}
	defer j.parts.release()
	for _, name := range j.names {
		if err := f.compare(j, name); err != nil {
			return err
		}
	}
	return nil
}

package tree

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/journal"
)

// detail is what promoting needs of a walk.
type detail struct {
	key       string            // of the views, to refuse another's change
	old, now  []Root            // their layers
	conflicts []Conflict        // that belong to no entry, or are known already
	linked    map[string]string // path → the first path of the change with the same inode, changed or not
}

// Detail is the part of an Entry that is not for printing: for those who carry the change out.
type Detail struct {
	New, Old  unix.Stat_t // zero where there is nothing
	Sum       [32]byte    // of the new content
	Xattrs    string      // of the new side: the user's, packed
	Root      int         // the layer of the new view that holds the new side
	Source    string      // and where in it
	OldRoot   int         // the layer of the old view that holds the old side
	OldSource string      // and where in it
	Conflict  string      // reason

	text, oldText []byte // contents that were read anyway, if there was room to keep them
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

// Old describes the old side as it was seen; false when there was nothing.
func (e *Entry) Old() (Seen, bool) {
	if e.OldType == "" || e.detail == nil {
		return Seen{}, false
	}
	return journal.See(&e.detail.Old), true
}

// Of reports whether Compare read the change from these views, in this process.
func (c *Change) Of(old, now *View) bool {
	return c != nil && c.detail != nil && c.detail.key == keyOf(old, now)
}

// Reopen opens the views that Compare read the change from: their layers, also when the feature's stack is another one
// by now because something was promoted. ErrStaleChange for a change that Compare did not read.
func (c *Change) Reopen() (Pair, error) {
	if c == nil || c.detail == nil {
		return Pair{}, ErrStaleChange
	}
	old, err := OpenView(c.detail.old)
	if err != nil {
		return Pair{}, err
	}
	now, err := OpenView(c.detail.now)
	if err != nil {
		return Pair{}, errors.Join(err, old.Close())
	}
	p := Pair{old, now}
	if !c.Of(old, now) {
		return Pair{}, errors.Join(ErrStaleChange, p.Close())
	}
	return p, nil
}

// Close closes both views.
func (p Pair) Close() error { return errors.Join(p.Old.Close(), p.New.Close()) }

// Found returns the conflicts that Compare met and that belong to no entry.
func (c *Change) Found() []Conflict { return c.detail.conflicts }

// Linked returns, for each path of a group of hard links in the new view, the group's first path, changed or not.
func (c *Change) Linked() map[string]string { return c.detail.linked }

// keyOf tells the views apart that changes are read from.
func keyOf(views ...*View) string {
	var b strings.Builder
	for _, v := range views {
		for i, r := range v.layers {
			fmt.Fprintf(&b, "%q %x\n", r.Path, v.ids[i])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// job is a directory that is in one of the views or in both.
type job struct {
	path     string
	entry    *Entry // of the directory itself, when it is in the new view; completed by decideDir
	now, old *seat  // nil: not a directory in that view

	lonely bool // it is new, in a directory that others changed: they may have removed what was there
	stale  bool // a directory above it in the base is hidden from the sandbox and was changed by others

	parts *parts // of a directory that is already open: compare names
	names []string
}

// seat is a directory that is still to be resolved.
type seat struct {
	above []place // nil: the root of the view
	name  string
}

// parts are the open directories that a job's names are looked up in.
type parts struct {
	now, old *dir // empty: none
	tail     int  // how many of their last places are the same
	touched  bool // by others: the old directory's ctime is not before the start
	users    atomic.Int32
}

func (p *parts) release() {
	if p.users.Add(-1) > 0 {
		return
	}
	p.now.close()
	p.old.close()
}

// inPlace reports that the new directory shows everything of the old one, below something of its own.
func (p *parts) inPlace() bool { return p.tail == len(p.old.places) && len(p.now.places) > p.tail }

// batch is how many names of a large directory one worker compares at once.
const batch = 256

type walk struct {
	CompareOptions
	now, old *View
	common   int // how many of the last layers of both are the same
	sums     []Sums

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
	room      []byte // for contents that are kept
	kept      int    // how much that is in all, in bytes
	entries   []Entry
	conflicts []Conflict
	orphans   []orphan
	twins     []Entry              // in a feature's layer with several links, and otherwise no different
	same      []string             // in a feature's layer, but as in the base
	links     map[linkKey][]string // what has several links
}

// linkKey is a file of a layer of the new view.
type linkKey struct {
	root int
	ino  uint64
}

// orphan is a copy of a base object, no directory, that is not at its path any more: the feature renamed it, or others
// removed it.
type orphan struct{ path, origin string }

// Compare reads what became of old in now. Entries, counts and digest are exact when nobody writes to either;
// otherwise they are what was met. Errors name the path.
func Compare(ctx context.Context, old, now *View, o CompareOptions) (*Change, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	k := &walk{CompareOptions: o, now: now, old: old, sums: make([]Sums, len(now.layers))}
	for n := 1; n <= min(len(now.layers), len(old.layers)); n++ {
		a, b := len(now.layers)-n, len(old.layers)-n
		if now.ids[a] != old.ids[b] {
			break
		}
		k.common = n
	}
	for i := range k.sums {
		if o.Sums != nil {
			k.sums[i] = o.Sums(i)
		}
	}
	k.wake.L = &k.mu
	all, err := k.run(ctx)
	if err != nil {
		return nil, err
	}
	return k.gather(all)
}

// run compares everything, from the root on, on two workers or more.
func (k *walk) run(ctx context.Context) ([]*found, error) {
	stop := context.AfterFunc(ctx, func() { k.fail(context.Cause(ctx)) })
	defer stop()
	k.push(&job{now: &seat{}, old: &seat{}, entry: &Entry{Path: "."}})
	all := make([]*found, max(2, min(4, runtime.GOMAXPROCS(0))))
	var group sync.WaitGroup
	for i := range all {
		f := &found{walk: k}
		all[i] = f
		group.Go(f.work)
	}
	group.Wait()
	for _, j := range k.queue {
		if j.parts != nil {
			j.parts.release()
		}
	}
	k.mu.Lock() // ctx may end just now
	defer k.mu.Unlock()
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
		if f.links == nil { // not before: where hardly anything changed, one of them does it all
			f.links, f.buf, f.buf2 = map[linkKey][]string{}, make([]byte, small), make([]byte, small)
		}
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

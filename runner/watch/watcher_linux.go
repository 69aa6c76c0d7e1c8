package watch

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher watches one feature's uppers. Start makes it.
type Watcher struct {
	events chan []Event
	due    chan struct{}
	asks   chan ask
	scans  atomic.Bool
	cancel context.CancelFunc
	done   chan struct{}
}

// ask is a Reset on its way to the loop.
type ask struct {
	upper, home string
	answer      chan error
}

// Events tells what has changed, coalesced by path, at most every Debounce. It is closed when the watcher ends. Who
// reads slowly gets larger batches; beyond 65,536 paths the newest are left out.
func (w *Watcher) Events() <-chan []Event { return w.events }

// Due says that it is time for an automatic checkpoint: one value, however often it was time. The counting begins anew
// when the value is sent, and with Reset.
func (w *Watcher) Due() <-chan struct{} { return w.due }

// Mode is ModeInotify or ModeScan.
func (w *Watcher) Mode() string {
	if w.scans.Load() {
		return ModeScan
	}
	return ModeInotify
}

// Reset says that a seal has taken in all changes so far, and what the uppers are from now on. What is in an upper that
// is new to the watcher is no event.
func (w *Watcher) Reset(upper, home string) error {
	a := ask{upper, home, make(chan error, 1)}
	select {
	case w.asks <- a:
		return <-a.answer
	case <-w.done:
		return os.ErrClosed
	}
}

// Close ends the watcher and waits for its goroutines.
func (w *Watcher) Close() error {
	w.cancel()
	<-w.done
	return nil
}

const maxPending = 1 << 16

// loop is the watcher's only goroutine beside the reader of inotify; all that follows is its own.
type loop struct {
	o     Options
	w     *Watcher
	scans bool
	idle  bool     // no inotify yet: it comes with the first look, because giving it up takes the kernel up to 20 ms
	ino   *inotify // nil when scanning or idle
	roots []*root

	dirty   map[*node]map[string]bool // names to be looked at
	pending map[place]Event
	ready   bool           // pending may be told
	changed map[place]bool // since the last seal; no more than Options.Files

	tick  *time.Timer // Debounce after the first sign of a change
	armed bool
	every *time.Timer
}

// place is a path of a stack.
type place struct{ stack, path string }

func start(ctx context.Context, o Options) (*Watcher, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{
		events: make(chan []Event), due: make(chan struct{}, 1), asks: make(chan ask), cancel: cancel, done: make(chan struct{}),
	}
	l := &loop{o: o, w: w, scans: !writesAreSeen(), pending: map[place]Event{}, tick: stopped(), every: stopped()}
	l.changed = map[place]bool{}
	if err := l.open(o.Upper, o.Home); err != nil {
		cancel()
		l.close()
		return nil, err
	}
	go l.run(ctx)
	return w, nil
}

func stopped() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// writesAreSeen: before kernel 6.5 an overlay hides from inotify what it writes into an upper's files.
func writesAreSeen() bool {
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || major == 6 && minor >= 5
}

// open begins with what is in the uppers now.
func (l *loop) open(upper, home string) error {
	l.dirty = map[*node]map[string]bool{}
	l.idle = !l.scans && l.ino == nil
	for _, r := range []struct{ stack, path string }{{"workspace", upper}, {"home", home}} {
		if r.path == "" {
			continue
		}
		root, err := openRoot(r.stack, r.path)
		if err != nil {
			return err
		}
		l.roots = append(l.roots, root)
		l.enter(root.top, quiet)
	}
	l.w.scans.Store(l.scans)
	if l.scans || l.idle {
		l.arm()
	}
	return nil
}

// scan gives inotify up.
func (l *loop) scan() {
	l.scans = true
	l.w.scans.Store(true)
	if l.ino != nil {
		l.ino.close()
		l.ino = nil
	}
	l.arm()
}

func (l *loop) close() {
	if l.ino != nil {
		l.ino.close()
		l.ino = nil
	}
	l.leave()
}

// leave forgets the uppers. An instance with few watches is kept for the next ones.
func (l *loop) leave() {
	const few = 1000
	switch {
	case l.ino != nil && len(l.ino.dirs) > few:
		l.ino.close()
		l.ino = nil
	case l.ino != nil:
		for _, n := range l.ino.dirs {
			l.ino.remove(n)
		}
	}
	for _, r := range l.roots {
		_ = unix.Close(r.fd) // O_PATH
	}
	l.roots = nil
}

func (l *loop) run(ctx context.Context) {
	defer close(l.w.done)
	defer close(l.w.events)
	defer l.close()
	var out chan<- []Event
	var batch []Event
	for {
		if out == nil && l.ready {
			if batch = l.batch(); len(batch) > 0 {
				out = l.w.events
			}
		}
		select {
		case <-ctx.Done():
			return
		case out <- batch:
			out, batch = nil, nil
		case buf := <-l.heard():
			l.hear(buf)
		case <-l.tick.C:
			l.look()
		case <-l.every.C:
			l.isDue()
		case a := <-l.w.asks:
			a.answer <- l.reset(a)
		}
	}
}

// heard is the reader's channel.
func (l *loop) heard() <-chan []byte {
	if l.ino == nil {
		return nil
	}
	return l.ino.heard
}

// arm sees to it that look comes a Debounce after the first sign of a change.
func (l *loop) arm() {
	if !l.armed {
		l.armed = true
		l.tick.Reset(l.o.Debounce)
	}
}

// look finds out what has changed.
func (l *loop) look() {
	l.armed, l.ready = false, true
	if l.idle {
		l.wake()
	} else if l.scans {
		begin := time.Now()
		l.all()
		l.armed = true // and again: a twentieth of a processor is enough, but nobody shall wait longer than for a checkpoint
		l.tick.Reset(max(l.o.Debounce, min(20*time.Since(begin), l.o.Every)))
	} else {
		dirty := l.dirty
		l.dirty = map[*node]map[string]bool{}
		for dir, names := range dirty {
			l.visitAll(dir, names)
		}
	}
	if len(l.changed) >= l.o.Files {
		l.isDue()
	}
}

// wake begins with inotify, and finds what has changed before.
func (l *loop) wake() {
	l.idle = false
	var err error
	if l.ino, err = newInotify(l.o.MaxWatches); err != nil {
		l.scan() // no instance left
	}
	l.all()
}

// all looks at everything.
func (l *loop) all() {
	for _, r := range l.roots {
		l.enter(r.top, again)
	}
}

func (l *loop) isDue() {
	if len(l.changed) == 0 {
		return
	}
	l.settle()
	select {
	case l.w.due <- struct{}{}:
	default: // said already
	}
}

// settle begins to count anew.
func (l *loop) settle() {
	clear(l.changed)
	l.every.Stop()
}

func (l *loop) reset(a ask) error {
	if l.idle {
		l.all()
		l.ready = true
	} else {
		l.drain()
		l.look()
	}
	l.settle()
	select {
	case <-l.w.due: // taken in
	default:
	}
	same := len(l.roots) > 0 && l.roots[0].path == a.upper && (a.home == "" && len(l.roots) == 1 || len(l.roots) == 2 && l.roots[1].path == a.home)
	if same && l.still() {
		return nil
	}
	l.leave()
	l.scans = !writesAreSeen() // the new ones may be small enough
	l.tick.Stop()
	l.armed = false
	return l.open(a.upper, a.home)
}

// still says whether the roots' paths lead to what we watch.
func (l *loop) still() bool {
	return !slices.ContainsFunc(l.roots, func(r *root) bool {
		var a, b unix.Stat_t
		return unix.Stat(r.path, &a) != nil || unix.Fstat(r.fd, &b) != nil || a.Ino != b.Ino || a.Dev != b.Dev
	})
}

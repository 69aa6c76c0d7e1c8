package watch

import (
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// record notes an event. A later one of the same path replaces it; what came and went was nothing.
func (l *loop) record(n *node, kind string) {
	p := place{n.root.stack, n.path()}
	before, told := l.pending[p]
	switch {
	case told && before.Kind == Added && kind == Deleted:
		delete(l.pending, p)
		delete(l.changed, p)
		return
	case told && before.Kind == Added:
		kind = Added
	case told && before.Kind == Deleted && kind == Added, told && before.Kind == Modified && kind == Mode:
		kind = Modified
	}
	if told || len(l.pending) < maxPending {
		e := Event{At: time.Now(), Path: p.path, Kind: kind, Size: n.seen.size, Stack: p.stack}
		if kind == Deleted {
			e.Size = 0
		}
		l.pending[p] = e
	}
	if len(l.changed) == 0 {
		l.every.Reset(l.o.Every)
	}
	if len(l.changed) < l.o.Files {
		l.changed[p] = true
	}
}

// batch takes what is to be told.
func (l *loop) batch() []Event {
	l.ready = false
	if len(l.pending) == 0 {
		return nil
	}
	out := make([]Event, 0, len(l.pending))
	for _, e := range l.pending {
		out = append(out, e)
	}
	l.pending = map[place]Event{}
	slices.SortFunc(out, func(a, b Event) int {
		return -strings.Compare(a.Stack, b.Stack)*2 + strings.Compare(a.Path, b.Path) // the workspace first
	})
	return out
}

// hear takes in what inotify said.
func (l *loop) hear(buf []byte) {
	if buf == nil { // the kernel's queue was full
		l.all()
		l.arm()
		return
	}
	ino := l.ino
	eachEvent(buf, func(wd int, mask uint32, name string) {
		if l.ino != ino { // given up meanwhile
			return
		}
		n := ino.dirs[wd]
		switch {
		case mask&unix.IN_IGNORED != 0:
			delete(ino.dirs, wd)
			if n != nil && n.parent != nil { // deleted, and perhaps made anew with the same number
				n.wd = -1
				l.mark(n.parent, n.name)
			}
		case n == nil || name == "": // gone already, or the directory itself: its own parent tells
		default:
			l.mark(n, name)
			if mask&unix.IN_ISDIR != 0 && mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_MOVED_FROM|unix.IN_DELETE) != 0 {
				l.visitAll(n, map[string]bool{name: true}) // now: what is made in it is to be seen
			}
		}
	})
}

// drain takes in all that has happened so far: a watch that is taken off at once is an event that comes after them.
func (l *loop) drain() {
	if l.ino == nil {
		return
	}
	last, err := unix.InotifyAddWatch(l.ino.fd, "/", unix.IN_DELETE_SELF|unix.IN_ONLYDIR)
	if err != nil {
		return // the last moments may be missed
	}
	_, _ = unix.InotifyRmWatch(l.ino.fd, uint32(last))
	late := time.NewTimer(time.Second)
	defer late.Stop()
	for done := false; !done && l.ino != nil; {
		select {
		case buf := <-l.ino.heard:
			done = buf == nil // lost, and so looked for
			eachEvent(buf, func(wd int, _ uint32, _ string) { done = done || wd == last })
			l.hear(buf)
		case <-late.C:
			return
		}
	}
}

func (l *loop) mark(dir *node, name string) {
	names := l.dirty[dir]
	if names == nil {
		names = map[string]bool{}
		l.dirty[dir] = names
	}
	names[name] = true
	l.arm()
}

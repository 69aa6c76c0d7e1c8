// Package watch tells what changes in a feature's current layer: every change for the event log, and when enough has
// changed for an automatic checkpoint. It decides nothing: what is missed here is found by the next seal, which looks
// at the whole layer.
//
// It looks at the upper directories and not at the mounts, because a whiteout there is a deletion, and because nothing of a
// workspace that nobody touches is then watched. On Linux the kernel's inotify tells, since 6.5 also of writes that
// come through an overlay; where it cannot (older kernels, more directories than may be watched, too many events at
// once) the uppers are read again and again, and Mode says so.
package watch

import (
	"cmp"
	"context"
	"time"
)

// Event is one change of a path.
type Event struct {
	At    time.Time `json:"at"`    // when it was seen
	Path  string    `json:"path"`  // from the stack's root
	Kind  string    `json:"kind"`  // one of the kinds below
	Size  int64     `json:"size"`  // bytes; 0 for what is no regular file
	Stack string    `json:"stack"` // "workspace" or "home"
}

// The kinds. Mode is a change of permissions, owner or extended attributes alone.
const (
	Added    = "added"
	Modified = "modified"
	Deleted  = "deleted"
	Mode     = "mode"
)

// Options say what to watch and when to be Due.
type Options struct {
	Upper, Home string        // host directories; Home may be empty
	Debounce    time.Duration // how long changes are collected before they are told; 0: 5 s
	Every       time.Duration // Due this long after the first change that no seal has taken in; 0: 30 s
	Files       int           // Due at this many changed paths; 0: 50
	MaxWatches  int           // of inotify; beyond it the mode is scan; 0: 60,000
}

func (o *Options) setDefaults() {
	o.Debounce = cmp.Or(o.Debounce, 5*time.Second)
	o.Every = cmp.Or(o.Every, 30*time.Second)
	o.Files = cmp.Or(o.Files, 50)
	o.MaxWatches = cmp.Or(o.MaxWatches, 60_000)
}

// Modes of a Watcher.
const (
	ModeInotify = "inotify"
	ModeScan    = "scan"
)

// Start begins to watch. What is in the uppers already is no event. The Watcher owns its goroutines; Close, or the end
// of ctx, ends them.
func Start(ctx context.Context, o Options) (*Watcher, error) {
	o.setDefaults()
	return start(ctx, o)
}

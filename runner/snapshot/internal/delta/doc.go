// Package delta copies what changed in a layer that is in use into layers of their own.
package delta

import "time"

// Options say what Copy copies besides what looks changed.
type Options struct {
	Always     []string  // paths whose content may change without a trace: mapped shared and writable
	RacyBefore time.Time // what was changed at or after this is copied again, if it was seen since; zero: nothing is
	UserXattr  bool      // marks are user.overlay.*; as the upper layer has it
	Resume     *Delta    // of the pass before this one, into the same dst; nil: the first pass
}

// Delta is what Copy did.
type Delta struct {
	Files int      // regular files copied
	Bytes int64    // their sizes
	Names []string // everything that dst holds, whiteouts too, sorted; the root, "", if it changed itself

	// Whole says that dst holds all of the upper: it goes directly onto what the upper lies on, in the place of every
	// delta before it.
	Whole bool

	before *Manifest // what the first pass compared with
	began  time.Time
}

package isolation

import (
	"errors"
	"fmt"
	"strings"
)

// ErrHeld is what Exchange answers while a live process holds a stack; the error is a *HeldError.
var ErrHeld = errors.New("held by a live process")

// ErrFrozen is what Exec answers between Freeze and Thaw.
var ErrFrozen = errors.New("the sandbox is frozen")

// Holder is what keeps a mount busy: one use of it by one live process.
type Holder struct {
	PID     int    `json:"pid"`     // in the host's pid namespace; 0: somebody, the kernel does not say who
	Command string `json:"command"` // its name (comm); empty for PID 0
	Target  string `json:"target"`  // the stack, /workspace
	What    string `json:"what"`    // one of the Held words
	Path    string `json:"path"`    // inside, as the kernel writes it; may be empty
}

// What a process can hold a mount by.
const (
	HeldCwd  = "cwd"  // a thread's working directory
	HeldRoot = "root" // a thread's root directory
	HeldFD   = "fd"   // an open file or directory
	HeldMap  = "map"  // a mapped file, its program too
	// HeldReference is a use that /proc does not show: a descriptor on its way through a socket, a socket bound there. PID
	// is 0.
	HeldReference = "reference"
	// HeldUnknown is a process that we may not look into; it counts as a holder of everything.
	HeldUnknown = "unknown"
)

// HeldError names who holds what.
type HeldError struct{ Holders []Holder }

// Error names at most three of them.
func (e *HeldError) Error() string {
	const most = 3
	var b strings.Builder
	b.WriteString(ErrHeld.Error())
	for i, h := range e.Holders {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(e.Holders)-most)
			break
		}
		sep := ": "
		if i > 0 {
			sep = ", "
		}
		fmt.Fprintf(&b, "%s%s", sep, h)
	}
	return b.String()
}

// Is makes it ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// String is "process 12 (make): cwd /workspace/a".
func (h Holder) String() string {
	path := h.Path
	if path == "" {
		path = h.Target
	}
	if h.PID == 0 {
		return h.What + " to " + path
	}
	return fmt.Sprintf("process %d (%s): %s %s", h.PID, h.Command, h.What, path)
}

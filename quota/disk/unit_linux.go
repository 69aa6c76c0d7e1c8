package disk

import (
	"context"
	"errors"
)

// Unit is an open disk unit. It is safe for concurrent use.
type Unit struct {
	dir       string
	mechanism Mechanism
	limits    Limits
}

// Dir is the directory that counts: 0700, below /proc/self/fd for units with a file system of their own, so good for this
// process only and until Close. The name "ballast" in it is taken.
func (u *Unit) Dir() string { return u.dir }

// Mechanism says how the limits are enforced.
func (u *Unit) Mechanism() Mechanism { return u.mechanism }

// Limits returns what the unit may hold.
func (u *Unit) Limits() Limits { return u.limits }

// Usage asks the kernel; a watched unit is walked through, which takes about 2 µs a file.
func (u *Unit) Usage() (Usage, error) { return Usage{}, errors.ErrUnsupported }

// Resize changes the limits of the unit while it is in use. ErrResize, *RoomError.
func (u *Unit) Resize(ctx context.Context, l Limits) error { return errors.ErrUnsupported }

// Reserve gives the ballast free, for a seal or a rollback in a full unit, or takes it back: what of it fits, and an error
// (ENOSPC, EDQUOT) when that is not all.
func (u *Unit) Reserve(free bool) error { return errors.ErrUnsupported }

// Watch sends the usage each time when 75, 90, 95 or 100 % are crossed upwards, and closes the channel when ctx ends. Of a
// watched unit it sends every second all that is over the limit.
func (u *Unit) Watch(ctx context.Context) <-chan Usage { return nil }

// Discard closes the unit and throws away what it holds without writing it to disk first: for features that go with
// their task. Nobody else may have it open.
func (u *Unit) Discard() error { return errors.ErrUnsupported }

// Close detaches the unit. The kernel writes what is dirty, which can take a second; where a live sandbox still has it
// mounted, that happens when it ends. It is idempotent.
func (u *Unit) Close() error { return nil }

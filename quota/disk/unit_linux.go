package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/measure"
)

// Names in features/ID.
const (
	recordName = "disk.json"
	imageName  = "disk.img"
	plainName  = "disk" // the directory of units without a file system of their own
)

// Names at the top of a unit. What counts has a directory of its own there, so that whoever opens that can refuse links,
// which the top of a detached mount in /proc/self/fd is, and finds nothing in it that is not his.
const (
	contentName = "disk"
	ballastName = "ballast"
)

// Unit is an open disk unit. It is safe for concurrent use.
type Unit struct {
	place  *place
	volume volume
	use    *os.File // locked, shared: the unit is in use

	mu     sync.Mutex // guards what follows, the ballast and place.record
	closed bool
	full   Usage // the last one that was, and when
	fullAt time.Time
}

// Dir is the directory that counts: 0700, below /proc/self/fd for units with a file system of their own, so good for this
// process only and until Close.
func (u *Unit) Dir() string { return filepath.Join(u.volume.top(), contentName) }

// Mechanism says how the limits are enforced.
func (u *Unit) Mechanism() Mechanism { return u.place.Mechanism }

// Limits returns what the unit may hold.
func (u *Unit) Limits() Limits {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.place.limits()
}

var errClosed = fmt.Errorf("the disk unit: %w", fs.ErrClosed)

// Usage asks the kernel; a watched unit is walked through, which takes about 2 µs a file. An error comes with what is known.
func (u *Unit) Usage() (Usage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return Usage{}, errClosed
	}
	h, err := u.place.host()
	if err != nil {
		return Usage{}, err
	}
	usage, err := u.volume.usage(&u.place.record)
	if err != nil {
		err = fmt.Errorf("%v: %w", u.place, err)
	}
	usage.Used, usage.Inodes = max(usage.Used, 0), max(usage.Inodes, 0)
	usage.Limit, usage.HostFree = u.place.Bytes, max(h.free, 0)
	if u.place.Inodes != nil {
		usage.InodeLimit = *u.place.Inodes
	}
	if err == nil && usage.Full() {
		u.full, u.fullAt = usage, time.Now()
	}
	return usage, err
}

// WasFull returns the usage that was seen last of those at the limit, by Usage or by Watch, and whether that was after a moment.
// The kernel keeps no account of writes that it refused: a unit that was full for less than Watch's pauses may not have been seen.
func (u *Unit) WasFull(since time.Time) (Usage, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.full, u.fullAt.After(since)
}

// Resize changes the limits of the unit while it is in use. ErrResize, *RoomError.
func (u *Unit) Resize(ctx context.Context, l Limits) error {
	if err := l.validate(); err != nil {
		return err
	}
	u.mu.Lock() // before the store's lock, as Close does
	defer u.mu.Unlock()
	if u.closed {
		return errClosed
	}
	unlock, err := u.place.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := u.place.read(); err != nil { // somebody else may have changed it
		return err
	}
	if more := l.Bytes - u.place.Bytes; more > 0 {
		if err := u.place.makeRoom(ctx, u.place, need{limit: l.Bytes, host: more}, l.Total); err != nil {
			return err
		}
	}
	next := u.place.record
	next.Bytes, next.Inodes, next.Total = l.Bytes, l.Inodes, l.Total
	if err := u.volume.resize(ctx, u.place, &next); err != nil {
		return fmt.Errorf("%v: %w", u.place, err)
	}
	u.place.record = next
	return u.place.write()
}

// Reserve gives the ballast free, for a seal or a rollback in a full unit, or takes it back: what of it fits, and an error
// (ENOSPC, EDQUOT) when that is not enough for another one.
func (u *Unit) Reserve(free bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errClosed
	}
	return u.volume.reserve(&u.place.record, free)
}

// furnish makes what is at the top of an empty unit.
func furnish(top string) error {
	content := filepath.Join(top, contentName)
	if err := os.Mkdir(content, 0o700); err != nil {
		return err
	}
	if err := os.Chmod(content, 0o700); err != nil { // whatever the umask is
		return err
	}
	return makeBallast(filepath.Join(top, ballastName))
}

// What of the ballast is enough for a seal and a rollback to be made of it.
const (
	enoughBallast = Ballast / 2
	enoughInodes  = int(BallastInodes) * 5 / 8
)

// makeBallast makes what is missing and fits: files, of which the first one is large. The error is that of a full disk when
// what there is now is not enough.
func makeBallast(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var short error
	// The directory itself is one of the inodes.
	for n := range int(BallastInodes) - 1 {
		f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(n)), os.O_RDWR|os.O_CREATE, 0o600)
		if isFull(err) && n >= enoughInodes {
			break
		}
		if err != nil {
			return errors.Join(short, err)
		}
		if n == 0 {
			if err := allocateBallast(f); err != nil {
				short = &os.PathError{Op: "allocate", Path: f.Name(), Err: err}
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return short
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// reserve removes the ballast, or makes it again.
func (v *imageVolume) reserve(_ *record, free bool) error {
	dir := filepath.Join(v.top(), ballastName)
	if free {
		return dropBallast(dir)
	}
	return makeBallast(dir)
}

// allocateBallast makes the large file as large as it can be. That it is not whole is no error while it is enough: file systems
// ask for some blocks more than they use, and that they lack here is what the unit is full for.
func allocateBallast(f *os.File) (err error) {
	for size := Ballast; size > 0; size -= 32 * quota.KiB {
		err = unix.Fallocate(int(f.Fd()), 0, 0, int64(size))
		if err == nil && size < enoughBallast {
			return unix.ENOSPC
		}
		if !isFull(err) {
			break
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		_, err = f.Write(make([]byte, Ballast))
	}
	return err
}

func dropBallast(dir string) error {
	var errs []error
	for n := range int(BallastInodes) - 1 {
		if err := os.Remove(filepath.Join(dir, strconv.Itoa(n))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// watchEvery and watchFull are how often Watch looks at an empty and at a full unit, and between them in proportion. Nothing
// announces how full a file system is.
const (
	watchEvery = time.Second
	watchFull  = 50 * time.Millisecond
)

// pause is how long Watch does not look after it has; took is how long that was.
func (m Mechanism) pause(u Usage, took time.Duration) time.Duration {
	if m == Watched { // to walk through a large tree must not become all that the machine does
		return max(watchEvery, 3*took)
	}
	return max(watchFull, watchEvery/100*time.Duration(100-u.Percent()))
}

// doubts is how often in succession a watched unit may not be measured: what others change at the same time can be in the
// way by chance.
const doubts = 3

// Watch sends the usage each time when 75, 90, 95 or 100 % are crossed upwards, and closes the channel when ctx ends or the
// unit is closed. Of a watched unit it sends every second what is over the limit, and there the files without a name that
// the processes have open count, too; processes may be nil.
func (u *Unit) Watch(ctx context.Context, processes func(context.Context) ([]int, error)) <-chan Usage {
	c := make(chan Usage)
	go func() {
		defer close(c)
		timer := time.NewTimer(watchEvery)
		defer timer.Stop()
		for level, unknown := 0, 0; ; {
			began := time.Now()
			usage, err := u.look(ctx, processes)
			took := time.Since(began)
			if errors.Is(err, fs.ErrClosed) {
				return
			}
			if unknown++; err == nil {
				unknown = 0
			}
			if unknown >= doubts && u.Mechanism() == Watched {
				usage.Unknown, err = err.Error(), nil
			}
			next := levelOf(usage)
			if err == nil && (next > level || next == 100 && u.Mechanism() == Watched) {
				select {
				case c <- usage:
				case <-ctx.Done():
					return
				}
			}
			if err == nil {
				level = next
			}
			timer.Reset(u.Mechanism().pause(usage, took))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return c
}

// look is Usage, and for a watched unit what it does not see. Errors come with what is known.
func (u *Unit) look(ctx context.Context, processes func(context.Context) ([]int, error)) (Usage, error) {
	usage, err := u.Usage()
	if u.Mechanism() != Watched || errors.Is(err, fs.ErrClosed) {
		return usage, err
	}
	if err == nil && usage.HostFree == 0 {
		usage.Unknown = "less than 5 % of the host's file system are free"
	}
	if processes == nil {
		return usage, err
	}
	pids, asked := processes(ctx)
	if asked != nil { // they have ended
		return usage, err
	}
	sum, hidden := measure.Deleted(pids)
	usage.Used += quota.Bytes(sum.Bytes)
	usage.Inodes += quota.Count(sum.Inodes)
	return usage, errors.Join(err, hidden)
}

func levelOf(u Usage) int {
	level := 0
	for _, l := range []int{75, 90, 95, 100} {
		if u.Percent() >= l {
			level = l
		}
	}
	if u.Full() {
		level = 100
	}
	return level
}

// Sync makes everything in the unit durable: it survives a loss of power. To sync the files or the file system inside is
// not enough.
func (u *Unit) Sync() error {
	u.mu.Lock()
	closed := u.closed
	u.mu.Unlock()
	if closed {
		return errClosed
	}
	return u.volume.sync(u.place) // takes a second, without the lock
}

// Discard closes the unit and removes it with what it holds, without writing that to disk first: for features that go
// with their task. Nobody else may have it open.
func (u *Unit) Discard() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	err := u.place.remove() // an image without a name is never written to disk
	return errors.Join(err, u.shut())
}

// Close detaches the unit. The kernel writes what is dirty, which can take a second; where a live sandbox still has it
// mounted, that happens when it ends. The host gets back what was never used. It is idempotent.
func (u *Unit) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	return errors.Join(u.shut(), u.place.settle())
}

func (u *Unit) shut() error {
	u.closed = true
	return errors.Join(u.volume.close(), u.use.Close())
}

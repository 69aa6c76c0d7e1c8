package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
)

// Store makes, opens and removes the units of a state directory. Several processes share one; it is safe for concurrent
// use. What it needs beside the units lies in the directory disk of the state directory.
type Store struct {
	state string // the state directory, absolute
}

// OpenStore returns the store of a state directory, which must exist. It touches nothing.
func OpenStore(stateDir string) (*Store, error) {
	state, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(state)
	if err == nil && !info.IsDir() {
		err = &os.PathError{Op: "open", Path: state, Err: unix.ENOTDIR}
	}
	if err != nil {
		return nil, err
	}
	return &Store{state: state}, nil
}

// record describes a unit: features/ID/disk.json.
type record struct {
	Version   int          `json:"version"`
	Mechanism Mechanism    `json:"mechanism"`
	Bytes     quota.Bytes  `json:"bytes"`
	Inodes    *quota.Count `json:"inodes"`          // null: no limit
	Total     quota.Bytes  `json:"total,omitempty"` // Limits.Total, for when it is opened again
	Created   time.Time    `json:"created"`

	// Idle is what the unit takes of the host while nobody has it open; nil: all that it is promised. Small says that it can
	// give no more back.
	Idle  *quota.Bytes `json:"idle,omitempty"`
	Small bool         `json:"small,omitempty"`

	Size       quota.Bytes `json:"size,omitempty"`        // ext4: of the image
	Free       quota.Bytes `json:"free,omitempty"`        // ext4, tmpfs: bytes that were free when it was new
	FreeInodes quota.Count `json:"free_inodes,omitempty"` // the same of inodes
	Project    uint32      `json:"project,omitempty"`     // project
}

const recordVersion = 1

// promised is what counts against a total: without what a file system needs for itself.
func (r *record) promised() quota.Bytes {
	if r.Idle != nil {
		return min(*r.Idle, r.Bytes)
	}
	return r.Bytes
}

// onHost is what the unit may take of the host's file system.
func (r *record) onHost() quota.Bytes {
	if r.Idle != nil {
		return *r.Idle
	}
	return max(r.Bytes, r.Size)
}

func (r *record) limits() Limits { return Limits{Bytes: r.Bytes, Inodes: r.Inodes, Total: r.Total} }

// place is a feature's unit, whether it exists or not.
type place struct {
	*Store
	id  string
	dir string // features/ID
	record
	from *template    // ext4, while it is made
	made *imageVolume // ext4: what create has mounted, for open
}

func (s *Store) place(id string) (*place, error) {
	if id == "" || id == "." || id == ".." || filepath.Base(id) != id {
		return nil, fmt.Errorf("%q is no feature's id: %w", id, fs.ErrInvalid)
	}
	return &place{Store: s, id: id, dir: filepath.Join(s.state, "features", id)}, nil
}

func (p *place) image() string { return filepath.Join(p.dir, imageName) }
func (p *place) plain() string { return filepath.Join(p.dir, plainName) }

// read reads the record: fs.ErrNotExist, ErrDamaged.
func (p *place) read() error {
	data, err := os.ReadFile(filepath.Join(p.dir, recordName))
	if err != nil {
		return err
	}
	p.record = record{}
	switch err := json.Unmarshal(data, &p.record); {
	case err != nil:
		return fmt.Errorf("%w: %s of feature %s: %w", ErrDamaged, recordName, p.id, err)
	case p.Version > recordVersion:
		return fmt.Errorf("%w: %s of feature %s was written by a newer caisson", ErrDamaged, recordName, p.id)
	case mechanisms[p.Mechanism] == nil || p.Bytes <= 0:
		return fmt.Errorf("%w: %s of feature %s names the mechanism %q and %d bytes", ErrDamaged, recordName, p.id, p.Mechanism, int64(p.Bytes))
	}
	return nil
}

// write replaces the record.
func (p *place) write() error {
	data, err := json.Marshal(&p.record)
	if err != nil {
		return err
	}
	tmp := filepath.Join(p.dir, recordName+".new")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(p.dir, recordName))
}

// mechanism is one way to enforce limits.
type mechanism interface {
	// plan fills in what the record says besides what is asked.
	plan(ctx context.Context, p *place) error
	// create makes the unit's files. The record is there already.
	create(ctx context.Context, p *place) error
	// open opens it. The caller has the store's lock.
	open(ctx context.Context, p *place) (volume, error)
	// lockFile is what openers lock.
	lockFile(p *place) string
	// idle makes small what nobody has open, and says what it takes.
	idle(ctx context.Context, p *place) (quota.Bytes, error)
	// remove takes away what create made, as far as it is there.
	remove(p *place) error
}

// volume is an open unit's file system.
type volume interface {
	top() string
	usage(r *record) (Usage, error)
	// resize makes the limits what next says, and notes in next what it has to.
	resize(ctx context.Context, p *place, next *record) error
	// reserve gives the ballast free, or takes it back.
	reserve(r *record, free bool) error
	sync(p *place) error
	close() error
}

var mechanisms = map[Mechanism]mechanism{
	Project: projects{}, Btrfs: subvolumes{}, Ext4: images{}, Tmpfs: memory{}, Watched: watched{},
}

// lock takes the store's lock: for what units do with each other.
func (s *Store) lock() (unlock func(), err error) {
	dir := filepath.Join(s.state, "disk")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}

// Create makes the unit of feature id, in features/ID of the state directory, and opens it. It answers fs.ErrExist where
// there is one, *RoomError, *quota.LimitError.
func (s *Store) Create(ctx context.Context, id string, m Mechanism, l Limits) (*Unit, error) {
	p, err := s.place(id)
	if err != nil {
		return nil, err
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	how := mechanisms[m]
	if how == nil {
		return nil, fmt.Errorf("mechanism %q: %w", m, errors.ErrUnsupported)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	p.record = record{Version: recordVersion, Mechanism: m, Bytes: l.Bytes, Inodes: l.Inodes, Total: l.Total, Created: time.Now().UTC()}
	if err := how.plan(ctx, p); err != nil {
		return nil, err
	}
	if err := s.admit(ctx, p); err != nil {
		return nil, err
	}
	if err := how.create(ctx, p); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	defer unlock()
	u, err := p.open(ctx)
	if err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return u, nil
}

// admit promises a new unit its space, by writing its record.
func (s *Store) admit(ctx context.Context, p *place) error {
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(filepath.Join(p.dir, recordName)); err == nil {
		return fmt.Errorf("the disk unit of feature %s: %w", p.id, fs.ErrExist)
	}
	if err := s.makeRoom(ctx, p, need{p.promised(), p.onHost()}, p.Total); err != nil {
		return err
	}
	return p.write()
}

// Open opens a unit: fs.ErrNotExist where there is none, ErrDamaged, *RoomError.
func (s *Store) Open(ctx context.Context, id string) (*Unit, error) { return s.open(ctx, id, true) }

// View opens a unit to look at it, or to write little: it asks for no room, and so works on a host that is full.
func (s *Store) View(ctx context.Context, id string) (*Unit, error) { return s.open(ctx, id, false) }

func (s *Store) open(ctx context.Context, id string, room bool) (*Unit, error) {
	p, err := s.place(id)
	if err != nil {
		return nil, err
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := p.read(); err != nil {
		return nil, err
	}
	if p.Mechanism == Tmpfs {
		return nil, fmt.Errorf("%w: feature %s: it was in the memory of the process that made it", ErrDamaged, id)
	}
	if room {
		if err := p.wake(ctx); err != nil {
			return nil, err
		}
	}
	return p.open(ctx)
}

// open opens a unit that exists. The caller has the store's lock.
func (p *place) open(ctx context.Context) (*Unit, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	how := mechanisms[p.Mechanism]
	use, err := os.OpenFile(how.lockFile(p), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: feature %s: it was not made to the end, or lost its files", ErrDamaged, p.id)
	}
	if err != nil {
		return nil, err
	}
	if err := flock(use, unix.LOCK_SH); err != nil { // nobody keeps the exclusive one without the store's lock
		return nil, errors.Join(err, use.Close())
	}
	v, err := how.open(ctx, p)
	if err != nil {
		return nil, errors.Join(err, use.Close())
	}
	return &Unit{place: p, volume: v, use: use}, nil
}

// wake takes back what the unit gave away while it was idle.
func (p *place) wake(ctx context.Context) error {
	if p.Idle == nil {
		return nil
	}
	if err := p.makeRoom(ctx, p, need{p.Bytes, max(p.Bytes, p.Size) - *p.Idle}, p.Total); err != nil {
		return err
	}
	if p.Mechanism == Ext4 {
		if err := p.allocate(); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: feature %s: %w", ErrDamaged, p.id, err)
		} else if err != nil {
			return err
		}
	}
	p.Idle, p.Small = nil, false
	return p.write()
}

// Remove removes a unit that nobody has open, and what it holds. No error when there is none.
func (s *Store) Remove(_ context.Context, id string) error {
	p, err := s.place(id)
	if err != nil {
		return err
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.read(); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		p.Mechanism = "" // whatever there is
	}
	return p.remove()
}

// remove takes everything away, the record last: until then the unit is listed.
func (p *place) remove() error {
	for m, how := range mechanisms {
		if p.Mechanism != "" && m != p.Mechanism {
			continue
		}
		if err := how.remove(p); err != nil {
			return fmt.Errorf("removing the disk unit of feature %s: %w", p.id, err)
		}
	}
	for _, name := range []string{recordName + ".new", recordName} {
		if err := os.Remove(filepath.Join(p.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

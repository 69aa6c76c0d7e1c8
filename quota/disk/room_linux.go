package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
)

// keepFree is the part of the host's file system that units never take: one in so many.
const keepFree = 20

// List returns the features that have a unit, sorted.
func (s *Store) List() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(s.state, "features"))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if _, err := os.Lstat(filepath.Join(s.state, "features", e.Name(), recordName)); err == nil {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// units reads every record. One that is damaged promises what its files take.
func (s *Store) units() ([]*place, error) {
	ids, err := s.List()
	if err != nil {
		return nil, err
	}
	var list []*place
	for _, id := range ids {
		p, err := s.place(id)
		if err != nil {
			return nil, err
		}
		if err := p.read(); errors.Is(err, ErrDamaged) {
			p.record = record{Size: allocated(p.image())}
		} else if errors.Is(err, fs.ErrNotExist) {
			continue // it went meanwhile
		} else if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

func allocated(file string) quota.Bytes {
	var st unix.Stat_t
	if unix.Lstat(file, &st) != nil {
		return 0
	}
	return quota.Bytes(st.Blocks * 512)
}

// host is the file system of the state directory.
type host struct {
	free   quota.Bytes // for everybody, without what stays free
	memory bool        // it is in memory: nothing is allocated before it is written
}

func (s *Store) host() (host, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.state, &st); err != nil {
		return host{}, &os.PathError{Op: "statfs", Path: s.state, Err: err}
	}
	free := (int64(st.Bavail) - int64(st.Blocks/keepFree)) * st.Frsize
	return host{free: quota.Bytes(free), memory: st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC}, nil
}

// need is what a unit asks for, in addition to what it has: of the total, and of the host's file system.
type need struct{ limit, host quota.Bytes }

// makeRoom makes sure that p may have more, of the total (0: none is set) and of the host. Where it cannot, units that
// nobody has open give back what they do not use. The caller has the store's lock.
func (s *Store) makeRoom(ctx context.Context, p *place, more need, total quota.Bytes) error {
	units, err := s.units()
	if err != nil {
		return err
	}
	units = slices.DeleteFunc(units, func(u *place) bool { return u.id == p.id })
	lack, err := s.lack(units, more, total)
	if err != nil || lack == nil {
		return err
	}
	slices.SortFunc(units, func(a, b *place) int { return cmp.Compare(a.Created.UnixNano(), b.Created.UnixNano()) })
	for _, u := range units {
		if err := u.shrink(ctx); err != nil {
			return err
		}
		if lack, err = s.lack(units, more, total); err != nil || lack == nil {
			return err
		}
	}
	return lack
}

// lack says what does not fit.
func (s *Store) lack(units []*place, more need, total quota.Bytes) (*RoomError, error) {
	h, err := s.host()
	if err != nil {
		return nil, err
	}
	var promised, later quota.Bytes
	for _, u := range units {
		promised += u.promised()
		if u.Mechanism != Ext4 || h.memory {
			later += u.onHost() // not allocated yet, or who knows; counted as if nothing were
		}
	}
	if total > 0 && promised+more.limit > total {
		return &RoomError{Asked: more.limit, Left: total - promised, Of: "disk_total " + total.String(),
			Remedy: "remove features (`caisson rm`), give this one less (--disk), or raise disk_total in your profile"}, nil
	}
	if left := h.free - later; more.host > left {
		return &RoomError{Asked: more.host, Left: left, Of: "file system of " + s.state,
			Remedy: "free space on the host, remove features (`caisson rm`), or give this one less (--disk); 5 % of the file system stay free"}, nil
	}
	return nil, nil
}

// shrink gives back all that an idle unit does not use. One that is open, or damaged, stays as it is.
func (p *place) shrink(ctx context.Context) error {
	if p.Small || p.Mechanism == "" {
		return nil
	}
	p.Small = true
	return p.whenIdle(func() (quota.Bytes, error) { return mechanisms[p.Mechanism].idle(ctx, p) })
}

// settle is what the last one does who closes a unit: what was never written of an image goes back to the host. That is
// most of it, mostly, and takes a millisecond; to look for what was written and deleted would take a hundred.
func (p *place) settle() error {
	if p.Mechanism != Ext4 {
		return nil
	}
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.read(); err != nil {
		return nil // removed meanwhile, or damaged: whoever opens it will say so
	}
	return p.whenIdle(func() (quota.Bytes, error) {
		if h, err := p.host(); err != nil || h.memory {
			return p.Size, err
		}
		return p.giveBack()
	})
}

// whenIdle notes what a unit takes that nobody has open, after do has made it smaller. The caller has the store's lock.
func (p *place) whenIdle(do func() (quota.Bytes, error)) error {
	how := mechanisms[p.Mechanism]
	use, err := os.OpenFile(how.lockFile(p), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // being made, or damaged
	}
	if err != nil {
		return err
	}
	defer func() { _ = use.Close() }()
	if err := flock(use, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // somebody has it open
	}
	if err := flock(use, unix.LOCK_SH); err != nil { // idle opens it itself; nobody else does, for we have the store's lock
		return err
	}
	taken, err := do()
	if errors.Is(err, ErrDamaged) || err == nil && taken >= p.onHost() {
		return nil
	}
	if err != nil {
		return err
	}
	p.Idle = &taken
	return p.write()
}

// Room says how much is promised, and how many more units with these limits would fit. It changes nothing: what idle units
// could give back is not counted.
func (s *Store) Room(l Limits) (Room, error) {
	units, err := s.units()
	if err != nil {
		return Room{}, err
	}
	h, err := s.host()
	if err != nil {
		return Room{}, err
	}
	r := Room{HostFree: max(h.free, 0), Units: len(units)}
	left := h.free
	for _, u := range units {
		r.Promised += u.promised()
		if u.Mechanism != Ext4 || h.memory {
			left -= u.onHost()
		}
	}
	if l.Bytes > 0 {
		r.More = int(max(left, 0) / firstSize(l))
		if l.Total > 0 {
			r.More = min(r.More, int(max(l.Total-r.Promised, 0)/l.Bytes))
		}
	}
	return r, nil
}

// templateAge is how long a template is kept that nobody uses.
const templateAge = 30 * 24 * time.Hour

// Clean removes what belongs to no unit and says what it was: project quotas without a directory, templates that were not
// used for a month, files that a dead process left half-made, and mounts on kernels before 6.15. Loop devices go by themselves.
func (s *Store) Clean(ctx context.Context) ([]string, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var done []string
	entries, err := os.ReadDir(filepath.Join(s.state, "disk"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		old := strings.HasPrefix(e.Name(), templatePrefix) && time.Since(info.ModTime()) > templateAge
		if !old && !strings.HasSuffix(e.Name(), newSuffix) {
			continue
		}
		if err := os.Remove(filepath.Join(s.state, "disk", e.Name())); err != nil {
			return done, err
		}
		done = append(done, "disk/"+e.Name())
	}
	mounts, err := s.cleanMounts()
	if err != nil {
		return done, err
	}
	projects, err := s.cleanProjects(ctx)
	return slices.Concat(done, mounts, projects), err
}

// String names a unit in messages.
func (p *place) String() string {
	return fmt.Sprintf("disk unit of feature %s (%s)", p.id, p.Mechanism)
}

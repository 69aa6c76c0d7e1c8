package disk

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
)

// projects is the mechanism Project: features/ID/disk has a project id that everything made in it inherits, and that only
// the initial user namespace can change.
type projects struct{ unplanned }

// Numbers of include/uapi/linux/{quota,dqblk_xfs,fs}.h. The calls by file descriptor are of kernel 5.14.
const (
	sysQuotactlFd  = 443
	projectQuota   = 2 // PRJQUOTA
	getQuota       = 0x800007
	setQuota       = 0x800008
	getState       = 0x5808 // Q_XGETQSTATV, which ext4 answers too
	stateEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD
	limitsValid    = 1 | 4  // QIF_BLIMITS | QIF_ILIMITS
	quotaBlock     = 1024   // bytes; the unit of limits
	fsGetXattr     = 0x801c581f
	fsSetXattr     = 0x401c5820
	inheritProject = 0x200 // FS_XFLAG_PROJINHERIT
)

// dqblk is struct if_dqblk.
type dqblk struct {
	hard, soft, space              uint64 // limits in quotaBlock, space in bytes
	inodesHard, inodesSoft, inodes uint64
	graceSpace, graceInodes        uint64
	valid, _                       uint32
}

func quotactl(dir *os.File, command int, id uint32, data unsafe.Pointer) error {
	_, _, e := unix.Syscall6(sysQuotactlFd, dir.Fd(), uintptr(command<<8|projectQuota), uintptr(id), uintptr(data), 0, 0)
	if e != 0 {
		return os.NewSyscallError("quotactl", e)
	}
	return nil
}

func ioctl[T any](f *os.File, request uint, data *T) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), uintptr(request), uintptr(unsafe.Pointer(data))); e != 0 {
		return e
	}
	return nil
}

// enforcesProjects says whether the file system of dir keeps limits of projects.
func enforcesProjects(dir *os.File) error {
	var state [512]byte // struct fs_quota_statv
	state[0] = 1        // version
	if err := quotactl(dir, getState, 0, unsafe.Pointer(&state)); err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(state[2:])&stateEnforced == 0 {
		return errors.New("project quota is not switched on")
	}
	return nil
}

func (projects) lockFile(p *place) string { return p.plain() }

// marker remembers a project id until its limits have been taken away.
func (s *Store) marker(id uint32) string {
	return filepath.Join(s.state, "disk", projectPrefix+strconv.FormatUint(uint64(id), 10))
}

const projectPrefix = "project-"

func (projects) create(_ context.Context, p *place) error {
	if err := p.makePlain(); err != nil {
		return err
	}
	dir, err := os.Open(p.plain())
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	unlock, err := p.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if p.Project, err = p.freeProject(dir); err != nil {
		return err
	}
	if err := p.write(); err != nil {
		return err
	}
	if err := setProject(dir, p.Project); err != nil {
		return err
	}
	if err := limitProject(dir, &p.record, 0, 0); err != nil {
		return err
	}
	return p.makeContent()
}

// freeProject finds an id that nobody on this file system uses, and marks it as ours. Others number upwards from 1.
func (p *place) freeProject(dir *os.File) (uint32, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.state + "\x00" + p.id))
	const turns = 1024
	for n := range uint32(turns) {
		id := (h.Sum32()+n)&0x3fffffff | 0x40000000
		var q dqblk
		err := quotactl(dir, getQuota, id, unsafe.Pointer(&q))
		used := q.hard != 0 || q.inodesHard != 0 || q.space != 0 || q.inodes != 0
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return 0, err
		}
		if used {
			continue
		}
		f, err := os.OpenFile(p.marker(id), os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return id, f.Close()
	}
	return 0, fmt.Errorf("no free project id in %d: %w", turns, unix.EBUSY)
}

func setProject(dir *os.File, id uint32) error {
	var x struct {
		flags, extent, extents, project, cow uint32
		_                                    [8]byte
	}
	if err := ioctl(dir, fsGetXattr, &x); err != nil {
		return os.NewSyscallError("FS_IOC_FSGETXATTR", err)
	}
	x.flags, x.project = x.flags|inheritProject, id
	return os.NewSyscallError("FS_IOC_FSSETXATTR", ioctl(dir, fsSetXattr, &x))
}

// limitProject sets what the record says, and some more; without a limit there, nothing is limited any more.
func limitProject(dir *os.File, r *record, bytes quota.Bytes, inodes quota.Count) error {
	q := dqblk{valid: limitsValid}
	if r.Bytes > 0 {
		q.hard = uint64((r.Bytes + slackBytes + bytes) / quotaBlock)
		if r.Inodes != nil {
			q.inodesHard = uint64(*r.Inodes + slackInodes + inodes + 2) // the top, and what counts
		}
	}
	q.soft, q.inodesSoft = q.hard, q.inodesHard
	return quotactl(dir, setQuota, r.Project, unsafe.Pointer(&q))
}

func (projects) open(_ context.Context, p *place) (volume, error) {
	return projectVolume{directory{p.plain()}}, nil
}

func (projects) idle(_ context.Context, p *place) (quota.Bytes, error) {
	u, err := projectVolume{directory{p.plain()}}.usage(&p.record)
	return max(u.Used, 0) + slackBytes, err
}

func (projects) remove(p *place) error {
	if err := os.RemoveAll(p.plain()); err != nil {
		return err
	}
	if p.Project == 0 {
		return nil
	}
	return p.dropProject(p.Project)
}

func (s *Store) dropProject(id uint32) error {
	dir, err := os.Open(s.state)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := limitProject(dir, &record{Project: id}, 0, 0); err != nil {
		return err
	}
	if err := os.Remove(s.marker(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// cleanProjects takes the limits of projects away that no unit has.
func (s *Store) cleanProjects(context.Context) ([]string, error) {
	units, err := s.units()
	if err != nil {
		return nil, err
	}
	ours := map[uint32]bool{}
	for _, u := range units {
		ours[u.Project] = true
	}
	markers, err := filepath.Glob(filepath.Join(s.state, "disk", projectPrefix+"*"))
	var done []string
	for _, m := range markers {
		id, perr := strconv.ParseUint(strings.TrimPrefix(filepath.Base(m), projectPrefix), 10, 32)
		if perr != nil || ours[uint32(id)] {
			continue
		}
		if err := s.dropProject(uint32(id)); err != nil {
			return done, err
		}
		done = append(done, fmt.Sprintf("project quota %d", id))
	}
	return done, err
}

type projectVolume struct{ directory }

func (v projectVolume) usage(r *record) (Usage, error) {
	dir, err := os.Open(v.path)
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = dir.Close() }()
	var q dqblk
	if err := quotactl(dir, getQuota, r.Project, unsafe.Pointer(&q)); err != nil {
		return Usage{}, err
	}
	return Usage{
		Used:   quota.Bytes(q.space) - slackBytes,
		Inodes: quota.Count(q.inodes) - slackInodes - 2,
	}, nil
}

func (v projectVolume) resize(_ context.Context, _ *place, next *record) error {
	u, err := v.usage(next)
	if err != nil {
		return err
	}
	if u.Used > next.Bytes || next.Inodes != nil && u.Inodes > *next.Inodes {
		return fmt.Errorf("%w: it holds more than that", ErrResize)
	}
	dir, err := os.Open(v.path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return limitProject(dir, next, 0, 0)
}

// reserve needs no ballast: the limit itself can move.
func (v projectVolume) reserve(r *record, free bool) error {
	dir, err := os.Open(v.path)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if free {
		return limitProject(dir, r, Ballast, BallastInodes)
	}
	return limitProject(dir, r, 0, 0)
}

// Package disk bounds what a feature may write: bytes and inodes, enforced by the kernel while the task runs.
//
// A Unit is one feature's quota: the directory that holds its uppers, work directories and sealed layers. A Store
// makes, opens and removes the units of a state directory; each lies in features/ID and is described by
// features/ID/disk.json. The mechanisms, in order of preference:
//
//	project  a directory with a project quota of the state directory's own ext4 or xfs
//	btrfs    a subvolume with a qgroup; it counts no inodes, so it is for features without a limit of them
//	ext4     a file system of its own in an image on a loop device (disk.img)
//	tmpfs    memory; for what need not outlive its process
//	watched  a plain directory that is looked at every second; nothing stops a writer, its owner must, also when the
//	         directory cannot be measured any more or the host's file system is full but for 5 %
//
// Whoever writes inside sees ENOSPC or EDQUOT at the limit (± 2 %). A unit is a little larger than its limit: what the
// layers' own directories need, and a ballast (Ballast, BallastInodes) that Reserve gives free for a seal, so that a full
// feature can still be sealed and rolled back: files that are removed and made again, or a limit that moves.
//
// Space on the host is never promised twice: an image is allocated whole before it is mounted, the limits of all units
// together stay below Limits.Total, and no unit is made or opened that would leave less than 5 % of the host's file system
// free. Units that nobody has open have given back what they never used, and give back the rest when another one needs it.
//
// Mounts are detached: they are in no mount table, Unit.Dir is a path below /proc/self/fd that only this process can use,
// and the kernel takes mount and loop device away when the last file descriptor is closed, however the process ends.
// Several processes may open one unit; they share its device. (Kernels before 6.15 want attached mounts: there it is
// disk/mounts/ID of the state directory, and what a killed process leaves is taken up by the next one, or by Clean.)
package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-dev/caisson/quota"
)

// Mechanism is how a limit is enforced.
type Mechanism string

// The mechanisms, in order of preference.
const (
	Project Mechanism = "project"
	Btrfs   Mechanism = "btrfs"
	Ext4    Mechanism = "ext4"
	Tmpfs   Mechanism = "tmpfs"
	Watched Mechanism = "watched"
)

// Mechanisms returns all of them, in order of preference.
func Mechanisms() []Mechanism { return []Mechanism{Project, Btrfs, Ext4, Tmpfs, Watched} }

// Own says that a unit has a file system of its own, which is made for it and is like all others of the mechanism.
func (m Mechanism) Own() bool { return m == Ext4 || m == Tmpfs }

// Limits is what a unit may hold, and all units of its state directory together.
type Limits struct {
	Bytes  quota.Bytes  `json:"bytes"`
	Inodes *quota.Count `json:"inodes,omitempty"` // nil: no limit
	Total  quota.Bytes  `json:"total"`            // of all units; 0: only the host's free space bounds them
}

// The least and the most that a unit can be.
const (
	MinBytes  = quota.MiB
	MaxBytes  = 16 * quota.TiB // ext4 without 64-bit block numbers
	MinInodes = quota.Count(16)
	MaxInodes = quota.Count(1 << 31)
)

// Ballast is what a unit holds in reserve for a seal and a rollback.
const (
	Ballast       = quota.MiB
	BallastInodes = quota.Count(32)
)

func (l Limits) validate() error {
	switch {
	case l.Bytes < MinBytes || l.Bytes > MaxBytes:
		return &quota.LimitError{Field: "disk", Value: l.Bytes.String(), Reason: fmt.Sprintf("is not between %s and %s", MinBytes, MaxBytes)}
	case l.Inodes != nil && (*l.Inodes < MinInodes || *l.Inodes > MaxInodes):
		return &quota.LimitError{Field: "inodes", Value: l.Inodes.String(), Reason: fmt.Sprintf("is not between %s and %s", MinInodes, MaxInodes)}
	case l.Total < 0 || l.Total > 0 && l.Total < l.Bytes:
		return &quota.LimitError{Field: "disk_total", Value: l.Total.String(), Reason: "is less than one feature's disk " + l.Bytes.String()}
	}
	return nil
}

// Support is what Probe found out about one mechanism.
type Support struct {
	Mechanism  Mechanism `json:"mechanism"`
	Bytes      bool      `json:"bytes"`      // the kernel enforces a limit of bytes
	Inodes     bool      `json:"inodes"`     // the kernel enforces a limit of inodes
	Persistent bool      `json:"persistent"` // a unit outlives its process
	Reason     string    `json:"reason,omitempty"`
	Remedy     string    `json:"remedy,omitempty"`
}

// Probe says which mechanisms this process can use for a state directory, which need not exist, in order of preference. It makes nothing
// that stays.
func Probe(ctx context.Context, stateDir string) []Support { return probe(ctx, stateDir) }

// Existing returns a state directory, or the nearest of its parents if it is not there yet: the directory that what will be in
// it can be asked about. The error is a *fs.PathError, also when that is no directory; the path is returned with it.
func Existing(stateDir string) (string, error) {
	at, err := filepath.Abs(stateDir)
	if err != nil {
		return stateDir, err
	}
	for {
		info, err := os.Stat(at)
		switch {
		case err == nil && !info.IsDir():
			err = &fs.PathError{Op: "open", Path: at, Err: syscall.ENOTDIR}
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			at = filepath.Dir(at)
			continue
		}
		return at, err
	}
}

// Choose returns the first mechanism that enforces everything asked. Persistent is for a feature that outlives its
// process. Weaker lets watched be chosen where nothing enforces; it is a word of the user's, never a fallback. The error is
// an *UnavailableError.
func Choose(all []Support, l Limits, persistent, weaker bool) (Mechanism, error) {
	if err := l.validate(); err != nil {
		return "", err
	}
	var reasons []string
	for _, s := range all {
		switch {
		case s.Mechanism == Watched:
		case !s.Bytes:
			reasons = append(reasons, fmt.Sprintf("%s: %s", s.Mechanism, s.Reason))
		case l.Inodes != nil && !s.Inodes:
			reasons = append(reasons, fmt.Sprintf("%s: counts no inodes", s.Mechanism))
		case persistent && !s.Persistent:
			reasons = append(reasons, fmt.Sprintf("%s: is gone with the process", s.Mechanism))
		default:
			return s.Mechanism, nil
		}
	}
	if weaker {
		return Watched, nil
	}
	return "", &UnavailableError{Reasons: reasons, Remedy: remedies(all)}
}

// remedies are what helps any of the mechanisms that enforce.
func remedies(all []Support) string {
	var ways []string
	for _, s := range all {
		if s.Mechanism != Watched && s.Remedy != "" && !slices.Contains(ways, s.Remedy) {
			ways = append(ways, s.Remedy)
		}
	}
	return strings.Join(ways, "; or ")
}

// Usage is what a unit holds now. Bytes and inodes that a unit needs for itself, and its ballast, are not counted.
type Usage struct {
	Used       quota.Bytes `json:"used"`
	Limit      quota.Bytes `json:"limit"`
	Inodes     quota.Count `json:"inodes"`
	InodeLimit quota.Count `json:"inode_limit,omitempty"` // 0: none
	HostFree   quota.Bytes `json:"host_free"`             // of the state directory's file system
	Unknown    string      `json:"unknown,omitempty"`     // why a watched unit cannot be measured; it counts as over its limit
}

// Full says that a writer that failed failed for this: less than 1 % of the bytes or of the inodes is left.
func (u Usage) Full() bool {
	return u.Unknown != "" || u.Used > u.Limit-u.Limit/100 || u.NoInodes()
}

// NoInodes says that it is the inodes that are at their end: a unit keeps that limit to a few.
func (u Usage) NoInodes() bool {
	return u.InodeLimit > 0 && u.Inodes > u.InodeLimit-max(2, u.InodeLimit/100)
}

// Percent is how full the unit is, by bytes or by inodes, whichever is more; rounded down, and over 100 where nothing stops
// a writer.
func (u Usage) Percent() int {
	p := percent(int64(u.Used), int64(u.Limit))
	if u.InodeLimit > 0 {
		p = max(p, percent(int64(u.Inodes), int64(u.InodeLimit)))
	}
	if u.Unknown != "" {
		p = max(p, 100)
	}
	return p
}

func percent(part, whole int64) int {
	if whole <= 0 {
		return 0
	}
	return int(float64(part) / float64(whole) * 100)
}

// Errors that a Store and a Unit return, with errors.Is. Everything else is the host's: fs.ErrNotExist, *os.PathError,
// *os.SyscallError, *quota.LimitError.
var (
	ErrUnavailable = errors.New("disk quota cannot be enforced") // every *UnavailableError
	ErrNoRoom      = errors.New("no room for the disk quota")    // every *RoomError
	ErrResize      = errors.New("the disk quota cannot be changed so")
	ErrDamaged     = errors.New("the disk unit is damaged")
)

// UnavailableError says why no mechanism will do.
type UnavailableError struct {
	Reasons []string // one for each mechanism
	Remedy  string
}

func (e *UnavailableError) Error() string {
	return ErrUnavailable.Error() + ": " + strings.Join(e.Reasons, "; ")
}

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// RoomError says that a unit would take what belongs to others.
type RoomError struct {
	Asked, Left quota.Bytes // Left may be negative
	Of          string      // "disk_total 10g", "file system of /var/lib/caisson"
	Remedy      string
}

func (e *RoomError) Error() string {
	return fmt.Sprintf("%v: %s asked, %s left of the %s", ErrNoRoom, e.Asked, max(e.Left, 0), e.Of)
}

// Is makes errors.Is(err, ErrNoRoom) true.
func (e *RoomError) Is(target error) bool { return target == ErrNoRoom }

// Room is how much of a state directory's disk is promised.
type Room struct {
	Promised quota.Bytes `json:"promised"`  // to units: the limits of open ones, the sizes of others
	HostFree quota.Bytes `json:"host_free"` // without the 5 % that stay free
	Units    int         `json:"units"`
	More     int         `json:"more"` // how many more units with the limits asked for would fit now
}

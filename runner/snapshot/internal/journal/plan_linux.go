package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Names of the journal in a feature's directory.
const (
	PlanFile = "promote.plan"
	DoneFile = "promote.done"
)

// Errors of Read.
var (
	ErrDamaged = errors.New("the journal is damaged")
	ErrVersion = errors.New("the journal is of another version")
)

// Version is what Plan.Version says.
const Version = 2

// Plan is what the journal holds.
type Plan struct {
	Version int     `json:"version"`
	Note    []byte  `json:"note,omitempty"` // the caller's
	Lock    string  `json:"lock"`           // the file that promotes to the workspace are serialised by
	Stage   string  `json:"stage"`          // a directory in the workspace's root; "" if nothing needs one
	Ops     []Op    `json:"ops"`
	Dirs    []DirOp `json:"dirs"` // sorted by path; the root ("") first

	// Bases is the directory of the workspace's base layers, and Generation the one that the promote makes; "" without.
	Bases      string `json:"bases,omitempty"`
	Generation int    `json:"generation,omitempty"`

	// Linked are objects below those of Ops that may get a link in the base layer, which changes their ctime.
	Linked []Touched `json:"linked,omitempty"`

	// Disputed are paths that others had changed, too: the user resolved the conflict, for this promote.
	Disputed [][]byte `json:"disputed,omitempty"`

	// The workspace, and what tells it from another one at its place.
	Workspace string    `json:"workspace"`
	Inode     uint64    `json:"inode"`
	Birth     time.Time `json:"birth"`
}

// Op is one rename, or an exchange of two names. The op's place in the list is its name in the stage.
type Op struct {
	Path []byte `json:"path"`
	New  uint64 `json:"new,omitempty"` // inode of what is staged; 0: nothing
	Old  Seen   `json:"old"`           // what is there; zero: nothing
}

// See describes an object.
func See(st *unix.Stat_t) Seen {
	return Seen{st.Ino, st.Size, st.Mode, [2]int64{st.Mtim.Sec, st.Mtim.Nsec}, [2]int64{st.Ctim.Sec, st.Ctim.Nsec}}
}

// Same reports whether an object was not changed but perhaps renamed, which gives it a new ctime.
func (s Seen) Same(now Seen) bool {
	s.Ctime = now.Ctime
	return s == now
}

// DirOp is a directory that stays and of which something is set.
type DirOp struct {
	Path     []byte  `json:"path"`
	Old      DirAttr `json:"old"`
	New      DirAttr `json:"new"`
	Mode     bool    `json:"mode,omitempty"`
	Xattrs   bool    `json:"xattrs,omitempty"`
	SetMtime bool    `json:"set_mtime,omitempty"` // to New; Old is put back always
}

// DirAttr is what can be set of a directory.
type DirAttr struct {
	Mode   uint32          `json:"mode"`
	Mtime  [2]int64        `json:"mtime"` // seconds, nanoseconds
	Xattrs []beneath.Xattr `json:"xattrs,omitempty"`
}

// Slot is the name in the stage of an op's object.
func Slot(i int) string { return strconv.Itoa(i) }

// Aside is where an op's old object goes on a filesystem that cannot exchange two names.
func Aside(i int) string { return strconv.Itoa(i) + ".old" }

// Step is called at every point at which a promote may be cut short. Tests replace it.
var Step = func(string) {}

// Rename is renameat2. Tests replace it by what filesystems without its flags answer.
var Rename = unix.Renameat2

// Exchange exchanges two names. NoFlags tells of its error that the filesystem cannot.
func Exchange(dir1 int, name1 string, dir2 int, name2 string) error {
	return move(dir1, name1, dir2, name2, unix.RENAME_EXCHANGE)
}

// RenameNew renames and never replaces: unix.EEXIST.
func RenameNew(fromDir int, from string, toDir int, to string) error {
	err := move(fromDir, from, toDir, to, unix.RENAME_NOREPLACE)
	if !NoFlags(err) {
		return err
	}
	var st unix.Stat_t
	if err := beneath.StatAt(toDir, to, &st); err == nil {
		return unix.EEXIST
	}
	return move(fromDir, from, toDir, to, 0)
}

// move renames. A directory's ".." changes with it, which needs leave to write in it: without privileges its mode is
// widened, and has to be put right afterwards.
func move(fromDir int, from string, toDir int, to string, flags uint) error {
	err := Rename(fromDir, from, toDir, to, flags)
	if !errors.Is(err, unix.EACCES) || os.Geteuid() == 0 {
		return err
	}
	if err := widen(fromDir, from); err != nil {
		return err
	}
	if flags == unix.RENAME_EXCHANGE {
		if err := widen(toDir, to); err != nil {
			return err
		}
	}
	return Rename(fromDir, from, toDir, to, flags)
}

func widen(dir int, name string) error {
	var st unix.Stat_t
	if err := beneath.StatAt(dir, name, &st); err != nil || !beneath.IsDir(&st) {
		return err
	}
	return beneath.ChmodDir(dir, name, st.Mode&0o7777|0o700)
}

// NoFlags reports the answer of a filesystem that does not know renameat2's flags.
func NoFlags(err error) bool { return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) }

// Write makes the journal durable in dir.
func (p *Plan) Write(dir string) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return WriteFile(dir, PlanFile, data)
}

// WriteFile writes a file in dir by rename, durably.
func WriteFile(dir, name string, data []byte) error {
	tmp := filepath.Join(dir, name+".tmp")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return SyncDir(dir)
}

// Commit turns the plan in dir into one that is done, durably.
func Commit(dir string) error {
	if err := os.Rename(filepath.Join(dir, PlanFile), filepath.Join(dir, DoneFile)); err != nil {
		return err
	}
	return SyncDir(dir)
}

// SyncDir makes a directory's names durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Read reads a journal. Errors are fs.ErrNotExist, ErrDamaged and ErrVersion.
func Read(path string) (*Plan, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var p Plan
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrDamaged, err)
	}
	if p.Version != Version {
		return nil, fmt.Errorf("%s: version %d: %w", path, p.Version, ErrVersion)
	}
	return &p, nil
}

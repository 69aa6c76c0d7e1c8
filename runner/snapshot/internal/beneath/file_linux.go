package beneath

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// StatAt describes a name in an open directory and follows no link.
func StatAt(dir int, name string, st *unix.Stat_t) error {
	return unix.Fstatat(dir, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

// IsFile reports a regular file.
func IsFile(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// IsDir reports a directory.
func IsDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsLink reports a symbolic link.
func IsLink(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFLNK }

// IsWhiteout reports overlayfs' usual mark of a deleted name. In the lowest layer it hides a name, too.
func IsWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

// Gone reports the errors of a name that is not there, or whose parent stopped being a directory.
func Gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Join appends a name to a path of which "" and "." are the root.
func Join(dir, name string) string {
	if dir == "" || dir == "." {
		return name
	}
	return dir + "/" + name
}

// Split returns a path's parent ("" is the root) and last component.
func Split(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// ReadNames appends the names in a directory to names, without "." and "..".
func ReadNames(fd int, buf []byte, names []string) ([]string, error) {
	for {
		n, err := Retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil {
			return names, err
		}
		if n == 0 {
			return names, nil
		}
		for b := buf[:n]; len(b) > 0; {
			// struct linux_dirent64: u64 ino, s64 off, u16 reclen, u8 type, name
			size := binary.NativeEndian.Uint16(b[16:])
			name := b[19:size]
			if i := slices.Index(name, 0); i >= 0 {
				name = name[:i]
			}
			if s := string(name); s != "." && s != ".." {
				names = append(names, s)
			}
			b = b[size:]
		}
	}
}

// ReadLink reads a symbolic link's target.
func ReadLink(dir int, name string) (string, error) {
	buf := make([]byte, PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// ReadFull reads from the beginning until b is full or the file ends.
func ReadFull(fd int, b []byte) (int, error) { return readAt(fd, b, 0) }

// SetMtime sets a file's modification time by its open descriptor and leaves the access time.
func SetMtime(fd int, t unix.Timespec) error {
	return SetMtimeAt(fd, "", t, unix.AT_EMPTY_PATH)
}

// ChmodDir sets a directory's mode, whatever it is; another type of file is an error.
func ChmodDir(dir int, name string, mode uint32) error {
	fd, err := OpenAt(dir, name, PathOnly|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Chmod(ProcFD(fd), mode)
}

// SetMtimeAt sets a modification time by name.
func SetMtimeAt(dir int, name string, t unix.Timespec, flags int) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, t}
	return unix.UtimesNanoAt(dir, name, ts, flags)
}

// TimeOf converts a kernel time.
func TimeOf(t unix.Timespec) time.Time { return time.Unix(t.Unix()) }

// Chown gives an open file to an owner. Without privileges a file of another owner cannot be made: it stays ours.
func Chown(fd int, uid, gid uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Uid == uid && st.Gid == gid {
		return err
	}
	err := unix.Fchown(fd, int(uid), int(gid))
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		return nil
	}
	return err
}

// Identity returns what tells a directory from another one at its place: its inode and time of birth, which is zero
// where the filesystem has none. Device numbers change between boots.
func Identity(fd int) (inode uint64, birth time.Time, err error) {
	var st unix.Statx_t
	err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st)
	if st.Mask&unix.STATX_BTIME != 0 {
		birth = time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).UTC()
	}
	return st.Ino, birth, err
}

// Stamp returns the earliest ctime that a file changed from now on can have, and that none changed before has. fd is
// of a file of ours, whose ctime changes.
//
// Kernels since 6.13 stamp files with the coarse clock, but with the fine one when the last stamp was looked at; every
// later stamp, on any filesystem, is then not before it. So a stamp provoked here divides earlier from later exactly.
// Older kernels know only the coarse clock, and what others change in the rest of this tick (1–10 ms) is not seen.
func Stamp(fd int) (time.Time, error) {
	var st unix.Stat_t
	var before, after unix.Timespec
	err := errors.Join(
		unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &before),
		unix.Fstat(fd, &st),
		unix.Fchmod(fd, st.Mode&0o7777),
		unix.Fstat(fd, &st),
		unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &after),
	)
	t := TimeOf(st.Ctim).UTC()
	if st.Ctim == before || st.Ctim == after {
		t = t.Add(1)
	}
	return t, err
}

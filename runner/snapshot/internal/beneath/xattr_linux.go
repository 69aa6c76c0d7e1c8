package beneath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ListXattrs returns the names of a file's extended attributes; none where the filesystem has none.
func ListXattrs(fd int, buf []byte) ([]string, error) {
	n, err := unix.Flistxattr(fd, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // XATTR_LIST_MAX
		n, err = unix.Flistxattr(fd, buf)
	}
	if errors.Is(err, unix.ENOTSUP) || n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00"), nil
}

// HasUserXattrs reports, in one call, whether a file may have attributes that IsUserXattr selects.
func HasUserXattrs(dir int, name string, buf []byte) bool {
	n, err := listAt(dir, name, buf)
	if errors.Is(err, unix.ENOTSUP) {
		return false
	}
	return err != nil || bytes.Contains(buf[:n], []byte("user."))
}

// noListAt is set once the kernel has turned out to be older than 6.13, which brought listxattrat.
var noListAt atomic.Bool

// listAt is listxattr of a name in an open directory, and follows no link.
func listAt(dir int, name string, buf []byte) (int, error) {
	if !noListAt.Load() {
		path, err := unix.BytePtrFromString(name)
		if err != nil {
			return 0, err
		}
		n, _, errno := unix.Syscall6(unix.SYS_LISTXATTRAT, uintptr(dir), uintptr(unsafe.Pointer(path)), unix.AT_SYMLINK_NOFOLLOW,
			uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)), 0)
		if errno == 0 {
			return int(n), nil
		}
		if errno != unix.ENOSYS && errno != unix.EPERM { // which some seccomp filters answer instead
			return 0, errno
		}
		noListAt.Store(true)
	}
	return unix.Llistxattr(ProcFD(dir)+"/"+name, buf)
}

// GetXattr reads one attribute. Those of the user can be read only where the mode allows reading, also by an open
// descriptor: a file of ours that could be opened only with another mode gets that once more, for a moment.
func GetXattr(fd int, name string) (string, error) {
	value, err := getXattr(fd, name)
	if !errors.Is(err, unix.EACCES) {
		return value, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if int(st.Uid) != os.Geteuid() || unix.Fchmod(fd, st.Mode&0o7777|0o400) != nil {
		return "", err
	}
	value, err = getXattr(fd, name)
	return value, errors.Join(err, unix.Fchmod(fd, st.Mode&0o7777))
}

func getXattr(fd int, name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Fgetxattr(fd, name, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, 64<<10) // XATTR_SIZE_MAX
		n, err = unix.Fgetxattr(fd, name, buf)
	}
	return string(buf[:max(n, 0)]), err
}

// IsUserXattr selects the attributes that belong to a change. Overlay marks are never the user's, whatever the mode:
// written into a workspace, they would steer the next overlay above it.
func IsUserXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// ReadXattrs returns the attributes that keep selects, sorted by name.
func ReadXattrs(fd int, keep func(string) bool) ([]Xattr, error) {
	names, err := ListXattrs(fd, make([]byte, 1024))
	if err != nil {
		return nil, err
	}
	var all []Xattr
	for _, name := range names {
		if !keep(name) {
			continue
		}
		value, err := GetXattr(fd, name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, Xattr{name, []byte(value)})
	}
	slices.SortFunc(all, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// SetXattrs makes the user's attributes of a file exactly these.
func SetXattrs(fd int, want []Xattr) error {
	have, err := ReadXattrs(fd, IsUserXattr)
	if err != nil {
		return err
	}
	for _, x := range have {
		if !slices.ContainsFunc(want, func(y Xattr) bool { return x.Name == y.Name }) {
			if err := unix.Fremovexattr(fd, x.Name); err != nil {
				return fmt.Errorf("remove %s: %w", x.Name, err)
			}
		}
	}
	for _, x := range want {
		if err := unix.Fsetxattr(fd, x.Name, x.Value, 0); err != nil {
			return fmt.Errorf("set %s: %w", x.Name, err)
		}
	}
	return nil
}

// PackXattrs makes one string of attributes, for comparison.
func PackXattrs(attrs []Xattr) string {
	var b []byte
	for _, x := range attrs {
		b = binary.AppendUvarint(b, uint64(len(x.Name)))
		b = append(b, x.Name...)
		b = binary.AppendUvarint(b, uint64(len(x.Value)))
		b = append(b, x.Value...)
	}
	return string(b)
}

// UnpackXattrs is the inverse of PackXattrs.
func UnpackXattrs(packed string) []Xattr {
	b := []byte(packed)
	next := func() []byte {
		n, size := binary.Uvarint(b)
		field := b[size : size+int(n)]
		b = b[size+int(n):]
		return field
	}
	var attrs []Xattr
	for len(b) > 0 {
		attrs = append(attrs, Xattr{Name: string(next()), Value: next()})
	}
	return attrs
}

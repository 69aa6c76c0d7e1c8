package quota

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reader reads control files and keeps the first error, so that a list of them reads like a table. A file that this
// kernel does not have is unknown.
type reader struct{ err error }

// int reads a file with one number.
func (r *reader) int(file string) int64 {
	if file == "" || r.err != nil {
		return unknown
	}
	n, err := readInt(file)
	return r.result(file, n, err)
}

// key reads the number beside key in a file of "key number" lines.
func (r *reader) key(file, key string) int64 {
	if file == "" || r.err != nil {
		return unknown
	}
	data, err := read(file)
	if err != nil {
		return r.result(file, 0, err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, key+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return r.result(file, n, err)
		}
	}
	return unknown
}

// result tells a file that this kernel does not have from a node that is gone.
func (r *reader) result(file string, n int64, err error) int64 {
	if err == nil {
		return n
	}
	if gone(err) {
		if _, derr := os.Stat(file[:strings.LastIndexByte(file, '/')]); derr == nil {
			return unknown
		}
		err = fs.ErrNotExist
	}
	r.err = fmt.Errorf("%s: %w", file, err)
	return unknown
}

// nanoseconds reads a file with a time in units of so many nanoseconds.
func (r *reader) nanoseconds(file string, unit time.Duration) time.Duration {
	n := r.int(file)
	if n == unknown {
		return unknown
	}
	return time.Duration(n) * unit
}

// cpuStat reads the time that version 2 counts in microseconds.
func (r *reader) cpuStat(file string) time.Duration {
	n := r.key(file, "usage_usec")
	if n == unknown {
		return unknown
	}
	return time.Duration(n) * time.Microsecond
}

func readInt(file string) (int64, error) {
	data, err := read(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// read reads a control file. Not os.ReadFile, which adds it to the runtime's poller: nine system calls instead of four.
func read(file string) ([]byte, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	for data := make([]byte, 0, 512); ; {
		if len(data) == cap(data) {
			data = slices.Grow(data, len(data))
		}
		n, err := unix.Read(fd, data[len(data):cap(data)])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: file, Err: err}
		}
		if n == 0 {
			return data, nil
		}
		data = data[:len(data)+n]
	}
}

// write writes one value to a control file.
func write(file, value string) error {
	fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return &os.PathError{Op: "write", Path: file, Err: err}
	}
	return nil
}

// childless says that a directory has no directories in it: the cgroup filesystem counts them as links.
func childless(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 2
}

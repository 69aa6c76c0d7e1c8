package measure

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Deleted adds up the regular files without a name that processes have open, each once, on a file system other than memory.
// What only a mapping, or a message that nobody has read, holds is not seen. An error means that a process does not let its
// files be seen; one that ended meanwhile has none.
func Deleted(pids []int) (Sum, error) {
	var sum Sum
	type object struct{ dev, ino uint64 }
	seen := map[object]bool{}
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd"
		f, err := os.Open(dir)
		var names []string
		if err == nil {
			names, err = f.Readdirnames(-1)
			_ = f.Close()
		}
		if err != nil && (ended(err) || dead(pid)) {
			continue
		}
		if err != nil {
			return sum, fmt.Errorf("the open files of process %d: %w", pid, err)
		}
		for _, name := range names {
			var st unix.Stat_t
			path := dir + "/" + name
			if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 0 || seen[object{st.Dev, st.Ino}] {
				continue
			}
			seen[object{st.Dev, st.Ino}] = true
			var where unix.Statfs_t
			if unix.Statfs(path, &where) == nil && where.Type != unix.TMPFS_MAGIC && where.Type != unix.HUGETLBFS_MAGIC {
				sum.add(&st)
			}
		}
	}
	return sum, nil
}

func ended(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

// dead reports a zombie, which has no open files and shows that to nobody.
func dead(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ended(err)
	}
	_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return len(rest) > 0 && (rest[0] == 'Z' || rest[0] == 'X')
}

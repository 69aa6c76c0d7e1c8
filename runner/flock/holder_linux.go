package flock

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// abandoned reports whether no living process holds a lock on path: /proc/locks names who took a lock, also when only a
// child's copy of the descriptor still holds it. A dead process of another pid namespace is not named at all.
func abandoned(path string) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
	want := fmt.Appendf(nil, "%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range bytes.Lines(locks) {
		f := bytes.Fields(line)
		if len(f) < 6 || string(f[1]) != "FLOCK" || !bytes.Equal(f[5], want) {
			continue // who waits has an arrow in the second place
		}
		pid, err := strconv.Atoi(string(f[4]))
		if err != nil || pid <= 0 || alive(pid) {
			return false
		}
	}
	return true
}

// alive reports whether a process may still do something: not when it is gone, nor as a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !os.IsNotExist(err)
	}
	// The name in parentheses may hold anything; the state follows it.
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	return len(rest) < 2 || (rest[1] != 'Z' && rest[1] != 'X')
}

package flock

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Table is which processes held which locks at one moment: /proc/locks names who took a lock, also when only a child's
// copy of the descriptor still holds it. A dead process of another pid namespace is not named at all.
type Table map[string][]int // device and inode: pids

// Holders reads the table. Where it cannot be read it is nil.
func Holders() Table {
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil
	}
	t := Table{}
	// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
	for line := range bytes.Lines(locks) {
		f := bytes.Fields(line)
		if len(f) < 6 || string(f[1]) != "FLOCK" {
			continue // who waits has an arrow in the second place
		}
		pid, err := strconv.Atoi(string(f[4]))
		if err != nil {
			pid = 0 // of a process that we cannot see
		}
		t[string(f[5])] = append(t[string(f[5])], pid)
	}
	return t
}

// Alive reports whether a living process held a lock on path.
func (t Table) Alive(path string) bool { return t.living(path, 0) }

// Others reports whether a living process other than this one held a lock on path.
func (t Table) Others(path string) bool { return t.living(path, os.Getpid()) }

func (t Table) living(path string, except int) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return false
	}
	for _, pid := range t[fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)] {
		if pid <= 0 || pid != except && alive(pid) {
			return true
		}
	}
	return false
}

// abandoned reports whether no living process holds a lock on path, which exists.
func abandoned(path string) bool {
	if _, err := os.Lstat(path); err != nil {
		return false
	}
	t := Holders()
	return t != nil && !t.Alive(path)
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

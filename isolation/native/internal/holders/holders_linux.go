// Package holders reads out of /proc who uses which mount. It asks for mounts by their id, which is the same whoever
// looks; paths are for people, except where the kernel gives nothing else (maps).
package holders

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Use is one way in which a process keeps a mount busy.
type Use struct {
	PID     int
	Command string
	What    string // the Uses below
	Mount   uint64 // its id; 0 with Unknown
	Path    string // in the process's mount namespace
}

// What can keep a mount busy.
const (
	Cwd     = "cwd"
	Root    = "root"
	FD      = "fd"
	Map     = "map"
	Unknown = "unknown" // the kernel does not let us look
)

// Scan returns what a process uses of the mounts, by all of its threads, each file once. One that is gone uses nothing.
func Scan(pid int, t *Table, want map[uint64]bool) ([]Use, error) {
	s := scan{pid: pid, dir: "/proc/" + strconv.Itoa(pid), table: t, want: want, seen: map[Use]bool{}}
	tids, err := threads(s.dir)
	if err == nil {
		err = s.threads(tids)
	}
	if gone(err) {
		return nil, nil
	}
	if errors.Is(err, os.ErrPermission) {
		s.add(Unknown, 0, "")
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	if len(s.uses) > 0 {
		name := command(s.dir)
		for i := range s.uses {
			s.uses[i].Command = name
		}
	}
	return s.uses, nil
}

// scan is one process being looked into.
type scan struct {
	pid   int
	dir   string // /proc/PID
	table *Table
	want  map[uint64]bool
	seen  map[Use]bool
	uses  []Use
}

func (s *scan) add(what string, mount uint64, path string) {
	u := Use{PID: s.pid, What: what, Mount: mount, Path: path}
	if !s.seen[u] {
		s.seen[u] = true
		s.uses = append(s.uses, u)
	}
}

// threads looks at every thread: each may have a working directory and descriptors of its own. The memory is
// everybody's, but that of a first thread that has ended is gone from under its name.
func (s *scan) threads(tids []int) error {
	mapped := false
	for _, tid := range tids {
		dir := s.dir + "/task/" + strconv.Itoa(tid)
		err := s.thread(dir, tid, tids[0])
		if err == nil && !mapped {
			mapped, err = s.maps(dir + "/maps")
		}
		if err != nil && !gone(err) {
			return err
		}
	}
	return nil
}

func (s *scan) thread(dir string, tid, first int) error {
	if err := s.link(unix.AT_FDCWD, dir+"/cwd", Cwd); err != nil {
		return err
	}
	if err := s.link(unix.AT_FDCWD, dir+"/root", Root); err != nil {
		return err
	}
	if tid != first && sameFiles(first, tid) {
		return nil
	}
	return s.descriptors(dir + "/fd")
}

// link asks what mount a link of /proc leads to. One that leads nowhere is an ended thread's.
func (s *scan) link(at int, name, what string) error {
	var st unix.Statx_t
	err := unix.Statx(at, name, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID, &st)
	if err != nil || !s.want[st.Mnt_id] {
		if gone(err) {
			return nil
		}
		return err
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(at, name, buf)
	if err != nil {
		n = 0 // closed since, or a path too long to be told: a use all the same
	}
	s.add(what, st.Mnt_id, string(buf[:n]))
	return nil
}

func (s *scan) descriptors(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := s.link(int(f.Fd()), name, FD); err != nil {
			return err
		}
	}
	return nil
}

// maps reads a memory map; found is whether there was one.
func (s *scan) maps(file string) (found bool, err error) {
	regions, err := readMaps(file)
	if err != nil {
		return false, err
	}
	for _, r := range regions {
		if m := s.table.At(r.path); m != 0 && s.want[m] {
			s.add(Map, m, r.path)
		}
	}
	return len(regions) > 0, nil
}

// Shared returns the files of the mounts that a process has mapped shared, so that a store is seen by nobody but the
// memory. What is only read is not told apart: mprotect(2) would.
func Shared(pid int, t *Table, want map[uint64]bool) ([]string, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	tids, err := threads(dir)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	var out []string
	for _, tid := range tids {
		regions, err := readMaps(dir + "/task/" + strconv.Itoa(tid) + "/maps")
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		for _, r := range regions {
			if m := t.At(r.path); m != 0 && want[m] && r.shared {
				out = append(out, r.path)
				if plain := strings.ReplaceAll(r.path, `\012`, "\n"); plain != r.path { // the kernel writes both alike
					out = append(out, plain)
				}
			}
		}
		if len(regions) > 0 {
			break
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// region is a mapped file.
type region struct {
	shared bool
	path   string
}

// readMaps reads a maps file: "start-end perms offset dev inode   path".
func readMaps(file string) ([]region, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []region
	for line := range strings.Lines(string(data)) {
		i := strings.IndexByte(line, '/')
		f := strings.Fields(line[:max(i, 0)])
		if i < 0 || len(f) != 5 || len(f[1]) != 4 { // anonymous, or the kernel's own
			continue
		}
		out = append(out, region{shared: f[1][3] == 's', path: strings.TrimSuffix(line[i:], "\n")})
	}
	return out, nil
}

// threads lists the threads of a process, the first one first.
func threads(dir string) ([]int, error) {
	f, err := os.Open(dir + "/task")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	tids := numbers(names)
	slices.Sort(tids)
	first, err := strconv.Atoi(dir[strings.LastIndexByte(dir, '/')+1:])
	if i := slices.Index(tids, first); err == nil && i > 0 {
		tids[0], tids[i] = tids[i], tids[0]
	}
	return tids, nil
}

func numbers(names []string) []int {
	var out []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// sameFiles says whether two threads share their descriptors; a kernel that does not tell says no.
func sameFiles(a, b int) bool {
	const kcmpFiles = 2
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && r == 0
}

// gone says whether an error of /proc means that the process, or the thread, has ended.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH)
}

func command(dir string) string {
	data, err := os.ReadFile(dir + "/comm")
	if err != nil {
		return "" // ended since
	}
	return strings.TrimSuffix(string(data), "\n")
}

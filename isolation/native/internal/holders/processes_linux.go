package holders

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Namespace lists the processes of init's pid namespace but init itself, sorted, by looking at every process of the
// host: for where no cgroup lists them. One that may not be looked at is taken for one of them when its parents lead to
// init or to us through none that is known not to be.
func Namespace(init int) ([]int, error) {
	ns, err := os.Readlink("/proc/" + strconv.Itoa(init) + "/ns/pid")
	if err != nil {
		return nil, fmt.Errorf("pid namespace of process %d: %w", init, err)
	}
	names, err := processes()
	if err != nil {
		return nil, err
	}
	w := walk{init: init, ns: ns, inside: map[int]bool{}}
	var out []int
	for _, pid := range names {
		if pid != init && w.member(pid) {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out, nil
}

func processes() ([]int, error) {
	f, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	return numbers(names), err
}

// walk remembers who is inside.
type walk struct {
	init   int
	ns     string
	inside map[int]bool
}

func (w *walk) member(pid int) bool {
	if pid == w.init {
		return true
	}
	in, known := w.inside[pid]
	if known {
		return in
	}
	w.inside[pid] = false // should parents lead in a circle, because a pid was used again meanwhile
	dir := "/proc/" + strconv.Itoa(pid)
	ns, err := os.Readlink(dir + "/ns/pid")
	switch {
	case err == nil:
		in = ns == w.ns
	case errors.Is(err, os.ErrPermission):
		parent, nested := parent(dir)
		in = nested && (parent == os.Getpid() || parent > 1 && w.member(parent))
	}
	w.inside[pid] = in
	return in
}

// parent reads what everybody may know of a process: its parent, and whether it is in a pid namespace below ours.
func parent(dir string) (pid int, nested bool) {
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		switch f := strings.Fields(value); key {
		case "PPid":
			if n, err := strconv.Atoi(strings.Join(f, "")); err == nil {
				pid = n
			}
		case "NSpid":
			nested = len(f) > 1
		}
	}
	return pid, nested
}

// Running returns those processes of which a thread could run: not stopped, not ended, and not waiting in vfork(2)
// for a child that is stopped.
func Running(pids []int) []int {
	states := map[int]process{}
	for _, pid := range pids {
		states[pid] = look(pid)
	}
	waits := map[int]bool{}
	for _, p := range states {
		if p.still {
			waits[p.parent] = true
		}
	}
	var out []int
	for _, pid := range pids {
		if p := states[pid]; !p.still && !(p.waiting && waits[pid]) {
			out = append(out, pid)
		}
	}
	return out
}

// process is what Running asks of one.
type process struct {
	parent  int
	still   bool // every thread is stopped or gone
	waiting bool // every thread is stopped, gone, or in an uninterruptible wait
}

func look(pid int) process {
	dir := "/proc/" + strconv.Itoa(pid)
	tids, err := threads(dir)
	if err != nil {
		return process{still: true} // gone
	}
	p := process{still: true, waiting: true}
	p.parent, _ = parent(dir)
	for _, tid := range tids {
		stat, err := os.ReadFile(dir + "/task/" + strconv.Itoa(tid) + "/stat")
		i := strings.LastIndexByte(string(stat), ')') // the name before may hold anything
		if err != nil || i < 0 || i+2 >= len(stat) {
			continue
		}
		switch stat[i+2] {
		case 'T', 't', 'Z', 'X':
		case 'D':
			p.still = false
		default:
			p.still, p.waiting = false, false
		}
	}
	return p
}

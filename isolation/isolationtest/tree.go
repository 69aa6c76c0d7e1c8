//go:build linux

package isolationtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var treeTests = []test{
	{"freeze", (*suite).testFreeze, nil},
	{"freeze and close", (*suite).testFreezeClose, nil},
	{"kill the tree", (*suite).testKillTree, nil},
	{"orphans are reaped", (*suite).testOrphans, nil},
	{"dies with the supervisor", (*suite).testSupervisorDies, nil},
	{"out of memory", (*suite).testOutOfMemory, (*suite).cgroups},
}

// testFreeze: a frozen tree makes no progress, and goes on where it was.
func (s *suite) testFreeze(t *testing.T) {
	b := s.start(t)
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	p := b.process(t, "tick")
	p.Stdout = w
	x, err := b.Exec(t.Context(), p)
	w.Close()
	must(t, err)
	lines := bufio.NewReader(r)
	next := func() int {
		line, err := lines.ReadString('\n')
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(line))
		must(t, err)
		return n
	}
	next()
	for range 3 {
		must(t, b.Freeze(t.Context()))
		must(t, b.Freeze(t.Context()))          // again is no error
		drain(t, r, lines, 50*time.Millisecond) // what was written before
		if n := drain(t, r, lines, 150*time.Millisecond); n > 0 {
			t.Fatalf("%d lines came out of a frozen process", n)
		}
		must(t, r.SetReadDeadline(time.Now().Add(patience)))
		must(t, b.Thaw(t.Context()))
		must(t, b.Thaw(t.Context()))
		next()
	}
	must(t, x.Signal(syscall.SIGKILL))
	wait(t, x)
}

// drain reads lines for a time and returns how many came.
func drain(t *testing.T, r *os.File, lines *bufio.Reader, d time.Duration) int {
	t.Helper()
	must(t, r.SetReadDeadline(time.Now().Add(d)))
	for n := 0; ; n++ {
		if _, err := lines.ReadString('\n'); errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// testFreezeClose: a frozen tree can be closed, though a task frozen by cgroup v1 ignores SIGKILL.
func (s *suite) testFreezeClose(t *testing.T) {
	b := s.start(t)
	x, _ := b.ready(t, b.process(t, "tree", "3"))
	must(t, b.Freeze(t.Context()))
	start := time.Now()
	must(t, b.Close(t.Context()))
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	wait(t, x)
}

// testKillTree: processes that ignore signals, have left the session and hold the pipe end with the sandbox.
func (s *suite) testKillTree(t *testing.T) {
	b := s.start(t)
	_, out := b.ready(t, b.process(t, "tree", "4", "stay"))
	pids := namespacePIDs(t, b.PID())
	if len(pids) < 6 {
		t.Fatalf("only %v live", pids)
	}
	must(t, b.Close(t.Context()))
	select {
	case <-out.data: // nobody holds the pipe
	case <-time.After(patience):
		t.Error("somebody holds the pipe")
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
}

// testOrphans: the parents leave, the rest belongs to PID 1, and no zombie stays.
func (s *suite) testOrphans(t *testing.T) {
	b := s.start(t)
	x, _ := b.ready(t, b.process(t, "tree", "5"))
	if st := wait(t, x); st.Code != 0 {
		t.Errorf("%+v", st)
	}
	waitFor(t, "zombies to be reaped", func() error {
		for _, pid := range namespacePIDs(t, b.PID()) {
			if state(pid) == "Z" {
				return fmt.Errorf("process %d is a zombie", pid)
			}
		}
		return nil
	})
	if got := b.help(t, "echo", "PID 1 lives"); got != "PID 1 lives\n" {
		t.Error(got)
	}
}

// dieVariable makes a run of this test binary the supervisor that dies.
const dieVariable = "CAISSON_ISOLATIONTEST_DIE"

// testSupervisorDies kills a supervisor with live sandboxes and expects every process in them to end.
func (s *suite) testSupervisorDies(t *testing.T) {
	root, _, _ := strings.Cut(t.Name(), "/")
	c := exec.Command("/proc/self/exe", "-test.run=^"+root+"$")
	c.Env = append(os.Environ(), dieVariable+"="+s.prefix+"die")
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	t.Cleanup(func() { s.afterDeath(t) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = c.Wait()
		t.Fatalf("the supervisor said %q: %v: %s", line, err, stderr.String())
	}
	var pids []int
	for f := range strings.FieldsSeq(line) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatalf("the supervisor said %q", line)
		}
		if alive(pid) { // a tree's own parents may have ended by now
			pids = append(pids, pid)
		}
	}
	if len(pids) < 6 {
		t.Errorf("only %d processes are alive to begin with", len(pids))
	}
	must(t, c.Process.Kill())
	_ = c.Wait() // killed
	waitFor(t, "all processes to end", func() error {
		for _, pid := range pids {
			if alive(pid) {
				return fmt.Errorf("process %d outlives its supervisor", pid)
			}
		}
		return nil
	})
}

// afterDeath removes what the dead supervisor's recovery would.
func (s *suite) afterDeath(t *testing.T) {
	dirs, err := os.ReadDir(os.TempDir())
	must(t, err)
	for _, d := range dirs {
		if strings.HasPrefix(d.Name(), s.prefix+"die") {
			must(t, removeAll(os.TempDir()+"/"+d.Name()))
		}
	}
	if s.o.Cgroups == nil {
		return
	}
	ids, err := s.o.Cgroups.List()
	must(t, err)
	for _, id := range ids {
		if strings.HasPrefix(id, s.prefix+"die") {
			g, err := s.o.Cgroups.Load(id)
			must(t, err)
			must(t, g.Remove(context.Background()))
		}
	}
}

// dieAsSupervisor is the other side of testSupervisorDies. It reports whether this process is that one.
func dieAsSupervisor(t *testing.T, s *suite) bool {
	prefix, ok := os.LookupEnv(dieVariable)
	if !ok {
		return false
	}
	s.prefix = prefix
	s.engine = s.newEngine(t)
	var pids []string
	for _, args := range [][]string{{"pause"}, {"tree", "4", "stay"}, {"tree", "3"}} {
		b := s.start(t)
		b.ready(t, b.process(t, args...))
		for _, pid := range namespacePIDs(t, b.PID()) {
			pids = append(pids, strconv.Itoa(pid))
		}
	}
	fmt.Println(strings.Join(pids, " "))
	_ = unix.Pause() // until SIGKILL
	return true
}

// testOutOfMemory: the killer takes the step and neither PID 1 nor the supervisor, also when execs come in between.
func (s *suite) testOutOfMemory(t *testing.T) {
	b := s.start(t)
	for range 3 {
		p := b.process(t, "hog")
		small := limits
		small.Memory = 64 << 20
		leaf, err := b.group.Leaf(fmt.Sprintf("hog-%d", b.steps.Add(1)), &small)
		must(t, err)
		p.Cgroup = leaf
		ctx, cancel := context.WithCancel(t.Context())
		oom, err := leaf.WatchOOM(ctx)
		must(t, err)
		x, err := b.Exec(t.Context(), p)
		must(t, err)
		if st := wait(t, x); st.Signal != syscall.SIGKILL {
			t.Errorf("the hog ended with %+v", st)
		}
		select {
		case <-oom:
		case <-time.After(patience):
			t.Error("no word of the OOM killer")
		}
		cancel()
		if u, err := leaf.Usage(); err != nil || u.OOMKills < 1 {
			t.Errorf("usage %+v, %v", u, err)
		}
		if got := b.help(t, "echo", "alive"); got != "alive\n" {
			t.Error(got)
		}
	}
}

// namespacePIDs lists the processes of a sandbox, as host ids.
func namespacePIDs(t *testing.T, init int) []int {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	must(t, err)
	entries, err := os.ReadDir("/proc")
	must(t, err)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if link, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && link == ns {
			pids = append(pids, pid)
		} else if err != nil && state(pid) == "Z" && parent(pid) == init {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive says whether a process exists and is not a zombie that only waits for its parent.
func alive(pid int) bool {
	st := state(pid)
	return st != "" && st != "Z" && st != "X"
}

// state is the letter in /proc/PID/stat, empty without such a process.
func state(pid int) string { return statField(pid, 0) }

func parent(pid int) int {
	n, err := strconv.Atoi(statField(pid, 1))
	if err != nil {
		return -1
	}
	return n
}

func statField(pid, i int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(f) <= i {
		return ""
	}
	return f[i]
}

// waitFor repeats a check until it succeeds.
func waitFor(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond) // /proc announces nothing
	}
}

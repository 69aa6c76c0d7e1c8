package native

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
)

// TestExecIntoMemoryExhaustion executes a thousand times into a feature that runs out of memory in a loop. The OOM
// killer must never choose the supervisor, although its children share its memory until they execute.
func TestExecIntoMemoryExhaustion(t *testing.T) {
	testenv.Need(t, "root", needRoot())
	s := withCgroup(t, testSpec(t))
	b := startBox(t, testEngine(t), s)
	eater, err := s.Cgroup.Leaf("step-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	victims, err := s.Cgroup.Leaf("step-2", nil)
	if err != nil {
		t.Fatal(err)
	}
	// tail keeps the last line, and /dev/zero has no end of line.
	hog, err := b.Exec(t.Context(), &isolation.Process{
		Args: []string{"sh", "-c", "while :; do tail /dev/zero; done"}, Env: []string{"PATH=/usr/bin:/bin"},
		Cwd: "/workspace", UID: 1000, GID: 1000, Cgroup: eater,
	})
	if err != nil {
		t.Fatal(err)
	}
	kills := func() uint64 {
		u, err := eater.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return uint64(u.OOMKills)
	}
	started := 0
	deadline := time.Now().Add(3 * time.Minute)
	// On a slow machine memory may not have run out once while all of them ran.
	for i := 0; (i < manyExecs() || kills() == 0) && time.Now().Before(deadline); i++ {
		p := trueProcess()
		p.Cgroup = victims
		x, err := b.Exec(t.Context(), p)
		if err != nil {
			continue // no memory for execve: the sandbox's own problem
		}
		started++
		if _, err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := kills(); started == 0 || n == 0 {
		t.Errorf("%d commands ran, %d were killed for memory: nothing was tested", started, n)
	}
	_ = hog.Signal(9) // may have been the OOM killer's
}

func manyExecs() int {
	if testing.Short() {
		return 100
	}
	return 1000
}

// TestMemoryCannotBeRead has a process inside try to open the memory of every process that it sees, while a thousand
// commands enter. Only its own, and those of its own making, may open.
func TestMemoryCannotBeRead(t *testing.T) {
	needUserns(t)
	b := startBox(t, testEngine(t), testSpec(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	spy, err := b.Exec(t.Context(), &isolation.Process{
		Args: []string{"sh", "-c", `while :; do for p in /proc/[0-9]*; do
			[ $p = /proc/$$ ] && continue
			c=$(cat $p/comm 2>/dev/null); [ "$c" = true ] && continue
			( exec 3<$p/mem ) 2>/dev/null && c2=$(cat $p/comm 2>/dev/null) && [ "$c2" != true ] && [ "$c2" != sh ] && [ -n "$c2" ] && echo "opened $p $c $c2"
		done; done`},
		Env: []string{"PATH=/usr/bin:/bin"}, Cwd: "/workspace", UID: 1000, GID: 1000, Stdout: w, Stderr: w,
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			said.Write(buf[:n])
			if err != nil {
				return
			}
		}
	})
	for range manyExecs() {
		x, err := b.Exec(t.Context(), trueProcess())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := spy.Signal(9); err != nil {
		t.Error(err)
	}
	if _, err := spy.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	r.Close()
	if said.Len() > 0 {
		t.Errorf("a process inside opened memory that is not its own:\n%s", said.String())
	}
}

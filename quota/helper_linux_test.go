package quota

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Helper processes are this test binary again, so that the tests need nothing of the system.
const (
	helperVariable = "QUOTA_TEST_HELPER" // which helper, and its arguments
	tasksVariable  = "QUOTA_TEST_TASKS"  // how many "tasks" files are open, from fd 3 on
)

var helpers = map[string]func(args []string) int{
	// sleep says that it is there, and blocks until its stdin ends.
	"sleep": func([]string) int {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	},
	// hog touches so many MiB.
	"hog": func(args []string) int {
		n, _ := strconv.Atoi(args[0])
		var keep [][]byte
		for range n {
			b := bytes.Repeat([]byte{1}, 1<<20)
			keep = append(keep, b)
		}
		runtime.KeepAlive(keep)
		return 0
	},
	// shell runs another helper, does not care how that ends, and returns 0.
	"shell": func(args []string) int {
		c := helper(context.Background(), args...)
		_ = c.Run()
		return 0
	},
	// forks starts so many sleeping children and returns 0, whatever happens.
	"forks": func(args []string) int {
		n, _ := strconv.Atoi(args[0])
		for range n {
			if err := helper(context.Background(), "sleep").Start(); err != nil {
				fmt.Println("refused:", err)
			}
		}
		return 0
	},
	// bomb forks copies of itself for ever.
	"bomb": func([]string) int {
		for {
			_ = helper(context.Background(), "bomb").Start()
		}
	},
	"spin": func(args []string) int {
		d, _ := time.ParseDuration(args[0])
		for used := time.Duration(0); used < d; { // of CPU: on a busy machine time passes without us
			var u syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				return 1
			}
			used = time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		return 0
	},
	// probe prints what Probe says to an unprivileged user.
	"probe": func(args []string) int {
		uid, _ := strconv.Atoi(args[0])
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
			fmt.Println("setuid:", err)
			return 1
		}
		return probeHelper()
	},
}

func TestMain(m *testing.M) {
	line := os.Getenv(helperVariable)
	if line == "" {
		os.Exit(m.Run())
	}
	if n, _ := strconv.Atoi(os.Getenv(tasksVariable)); n > 0 {
		enter(n)
	}
	args := strings.Fields(line)
	os.Exit(helpers[args[0]](args[1:]))
}

// enter does what the sandbox's child does: it writes 0 into its "tasks" files. Only the calling thread moves, so it
// executes itself again, which ends all others.
func enter(n int) {
	runtime.LockOSThread()
	for fd := 3; fd < 3+n; fd++ {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			panic(err)
		}
		unix.CloseOnExec(fd)
	}
	panic(unix.Exec("/proc/self/exe", os.Args, []string{helperVariable + "=" + os.Getenv(helperVariable)}))
}

// helper is a command that runs one of helpers, and is killed when ctx ends.
func helper(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe")
	c.WaitDelay = time.Second
	c.Env = []string{helperVariable + "=" + strings.Join(args, " ")}
	return c
}

// inLeaf makes a helper start in a leaf.
func inLeaf(t testing.TB, leaf *Leaf, args ...string) *exec.Cmd {
	t.Helper()
	c := helper(bounded(t), args...)
	e, err := leaf.Entry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if e.V2 != nil {
		c.SysProcAttr = childIn(e)
	}
	c.ExtraFiles = e.Tasks
	c.Env = append(c.Env, tasksVariable+"="+strconv.Itoa(len(e.Tasks)))
	return c
}

// sleeper starts a helper that stands in the leaf until it is killed.
func sleeper(t testing.TB, leaf *Leaf) *exec.Cmd {
	t.Helper()
	c := inLeaf(t, leaf, "sleep")
	if _, err := c.StdinPipe(); err != nil { // stays open
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("helper says %q, %v", line, err)
	}
	return c
}

// childIn puts a child into a leaf of version 2.
func childIn(e *Entry) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(e.V2.Fd())}
}

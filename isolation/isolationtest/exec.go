//go:build linux

package isolationtest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/isolationtest/hostile"
)

var execTests = []test{
	{"exit codes", (*suite).testExitCodes, nil},
	{"signals end it", (*suite).testEndSignals, nil},
	{"signal", (*suite).testSignal, nil},
	{"errors of execve", (*suite).testExecErrors, nil},
	{"bad working directory", (*suite).testBadCwd, nil},
	{"path search", (*suite).testPathSearch, nil},
	{"streams", (*suite).testStreams, nil},
	{"no streams", (*suite).testNoStreams, nil},
	{"environment and arguments", (*suite).testEnvironment, nil},
	{"identity", (*suite).testIdentity, nil},
	{"signals start as usual", (*suite).testSignalState, nil},
	{"limits", (*suite).testRlimits, nil},
	{"descriptors", (*suite).testDescriptors, nil},
	{"cgroup", (*suite).testCgroup, (*suite).cgroups},
	{"usage", (*suite).testUsage, nil},
}

func (s *suite) testExitCodes(t *testing.T) {
	b := s.start(t)
	for _, code := range []int{0, 1, 2, 126, 127, 255} {
		if r := b.run(t, b.process(t, "exit", strconv.Itoa(code))); r.Code != code || r.Signal != 0 {
			t.Errorf("exit %d: %+v", code, r)
		}
	}
}

func (s *suite) testEndSignals(t *testing.T) {
	b := s.start(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGHUP} {
		if r := b.run(t, b.process(t, "raise", strconv.Itoa(int(sig)))); r.Signal != sig {
			t.Errorf("%v: %+v", sig, r)
		}
	}
}

func (s *suite) testSignal(t *testing.T) {
	b := s.start(t)
	x, _ := b.ready(t, b.process(t, "pause"))
	must(t, x.Signal(syscall.SIGTERM))
	if st := wait(t, x); st.Signal != syscall.SIGTERM {
		t.Errorf("%+v", st)
	}
	if err := x.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the end: %v", err)
	}
	if st := wait(t, x); st.Signal != syscall.SIGTERM {
		t.Errorf("the second Wait answers %+v", st)
	}
}

func (s *suite) testExecErrors(t *testing.T) {
	b := s.start(t)
	for name, mode := range map[string]os.FileMode{"plain": 0o644, "script": 0o755, "garbage": 0o755} {
		content := map[string]string{"plain": "x", "script": "#!/no/such/interpreter\n", "garbage": "\x7fELF nonsense"}[name]
		must(t, os.WriteFile(b.workspace+"/"+name, []byte(content), mode))
		must(t, os.Chmod(b.workspace+"/"+name, mode))
		must(t, os.Chown(b.workspace+"/"+name, int(b.ids.Owner), int(b.ids.OwnerGroup)))
	}
	for _, tt := range []struct {
		path string
		want syscall.Errno
	}{
		{"/no/such/program", syscall.ENOENT}, {"no-such-program", syscall.ENOENT}, {"/workspace/plain", syscall.EACCES},
		{"/workspace", syscall.EACCES}, {"/workspace/script", syscall.ENOENT}, {"/workspace/garbage", syscall.ENOEXEC},
		{"/workspace/plain/x", syscall.ENOTDIR},
	} {
		p := b.process(t)
		p.Args = []string{tt.path}
		_, err := b.Exec(t.Context(), p)
		var e *isolation.ExecError
		if !errors.As(err, &e) || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want an ExecError with %v", tt.path, err, tt.want)
		}
	}
	if got := b.help(t, "echo", "still alive"); got != "still alive\n" {
		t.Errorf("after the errors: %q", got)
	}
}

func (s *suite) testBadCwd(t *testing.T) {
	b := s.start(t)
	for _, cwd := range []string{"/no/such/directory", "/etc/passwd", "relative", ""} {
		p := b.process(t, "exit", "0")
		p.Cwd = cwd
		if x, err := b.Exec(t.Context(), p); err == nil {
			t.Errorf("cwd %q: started (%+v)", cwd, wait(t, x))
		}
	}
}

func (s *suite) testPathSearch(t *testing.T) {
	b := s.start(t)
	p := b.process(t)
	p.Args = []string{helperName, "echo", "found"}
	if r := b.run(t, p); r.out != "found\n" {
		t.Errorf("%+v", r)
	}
	p = b.process(t)
	p.Args, p.Env = []string{helperName}, []string{"PATH=/usr/bin"}
	if _, err := b.Exec(t.Context(), p); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a program that is not in PATH: %v", err)
	}
}

func (s *suite) testStreams(t *testing.T) {
	b := s.start(t)
	if r := b.run(t, b.process(t, "both")); r.out != "to stdout" || r.err != "to stderr" {
		t.Errorf("%+v", r)
	}
	in, w, err := os.Pipe()
	must(t, err)
	p := b.process(t, "cat")
	p.Stdin = in
	text := strings.Repeat("a line of input\n", 20000) // more than a pipe holds
	go func() {
		defer w.Close()
		_, _ = io.WriteString(w, text) // the output shows whether it all arrived
	}()
	r := b.run(t, p)
	in.Close()
	if r.out != text {
		t.Errorf("%d bytes of %d came back", len(r.out), len(text))
	}
}

// testNoStreams: what is not given is /dev/null.
func (s *suite) testNoStreams(t *testing.T) {
	b := s.start(t)
	if r := b.run(t, b.process(t, "cat")); r.Code != 0 || r.out != "" {
		t.Errorf("without stdin: %+v", r)
	}
	x, err := b.Exec(t.Context(), b.process(t, "both"))
	must(t, err)
	if st := wait(t, x); st.Code != 0 {
		t.Errorf("without stdout: %+v", st)
	}
}

func (s *suite) testEnvironment(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "info", "a b", "", "ü\n")
	p.Env = []string{"A=1", "EMPTY=", "LINES=a\nb", "A=2"}
	var i processInfo
	b.helpJSON(t, &i, p)
	if want := p.Env; !slices.Equal(i.Env, want) {
		t.Errorf("environment %q, want %q", i.Env, want)
	}
	if !slices.Equal(i.Args, p.Args) {
		t.Errorf("arguments %q, want %q", i.Args, p.Args)
	}
}

func (s *suite) testIdentity(t *testing.T) {
	b := s.start(t)
	ids := [][2]uint32{{1000, 1000}}
	if s.root() {
		ids = append(ids, [2]uint32{0, 0}, [2]uint32{1, 2}, [2]uint32{65534, 65533})
	}
	for _, id := range ids {
		p := b.process(t, "info")
		p.UID, p.GID, p.Cwd = id[0], id[1], "/usr"
		var i processInfo
		b.helpJSON(t, &i, p)
		if i.UID != int(id[0]) || i.EUID != i.UID || i.GID != int(id[1]) || i.EGID != i.GID {
			t.Errorf("ids %+v, want %v", i, id)
		}
		if len(i.Groups) > 0 && !slices.Equal(i.Groups, []int{i.GID}) && s.root() {
			t.Errorf("supplementary groups %v", i.Groups)
		}
		if i.Cwd != "/usr" || i.SID != i.PID || i.PGRP != i.PID || i.PPID != 0 {
			t.Errorf("cwd, session, group or parent: %+v", i)
		}
	}
}

// testSignalState: Go programs block and ignore signals; what they start must not.
func (s *suite) testSignalState(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	b := s.start(t)
	status := b.help(t, "read", "/proc/self/status")
	for _, field := range []string{"SigBlk", "SigIgn", "SigPnd", "ShdPnd"} {
		if !strings.Contains(status, field+":\t0000000000000000\n") {
			t.Errorf("%s is not empty:\n%s", field, status)
		}
	}
}

func (s *suite) testRlimits(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "info")
	p.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_FSIZE", Soft: 12345678, Hard: 12345678}}
	var i processInfo
	b.helpJSON(t, &i, p)
	if i.FileSize != 12345678 {
		t.Errorf("RLIMIT_FSIZE is %d", i.FileSize)
	}
}

// testDescriptors: nothing but stdin, stdout and stderr is inherited, whatever the supervisor has open.
func (s *suite) testDescriptors(t *testing.T) {
	b := s.start(t)
	for _, path := range []string{"/", "/etc/passwd", "/proc/self/ns/net"} {
		// Without O_CLOEXEC, as careless code in the supervisor may open it.
		fd, err := syscall.Open(path, syscall.O_RDONLY, 0)
		must(t, err)
		defer syscall.Close(fd)
	}
	p := b.process(t)
	p.Args = append([]string{programs + "/" + hostileName}, hostile.LookArgs()...)
	var r hostile.Report
	if b.helpJSON(t, &r, p); len(r.Inherited) > 0 || r.UID != 1000 {
		t.Errorf("open descriptors: %q", r.Inherited)
	}
}

func (s *suite) testCgroup(t *testing.T) {
	b := s.start(t)
	p := b.process(t, "pause")
	x, _ := b.ready(t, p)
	pids, err := p.Cgroup.Procs()
	if err != nil || !slices.Contains(pids, x.PID()) {
		t.Errorf("the step's cgroup holds %v (%v), not %d", pids, err, x.PID())
	}
	must(t, p.Cgroup.Kill(t.Context()))
	if st := wait(t, x); st.Signal != syscall.SIGKILL {
		t.Errorf("%+v", st)
	}
	if got := b.help(t, "echo", "other steps live"); got != "other steps live\n" {
		t.Error(got)
	}
}

func (s *suite) testUsage(t *testing.T) {
	b := s.start(t)
	r := b.run(t, b.process(t, "exit", "0"))
	if r.MaxRSS < 64<<10 || r.MaxRSS > 256<<20 || r.User < 0 || r.System < 0 || r.User+r.System == 0 {
		t.Errorf("implausible usage: %+v", r.ExitStatus)
	}
}

// ready starts a process and returns when it has printed its first line. It is killed when the test ends.
func (b *box) ready(t *testing.T, p *isolation.Process) (isolation.Execution, collector) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	p.Stdout = w
	x, err := b.Exec(t.Context(), p)
	w.Close()
	must(t, err)
	end := func() { _ = x.Signal(syscall.SIGKILL) } // often it has ended
	late := time.AfterFunc(patience, end)
	t.Cleanup(end)
	lines := bufio.NewReader(r)
	if line, err := lines.ReadString('\n'); err != nil {
		t.Fatalf("%q printed %q: %v", p.Args, line, err)
	}
	late.Stop()
	data := make(chan []byte, 1)
	go func() {
		defer r.Close()
		rest, _ := io.ReadAll(lines)
		data <- rest
	}()
	return x, collector{nil, data}
}

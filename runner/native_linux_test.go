package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/hostfile"
)

func newNative(t *testing.T, o runner.Options) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Need(t, "root", os.ErrPermission)
	}
	c, err := quota.Probe()
	testenv.Need(t, "cgroups", err)
	engine, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	o.Engine, o.Cgroups = engine, c
	b := newBench(t, o)
	t.Cleanup(func() { // before the supervisor is closed
		list, err := b.Features(context.Background(), true)
		if err != nil {
			t.Error(err)
		}
		groups, err := c.List()
		if err != nil {
			t.Error(err)
		}
		for _, f := range list {
			for _, g := range groups {
				if g == f.ID {
					t.Errorf("cgroup %s was left behind", g)
				}
			}
		}
	})
	return b
}

// What ends a step comes before what the step says of itself.
func TestVerdicts(t *testing.T) {
	b := newNative(t, runner.Options{})
	tests := map[string]struct {
		script  string
		change  func(*runner.Request)
		verdict runner.Verdict
		code    int
		limit   string
	}{
		"ok":          {script: "true", verdict: runner.VerdictOK},
		"nonzero":     {script: "exit 7", verdict: runner.VerdictNonzero, code: 7},
		"signalled":   {script: "kill -SEGV $$", verdict: runner.VerdictSignalled, code: 139},
		"shell's 137": {script: "sh -c 'kill -9 $$'; exit 0", verdict: runner.VerdictOK},
		// The bomb is a child; the shell reports success.
		"memory":                     {script: "tail /dev/zero; exit 0", verdict: runner.VerdictMemory, code: -1, limit: "memory"},
		"memory in the background":   {script: "tail /dev/zero & sleep 60; exit 0", verdict: runner.VerdictMemory, code: -1, limit: "memory"},
		"pids":                       {script: "for i in $(seq 200); do sleep 60 & done; exit 1", verdict: runner.VerdictPids, code: -1, limit: "pids"},
		"pids refused and no matter": {script: "(for i in $(seq 200); do sleep 60 & done) 2>/dev/null; exit 0", verdict: runner.VerdictOK},
		"output":                     {script: "yes", verdict: runner.VerdictOutput, code: -1, limit: "output"},
		"timeout": {script: "sleep 60", verdict: runner.VerdictTimeout, code: 137, limit: "timeout",
			change: func(r *runner.Request) { r.Steps[0].Timeout = 300 * time.Millisecond }},
		"timeout, SIGTERM ignored": {script: "trap '' TERM INT HUP; while :; do :; done", verdict: runner.VerdictTimeout, code: 137, limit: "timeout",
			change: func(r *runner.Request) { r.Steps[0].Timeout = 300 * time.Millisecond }},
		"timeout, a grandchild holds the pipe": {script: "(setsid sh -c 'trap \"\" TERM; sleep 60' &) ; sleep 60", verdict: runner.VerdictTimeout, code: 137, limit: "timeout",
			change: func(r *runner.Request) { r.Steps[0].Timeout = 300 * time.Millisecond }},
		"a grandchild holds the pipe": {script: "setsid sleep 60 & exit 4", verdict: runner.VerdictNonzero, code: 4},
		"not found":                   {change: func(r *runner.Request) { r.Steps[0].Args = []string{"no-such-command"} }, verdict: runner.VerdictNonzero, code: 127},
		"not executable":              {change: func(r *runner.Request) { r.Steps[0].Args = []string{"./file"} }, verdict: runner.VerdictNonzero, code: 126},
		"a directory":                 {change: func(r *runner.Request) { r.Steps[0].Args = []string{"/usr"} }, verdict: runner.VerdictNonzero, code: 126},
	}
	limits := b.profile.Limits
	defer func() { b.profile.Limits = limits }()
	b.profile.Limits.Memory, b.profile.Limits.Pids, b.profile.Limits.Output = 64*quota.MiB, 50, 4*quota.MiB
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := b.sh(test.script)
			r.Remove = true
			if test.change != nil {
				test.change(&r)
			}
			start := time.Now()
			res, _, errs := run(t, b, r)
			if took := time.Since(start); test.verdict == runner.VerdictTimeout && took > 300*time.Millisecond+500*time.Millisecond+slack {
				t.Errorf("took %s", took)
			}
			if res.Verdict != test.verdict || test.code >= 0 && res.ExitCode != test.code {
				t.Fatalf("verdict %s, code %d (%s), want %s, %d; %s", res.Verdict, res.ExitCode, res.Cause, test.verdict, test.code, errs)
			}
			if test.limit == "" != (res.Limit == nil) {
				t.Fatalf("limit %+v", res.Limit)
			}
			if l := res.Limit; l != nil && (l.Name != test.limit || l.Limit == "" || l.Peak == "" || l.Hint == "" || res.Cause == "") {
				t.Fatalf("limit %+v, cause %q", l, res.Cause)
			}
			if test.verdict == runner.VerdictOutput && !res.Truncated {
				t.Error("truncation is not said")
			}
		})
	}
}

// slack is what a busy or emulated machine adds to what is promised: without the promise each of these would wait for ever.
const slack = 15 * time.Second

func TestInside(t *testing.T) {
	b := newNative(t, runner.Options{})
	res, out, errs := run(t, b, b.sh(`id -u; id -g; pwd; echo $HOME; test -w /workspace && test -w $HOME && echo writable
		echo to-stdout > /dev/stdout; echo to-stderr > /dev/stderr; cat file; env | grep -c PATH; cat /etc/machine-id; hostname`))
	if res.Verdict != runner.VerdictOK {
		t.Fatalf("%+v %s", res, errs)
	}
	lines := strings.Split(out, "\n")
	want := []string{"1000", "1000", "/workspace", "/home/user", "writable", "to-stdout", "old", "1"}
	for i, w := range want {
		if lines[i] != w {
			t.Fatalf("line %d is %q, want %q\n%s", i, lines[i], w, out)
		}
	}
	if len(lines[8]) != 32 || lines[9] != "caisson" || errs != "to-stderr\n" {
		t.Fatalf("%q %q", lines, errs)
	}
}

func TestChangeStaysOutside(t *testing.T) {
	b := newNative(t, runner.Options{})
	res, _, _ := run(t, b, b.sh("echo new > file; echo more > added; mkdir d; rm -f nothing"))
	if c := res.Change; c == nil || c.Added != 2 || c.Modified != 1 || c.Deleted != 0 || !res.Kept {
		t.Fatalf("%+v", res.Change)
	}
	if got := b.read(t, "file"); got != "old\n" {
		t.Fatalf("the workspace was written: %q", got)
	}
	var diff bytes.Buffer
	if err := b.Diff(t.Context(), res.Feature, &diff, snapshotDiff); err != nil || !strings.Contains(diff.String(), "+new") {
		t.Fatal(err, diff.String())
	}
	// A second task goes on where the first ended.
	r := b.sh("cat file added")
	r.Feature = res.Feature
	if res, out, errs := run(t, b, r); out != "new\nmore\n" || res.Verdict != runner.VerdictOK {
		t.Fatal(out, errs)
	}
	p, err := b.Promote(t.Context(), res.Feature, runner.PromoteOptions{})
	if err != nil || p.Report == nil {
		t.Fatal(p, err)
	}
	if b.read(t, "file") != "new\n" || b.read(t, "added") != "more\n" {
		t.Fatal("not promoted")
	}
	if _, err := b.Promote(t.Context(), res.Feature, runner.PromoteOptions{}); runner.CodeOf(err) != runner.CodeNothingToDo {
		t.Fatal(err)
	}
	if err := b.Discard(t.Context(), res.Feature); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Feature(t.Context(), res.Feature); runner.CodeOf(err) != runner.CodeNotFound {
		t.Fatal(err)
	}
	b.clean(t)
}

func TestPromoteAtTheEnd(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := b.sh("echo new > file")
	r.Promote = runner.PromoteApply
	res, _, _ := run(t, b, r)
	if res.Promoted == nil || res.State != runner.StateSucceeded || b.read(t, "file") != "new\n" {
		t.Fatalf("%+v", res)
	}
	r = b.sh("echo half > file; exit 1") // what did not end well is not promoted
	r.Promote = runner.PromoteApply
	res, _, _ = run(t, b, r)
	if res.Promoted != nil || res.State != runner.StateFailed || !res.Kept || b.read(t, "file") != "new\n" {
		t.Fatalf("%+v", res)
	}
	r = b.sh("echo patched > file")
	r.Promote, r.PatchFile = runner.PromotePatch, filepath.Join(t.TempDir(), "out.patch")
	res, _, _ = run(t, b, r)
	patch, err := os.ReadFile(r.PatchFile)
	if err != nil || !strings.Contains(string(patch), "+patched") || b.read(t, "file") != "new\n" || res.Verdict != runner.VerdictOK {
		t.Fatalf("%s %v %+v", patch, err, res)
	}
}

func TestGateRefuses(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := b.sh("mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit")
	r.Promote = runner.PromoteApply
	res, _, _ := run(t, b, r)
	if res.Verdict != runner.VerdictGate || res.State != runner.StateRejected || !res.Kept || res.Promoted != nil || res.Remedy == "" {
		t.Fatalf("%+v", res)
	}
	if _, err := os.Stat(filepath.Join(b.workspace, ".git")); err == nil {
		t.Fatal("promoted all the same")
	}
	_, err := b.Promote(t.Context(), res.Feature, runner.PromoteOptions{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeGate || e.Exit != runner.ExitGate {
		t.Fatal(err)
	}
	if _, err := b.Promote(t.Context(), res.Feature, runner.PromoteOptions{AllowProtected: []string{".git/**"}}); err != nil {
		t.Fatal(err)
	}
	if b.read(t, ".git/hooks/pre-commit") != "evil\n" {
		t.Fatal("not promoted")
	}
}

func TestConflict(t *testing.T) {
	b := newNative(t, runner.Options{})
	res, _, _ := run(t, b, b.sh("echo mine > file"))
	b.write(t, "file", "theirs\n")
	_, err := b.Promote(t.Context(), res.Feature, runner.PromoteOptions{})
	if e, ok := errors.AsType[*runner.Error](err); !ok || e.Code != runner.CodeConflict || e.Exit != runner.ExitRefused || e.Remedy == "" {
		t.Fatal(err)
	}
	if b.read(t, "file") != "theirs\n" {
		t.Fatal("overwritten")
	}
	if list, err := b.GC(t.Context(), false); err != nil || len(list.Problems)+len(list.Recovered) != 0 {
		t.Fatalf("%+v %v", list, err)
	}
}

// Two features of one workspace know nothing of each other until one is promoted over what the other changed too.
func TestTwoFeaturesOnOneWorkspace(t *testing.T) {
	b := newNative(t, runner.Options{})
	one, _, _ := run(t, b, b.sh("echo one > file; echo one > one"))
	two, _, _ := run(t, b, b.sh("cat file; echo two > file"))
	three, _, _ := run(t, b, b.sh("test ! -e one && echo three > three"))
	for _, ref := range []string{one.Feature, three.Feature} {
		if _, err := b.Promote(t.Context(), ref, runner.PromoteOptions{}); err != nil {
			t.Fatal(ref, err)
		}
	}
	_, err := b.Promote(t.Context(), two.Feature, runner.PromoteOptions{})
	wantError(t, err, runner.CodeConflict, runner.ExitRefused)
	if b.read(t, "file") != "one\n" || b.read(t, "one") != "one\n" || b.read(t, "three") != "three\n" {
		t.Fatal("not what was promoted")
	}
}

func TestInput(t *testing.T) {
	b := newNative(t, runner.Options{})
	text := strings.Repeat("some text\n", 100_000)
	r := b.request("cat")
	r.Stdin = strings.NewReader(text)
	if res, out, _ := run(t, b, r); out != text || res.Verdict != runner.VerdictOK {
		t.Fatalf("%d bytes, %+v", len(out), res)
	}
	if _, out, _ := run(t, b, b.request("cat")); out != "" {
		t.Fatal(out)
	}
	// The step's end does not wait for an input that says nothing.
	silent, w, _ := os.Pipe()
	defer w.Close()
	r = b.request("true")
	r.Stdin = silent
	start := time.Now()
	run(t, b, r)
	if time.Since(start) > 5*time.Second {
		t.Fatal("waited for the input")
	}
	_ = silent.Close()
}

// Not even a caller that never reads keeps a task from ending at its time.
func TestBlockedOutput(t *testing.T) {
	b := newNative(t, runner.Options{})
	r, w := io.Pipe() // a write blocks until somebody reads
	defer r.Close()
	req := b.request("yes")
	req.Steps[0].Timeout = 500 * time.Millisecond
	req.Stdout = w
	start := time.Now()
	res, err := b.Run(t.Context(), req)
	if err != nil || res.Verdict != runner.VerdictTimeout {
		t.Fatal(res, err)
	}
	if took := time.Since(start); took > time.Second+slack {
		t.Fatalf("took %s", took)
	}
}

func TestClosedOutput(t *testing.T) {
	b := newNative(t, runner.Options{})
	r, w, _ := os.Pipe()
	_ = r.Close()
	defer w.Close()
	req := b.sh("for i in 1 2 3; do echo line $i; done; echo done > file")
	req.Stdout = w
	res, err := b.Run(t.Context(), req)
	if err != nil || res.Verdict != runner.VerdictOK || res.Change.Modified != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	var out bytes.Buffer
	if err := b.Logs(t.Context(), res.Feature, runner.LogOptions{}, &out, io.Discard); err != nil || out.String() != "line 1\nline 2\nline 3\n" {
		t.Fatal(out.String(), err)
	}
}

// notEmulated ends a test that takes long and asks nothing of the kernel that differs between versions: the leg in the virtual
// machine, which is emulated and short, leaves it to the host's.
func notEmulated(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("the same on every kernel")
	}
}

func TestGigabyte(t *testing.T) {
	b := newNative(t, runner.Options{})
	limits := b.profile.Limits
	defer func() { b.profile.Limits = limits }()
	b.profile.Limits.Output = 2 * quota.GiB
	var n int64
	size := int64(1 << 30)
	if testing.Short() { // emulated machines
		size = 1 << 27
	}
	req := b.sh(fmt.Sprintf("head -c %d /dev/zero", size))
	req.Stdout = writer(func(p []byte) (int, error) { n += int64(len(p)); return len(p), nil })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	res, err := b.Run(t.Context(), req)
	runtime.ReadMemStats(&after)
	if err != nil || res.Verdict != runner.VerdictOK || n != size || !res.Truncated {
		t.Fatalf("%d bytes, %+v, %v", n, res, err)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	t.Logf("%d MiB in %s", size>>20, time.Since(start))
}

func TestCancel(t *testing.T) {
	b := newNative(t, runner.Options{})
	why := errors.New("enough of it")
	ctx, cancel := context.WithCancelCause(t.Context())
	r := b.sh("trap '' TERM INT; echo started; sleep 60")
	r.Stdout = writer(func(p []byte) (int, error) { cancel(why); return len(p), nil })
	start := time.Now()
	res, err := b.Run(ctx, r)
	if err != nil || res.Verdict != runner.VerdictCancelled || res.State != runner.StateCancelled || res.Cause != why.Error() {
		t.Fatalf("%+v %v", res, err)
	}
	if took := time.Since(start); took > slack+2*time.Second {
		t.Fatalf("took %s", took)
	}
	if res.Steps[0].State != runner.StepInterrupted || res.Steps[0].Verdict != runner.VerdictCancelled {
		t.Fatalf("%+v", res.Steps[0])
	}
}

func TestSignals(t *testing.T) {
	b := newNative(t, runner.Options{})
	tests := map[string]struct {
		script  string
		send    []os.Signal
		verdict runner.Verdict
		code    int
	}{
		"SIGINT ends it":          {"echo ready; exec sleep 60", []os.Signal{syscall.SIGINT}, runner.VerdictSignalled, 130},
		"SIGTERM is handled":      {"trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done", []os.Signal{syscall.SIGTERM}, runner.VerdictNonzero, 9},
		"SIGUSR1 is passed on":    {"trap 'exit 8' USR1; echo ready; while :; do sleep 0.1; done", []os.Signal{syscall.SIGUSR1}, runner.VerdictNonzero, 8},
		"the second SIGINT kills": {"trap '' INT; echo ready; sleep 60", []os.Signal{syscall.SIGINT, syscall.SIGINT}, runner.VerdictCancelled, 137},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			signals := make(chan os.Signal, 4)
			r := b.request("sh", "-c", test.script)
			r.Signals, r.Remove = signals, true
			r.Stdout = writer(func(p []byte) (int, error) {
				for _, s := range test.send {
					signals <- s
				}
				return len(p), nil
			})
			res, err := b.Run(t.Context(), r)
			if err != nil || res.Verdict != test.verdict || res.ExitCode != test.code {
				t.Fatalf("%+v %v", res, err)
			}
		})
	}
}

func TestTerminal(t *testing.T) {
	b := newNative(t, runner.Options{})
	in, keys, _ := os.Pipe()
	defer in.Close()
	defer keys.Close()
	resize := make(chan runner.Winsize, 1)
	var out bytes.Buffer
	// The size comes an instant after the command has begun, as a change that it is told of.
	r := b.sh("while test \"$(stty size)\" = '0 0'; do sleep 0.01; done; stty size; test -t 0 && test -t 1 && test -t 2 && echo $TERM; read line; stty size; echo got $line; tty")
	r.TTY, r.Interactive = true, true
	step := 0
	r.Terminal = runner.Terminal{In: in, Name: "vt100", Size: runner.Winsize{Rows: 11, Cols: 22}, Resize: resize,
		Out: writer(func(p []byte) (int, error) {
			out.Write(p)
			if step == 0 && strings.Contains(out.String(), "vt100") {
				step = 1
				resize <- runner.Winsize{Rows: 33, Cols: 44}
				time.AfterFunc(200*time.Millisecond, func() { _, _ = keys.WriteString("typed\r") })
			}
			return len(p), nil
		})}
	res, err := b.Run(t.Context(), r)
	if err != nil || res.Verdict != runner.VerdictOK {
		t.Fatalf("%+v %v %q", res, err, out.String())
	}
	for _, want := range []string{"11 22\r\n", "vt100\r\n", "33 44\r\n", "got typed\r\n", "/dev/pts/"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %q", want, out.String())
		}
	}
}

func TestSteps(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := b.sh("echo one; sleep 60 & echo $CAISSON_STEP > /tmp/step")
	r.Steps = append(r.Steps,
		runner.Step{Args: []string{"sh", "-c", "cat /tmp/step; cat /proc/[0-9]*/comm | grep -c sleep; pwd; exit 5"}, Cwd: "/tmp"},
		runner.Step{Args: []string{"echo", "never"}})
	res, out, _ := run(t, b, r)
	if out != "one\n1\n0\n/tmp\n" || res.ExitCode != 5 || res.Verdict != runner.VerdictNonzero {
		t.Fatalf("%q %+v", out, res)
	}
	states := []runner.StepState{res.Steps[0].State, res.Steps[1].State, res.Steps[2].State}
	if states[0] != runner.StepDone || states[1] != runner.StepFailed || states[2] != runner.StepNotStarted {
		t.Fatal(states)
	}
	info, err := b.Task(t.Context(), res.TaskID)
	if err != nil || info.Steps[1].State != runner.StepFailed || info.Steps[2].State != runner.StepNotStarted || info.Result.ExitCode != 5 {
		t.Fatalf("%+v %v", info, err)
	}
	var text bytes.Buffer
	if err := b.Logs(t.Context(), res.Feature, runner.LogOptions{Step: 2}, &text, io.Discard); err != nil || text.String() != "1\n0\n/tmp\n" {
		t.Fatal(text.String(), err)
	}
}

func TestMountsInside(t *testing.T) {
	b := newNative(t, runner.Options{})
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "data"), []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.profile = loadProfile(t, map[string][]string{"volume": {src + ":/home/user/in", src + "/data:/opt-data", src + ":/data:rw"}})
	res, out, errs := run(t, b, b.sh("cat ~/in/data /opt-data /data/data; touch ~/in/x 2>/dev/null || echo read-only; touch ~/own && echo own"))
	if out != strings.Repeat("from the host\n", 3)+"read-only\nown\n" {
		t.Fatalf("%q %q %+v", out, errs, res)
	}
	b.profile = loadProfile(t, map[string][]string{"volume": {src + ":/workspace/sub"}})
	if _, err := b.Run(t.Context(), b.sh("true")); runner.CodeOf(err) != runner.CodeMount {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.workspace, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, out, errs := run(t, b, b.sh("cat sub/data")); out != "from the host\n" {
		t.Fatal(out, errs)
	}
}

func TestSpec(t *testing.T) {
	b := newNative(t, runner.Options{})
	s, err := b.Spec(t.Context(), b.request("echo", "hi"))
	if err != nil || s.OCI.Process.Args[0] != "echo" || len(s.Stacks) != 2 {
		t.Fatalf("%+v %v", s, err)
	}
	res, _, _ := run(t, b, b.request("true"))
	of, err := b.SpecOf(t.Context(), res.Feature)
	if err != nil || of.ID != res.FeatureID || of.Stacks[0].Lower[0].Path != b.workspace {
		t.Fatalf("%+v %v", of, err)
	}
	b.clean(t)
}

// noIDMap is the native engine on a file system that cannot be idmapped.
type noIDMap struct{ isolation.Engine }

func (noIDMap) Root() bool            { return true }
func (noIDMap) CanIDMap(string) error { return fmt.Errorf("the test says no: %w", syscall.EINVAL) }

// Where a file system cannot be idmapped the owner is mapped directly, and the result says so.
func TestDirect(t *testing.T) {
	b := newNative(t, runner.Options{})
	engine, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	c, err := quota.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(b.workspace, 4321, 4321), os.Chown(filepath.Join(b.workspace, "file"), 4321, 4321)); err != nil {
		t.Fatal(err)
	}
	direct := &bench{state: b.state, workspace: b.workspace, profile: b.profile}
	direct.open(t, runner.Options{Engine: noIDMap{engine}, Cgroups: c})
	defer direct.Close()
	r := direct.sh("id -u; stat -c %u file; echo new > file; echo x > added; stat -c %u added")
	r.Promote = runner.PromoteApply
	res, out, errs := run(t, direct, r)
	if out != "1000\n1000\n1000\n" || res.Verdict != runner.VerdictOK {
		t.Fatalf("%q %q %+v", out, errs, res)
	}
	if len(res.Weaker) != 1 || res.Weaker[0].Control != isolation.ControlIDMap {
		t.Fatalf("%+v", res.Weaker)
	}
	uid, _, err := hostfile.Owner(filepath.Join(b.workspace, "added"))
	if err != nil || uid != 4321 {
		t.Fatal(uid, err)
	}
	// It stays so, also for an engine that could.
	again := b.sh("cat file; touch again && stat -c %u again")
	again.Feature = res.Feature
	if res, out, errs := run(t, b, again); out != "new\n1000\n" || len(res.Weaker) != 1 {
		t.Fatalf("%q %q %+v", out, errs, res)
	}
}

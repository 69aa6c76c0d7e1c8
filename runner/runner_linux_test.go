package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/store"
)

// rootCode is how root inside is refused: as an ordinary user there is no such id.
func rootCode() string {
	if os.Geteuid() != 0 {
		return runner.CodeUsage
	}
	return runner.CodeUnsupported
}

func wantError(t *testing.T, err error, code string, exit int) *runner.Error {
	t.Helper()
	e, ok := errors.AsType[*runner.Error](err)
	if !ok || e.Code != code || e.Exit != exit {
		t.Fatalf("got %v (code %s), want code %s, exit %d", err, runner.CodeOf(err), code, exit)
	}
	return e
}

// The table of transitions is closed: it names only states, and every state is reached.
func TestTransitionTable(t *testing.T) {
	reached := map[runner.State]bool{runner.StateQueued: true}
	for from, next := range runner.Transitions {
		for _, to := range next {
			if _, ok := runner.Transitions[to]; !ok {
				t.Errorf("%s leads to %s, which is no state", from, to)
			}
			if from == to {
				t.Errorf("%s leads to itself", from)
			}
			reached[to] = true
		}
		if from.Ended() && len(next) > 0 && !slices.Contains(next, runner.StatePreparing) && from != runner.StateAwaitingApproval { // what can be resumed, or waits for a word, goes on
			t.Errorf("%s is an end and goes on", from)
		}
	}
	for _, s := range runner.States() {
		if !reached[s] {
			t.Errorf("nothing leads to %s", s)
		}
	}
	if len(runner.Verdicts()) != 14 {
		t.Error("a verdict was added or lost; the exit codes need it too")
	}
}

func TestLifeInTheJournal(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	var seen []runner.State
	r := b.sh("echo hi; echo new > added")
	r.Labels = map[string]string{"team": "Build & Co"}
	r.Progress = func(p runner.Progress) { seen = append(seen, p.State) }
	res, out, _ := run(t, b, r)
	want := []runner.State{runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating, runner.StateSucceeded}
	if out != "hi\n" || !slices.Equal(slices.Compact(seen), want) {
		t.Fatalf("%q, %v", out, seen)
	}
	if res.Verdict != runner.VerdictOK || !res.OK() || res.Change.Added != 1 || res.ProfileDigest != b.profile.Digest || res.Ended.Before(res.Started) {
		t.Fatalf("%+v", res)
	}
	if len(res.Weaker) == 0 || res.Weaker[0].Control != isolation.ControlCgroups || res.Weaker[0].Reason == "" {
		t.Fatalf("the result does not say what is weaker: %+v", res.Weaker)
	}
	f, err := b.Feature(t.Context(), res.FeatureID[:len(res.FeatureID)-2])
	if err != nil || f.Name != res.Feature || f.State != runner.StateSucceeded || f.Live || f.Labels["team"] != "Build & Co" || len(f.Tasks) != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	if stored := f.Tasks[0].Result; stored == nil || stored.Verdict != runner.VerdictOK || stored.Steps[0].Usage.Output != 3 || stored.Change.Added != 1 {
		t.Fatalf("%+v", stored)
	}
	if list, err := b.Features(t.Context(), false); err != nil || len(list) != 0 {
		t.Fatalf("not live any more: %+v %v", list, err)
	}
}

func TestRefusals(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	file := filepath.Join(b.workspace, "file")
	zero := quota.Limits{}
	tests := map[string]struct {
		change func(*runner.Request)
		code   string
	}{
		"no steps":             {func(r *runner.Request) { r.Steps = nil }, runner.CodeUsage},
		"no command":           {func(r *runner.Request) { r.Steps[0].Args = nil }, runner.CodeUsage},
		"NUL":                  {func(r *runner.Request) { r.Steps[0].Args = []string{"a\x00b"} }, runner.CodeUsage},
		"no profile":           {func(r *runner.Request) { r.Profile = nil }, runner.CodeUsage},
		"env":                  {func(r *runner.Request) { r.Steps[0].Env = []string{"=x"} }, runner.CodeUsage},
		"timeout":              {func(r *runner.Request) { r.Steps[0].Timeout = -1 }, runner.CodeUsage},
		"zero limits":          {func(r *runner.Request) { r.Steps[0].Limits = &zero }, runner.CodeUsage},
		"name":                 {func(r *runner.Request) { r.Feature = "../x" }, runner.CodeInvalidName},
		"capital name":         {func(r *runner.Request) { r.Feature = "X" }, runner.CodeInvalidName},
		"long name":            {func(r *runner.Request) { r.Feature = strings.Repeat("x", 64) }, runner.CodeInvalidName},
		"label":                {func(r *runner.Request) { r.Labels = map[string]string{"a b": ""} }, runner.CodeInvalidName},
		"label value":          {func(r *runner.Request) { r.Labels = map[string]string{"a": "b\nc"} }, runner.CodeInvalidName},
		"promote":              {func(r *runner.Request) { r.Promote = "tag" }, runner.CodeUsage},
		"patch without a file": {func(r *runner.Request) { r.Promote = runner.PromotePatch }, runner.CodeUsage},
		"network":              {func(r *runner.Request) { r.Steps[0].Network = &egress.Policy{Mode: egress.ModeOpen} }, runner.CodeUnsupported},
		"port": {func(r *runner.Request) {
			r.Publish = []egress.Publish{{Host: netip.MustParseAddrPort("127.0.0.1:0"), Port: 80}}
		}, runner.CodeUnsupported},
		"network rule": {func(r *runner.Request) {
			r.Steps[0].Network = &egress.Policy{Mode: egress.ModeAllow, Allow: []string{"nosuch"}}
		}, runner.CodeConfiguration},
		"learn":     {func(r *runner.Request) { r.Learn = "everything" }, runner.CodeUsage},
		"port of 0": {func(r *runner.Request) { r.Publish = []egress.Publish{{}} }, runner.CodeUsage},
		"no such step of the profile": {func(r *runner.Request) {
			p := *r.Profile
			p.Steps = map[string]profiles.StepPolicy{"fetch": {Network: "none"}}
			r.Profile, r.Steps[0].Name = &p, "fetsh"
		}, runner.CodeUsage},
		"network of profile": {func(r *runner.Request) { p := *r.Profile; p.Network.Mode = "allow"; r.Profile = &p }, runner.CodeUnsupported},
		"disk quota required": {func(r *runner.Request) {
			p := *r.Profile
			p.AllowWeaker = []isolation.Control{isolation.ControlCgroups}
			r.Profile = &p
		}, runner.CodeUnsupported},
		"root": {func(r *runner.Request) { u := uint32(0); r.Steps[0].UID = &u }, rootCode()},
		"root in step 2": {func(r *runner.Request) {
			u := uint32(0)
			r.Steps = append(r.Steps, runner.Step{Args: []string{"true"}, UID: &u})
		}, rootCode()},
		"an id beyond the map": {func(r *runner.Request) { u := uint32(70000); r.Steps[0].UID = &u }, runner.CodeUsage},
		"cgroups":              {func(r *runner.Request) { r.Profile = loadProfile(t, nil) }, runner.CodeUnsupported},
		"missing workspace":    {func(r *runner.Request) { r.Workspace = "/nonexistent" }, runner.CodeWorkspace},
		"file as workspace":    {func(r *runner.Request) { r.Workspace = file }, runner.CodeWorkspace},
		"the state directory":  {func(r *runner.Request) { r.Workspace = b.state }, runner.CodeWorkspace},
		"above the state":      {func(r *runner.Request) { r.Workspace = filepath.Dir(b.state) }, runner.CodeWorkspace},
		"inside the state":     {func(r *runner.Request) { r.Workspace = filepath.Join(b.state, "tmp") }, runner.CodeWorkspace},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := b.request("true")
			test.change(&r)
			res, err := b.Run(t.Context(), r)
			if res != nil {
				t.Fatalf("%+v", res)
			}
			wantError(t, err, test.code, runner.ExitRefused)
		})
	}
	if list, err := b.Features(t.Context(), true); err != nil || len(list) != 0 {
		t.Fatalf("a refused task left something: %+v %v", list, err)
	}
	b.clean(t)
}

// A control that is missing refuses the task by name; waived, it is said.
func TestMissingControl(t *testing.T) {
	f := &fake{missing: isolation.ControlSeccomp}
	b := withFake(t, f, runner.Options{})
	_, err := b.Run(t.Context(), b.request("true"))
	e := wantError(t, err, runner.CodeUnsupported, runner.ExitRefused)
	u, ok := errors.AsType[*isolation.UnsupportedError](err)
	if !ok || u.Control != isolation.ControlSeccomp || e.Remedy != "ask it nicely" || f.probes != 1 { // what else is missing is asked only now
		t.Fatalf("%v, %d probes", err, f.probes)
	}
	if list, _ := b.Features(t.Context(), true); len(list) != 0 {
		t.Fatal("nothing ran, and something stays")
	}
	b.clean(t)

	b.profile = loadProfile(t, map[string][]string{"allow-weaker": {"cgroups,seccomp,disk_quota"}})
	res, _, _ := run(t, b, b.request("true"))
	var said []isolation.Control
	for _, w := range res.Weaker {
		said = append(said, w.Control)
	}
	if !slices.Equal(said, []isolation.Control{isolation.ControlSeccomp, isolation.ControlCgroups, isolation.ControlDiskQuota}) {
		t.Fatalf("%+v", res.Weaker)
	}
	spec := f.specs[len(f.specs)-1]
	if slices.Contains(spec.Weaker, isolation.ControlUserNS) || !slices.Contains(spec.Weaker, isolation.ControlSeccomp) {
		t.Fatal(spec.Weaker)
	}
}

// Our failures are errors; the task is recorded as failed, and nothing that runs stays.
func TestOurFailures(t *testing.T) {
	broken := errors.New("broken")
	for name, f := range map[string]*fake{"start": {startErr: broken}, "exec": {execErr: broken}, "close": {closeErr: broken}} {
		t.Run(name, func(t *testing.T) {
			b := withFake(t, f, runner.Options{})
			res, err := b.Run(t.Context(), b.sh("exit 3"))
			if res != nil || !errors.Is(err, broken) {
				t.Fatal(res, err)
			}
			wantError(t, err, runner.CodeInternal, runner.ExitInternal)
			list, err := b.Features(t.Context(), true)
			if err != nil {
				t.Fatal(err)
			}
			if name == "start" && len(list) != 0 {
				t.Fatalf("%+v", list)
			}
			if name != "start" && (len(list) != 1 || list[0].State != runner.StateFailed || list[0].Verdict != runner.VerdictInternal) {
				t.Fatalf("%+v", list)
			}
			b.clean(t)
		})
	}
}

func TestWithoutCgroups(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	r := b.sh("(trap '' TERM; sleep 60) & sleep 60")
	r.Steps[0].Timeout = 200 * time.Millisecond
	start := time.Now()
	res, _, _ := run(t, b, r)
	if took := time.Since(start); res.Verdict != runner.VerdictTimeout || took > 700*time.Millisecond+slack {
		t.Fatalf("%+v after %s", res, took)
	}
	// What is left running does not hold the step's end up.
	start = time.Now()
	res, out, _ := run(t, b, b.sh("echo early; sleep 60 & exit 2"))
	if took := time.Since(start); res.ExitCode != 2 || out != "early\n" || took > slack+time.Second {
		t.Fatalf("%+v %q after %s", res, out, took)
	}
}

func TestBusy(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	started := make(chan struct{})
	var once sync.Once
	r := b.sh("echo on; sleep 60")
	r.Feature = "mine"
	r.Stdout = writer(func(p []byte) (int, error) { once.Do(func() { close(started) }); return len(p), nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Run(ctx, r)
		done <- err
	}()
	<-started
	list, err := b.Features(t.Context(), false)
	if err != nil || len(list) != 1 || !list[0].Live || list[0].State != runner.StateRunning {
		t.Fatalf("%+v %v", list, err)
	}
	// Another supervisor leaves what lives alone.
	other := &bench{state: b.state, workspace: b.workspace, profile: b.profile}
	other.open(t, runner.Options{Engine: &fake{}})
	r2 := b.request("true")
	r2.Feature = "mine"
	_, err = other.Run(t.Context(), r2)
	wantError(t, err, runner.CodeBusy, runner.ExitRefused)
	_, err = other.Change(t.Context(), "mine")
	wantError(t, err, runner.CodeBusy, runner.ExitRefused)
	_, err = other.Promote(t.Context(), "mine", runner.PromoteOptions{})
	wantError(t, err, runner.CodeBusy, runner.ExitRefused)
	wantError(t, other.Discard(t.Context(), "mine"), runner.CodeBusy, runner.ExitRefused)
	wantError(t, other.Remove(t.Context(), []string{"mine"}, true), runner.CodeBusy, runner.ExitRefused)
	if _, err := other.SpecOf(t.Context(), "mine"); err != nil {
		t.Error("a description needs nobody's leave:", err)
	}
	if r, err := other.GC(t.Context(), false); err != nil || len(r.Interrupted)+len(r.Directories)+len(r.Features) != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if f, err := b.Feature(t.Context(), "mine"); err != nil || f.State != runner.StateCancelled {
		t.Fatalf("%+v %v", f, err)
	}
	elsewhere := b.request("true")
	elsewhere.Feature, elsewhere.Workspace = "mine", t.TempDir()
	_, err = b.Run(t.Context(), elsewhere)
	wantError(t, err, runner.CodeWorkspace, runner.ExitRefused)
}

func TestQueue(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{MaxTasks: 2, MaxQueue: 3})
	release := filepath.Join(t.TempDir(), "release")
	var wg sync.WaitGroup
	running := make(chan struct{}, 10)
	start := func() {
		wg.Go(func() {
			r := b.sh(fmt.Sprintf("echo on; while ! test -e %s; do sleep 0.02; done", release))
			r.Stdout = writer(func(p []byte) (int, error) { running <- struct{}{}; return len(p), nil })
			if res, err := b.Run(t.Context(), r); err != nil || res.Verdict != runner.VerdictOK {
				t.Errorf("%+v %v", res, err)
			}
		})
	}
	start()
	start()
	<-running
	<-running
	for range 3 {
		start()
	}
	// Also the first two may have waited for an instant: what counts is what waits now.
	for states := map[runner.State]int{}; states[runner.StateQueued] != 3 || states[runner.StateRunning] != 2; time.Sleep(time.Millisecond) {
		list, err := b.Features(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		clear(states)
		for _, f := range list {
			states[f.State]++
		}
	}
	_, err := b.Run(t.Context(), b.request("true"))
	wantError(t, err, runner.CodeQueueFull, runner.ExitRefused)
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	b.clean(t)
}

func TestCancelledInTheQueue(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{MaxTasks: 1})
	started := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		r := b.sh("echo on; sleep 60")
		r.Stdout = writer(func(p []byte) (int, error) { close(started); return len(p), nil })
		_, _ = b.Run(ctx, r)
	})
	<-started
	signals := make(chan os.Signal, 1)
	r := b.request("true")
	r.Signals = signals
	r.Progress = func(p runner.Progress) {
		if p.State == runner.StateQueued {
			signals <- syscall.SIGINT
		}
	}
	res, err := b.Run(t.Context(), r)
	if err != nil || res.Verdict != runner.VerdictCancelled || res.State != runner.StateCancelled || res.Kept || !strings.Contains(res.Cause, "interrupt") {
		t.Fatalf("%+v %v", res, err)
	}
	stop()
	wg.Wait()
	b.clean(t)
}

func TestRemove(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	gone := b.sh("echo x > added")
	gone.Remove = true
	if res, _, _ := run(t, b, gone); res.Kept || res.Change.Added != 1 {
		t.Fatalf("%+v", res)
	}
	kept, _, _ := run(t, b, b.sh("echo x > added"))
	empty, _, _ := run(t, b, b.request("true"))
	wantError(t, b.Remove(t.Context(), []string{kept.Feature}, false), runner.CodeUsage, runner.ExitRefused)
	wantError(t, b.Remove(t.Context(), []string{"nothing", empty.Feature}, false), runner.CodeNotFound, runner.ExitRefused)
	list, err := b.Features(t.Context(), true)
	if err != nil || len(list) != 1 || list[0].Name != kept.Feature {
		t.Fatalf("%+v %v", list, err)
	}
	if err := b.Remove(t.Context(), []string{kept.Feature}, true); err != nil {
		t.Fatal(err)
	}
	b.clean(t)
}

func TestLogs(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	r := b.sh("echo out; echo err >&2")
	r.Steps = append(r.Steps, runner.Step{Args: []string{"echo", "second"}})
	res, _, _ := run(t, b, r)
	again := b.sh("echo later")
	again.Feature = res.Feature
	run(t, b, again)
	for _, test := range []struct {
		o         runner.LogOptions
		out, errs string
	}{
		{runner.LogOptions{}, "later\n", ""},
		{runner.LogOptions{Task: res.TaskID}, "out\nsecond\n", "err\n"},
		{runner.LogOptions{Task: res.TaskID, Stream: "stderr"}, "", "err\n"},
		{runner.LogOptions{Task: res.TaskID, Step: 2}, "second\n", ""},
	} {
		var out, errs bytes.Buffer
		if err := b.Logs(t.Context(), res.Feature, test.o, &out, &errs); err != nil || out.String() != test.out || errs.String() != test.errs {
			t.Errorf("%+v: %q %q %v", test.o, out.String(), errs.String(), err)
		}
	}
	wantError(t, b.Logs(t.Context(), res.Feature, runner.LogOptions{Task: "x"}, io.Discard, io.Discard), runner.CodeNotFound, runner.ExitRefused)
	wantError(t, b.Logs(t.Context(), "x", runner.LogOptions{}, io.Discard, io.Discard), runner.CodeNotFound, runner.ExitRefused)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "do not tell")
	b := withFake(t, &fake{}, runner.Options{})
	b.profile = loadProfile(t, map[string][]string{"allow-weaker": {"cgroups", "disk_quota"}, "env": {"FROM_PROFILE=1", "HOME=/elsewhere"}})
	b.profile.PassEnv = []string{"PASSED"}
	r := b.request("env")
	r.Environ = []string{"PASSED=yes", "NOT_PASSED=no"}
	r.Steps[0].Env = []string{"FROM_PROFILE=2"}
	_, out, _ := run(t, b, r)
	got := map[string]string{}
	for line := range strings.Lines(out) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[k] = v
	}
	for k, v := range map[string]string{"PASSED": "yes", "FROM_PROFILE": "2", "HOME": "/elsewhere", "USER": "user", "TMPDIR": "/tmp",
		"LANG": "C.UTF-8", "CAISSON_STEP": "1", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} {
		if got[k] != v {
			t.Errorf("%s=%q, want %q", k, got[k], v)
		}
	}
	for _, k := range []string{"SECRET_TOKEN", "NOT_PASSED", "TERM", "SSH_AUTH_SOCK"} {
		if v, ok := got[k]; ok {
			t.Errorf("%s=%q came in", k, v)
		}
	}
}

func TestMemoryMode(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{Memory: true})
	res, _, _ := run(t, b, b.sh("echo x > added"))
	if c, err := b.Change(t.Context(), res.Feature); err != nil || c.Added != 1 {
		t.Fatal(c, err)
	}
	// A supervisor of the same directory neither sees it nor removes it while it lives.
	other := &bench{state: b.state}
	other.open(t, runner.Options{})
	if r, err := other.GC(t.Context(), false); err != nil || len(r.Directories) != 0 {
		t.Fatalf("%+v %v", r, err)
	}
	if _, err := b.Change(t.Context(), res.Feature); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	other.clean(t)
	b.Supervisor = other.Supervisor // for the clean-up
}

func TestBadStateDirectories(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"a file": file, "below a file": filepath.Join(file, "x"), "proc": "/proc/caisson"} {
		j, err := store.Memory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s, err := runner.New(t.Context(), runner.Options{StateDir: dir, Journal: j})
		if err == nil {
			_ = s.Close()
			t.Fatal(name)
		}
		e := wantError(t, err, runner.CodeState, runner.ExitRefused)
		if e.Remedy == "" {
			t.Error(name, "no remedy")
		}
	}
	// Slots that cannot be opened.
	b := withFake(t, &fake{}, runner.Options{})
	if err := os.RemoveAll(filepath.Join(b.state, "slots")); err != nil {
		t.Fatal(err)
	}
	_, err := b.Run(t.Context(), b.request("true"))
	wantError(t, err, runner.CodeState, runner.ExitRefused)
	b.clean(t)
}

// What recovery finds when the journal says that a task is alive and nobody holds its lock.
func TestRecoverFromTheJournal(t *testing.T) {
	ends := map[runner.State][]runner.State{
		runner.StateQueued:     {},
		runner.StatePreparing:  {runner.StatePreparing},
		runner.StateRunning:    {runner.StatePreparing, runner.StateRunning},
		runner.StateSealing:    {runner.StatePreparing, runner.StateRunning, runner.StateSealing},
		runner.StateValidating: {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating},
		runner.StatePromoting:  {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating, runner.StatePromoting},
	}
	for state, path := range ends {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprint(state, remove), func(t *testing.T) {
				b := withFake(t, &fake{}, runner.Options{})
				res, _, _ := run(t, b, b.sh("echo x > added")) // a feature with layers
				j, err := store.Open(t.Context(), filepath.Join(b.state, "store.db"))
				if err != nil {
					t.Fatal(err)
				}
				defer j.Close()
				_, err = j.Submit(t.Context(), runner.Submission{Feature: runner.FeatureRecord{ID: res.FeatureID}, MaxQueue: 1,
					Task: runner.TaskRecord{ID: "dead", Remove: remove, Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1, Args: []string{"x"}}, {N: 2, Args: []string{"y"}}}}})
				if err != nil {
					t.Fatal(err)
				}
				from := runner.StateQueued
				for _, to := range path {
					m := runner.Move{TaskID: "dead", From: from, To: to}
					if to == runner.StateRunning {
						m.Step = &runner.StepMove{N: 1, From: runner.StepNotStarted, To: runner.StepRunning}
					}
					if err := j.Move(t.Context(), m); err != nil {
						t.Fatal(err)
					}
					from = to
				}
				b.open(t, runner.Options{Engine: &fake{}})
				f, err := b.Feature(t.Context(), res.Feature)
				if remove {
					wantError(t, err, runner.CodeNotFound, runner.ExitRefused)
					b.clean(t)
					return
				}
				if err != nil || f.State != runner.StateInterrupted || f.Verdict != runner.VerdictInterrupted {
					t.Fatalf("%+v %v", f, err)
				}
				task := f.Tasks[1]
				if task.Result == nil || task.Result.Cause == "" || task.Result.Remedy == "" || len(task.Result.Steps) != 2 {
					t.Fatalf("%+v", task.Result)
				}
				want := runner.StepNotStarted
				if len(path) > 1 {
					want = runner.StepInterrupted
				}
				if task.Steps[0].State != want || task.Steps[1].State != runner.StepNotStarted {
					t.Fatalf("%+v", task.Steps)
				}
				if c, err := b.Change(t.Context(), res.Feature); err != nil || c.Added != 1 {
					t.Fatal("the change is lost", err)
				}
				report, err := b.GC(t.Context(), false)
				if err != nil || !slices.Contains(report.Interrupted, "dead") {
					t.Fatalf("%+v %v", report, err)
				}
			})
		}
	}
}

// Directories that no record names, half removed features, and the leftovers of dead supervisors without persistence.
func TestSweep(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	for _, dir := range []string{"features/orphan/upper/deep", "tmp/gone-x/y", "tmp/memory-dead/features/f/upper"} {
		if err := os.MkdirAll(filepath.Join(b.state, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	report, err := b.GC(t.Context(), true)
	if err != nil || len(report.Directories) != 3 || !report.DryRun {
		t.Fatalf("%+v %v", report, err)
	}
	if _, err := os.Stat(filepath.Join(b.state, "features/orphan/upper/deep")); err != nil {
		t.Fatal("removed by a dry run")
	}
	if _, err := b.Features(t.Context(), true); err != nil { // ps is enough
		t.Fatal(err)
	}
	b.clean(t)
}

func TestFreshNamesAreUnique(t *testing.T) {
	b := withFake(t, &fake{}, runner.Options{})
	names := map[string]bool{}
	for range 30 {
		res, _, _ := run(t, b, b.request("true"))
		if names[res.Feature] {
			t.Fatal(res.Feature, "twice")
		}
		names[res.Feature] = true
	}
}

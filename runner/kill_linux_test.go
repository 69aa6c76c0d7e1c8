package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/store"
)

// The test binary is a caisson process when helperState names a state directory.
const (
	helperState     = "CAISSON_RUNNER_TEST_STATE"
	helperWorkspace = "CAISSON_RUNNER_TEST_WORKSPACE"
	helperAct       = "CAISSON_RUNNER_TEST_ACT" // run, steps, promote, churn, or unprivileged
	helperDriver    = "CAISSON_RUNNER_TEST_DRIVER"
)

func TestMain(m *testing.M) {
	if state := os.Getenv(helperState); state != "" {
		if err := helper(state, os.Getenv(helperWorkspace), os.Getenv(helperAct), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func helper(state, workspace, act string, args []string) error {
	ctx := context.Background()
	engine, err := native.New(native.Options{})
	if err != nil {
		return err
	}
	c, cgroupsErr := quota.Probe()
	j, err := store.Open(ctx, filepath.Join(state, "store.db"))
	if err != nil {
		return err
	}
	units, err := disk.OpenStore(state)
	if err != nil {
		return err
	}
	s, err := runner.New(ctx, runner.Options{StateDir: state, Engine: engine, Disk: units, Cgroups: c, CgroupsErr: cgroupsErr, Journal: j})
	if err != nil {
		return err
	}
	flags := map[string][]string{"disk": {"50m"}, "driver": {os.Getenv(helperDriver)}}
	if act == "unprivileged" {
		flags["allow-weaker"] = []string{"cgroups", "disk_quota"}
	}
	p, err := profiles.Load(profiles.LoadOptions{Flags: flags})
	if err != nil {
		return err
	}
	switch act {
	case "promote":
		_, err = s.Promote(ctx, args[0], runner.PromoteOptions{})
	case "churn":
		p.Retention.Count = 30
		return churn(ctx, s, runner.Request{Workspace: workspace, Profile: p, Feature: args[0]})
	default:
		var r *runner.Result
		request := runner.Request{Workspace: workspace, Profile: p, Steps: []runner.Step{{Args: args}},
			Promote: runner.PromoteApply, Stdout: os.Stdout, Stderr: os.Stderr}
		if act == "steps" {
			request.Promote, request.Steps = runner.PromoteNone, nil
			for _, script := range args {
				request.Steps = append(request.Steps, runner.Step{Args: []string{"sh", "-c", script}})
			}
		}
		r, err = s.Run(ctx, request)
		if err == nil && r.Verdict != runner.VerdictOK {
			err = fmt.Errorf("%s: %s", r.Verdict, r.Cause)
		}
	}
	if err != nil {
		return err
	}
	return s.Close()
}

// churn works on a feature until it is killed: steps whose states say which step they are of, rollbacks to any of them, and gc.
func churn(ctx context.Context, s *runner.Supervisor, r runner.Request) error {
	for n := 1; n <= 3; n++ {
		r.Steps = append(r.Steps, runner.Step{Args: []string{"sh", "-c", fmt.Sprintf("echo %d > log; echo $$ > by%d", n, n)}})
	}
	for {
		if res, err := s.Run(ctx, r); err != nil || !res.OK() {
			return fmt.Errorf("%+v: %w", res, err)
		}
		list, err := s.Checkpoints(ctx, r.Feature)
		if err != nil {
			return err
		}
		if _, err := s.Rollback(ctx, r.Feature, runner.RollbackOptions{To: list[rand.IntN(len(list))].ID}); err != nil {
			return err
		}
		if found, err := s.GC(ctx, false); err != nil || len(found.Problems) > 0 {
			return fmt.Errorf("%+v: %w", found, err)
		}
	}
}

func (b *bench) process(t *testing.T, act string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), helperState+"="+b.state, helperWorkspace+"="+b.workspace, helperAct+"="+act, helperDriver+"="+driver)
	return c
}

// kills is how often TestKillAnywhere kills. With a second driver only what the layers do is new.
func kills() int {
	switch {
	case os.Getenv("CAISSON_TEST_LONG") != "":
		return 500
	case testing.Short():
		return 15
	case driver == snapshot.DriverCopy:
		return 20
	}
	return 40
}

// Killed at any moment, a supervisor leaves nothing: after the next look there is no process, mount, cgroup or directory
// of it, every task has an end, and the workspace is the old one or the new one.
func TestKillAnywhere(t *testing.T) {
	b := newNative(t, runner.Options{})
	marker := fmt.Sprintf("caisson-kill-%d", os.Getpid())
	script := "echo new > file; mkdir d; echo more > d/added; : " + marker + "; exec true"
	took := b.timeHelper(t, script)
	for i := range kills() {
		b.write(t, "file", "old\n")
		if err := os.RemoveAll(filepath.Join(b.workspace, "d")); err != nil {
			t.Fatal(err)
		}
		c := b.process(t, "run", "sh", "-c", script)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(took * 5 / 4))))
		_ = c.Process.Kill()
		_ = c.Wait()
		b.afterKill(t, marker)
		if t.Failed() {
			t.Fatalf("after kill %d", i)
		}
	}
}

// timeHelper says how long an undisturbed run takes, and that it works.
func (b *bench) timeHelper(t *testing.T, script string) time.Duration {
	t.Helper()
	start := time.Now()
	if out, err := b.process(t, "run", "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return time.Since(start)
}

func (b *bench) afterKill(t *testing.T, marker string) {
	t.Helper()
	next := &bench{state: b.state, workspace: b.workspace, profile: b.profile}
	c, err := quota.Probe()
	if err != nil {
		t.Fatal(err)
	}
	next.open(t, runner.Options{Cgroups: c})
	defer next.Close()
	list, err := next.Features(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	words := []string{marker}
	for _, f := range list {
		if !f.State.Ended() {
			t.Errorf("%s is %s, and nobody runs it", f.Name, f.State)
		}
		words = append(words, f.ID)
	}
	if r, err := next.GC(t.Context(), false); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
	next.clean(t)
	found, err := leaktest.Find(words...)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range found {
		t.Error("left behind:", x)
	}
	b.oldOrNew(t)
	if err := next.Remove(t.Context(), names(list), true); err != nil {
		t.Error(err)
	}
}

func names(list []runner.FeatureInfo) (names []string) {
	for _, f := range list {
		names = append(names, f.Name)
	}
	return names
}

func (b *bench) oldOrNew(t *testing.T) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(b.workspace, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, rerr := os.ReadFile(p)
			rel, _ := filepath.Rel(b.workspace, p)
			got, err = append(got, rel+"="+strings.TrimSpace(string(text))), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := strings.Join(got, " "); s != "file=old" && s != "d/added=more file=new" {
		t.Errorf("the workspace is neither old nor new: %s", s)
	}
	if left, _ := filepath.Glob(filepath.Join(b.workspace, ".caisson-*")); len(left) > 0 {
		t.Error(left)
	}
}

// A `caisson promote` that is killed is finished or undone by whoever comes next.
func TestKilledPromote(t *testing.T) {
	b := newNative(t, runner.Options{})
	for range kills() / 5 {
		b.write(t, "file", "old\n")
		if err := os.RemoveAll(filepath.Join(b.workspace, "d")); err != nil {
			t.Fatal(err)
		}
		res, _, errs := run(t, b, b.sh("echo new > file; mkdir d; echo more > d/added"))
		if res.Verdict != runner.VerdictOK {
			t.Fatal(errs)
		}
		c := b.process(t, "promote", res.Feature)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(60 * time.Millisecond))))
		_ = c.Process.Kill()
		_ = c.Wait()
		b.afterKill(t, res.FeatureID)
		b.promotionKnown(t, res.FeatureID)
		if t.Failed() {
			return
		}
	}
}

// promotionKnown checks that the log has what was promoted, and nothing else.
func (b *bench) promotionKnown(t *testing.T, feature string) {
	t.Helper()
	rows, err := b.journal.Audit(t.Context(), feature)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range rows {
		if r.Event == "promote" {
			n++
		}
	}
	want := 0
	if b.read(t, "file") == "new\n" {
		want = 1
	}
	if n != want {
		t.Errorf("%d promotions in the log, want %d: %+v", n, want, rows)
	}
}

// A supervisor that is killed while it seals, rolls back, prunes and squashes leaves no checkpoint that is not what it was.
func TestKilledChurn(t *testing.T) {
	b := newNative(t, runner.Options{})
	hit := map[string]int{}
	for i := range kills() / 2 {
		c := b.process(t, "churn", "f")
		var errs bytes.Buffer
		c.Stderr = &errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100*time.Millisecond + time.Duration(rand.Int64N(int64(time.Second))))
		_ = c.Process.Kill()
		_ = c.Wait()
		if errs.Len() > 0 {
			t.Fatalf("round %d: %s", i, &errs)
		}
		b.asBefore(t, hit)
		if t.Failed() {
			t.Fatalf("after kill %d", i)
		}
	}
	t.Log(hit)
}

// asBefore opens what a killed churn left, and counts what it was killed in.
func (b *bench) asBefore(t *testing.T, hit map[string]int) {
	t.Helper()
	if r, err := b.GC(t.Context(), false); err != nil || len(r.Problems) > 0 {
		t.Errorf("%+v %v", r, err)
	}
	f, err := b.Feature(t.Context(), "f")
	if runner.CodeOf(err) == runner.CodeNotFound {
		return // it had not begun
	}
	if err != nil || f.Damaged != "" {
		t.Fatal(f, err)
	}
	hit[string(f.State)]++
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil || len(list) > 60 {
		t.Fatal(len(list), err)
	}
	for _, c := range list {
		if c.Damaged != "" || c.Lost {
			t.Errorf("%+v", c)
		} else if got := b.log(t, "f@"+c.ID); c.Reason == runner.ReasonStep && got != fmt.Sprint(c.Step) {
			t.Errorf("%s after step %d shows %q", c.ID, c.Step, got)
		}
	}
	_ = b.log(t, "f")
	if found, err := leaktest.Find(f.ID); err != nil || len(found) > 0 {
		t.Error(found, err)
	}
}

// A running task whose supervisor is killed dies with it, whatever it ignores, and its feature can be used again.
func TestKilledWhileRunning(t *testing.T) {
	b := newNative(t, runner.Options{})
	c := b.process(t, "run", "sh", "-c", "trap '' TERM HUP INT; echo kept > added; (setsid sleep 4242 &); echo on; sleep 4242")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	cg, err := quota.Probe()
	if err != nil {
		t.Fatal(err)
	}
	next := &bench{state: b.state, workspace: b.workspace, profile: b.profile}
	next.open(t, runner.Options{Cgroups: cg})
	defer next.Close()
	list, err := next.Features(t.Context(), true)
	if err != nil || len(list) != 1 || list[0].State != runner.StateInterrupted {
		t.Fatalf("%+v %v", list, err)
	}
	r := b.sh("cat added")
	r.Feature = list[0].Name
	if res, text, errs := run(t, b, r); text != "kept\n" {
		t.Fatalf("%q %q %+v", text, errs, res)
	}
	if found, err := leaktest.Find("sleep 4242", list[0].ID); err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
}

// Many processes at once share the slots, and all of them get their turn.
func TestManyProcesses(t *testing.T) {
	b := newNative(t, runner.Options{})
	var wg sync.WaitGroup
	start := time.Now()
	processes := 40
	if testing.Short() {
		processes = 12
	}
	for n := range processes {
		wg.Go(func() {
			c := b.process(t, "run", "true")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", n, err, out)
			}
		})
	}
	wg.Wait()
	t.Logf("%d processes in %s", processes, time.Since(start))
	list, err := b.Features(t.Context(), true)
	if err != nil || len(list) != processes {
		t.Fatalf("%d features, %v", len(list), err)
	}
	var ids []string
	for _, f := range list {
		if ids = append(ids, f.ID); f.State != runner.StateSucceeded {
			t.Errorf("%s is %s", f.Name, f.State)
		}
	}
	b.clean(t)
	if found, err := leaktest.Find(ids...); err != nil || len(found) > 0 {
		t.Error(found, err)
	}
}

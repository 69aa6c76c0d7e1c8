package runner_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// shown reads a file of a state, "" when it is not there.
func shown(t *testing.T, b *bench, ref, path string) string {
	t.Helper()
	c, err := b.Change(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Entries {
		if e.Path == path && e.Kind != "deleted" {
			var text bytes.Buffer
			if err := b.Diff(t.Context(), ref, &text, snapshot.DiffOptions{Paths: []string{path}}); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(text.String()) {
				if rest, ok := strings.CutPrefix(line, "+"); ok && !strings.HasPrefix(line, "+++") {
					return strings.TrimSpace(rest)
				}
			}
		}
	}
	return ""
}

func steps(b *bench, feature string, scripts ...string) runner.Request {
	r := b.request("true")
	r.Feature, r.Steps = feature, nil
	for _, s := range scripts {
		r.Steps = append(r.Steps, runner.Step{Args: []string{"sh", "-c", s}})
	}
	return r
}

// reasons lists why a feature's checkpoints were made.
func reasons(list []runner.Checkpoint) (all []string) {
	for _, c := range list {
		all = append(all, c.Reason)
	}
	return all
}

func TestCheckpointsOfATask(t *testing.T) {
	b := newNative(t, runner.Options{})
	res, _, _ := run(t, b, steps(b, "f", "echo one > x", "true", "echo three > x"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil || !slices.Equal(reasons(list), []string{"start", "step", "step", "step"}) {
		t.Fatalf("%v %v", reasons(list), err)
	}
	for i, c := range list {
		if c.TaskID != res.TaskID || c.Step != i || c.FeatureID != res.FeatureID || c.Feature != "f" {
			t.Errorf("%d: %+v", i, c)
		}
	}
	if list[2].AliasOf != list[1].ID || !slices.Contains(list[1].Aliases, list[2].ID) {
		t.Errorf("a step that changed nothing has a state of its own: %+v", list[2])
	}
	if !list[3].Head || list[3].Parent != list[1].ID {
		t.Errorf("%+v", list[3])
	}
	if got := shown(t, b, "f@"+list[2].ID, "x") + shown(t, b, "f@start", "x") + shown(t, b, "f", "x"); got != "onethree" {
		t.Errorf("%q", got)
	}
	task, err := b.Task(t.Context(), res.TaskID)
	if err != nil || task.Steps[0].Checkpoint != list[1].ID || task.Steps[1].Checkpoint != list[2].ID {
		t.Errorf("%+v %v", task, err)
	}
	good, err := b.CheckpointOf(t.Context(), "f@last-good")
	if err != nil || good.ID != list[3].ID || len(good.Verdicts) == 0 {
		t.Errorf("%+v %v", good, err)
	}
}

func TestRollback(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo one > x; echo a > a", "echo two > x; echo b > b; rm a"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	dry, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: list[1].ID, DryRun: true})
	if err != nil || !dry.DryRun || shown(t, b, "f", "x") != "two" {
		t.Fatalf("%+v %v", dry, err)
	}
	r, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: list[1].ID})
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "f", "a") + shown(t, b, "f", "b"); got != "onea" || r.To.ID != list[1].ID {
		t.Fatalf("%q %+v", got, r)
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: r.Undo.ID}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "f", "a") + shown(t, b, "f", "b"); got != "twob" {
		t.Fatalf("%q", got)
	}
	// Only some paths: x goes back, b stays.
	if r, err = b.Rollback(t.Context(), "f", runner.RollbackOptions{To: list[1].ID, Paths: []string{"x", "a"}}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "f", "a") + shown(t, b, "f", "b"); got != "oneab" {
		t.Fatalf("%q %+v", got, r)
	}
	if _, err = b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "start", Smart: []string{"/workspace/b"}}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "f", "b"); got != "one" {
		t.Fatalf("%q", got)
	}
	_, err = b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "nonsense"})
	wantError(t, err, runner.CodeNotFound, runner.ExitRefused)
}

func TestForeignCheckpoint(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo one > x"))
	run(t, b, steps(b, "g", "echo two > x"))
	g, err := b.CheckpointOf(t.Context(), "g@head")
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"rollback": second(b.Rollback(t.Context(), "f", runner.RollbackOptions{To: g.ID})),
		"diff":     second(b.Change(t.Context(), "f@"+g.ID)),
		"between":  second(b.ChangeBetween(t.Context(), "f", "f@"+g.ID)),
		"fork":     second(b.Fork(t.Context(), "f@"+g.ID, "h")),
		"label":    b.Label(t.Context(), "f@"+g.ID, "x"),
		"drop":     b.DropCheckpoints(t.Context(), "f@"+g.ID),
	} {
		if runner.CodeOf(err) != runner.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestForkHasItsOwnLife(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo one > x; cat /etc/machine-id > /tmp/../workspace/id", "echo two > x"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	info, err := b.Fork(t.Context(), "f@"+list[1].ID, "g")
	if err != nil || info.Name != "g" || info.Origin != list[0].FeatureID {
		t.Fatalf("%+v %v", info, err)
	}
	_, out, errs := run(t, b, steps(b, "g", "cat x; cmp -s id /etc/machine-id || echo other; echo three > x; stat -c %u x"))
	if out != "one\nother\n1000\n" {
		t.Fatalf("%q %s", out, errs)
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "g", "x"); got != "twothree" {
		t.Fatal(got)
	}
	// What the fork stands on stays when its origin goes, and goes with it.
	if err := b.Remove(t.Context(), []string{"f"}, true); err != nil {
		t.Fatal(err)
	}
	if _, out, errs := run(t, b, steps(b, "g", "cat x id | wc -l")); out != "2\n" {
		t.Fatalf("%q %s", out, errs)
	}
	if err := b.Remove(t.Context(), []string{"g"}, true); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(b.state, "features"))
	if err != nil || len(left) != 0 {
		t.Fatalf("%v %v", left, err)
	}
}

func TestDetached(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := steps(b, "f", "echo one > x; echo up")
	r.Detach = true
	task, err := b.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	res, err := task.Wait(t.Context())
	if err != nil || res.Verdict != runner.VerdictOK || task.Feature() != "f" {
		t.Fatalf("%+v %v", res, err)
	}
	if live := b.Live(); len(live) != 1 || live[0] != task.FeatureID() {
		t.Fatal(live)
	}
	var out bytes.Buffer
	x := steps(b, "", "cat x; echo two > x")
	x.Stdout, x.Profile = &out, nil
	if res, err = b.Exec(t.Context(), "f", x); err != nil || res.Verdict != runner.VerdictOK || out.String() != "one\n" {
		t.Fatalf("%q %+v %v", out.String(), res, err)
	}
	c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{Label: "here", Key: "k"})
	if err != nil || c.Label != "here" {
		t.Fatal(c, err)
	}
	if again, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{Label: "here", Key: "k"}); err != nil || again.ID != c.ID {
		t.Fatal(again, err)
	}
	if res, err = b.Exec(t.Context(), "f", steps(b, "", "rm x; mkdir x")); err != nil || !res.OK() {
		t.Fatal(res, err)
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "here"}); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	x = steps(b, "", "cat x")
	x.Stdout = &out
	if _, err = b.Exec(t.Context(), "f", x); err != nil || out.String() != "two\n" {
		t.Fatalf("%q %v", out.String(), err)
	}
	if err := b.Stop(t.Context(), []string{"f"}, runner.StopOptions{Seal: true}); err != nil {
		t.Fatal(err)
	}
	if f, err := b.Feature(t.Context(), "f"); err != nil || f.Live || f.Detached || len(b.Live()) != 0 {
		t.Fatalf("%+v %v", f, err)
	}
	_, err = b.Exec(t.Context(), "f", steps(b, "", "true"))
	wantError(t, err, runner.CodeNotLive, runner.ExitRefused)
}

// detach starts a feature in which nothing runs.
func detach(t *testing.T, b *bench, feature string) {
	t.Helper()
	r := steps(b, feature)
	r.Detach = true
	task, err := b.Start(t.Context(), r)
	if err == nil {
		_, err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if len(b.Live()) > 0 {
			if err := b.Stop(context.Background(), []string{feature}, runner.StopOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// holding runs a command in a live feature that says when it is ready, until the test ends it.
func holding(t *testing.T, b *bench, feature, script string) (ended <-chan *runner.Result) {
	t.Helper()
	ready := make(chan struct{}, 100)
	r := steps(b, feature, script)
	r.Stdout = writer(func(p []byte) (int, error) { ready <- struct{}{}; return len(p), nil })
	done := make(chan *runner.Result, 1)
	go func() {
		res, err := b.Exec(context.Background(), feature, r)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not begin")
	}
	return done
}

// A checkpoint of a state that a process holds is a copy; the process goes on and notices nothing.
func TestCheckpointUnderAHolder(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	ended := holding(t, b, "f", "exec 3> log; i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i >&3; echo $i > last.new; mv last.new last; [ $i = 2 ] && echo up; sleep 0.01; done; wc -l < log > lines; cat last > end")
	var ids []string
	for range 3 {
		c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "touch /tmp/stop")); err != nil {
		t.Fatal(err)
	}
	if res := <-ended; res.Verdict != runner.VerdictOK {
		t.Fatalf("%+v", res)
	}
	if lines, last := shown(t, b, "f", "lines"), shown(t, b, "f", "end"); lines != last {
		t.Fatalf("%s lines, %s turns", lines, last)
	}
	for i, id := range ids {
		if got := shown(t, b, "f@"+id, "last"); got == "" {
			t.Errorf("checkpoint %d shows nothing", i)
		}
	}
}

func TestRollbackOfALiveFeature(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "echo one > x")); err != nil {
		t.Fatal(err)
	}
	c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "echo two > x")); err != nil {
		t.Fatal(err)
	}
	ended := holding(t, b, "f", "echo up; exec sleep 60")
	_, err = b.Rollback(t.Context(), "f", runner.RollbackOptions{To: c.ID, Keep: true})
	e := wantError(t, err, runner.CodeHeld, runner.ExitRefused)
	if !strings.Contains(e.Cause, "cwd /workspace") {
		t.Errorf("%s does not name the holder", e.Cause)
	}
	away := holding(t, b, "f", "cd /; echo up; exec sleep 60")
	r, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: c.ID})
	if err != nil || len(r.Stopped) == 0 {
		t.Fatalf("%+v %v", r, err)
	}
	for _, done := range []<-chan *runner.Result{ended, away} {
		if res := <-done; res.Verdict != runner.VerdictCancelled {
			t.Fatalf("%+v", res)
		}
	}
	if got := shown(t, b, "f", "x"); got != "one" {
		t.Fatal(got)
	}
	away = holding(t, b, "f", "cd /; echo up; exec sleep 60")
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: r.Undo.ID, Keep: true}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "x"); got != "two" {
		t.Fatal(got)
	}
	if err := b.Kill(t.Context(), "f", syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if res := <-away; res.Verdict != runner.VerdictSignalled {
		t.Fatalf("%+v", res)
	}
}

func TestResume(t *testing.T) {
	b := newNative(t, runner.Options{})
	script := "cat x; echo again >> x; test -e ok && exit 0; echo first > mess; cat /etc/machine-id > id; exit 3"
	res, _, _ := run(t, b, steps(b, "f", "echo one > x; echo first", script, "echo last"))
	if res.Verdict != runner.VerdictNonzero || res.State != runner.StateFailed {
		t.Fatalf("%+v", res)
	}
	var out bytes.Buffer
	again, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{Stdout: &out})
	if err != nil || again.Verdict != runner.VerdictNonzero || out.String() != "one\n" || again.TaskID != res.TaskID {
		t.Fatalf("%q %+v %v", out.String(), again, err)
	}
	if again.Steps[0].State != runner.StepDone || again.Steps[1].State != runner.StepFailed {
		t.Fatalf("%+v", again.Steps)
	}
	other := *b.profile
	other.Digest = "sha256:0123456789abcdef"
	_, err = b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{Profile: &other})
	wantError(t, err, runner.CodeConfiguration, runner.ExitRefused)
	if err := os.WriteFile(filepath.Join(b.workspace, "ok"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	again, err = b.Resume(t.Context(), "f", runner.ResumeOptions{Stdout: &out})
	if err != nil || again.Verdict != runner.VerdictOK || again.State != runner.StateSucceeded || out.String() != "one\nlast\n" {
		t.Fatalf("%q %+v %v", out.String(), again, err)
	}
	if got := shown(t, b, "f", "mess"); got != "" {
		t.Errorf("what the failed step left is still there: %q", got)
	}
	_, err = b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	wantError(t, err, runner.CodeUsage, runner.ExitRefused)
}

func TestResumeAsks(t *testing.T) {
	b := newNative(t, runner.Options{})
	for name, test := range map[string]struct {
		retry   bool
		options runner.ResumeOptions
		out     string
		code    string
	}{
		"asks":        {code: runner.CodeResume},
		"may":         {retry: true, out: "on\nend\n"},
		"yes":         {options: runner.ResumeOptions{RetryInterrupted: true}, out: "on\nend\n"},
		"leave it so": {options: runner.ResumeOptions{SkipInterrupted: true}, out: "end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			r := steps(b, "", "echo begun", "echo on; test -e /workspace/go || exec sleep 60", "echo end")
			r.Steps[1].Retry = test.retry
			r.Stdout = writer(func(p []byte) (int, error) {
				if bytes.Contains(p, []byte("on")) {
					cancel(errors.New("enough"))
				}
				return len(p), nil
			})
			res, err := b.Run(ctx, r)
			if err != nil || res.State != runner.StateCancelled || res.Steps[1].State != runner.StepInterrupted {
				t.Fatalf("%+v %v", res, err)
			}
			if err := os.WriteFile(filepath.Join(b.workspace, "go"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(filepath.Join(b.workspace, "go"))
			var out bytes.Buffer
			test.options.Stdout = &out
			res, err = b.Resume(t.Context(), res.TaskID, test.options)
			if test.code != "" {
				if e := wantError(t, err, test.code, runner.ExitPerson); !strings.Contains(e.Remedy, "--retry-interrupted") {
					t.Fatal(e.Remedy)
				}
				return
			}
			if err != nil || res.Verdict != runner.VerdictOK || out.String() != test.out {
				t.Fatalf("%q %+v %v", out.String(), res, err)
			}
		})
	}
}

func TestKeys(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := steps(b, "f", "echo x >> x")
	r.Key = "order 1"
	first, _, _ := run(t, b, r)
	second, _, _ := run(t, b, r)
	if first.TaskID != second.TaskID || shown(t, b, "f", "x") != "x" {
		t.Fatalf("%+v", second)
	}
	r.Steps[0].Args = []string{"true"}
	_, err := b.Run(t.Context(), r)
	wantError(t, err, runner.CodeKey, runner.ExitRefused)
}

func TestAutomaticCheckpoints(t *testing.T) {
	for name, policy := range map[string]runner.CheckpointPolicy{
		"by count": {Files: 3, Debounce: 50 * time.Millisecond},
		"by time":  {Every: 100 * time.Millisecond, Debounce: 50 * time.Millisecond},
		"off":      {Off: true, Files: 1, Debounce: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			b := newNative(t, runner.Options{})
			done := make(chan struct{})
			r := steps(b, "f", "mkdir -p a/b; for i in 1 2 3 4; do echo $i > a/b/$i; done; while [ ! -e stop ]; do sleep 0.02; done")
			r.Checkpoints = &policy
			go func() {
				defer close(done)
				run(t, b, r)
			}()
			deadline := time.Now().Add(10 * time.Second)
			var auto []runner.Checkpoint
			for len(auto) == 0 && time.Now().Before(deadline) {
				list, err := b.Checkpoints(t.Context(), "f")
				if err != nil && runner.CodeOf(err) != runner.CodeNotFound {
					t.Fatal(err)
				}
				auto = slices.DeleteFunc(list, func(c runner.Checkpoint) bool { return c.Reason != runner.ReasonAuto })
				if policy.Off && time.Until(deadline) < 9*time.Second {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			end := steps(b, "", "touch stop")
			end.Checkpoints = &policy
			_, err := b.Exec(t.Context(), "f", end)
			for runner.CodeOf(err) == runner.CodeNotLive && time.Now().Before(deadline) { // a slow machine is still preparing
				time.Sleep(10 * time.Millisecond)
				_, err = b.Exec(t.Context(), "f", end)
			}
			if err != nil {
				t.Fatal(err)
			}
			<-done
			if policy.Off {
				if list, err := b.Checkpoints(t.Context(), "f"); err != nil || len(list) != 0 {
					t.Fatal(list, err)
				}
				return
			}
			if len(auto) == 0 || auto[0].Step != 1 || shown(t, b, "f@"+auto[0].ID, "a/b/4") != "4" {
				t.Fatalf("%+v", auto)
			}
			var files []string
			err = b.Events(t.Context(), runner.EventOptions{Feature: "f"}, func(e runner.Event) error {
				if e.Path != "" {
					files = append(files, e.Kind+" "+e.Path)
				}
				return nil
			})
			if err != nil || !slices.Contains(files, "added /workspace/a/b/3") {
				t.Errorf("%v %v", files, err)
			}
		})
	}
}

// TestCopyPlantedLink: a link that an earlier copy brought, or that stands at the destination, is not written through.
func TestCopyPlantedLink(t *testing.T) {
	b := newNative(t, runner.Options{})
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, b, steps(b, "f", "mkdir d; ln -s "+secret+" d/a; ln -s "+filepath.Dir(secret)+" d/up; echo bad > x"))
	to := t.TempDir()
	out := func(from, to string) error {
		return b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: from}, runner.CopyPath{Path: to})
	}
	if err := out("d", to+"/d"); err != nil {
		t.Fatal(err)
	}
	run(t, b, steps(b, "f", "rm d/a d/up; echo bad > d/a; mkdir d/up; echo bad > d/up/secret"))
	for _, from := range []string{"d/a", "d/up"} {
		wantError(t, out(from, to+"/d"), runner.CodeUsage, runner.ExitRefused)
	}
	wantError(t, out("x", to+"/d/a"), runner.CodeUsage, runner.ExitRefused)
	wantError(t, out("x", to+"/d/up/"), runner.CodeUsage, runner.ExitRefused)
	if err := out("d", to); err == nil { // over the copy of before
		t.Log("the links were replaced")
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "mine" {
		t.Errorf("the file outside is %q, %v", got, err)
	}
}

func TestCopy(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "mkdir -p d/e; echo deep > d/e/x; ln -s x d/e/y; ln -s /etc d/out; echo top > top"))
	to := t.TempDir()
	if err := b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: "top"}, runner.CopyPath{Path: to}); err != nil {
		t.Fatal(err)
	}
	if err := b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: "/workspace/d"}, runner.CopyPath{Path: to + "/new"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"top": "top\n", "new/e/x": "deep\n", "new/e/y": "deep\n"} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	wantError(t, b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: "d/out"}, runner.CopyPath{Path: to}), runner.CodeUsage, runner.ExitRefused)
	if left, err := os.ReadDir(to); err != nil || len(left) != 2 {
		t.Error(left, err)
	}
	if err := b.Copy(t.Context(), runner.CopyPath{Path: to + "/new"}, runner.CopyPath{Ref: "f", Path: "back"}); err != nil {
		t.Fatal(err)
	}
	if err := b.Copy(t.Context(), runner.CopyPath{Path: to + "/top"}, runner.CopyPath{Ref: "f", Path: "back/e"}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, b, "f", "back/e/x") + shown(t, b, "f", "back/e/top"); got != "deeptop" {
		t.Error(got)
	}
	err := b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: "/etc/passwd"}, runner.CopyPath{Path: to})
	wantError(t, err, runner.CodeUsage, runner.ExitRefused)
	err = b.Copy(t.Context(), runner.CopyPath{Ref: "f", Path: "nothing"}, runner.CopyPath{Path: to})
	wantError(t, err, runner.CodeNotFound, runner.ExitRefused)
}

func TestStatsAndWait(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	res, err := b.Exec(t.Context(), "f", steps(b, "", "echo x > x"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{Wait: true}); err != nil {
		t.Fatal(err)
	}
	stats, err := b.Stats(t.Context(), nil)
	if err != nil || len(stats) != 1 || !stats[0].Live || stats[0].Times[runner.TimingSeal].N == 0 || stats[0].CPU == 0 {
		t.Fatalf("%+v %v", stats, err)
	}
	again, err := b.Wait(t.Context(), res.TaskID)
	if err != nil || again.TaskID != res.TaskID {
		t.Fatalf("%+v %v", again, err)
	}
	head, err := b.CheckpointOf(t.Context(), "f")
	if err != nil || !head.Indexed && head.AliasOf == "" || !head.Head {
		t.Fatalf("%+v %v", head, err)
	}
}

// A row that the journal has lost is made again of what lies on disk, and a file that is gone is named.
func TestRepair(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo one > x", "echo two > x"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.journal.DropCheckpoints(t.Context(), list[0].FeatureID, list[1].ID, list[2].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := b.Checkpoints(t.Context(), "f")
	if err != nil || len(again) != 3 || again[2].Reason != "step" || again[2].Step != 2 || again[1].Parent != list[1].Parent {
		t.Fatalf("%+v %v", again, err)
	}
	u, err := b.disk.Open(t.Context(), list[0].FeatureID)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(u.Dir(), "checkpoints", list[1].ID+".json")), u.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, err := b.CheckpointOf(t.Context(), "f@"+list[1].ID)
	wantError(t, err, runner.CodeDamaged, runner.ExitRefused)
	_ = c
	if got := shown(t, b, "f@"+list[2].ID, "x"); got != "two" {
		t.Fatal(got)
	}
}

func TestRetention(t *testing.T) {
	b := newNative(t, runner.Options{})
	p := *b.profile
	p.Retention.Count, p.Retention.Export = 1, "zstd"
	b.profile = &p
	run(t, b, steps(b, "f", "echo one > x", "echo two > x", "echo three > x", "echo four > x"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Label(t.Context(), "f@"+list[1].ID, "keep"); err != nil {
		t.Fatal(err)
	}
	dry, err := b.GC(t.Context(), true)
	if err != nil || len(dry.Checkpoints) != 3 {
		t.Fatalf("%+v %v", dry, err)
	}
	if _, err := b.GC(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	left, err := b.Checkpoints(t.Context(), "f")
	if err != nil || len(left) != 2 || left[0].ID != list[1].ID || left[1].ID != list[4].ID {
		t.Fatalf("%+v %v", left, err)
	}
	if got := shown(t, b, "f@keep", "x") + shown(t, b, "f", "x"); got != "onefour" {
		t.Fatal(got)
	}
	exports, err := os.ReadDir(filepath.Join(b.state, "features", list[0].FeatureID, "exports"))
	if err != nil || len(exports) != 3 {
		t.Fatalf("%v %v", exports, err)
	}
}

// Promoting moves the other live features of the workspace onto what it takes away; one that holds it prevents that.
func TestPromoteBesideOthers(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "other")
	run(t, b, steps(b, "f", "echo new > file"))
	ended := holding(t, b, "other", "echo up; exec sleep 60")
	_, err := b.Promote(t.Context(), "f", runner.PromoteOptions{})
	if e := wantError(t, err, runner.CodeHeld, runner.ExitRefused); !strings.Contains(e.Cause, "other") || !strings.Contains(e.Cause, "cwd") {
		t.Errorf("%s names nobody", e.Cause)
	}
	if got := b.read(t, "file"); got != "old\n" {
		t.Fatalf("%q", got)
	}
	if err := b.Kill(t.Context(), "other", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	away := holding(t, b, "other", "cd /; echo up; exec sleep 60")
	if _, err := b.Promote(t.Context(), "f", runner.PromoteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := b.read(t, "file"); got != "new\n" {
		t.Fatalf("%q", got)
	}
	var out bytes.Buffer
	r := steps(b, "", "cat file")
	r.Stdout = &out
	if _, err := b.Exec(t.Context(), "other", r); err != nil || out.String() != "old\n" {
		t.Fatalf("the other feature sees %q: %v", out.String(), err)
	}
	if err := b.Kill(t.Context(), "other", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-away
	// Past the promote the old state is still there, exactly.
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "start"}); err != nil {
		t.Fatal(err)
	}
	if _, out, errs := run(t, b, steps(b, "f", "cat file")); out != "old\n" {
		t.Fatalf("%q %s", out, errs)
	}
}

func TestPromoteStopsHolders(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "other")
	run(t, b, steps(b, "f", "echo new > file"))
	ended := holding(t, b, "other", "echo up; exec sleep 60")
	if _, err := b.Promote(t.Context(), "f", runner.PromoteOptions{Stop: true}); err != nil {
		t.Fatal(err)
	}
	if res := <-ended; res.Verdict == runner.VerdictOK {
		t.Fatalf("%+v", res)
	}
}

func TestDiskVerdicts(t *testing.T) {
	b := newNative(t, runner.Options{})
	for name, test := range map[string]struct{ script, limit string }{
		"bytes":  {"dd if=/dev/zero of=big bs=64k 2>&1 | tail -1; test $(stat -c %s big) -lt 30000000 && dd if=/dev/zero of=more bs=64k count=1", "disk"},
		"inodes": {"i=0; while true > f$i; do i=$((i+1)); done; exit 1", "inodes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := *loadProfile(t, map[string][]string{"disk": {"20m"}, "inodes": {"500"}, "checkpoint-every": {"1h"}, "checkpoint-files": {"100000"}})
			r := steps(b, "", test.script)
			r.Profile = &p
			res, out, errs := run(t, b, r)
			if res.Verdict != runner.VerdictDisk || res.Limit == nil || res.Limit.Name != test.limit || !strings.Contains(errs+out, "No space left") {
				t.Fatalf("%s %+v %s %s", res.Verdict, res.Limit, out, errs)
			}
			if res.Disk == nil || res.Disk.Limit != 20<<20 {
				t.Errorf("%+v", res.Disk)
			}
			// A full feature is sealed and rolled back all the same.
			list, err := b.Checkpoints(t.Context(), res.Feature)
			if err != nil || len(list) != 2 {
				t.Fatalf("%+v %v", list, err)
			}
			if _, err := b.Rollback(t.Context(), res.Feature, runner.RollbackOptions{To: "start"}); err != nil {
				t.Fatal(err)
			}
			if err := b.Remove(t.Context(), []string{res.Feature}, true); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestPause(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	ended := holding(t, b, "f", "echo up; while [ ! -e stop ]; do sleep 0.01; done")
	if err := b.Pause(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if f, err := b.Feature(t.Context(), "f"); err != nil || f.State != runner.StatePaused {
		t.Fatalf("%+v %v", f, err)
	}
	if _, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Unpause(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "touch stop")); err != nil {
		t.Fatal(err)
	}
	if res := <-ended; res.Verdict != runner.VerdictOK {
		t.Fatalf("%+v", res)
	}
	if err := b.Pause(t.Context(), "f"); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), []string{"f"}, runner.StopOptions{}); err != nil {
		t.Fatal(err)
	}
}

// What was not on disk for certain when the machine went down is read again before it is trusted.
func TestAfterAReboot(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo one > x", "echo two > x"))
	list, err := b.Checkpoints(t.Context(), "f") // now they are indexed
	if err != nil || !list[2].Indexed || list[2].Durable {
		t.Fatalf("%+v %v", list, err)
	}
	dir := filepath.Join(b.state, "features", list[0].FeatureID)
	u, err := b.disk.Open(t.Context(), list[0].FeatureID)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := filepath.Glob(filepath.Join(u.Dir(), "layers/*/w/x"))
	if err != nil || len(sealed) < 2 {
		t.Fatal(sealed, err)
	}
	sealed = sealed[len(sealed)-2:] // before them there is, of copies, the current one
	if err := errors.Join(os.WriteFile(sealed[0], nil, 0o644), u.Close(), os.WriteFile(filepath.Join(dir, "boot"), []byte("another\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err = b.Checkpoints(t.Context(), "f"); err != nil || list[1].Damaged == "" || list[2].Damaged != "" || !list[2].Durable {
		t.Fatalf("%+v %v", list, err)
	}
}

// A feature keeps its limits until others are asked for by name.
func TestResizedDisk(t *testing.T) {
	notEmulated(t)
	b := newNative(t, runner.Options{})
	r := steps(b, "f", "true")
	r.Profile = loadProfile(t, map[string][]string{"disk": {"20m"}})
	run(t, b, r)
	r.Profile = loadProfile(t, nil)
	if res, _, _ := run(t, b, r); res.Disk == nil || res.Disk.Limit != 20<<20 {
		t.Fatalf("%+v", res.Disk)
	}
	r.Profile = loadProfile(t, map[string][]string{"disk": {"40m"}})
	res, err := b.Run(t.Context(), r)
	if runner.CodeOf(err) == runner.CodeQuota { // this kernel lets us make nothing larger, and says so
		return
	}
	if err != nil || res.Disk.Limit != 40<<20 {
		t.Fatalf("%+v %v", res, err)
	}
}

// Killed at any moment of a task with several steps, a supervisor leaves a feature whose steps and checkpoints agree: a
// step that is done has its state, and a resume ends as if nothing had happened.
func TestKilledWithCheckpoints(t *testing.T) {
	b := newNative(t, runner.Options{})
	n := 12
	if os.Getenv("CAISSON_TEST_LONG") != "" {
		n = 500
	}
	for i := range n {
		b.write(t, "file", "old\n")
		if err := os.RemoveAll(filepath.Join(b.workspace, "d")); err != nil {
			t.Fatal(err)
		}
		c := b.process(t, "steps", "echo 1 >> log; echo a > a", "echo 2 >> log; rm a; mkdir a", "echo 3 >> log; cp log copy")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i%40) * 5 * time.Millisecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		if !b.resumed(t) {
			t.Fatalf("after %d kills", i+1)
		}
	}
}

// resumed opens the state directory of a dead supervisor, checks what it finds, and goes on.
func (b *bench) resumed(t *testing.T) bool {
	t.Helper()
	features, err := b.Features(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range features {
		if err := second(b.GC(t.Context(), false)); err != nil {
			t.Fatal(err)
		}
		l, err := b.Wait(t.Context(), f.ID) // settles it
		if runner.CodeOf(err) == runner.CodeNotFound {
			continue // it never had layers
		}
		if err != nil {
			t.Fatal(err)
		}
		list, err := b.Checkpoints(t.Context(), f.ID)
		if err != nil {
			t.Fatal(err)
		}
		task, err := b.Task(t.Context(), l.TaskID)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"", "1", "12", "123"}
		for _, c := range list {
			if c.Damaged != "" || c.Lost {
				t.Errorf("%+v", c)
			}
			if got := b.log(t, f.ID+"@"+c.ID); got != want[c.Step] {
				t.Errorf("%s after step %d shows %q", c.Reason, c.Step, got)
			}
		}
		for i, st := range task.Steps {
			if st.State == runner.StepDone && i < 2 && st.Checkpoint == "" {
				t.Errorf("step %d is done and has no state: %+v", st.N, task)
			}
		}
		if task.State != runner.StateSucceeded {
			r, err := b.Resume(t.Context(), task.ID, runner.ResumeOptions{RetryInterrupted: true})
			if err != nil || !r.OK() {
				t.Errorf("%+v %v", r, err)
			}
		}
		if got := b.log(t, f.ID); got != "123" {
			t.Errorf("in the end it shows %q", got)
		}
		if err := b.Remove(t.Context(), []string{f.ID}, true); err != nil {
			t.Error(err)
		}
	}
	return !t.Failed()
}

// log is the file log of a state, without line ends.
func (b *bench) log(t *testing.T, ref string) string {
	t.Helper()
	var text bytes.Buffer
	if err := b.Diff(t.Context(), ref, &text, snapshot.DiffOptions{Paths: []string{"log"}}); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(text.String()) {
		if rest, ok := strings.CutPrefix(line, "+"); ok && !strings.HasPrefix(line, "+++") {
			got.WriteString(strings.TrimSpace(rest))
		}
	}
	return got.String()
}

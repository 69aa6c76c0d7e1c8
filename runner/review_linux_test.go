package runner_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// A resume in a live feature would take the state from under the others: it is refused while there are any, and everything
// goes on as if nobody had asked.
func TestResumeBesideOthers(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	res, err := b.Exec(t.Context(), "f", steps(b, "", "echo one > x", "test -e /tmp/ok"))
	if err != nil || res.State != runner.StateFailed {
		t.Fatalf("%+v %v", res, err)
	}
	ended := holding(t, b, "f", "echo two > x; touch /tmp/ok; echo up; while [ ! -e stop ]; do sleep 0.01; done")
	_, err = b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	wantError(t, err, runner.CodeBusy, runner.ExitRefused)
	if got := shown(t, b, "f", "x"); got != "two" {
		t.Fatalf("%q", got)
	}
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "touch stop")); err != nil {
		t.Fatal(err)
	}
	if r := <-ended; r.Verdict != runner.VerdictOK {
		t.Fatalf("%+v", r)
	}
	again, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	if err != nil || again.Verdict != runner.VerdictOK {
		t.Fatalf("%+v %v", again, err)
	}
	if got := shown(t, b, "f", "x"); got != "one" {
		t.Fatalf("%q", got)
	}
}

// Whoever is started while a rollback makes way dies too, also where what is frozen does not die by itself.
func TestRollbackBesideNewcomers(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				r := steps(b, "", "echo x >> x; sleep 0.05")
				r.Checkpoints = &runner.CheckpointPolicy{Off: true}
				if _, err := b.Exec(t.Context(), "f", r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: c.ID}); err != nil {
			t.Error(err)
		}
	}
	close(quit)
	wg.Wait()
}

// Where the state before a step is not known, nobody guesses.
func TestResumeWithoutCheckpoints(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := steps(b, "f", "echo one > x", "echo half >> x; test -e /home/user/never", "true")
	r.Checkpoints = &runner.CheckpointPolicy{Off: true}
	res, _, _ := run(t, b, r)
	_, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	if e := wantError(t, err, runner.CodeResume, runner.ExitPerson); !strings.Contains(e.Remedy, "--retry-interrupted") {
		t.Error(e.Remedy)
	}
	// The question changed nothing: it can be answered.
	again, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{RetryInterrupted: true})
	if err != nil || again.Verdict != runner.VerdictNonzero || again.Steps[0].State != runner.StepDone {
		t.Fatalf("%+v %v", again, err)
	}
	var out bytes.Buffer
	x := steps(b, "f", "cat x")
	x.Stdout = &out
	if _, err := b.Run(t.Context(), x); err != nil || out.String() != "one\nhalf\nhalf\n" {
		t.Fatalf("%q %v", out.String(), err)
	}
}

// The last checkpoint of a task that failed belongs to the step that failed.
func TestCheckpointOfAFailedStep(t *testing.T) {
	b := newNative(t, runner.Options{})
	res, _, _ := run(t, b, steps(b, "f", "echo 1 > x", "echo 2 > x; exit 3", "true", "true"))
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil || list[len(list)-1].Step != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	if res.Steps[3].Checkpoint != "" || res.Steps[1].Checkpoint != list[len(list)-1].ID {
		t.Fatalf("%+v", res.Steps)
	}
}

// Of two that resume one task at once, one does, and no step that is done runs twice.
func TestTwoResumes(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	res, err := b.Exec(t.Context(), "f", steps(b, "", "echo run >> /tmp/first", "echo run >> /tmp/second; test -e /tmp/ok"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	n := 0
	for range 4 {
		wg.Go(func() {
			if _, err := b.Resume(t.Context(), res.TaskID, runner.ResumeOptions{}); err == nil {
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var out bytes.Buffer
	x := steps(b, "", "wc -l < /tmp/first; wc -l < /tmp/second")
	x.Stdout = &out
	if _, err := b.Exec(t.Context(), "f", x); err != nil || n == 0 || !strings.HasPrefix(out.String(), "1\n") {
		t.Fatalf("%d resumes, %q, %v", n, out.String(), err)
	}
}

// A fork sees a whole checkpoint, whoever forgets checkpoints at the same time.
func TestForkBesideDrops(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	var ids []string
	for i := range 6 {
		if _, err := b.Exec(t.Context(), "f", steps(b, "", "echo "+strings.Repeat("x", i+1)+" > x")); err != nil {
			t.Fatal(err)
		}
		c, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	var wg sync.WaitGroup
	forked := make([]string, len(ids))
	for i, id := range ids {
		wg.Go(func() {
			if f, err := b.Fork(t.Context(), "f@"+id, ""); err == nil {
				forked[i] = f.Name
			} else if runner.CodeOf(err) != runner.CodeNotFound {
				t.Error(err)
			}
		})
		wg.Go(func() {
			want := ""
			if i == len(ids)-1 { // what the feature lies on stays
				want = runner.CodeHeld
			}
			if err := b.DropCheckpoints(t.Context(), "f@"+id); runner.CodeOf(err) != want {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, name := range forked {
		if name == "" {
			continue
		}
		if got := shown(t, b, name, "x"); got != strings.Repeat("x", i+1) {
			t.Errorf("the fork of %d shows %q", i, got)
		}
	}
}

// A task that goes on filling the disk gets nothing of what is kept back for seals.
func TestReserveOfAFullDisk(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := steps(b, "f")
	r.Detach, r.Profile = true, loadProfile(t, map[string][]string{"disk": {"20m"}, "inodes": {"500"}})
	b.profile = r.Profile
	task, err := b.Start(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := task.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Stop(t.Context(), []string{"f"}, runner.StopOptions{}) }()
	ended := holding(t, b, "f", "exec 2>/dev/null; i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); mkdir d$i || { sleep 0.002; [ -n \"$up\" ] || echo up; up=1; }; cat /dev/zero >> big; done")
	for range 3 { // a copy that does not fit is refused by name, and takes nothing away
		_, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
		if err != nil && runner.CodeOf(err) != runner.CodeQuota {
			t.Fatal(err)
		}
	}
	if err := b.Kill(t.Context(), "f", 9); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal(errors.New("it does not end"))
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: "start"}); err != nil {
		t.Fatal(err)
	}
}

// A step that has met the end of its disk has met it, also when there is room again by the time it ends; the next one has not.
func TestDiskWasFull(t *testing.T) {
	b := newNative(t, runner.Options{})
	b.profile = loadProfile(t, map[string][]string{"disk": {"20m"}, "checkpoint-every": {"1h"}, "checkpoint-files": {"100000"}})
	detach(t, b, "f")
	ended := holding(t, b, "f", "head -c 30M /dev/zero > big; echo full; while [ ! -e /tmp/stop ]; do sleep 0.01; done; rm big; exit 1")
	list, err := b.Stats(t.Context(), []string{"f"}) // somebody has looked: the watcher does so too, in its own time
	if err != nil || len(list) != 1 || list[0].Disk == nil || list[0].Disk.Used < 19<<20 {
		t.Fatalf("%+v %v", list, err)
	}
	if _, err := b.Exec(t.Context(), "f", steps(b, "", "touch /tmp/stop")); err != nil {
		t.Fatal(err)
	}
	res := <-ended
	if res.Verdict != runner.VerdictDisk || res.Limit == nil || res.Limit.Limit != "20m" {
		t.Errorf("%s %q %+v", res.Verdict, res.Cause, res.Limit)
	}
	list, err = b.Stats(t.Context(), []string{"f"})
	if err != nil || list[0].Disk.Used > 1<<20 {
		t.Errorf("it is full still: %+v %v", list, err)
	}
	res, err = b.Exec(t.Context(), "f", steps(b, "", "exit 1"))
	if err != nil || res.Verdict != runner.VerdictNonzero {
		t.Errorf("%+v %v", res, err)
	}
}

// Two live features that promote into one workspace at once do so one after the other.
func TestTwoPromotes(t *testing.T) {
	b := newNative(t, runner.Options{})
	for _, name := range []string{"f", "g"} {
		detach(t, b, name)
		if _, err := b.Exec(t.Context(), name, steps(b, "", "echo "+name+" > "+name)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for _, name := range []string{"f", "g"} {
		wg.Go(func() {
			if _, err := b.Promote(t.Context(), name, runner.PromoteOptions{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	if got := b.read(t, "f") + b.read(t, "g"); got != "f\ng\n" {
		t.Fatalf("%q", got)
	}
	for _, name := range []string{"f", "g"} {
		if err := b.Stop(t.Context(), []string{name}, runner.StopOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// What is not sealed, and can still be written to, is neither judged nor promoted.
func TestNotSealed(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "f")
	long := `cd /tmp; n=$(printf %0200d 0); p=$n; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14; do p=$p/$n; done
cd; mkdir -p a; for i in 1 2 3 4 5 6; do mkdir -p b/$p && mv a b/$p/a && mv b a; done`
	patch := filepath.Join(t.TempDir(), "patch")
	ended := holding(t, b, "f", long+"; echo up; exec sleep 60")
	for name, policy := range map[string]*runner.CheckpointPolicy{"by itself": nil, "without checkpoints": {Off: true}} {
		r := steps(b, "", "echo new > file")
		r.Promote, r.PatchFile, r.Checkpoints = runner.PromotePatch, patch, policy
		res, err := b.Exec(t.Context(), "f", r)
		if err != nil || res.Verdict != runner.VerdictRefused || res.State != runner.StateRejected || res.Code != runner.CodeHeld || res.Remedy == "" ||
			len(res.Gates) > 0 || res.Promoted != nil || res.Checkpoint != "" {
			t.Errorf("%s: %+v %v", name, res, err)
		}
		if _, err := os.Lstat(patch); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: promoted all the same: %v", name, err)
		}
	}
	if err := b.Kill(t.Context(), "f", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	r := steps(b, "", "echo new > file") // nobody holds it any more
	r.Promote, r.Checkpoints = runner.PromoteApply, &runner.CheckpointPolicy{Off: true}
	res, err := b.Exec(t.Context(), "f", r)
	if err != nil || res.Verdict != runner.VerdictOK || res.Checkpoint == "" || len(res.Gates) == 0 || b.read(t, "file") != "new\n" {
		t.Fatalf("%+v %v", res, err)
	}
}

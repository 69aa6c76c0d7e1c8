package runner_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/flock"
)

// gated is the default profile with what a file says of gates.
func gated(t *testing.T, text string) *profiles.Effective {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte("extends: default\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := profiles.Load(profiles.LoadOptions{File: file, Flags: map[string][]string{"disk": {"200m"}, "driver": {driver}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// allGates has every gate that reads.
const allGates = "gates: {exec: {mode: block}, immutable: {paths: [LICENSE]}, links: {mode: block}, lock: {mode: block}, secrets: {mode: block}, size: {mode: block, files: 2000}, command: {mode: block}}\n"

// TestGateFigures: what is asked once is answered from the cache, by another process too, and what gates name goes back alone.
// It logs how long each takes with 1,000 changed files; the figures are worth something on a quiet machine.
func TestGateFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("a thousand files")
	}
	b := newNative(t, runner.Options{})
	b.profile = gated(t, allGates)
	for n := range 999 { // and "file"
		b.write(t, fmt.Sprintf("file%04d", n), fmt.Sprintf("line one\nold %d\n", n))
	}
	time.Sleep(50 * time.Millisecond) // what has only just been changed is not trusted to stay
	r := b.sh(`i=0; for f in file*; do i=$((i+1)); if [ $i -le 100 ]; then echo key = AKIA""IMNOJVGFDXXXE4OA > $f; else echo new $i > $f; fi; done`)
	r.Feature, r.Profile = "f", b.profile
	res, _, _ := run(t, b, r)
	if res.Verdict != runner.VerdictGate || len(res.Gates) < 9 {
		t.Fatalf("%s %s: %d verdicts", res.Verdict, res.Cause, len(res.Gates))
	}
	var work time.Duration
	for _, v := range res.Gates {
		work += v.Duration
	}
	t.Logf("every reading gate on 1,000 changed files, cold: %v (in all; they run at the same time)", work)
	again := b.second(t, runner.Options{})
	start := time.Now()
	p, err := again.Promote(t.Context(), "f", runner.PromoteOptions{Check: true})
	if runner.CodeOf(err) != runner.CodeGate {
		t.Fatal(err)
	}
	took, asked := time.Since(start), time.Duration(0)
	for _, v := range p.Gates {
		if v.Status != gates.Skipped && !v.Cached {
			t.Errorf("%s was asked again", v.Gate)
		}
		asked = max(asked, v.Duration)
	}
	t.Logf("again, in another process: %v for the slowest answer, %v with opening the feature and reading its change", asked, took)

	back, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{Named: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("smart rollback of 100 of 1,000 changed files: %v", back.Took)
	if len(back.Report.Paths) != 100 {
		t.Errorf("%d paths went back", len(back.Report.Paths))
	}
	if p, err = b.Promote(t.Context(), "f", runner.PromoteOptions{Check: true}); err != nil || p.Change.Modified != 900 {
		t.Errorf("%+v %v", p.Change, err)
	}
	// The owner of the workspace changes a file under the change: what rested on it is asked again.
	b.write(t, "file0500", "somebody else\n")
	if p, err = b.Promote(t.Context(), "f", runner.PromoteOptions{Check: true}); err != nil {
		t.Fatal(err)
	}
	for _, v := range p.Gates {
		if v.Cached {
			t.Errorf("%s: an old answer", v.Gate)
		}
	}
}

// approveAndDie does what Approve does first, and no more.
func (b *bench) approveAndDie(t *testing.T, res *runner.Result) {
	t.Helper()
	c, err := b.CheckpointOf(t.Context(), "f@"+res.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range c.Verdicts {
		if v.Gate == "size" {
			err = errors.Join(err, b.journal.Approve(t.Context(), runner.Approval{Feature: c.FeatureID, Checkpoint: c.ID, Gate: "size", By: "ann", Reason: "meant", Verdict: v}))
		}
	}
	move := runner.Move{TaskID: res.TaskID, From: runner.StateAwaitingApproval, To: runner.StatePromoting, Cause: "approved"}
	if err := errors.Join(err, b.journal.Move(t.Context(), move)); err != nil {
		t.Fatal(err)
	}
}

// TestApprovalAcrossACrash: a supervisor that dies between the approval and the end of the promotion leaves a task that can be
// resumed, and nothing half done.
func TestApprovalAcrossACrash(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := b.sh("printf 'a\\0b' > blob")
	r.Feature, r.Promote, r.Profile = "f", runner.PromoteApply, gated(t, "gates: {size: {mode: block}, on_block: wait}\n")
	res, _, _ := run(t, b, r)
	if res.State != runner.StateAwaitingApproval || res.Code != runner.CodeApproval {
		t.Fatalf("%s %s", res.State, res.Cause)
	}
	b.approveAndDie(t, res)
	other := b.second(t, runner.Options{})
	info, err := other.Feature(t.Context(), "f")
	if err != nil || info.State != runner.StateInterrupted {
		t.Fatalf("%+v %v", info, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err = other.Resume(ctx, res.TaskID, runner.ResumeOptions{})
	if err != nil || res.State != runner.StateSucceeded || len(res.Approvals) != 1 || res.Approvals[0].By != "ann" {
		t.Fatalf("%+v %v", res, err)
	}
	if b.read(t, "blob") != "a\x00b" {
		t.Error("it was not promoted")
	}
}

// gitInit makes the workspace a repository with one commit.
func (b *bench) gitInit(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("git")
	testenv.Need(t, "git", err)
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"}} {
		if out, err := exec.Command("git", append([]string{"-C", b.workspace}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v %s", args, err, out)
		}
	}
}

// TestBranchGivenUp: nobody has to wait for a commit; here it never has its turn.
func TestBranchGivenUp(t *testing.T) {
	b := newNative(t, runner.Options{})
	b.gitInit(t)
	detach(t, b, "f")
	if _, err := b.Exec(t.Context(), "f", b.sh("echo new > file")); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(b.workspace))
	l, err := flock.Acquire(t.Context(), filepath.Join(b.state, "locks", hex.EncodeToString(sum[:8])))
	if err != nil {
		t.Fatal(err)
	}
	release := sync.OnceValue(l.Release)
	defer func() { _ = release() }()
	for name, promote := range map[string]func(context.Context) error{
		"a feature's": func(ctx context.Context) error {
			_, err := b.Promote(ctx, "f", runner.PromoteOptions{Kind: runner.PromoteBranch})
			return err
		},
		"a task's": func(ctx context.Context) error {
			r := b.sh("echo newer > file")
			r.Promote = runner.PromoteBranch
			res, err := b.Exec(ctx, "f", r)
			if err == nil && res.State != runner.StateCancelled {
				t.Errorf("the task is %s: %s", res.State, res.Cause)
			}
			return cmp.Or(err, context.Cause(ctx))
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		waiting := time.AfterFunc(30*time.Second, func() {
			t.Errorf("%s: not given up", name)
			_ = release()
		})
		if err := promote(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		waiting.Stop()
	}
	if _, err := os.Lstat(b.workspace + "/.git/refs/heads/caisson"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a branch was made: %v", err)
	}
	info, err := b.Feature(t.Context(), "f")
	if err != nil || info.State == runner.StatePromoting {
		t.Errorf("%+v %v", info, err)
	}
}

// TestBranchAcrossACrash: a supervisor that dies between the branch and the task's end leaves a task that, when it goes on, finds
// its commit and is done.
func TestBranchAcrossACrash(t *testing.T) {
	b := newNative(t, runner.Options{})
	b.gitInit(t)
	r := b.sh("printf 'a\\0b' > blob")
	r.Feature, r.Promote, r.Profile = "f", runner.PromoteBranch, gated(t, "gates: {size: {mode: block}, on_block: wait}\n")
	res, _, _ := run(t, b, r)
	if res.State != runner.StateAwaitingApproval {
		t.Fatalf("%s %s", res.State, res.Cause)
	}
	b.approveAndDie(t, res)
	made, err := b.Promote(t.Context(), "f@"+res.Checkpoint, runner.PromoteOptions{Kind: runner.PromoteBranch}) // the commit of the same
	if err != nil {
		t.Fatal(err)
	}
	other := b.second(t, runner.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err = other.Resume(ctx, res.TaskID, runner.ResumeOptions{})
	if err != nil || res.State != runner.StateSucceeded || res.Promoted == nil || res.Promoted.Commit != made.Report.Commit {
		t.Fatalf("%+v %v, made was %+v", res, err, made.Report)
	}
}

// TestResumePromotesItsOwn: what is left of a task is to promote what it made. What others have made in the feature since is not
// part of that, and where its own state is gone, nothing is promoted.
func TestResumePromotesItsOwn(t *testing.T) {
	for name, gone := range map[string]bool{"its checkpoint": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			b := newNative(t, runner.Options{})
			r := b.sh("printf 'a\\0b' > blob")
			r.Feature, r.Promote, r.Profile = "f", runner.PromoteApply, gated(t, "gates: {size: {mode: block}, on_block: wait}\n")
			res, _, _ := run(t, b, r)
			if res.State != runner.StateAwaitingApproval {
				t.Fatalf("%s %s", res.State, res.Cause)
			}
			b.approveAndDie(t, res)
			other := b.second(t, runner.Options{})
			later := steps(other, "f", "echo theirs > file; rm blob")
			if res, err := other.Run(t.Context(), later); err != nil || res.Verdict != runner.VerdictOK {
				t.Fatalf("%+v %v", res, err)
			}
			if gone {
				err := other.DropCheckpoints(t.Context(), "f@"+res.Checkpoint)
				if err != nil {
					t.Fatal(err)
				}
				_, err = other.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
				wantError(t, err, runner.CodeResume, runner.ExitRefused)
			} else {
				again, err := other.Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
				if err != nil || again.State != runner.StateSucceeded || b.read(t, "blob") != "a\x00b" {
					t.Fatalf("%+v %v", again, err)
				}
			}
			if b.read(t, "file") == "theirs\n" {
				t.Error("what a later task made was promoted")
			}
		})
	}
}

// TestApprovalBesideAConflict: what refuses a promotion that was approved, and changed nothing, does not end its task.
func TestApprovalBesideAConflict(t *testing.T) {
	b := newNative(t, runner.Options{})
	r := b.sh("printf 'a\\0b' > file")
	r.Feature, r.Promote, r.Profile = "f", runner.PromoteApply, gated(t, "gates: {size: {mode: block}, on_block: wait}\n")
	res, _, _ := run(t, b, r)
	if res.State != runner.StateAwaitingApproval {
		t.Fatalf("%s %s", res.State, res.Cause)
	}
	b.write(t, "file", "theirs\n")
	o := runner.ApproveOptions{Gate: "size", By: "ann", Reason: "meant"}
	_, err := b.Approve(t.Context(), res.TaskID, o)
	wantError(t, err, runner.CodeConflict, runner.ExitRefused)
	if f, err := b.Feature(t.Context(), "f"); err != nil || f.State != runner.StateAwaitingApproval {
		t.Fatalf("%+v %v", f, err)
	}
	if b.read(t, "file") != "theirs\n" {
		t.Fatal("promoted all the same")
	}
}

// TestNamedRollbackPastDamage: where the newest state that gates accepted cannot be read, what they named goes back to the next.
// Names are odd: to a glob, and to JSON.
func TestNamedRollbackPastDamage(t *testing.T) {
	b := newNative(t, runner.Options{})
	b.profile = gated(t, "gates: {secrets: {mode: block}}\n")
	good := b.sh("echo good > file")
	good.Feature = "f"
	res, _, _ := run(t, b, good)
	if res.Verdict != runner.VerdictOK {
		t.Fatalf("%s %s", res.Verdict, res.Cause)
	}
	id := res.Checkpoint
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: runner.RefBase}); err != nil {
		t.Fatal(err)
	}
	const odd = "a}b{[*\\\xff"
	bad := b.sh(`echo key = AKIA""IMNOJVGFDXXXE4OA | tee file > "$(printf 'a}b{[*\\\377')"; echo fine > fine`)
	bad.Feature = "f"
	if res, _, _ = run(t, b, bad); res.Verdict != runner.VerdictGate {
		t.Fatalf("%s %s", res.Verdict, res.Cause)
	}
	b.removeRecord(t, id)
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{Named: true, LastGood: true}); err == nil {
		t.Error("back at what cannot be read")
	}
	back, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{Named: true})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{odd, "file"}; !slices.Equal(back.Report.Paths, want) || back.To.ID != runner.RefBase {
		t.Errorf("%q went back to %s, not %q", back.Report.Paths, back.To.ID, want)
	}
}

// removeRecord takes a checkpoint's file away. The journal does not know.
func (b *bench) removeRecord(t *testing.T, id string) {
	t.Helper()
	c, err := b.CheckpointOf(t.Context(), "f@"+id)
	if err != nil {
		t.Fatal(err)
	}
	u, err := b.disk.Open(t.Context(), c.FeatureID)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(u.Dir(), "checkpoints", id+".json")), u.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestGoBackPastDamage: where the last good state cannot be read, it is the newest before it that can, and the answer says so.
func TestGoBackPastDamage(t *testing.T) {
	b := newNative(t, runner.Options{})
	b.profile = gated(t, "gates: {secrets: {mode: block}, rollback: full}\n")
	var good []string
	for _, line := range []string{"echo one > file", "echo two > file"} {
		r := b.sh(line)
		r.Feature = "f"
		res, _, _ := run(t, b, r)
		if res.Verdict != runner.VerdictOK {
			t.Fatalf("%s %s", res.Verdict, res.Cause)
		}
		good = append(good, res.Checkpoint)
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: runner.RefBase}); err != nil {
		t.Fatal(err)
	}
	b.removeRecord(t, good[1])
	told := func(what string, passed []runner.PassedBy) {
		t.Helper()
		if len(passed) != 1 || passed[0].ID != good[1] || passed[0].Reason == "" {
			t.Errorf("%s passed by %+v", what, passed)
		}
	}
	bad := b.sh(`echo key = AKIA""IMNOJVGFDXXXE4OA > file`)
	bad.Feature = "f"
	res, _, _ := run(t, b, bad)
	if res.Verdict != runner.VerdictGate || res.FollowUp == nil || res.FollowUp.To != good[0] || res.FollowUp.Problem != "" {
		t.Fatalf("%s %+v", res.Verdict, res.FollowUp)
	}
	told("the task", res.FollowUp.PassedBy)
	for _, named := range []bool{false, true} {
		if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: runner.RefBase}); err != nil {
			t.Fatal(err)
		}
		back, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{LastGood: true, Named: named})
		if err != nil || back.To.ID != good[0] {
			t.Fatalf("%+v %v", back, err)
		}
		told("a rollback", back.PassedBy)
	}
	if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: runner.RefBase}); err != nil {
		t.Fatal(err)
	}
	b.removeRecord(t, good[0])
	_, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{LastGood: true})
	if e := wantError(t, err, runner.CodeDamaged, runner.ExitRefused); !strings.Contains(e.Cause, good[0]) || !strings.Contains(e.Cause, good[1]) {
		t.Errorf("%v", e)
	}
}

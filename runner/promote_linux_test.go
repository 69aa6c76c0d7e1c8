package runner_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/flock"
)

// second opens another supervisor on the bench's state and workspace, as another process does.
func (b *bench) second(t *testing.T, o runner.Options) *bench {
	t.Helper()
	engine, err := native.New(native.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if o.Cgroups, err = quota.Probe(); err != nil {
		t.Fatal(err)
	}
	o.Engine = engine
	c := *b
	c.open(t, o)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), engine.Close()); err != nil {
			t.Error(err)
		}
	})
	return &c
}

// A promote that is refused stops nobody, whatever it is refused for.
func TestRefusedPromoteStopsNobody(t *testing.T) {
	b := newNative(t, runner.Options{})
	detach(t, b, "other")
	run(t, b, steps(b, "f", "echo new > file"))
	ended := holding(t, b, "other", "echo up; exec sleep 60")
	refused := func(why, ref string, code string) {
		t.Helper()
		_, err := b.Promote(t.Context(), ref, runner.PromoteOptions{Stop: true})
		if runner.CodeOf(err) != code {
			t.Errorf("%s: %v", why, err)
		}
		select {
		case r := <-ended:
			t.Fatalf("%s: the other feature was stopped: %+v", why, r)
		default:
		}
	}
	run(t, b, steps(b, "forbidden", "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"))
	refused("a gate", "forbidden", runner.CodeGate)

	// Another feature of the workspace is in the hands of somebody who cannot be asked; it comes after the first.
	res, _, _ := run(t, b, steps(b, "silent", "true"))
	l, err := flock.Try(filepath.Join(b.state, "features", res.FeatureID, "lock"), flock.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	refused("a feature that does not answer", "f", runner.CodeHeld)
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}

	b.write(t, "file", "theirs\n")
	refused("a conflict", "f", runner.CodeConflict)
	if err := b.Kill(t.Context(), "other", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
}

// idle answers for features that do not live anywhere.
type idle struct{}

func (idle) Rebase(context.Context, string, int, bool) error { return nil }

func (idle) Holders(context.Context, string) ([]isolation.Holder, error) { return nil, nil }

// Features of several processes that promote into one workspace at the same time do so one after the other; of two that
// changed the same path the later one is a conflict, and changes nothing.
func TestPromotesOfTwoProcesses(t *testing.T) {
	notEmulated(t)
	one := newNative(t, runner.Options{Daemon: idle{}})
	two := one.second(t, runner.Options{Daemon: idle{}})
	names := []string{"a", "b", "c", "d", "e", "f"}
	for i, name := range names {
		run(t, []*bench{one, two}[i%2], steps(one, name, "echo "+name+" > "+name+"; echo "+name+" > file"))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var won []string
	for i, name := range names {
		wg.Go(func() {
			_, err := []*bench{one, two}[i%2].Promote(t.Context(), name, runner.PromoteOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, name)
			} else if runner.CodeOf(err) != runner.CodeConflict {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 || one.read(t, "file") != won[0]+"\n" || one.read(t, won[0]) != won[0]+"\n" {
		t.Fatalf("%v promoted, the file holds %q", won, one.read(t, "file"))
	}
	left, err := os.ReadDir(one.workspace)
	if err != nil || len(left) != 2 {
		t.Fatalf("%v %v", left, err)
	}
	// Past the promote, everybody still sees the workspace as it was when he began.
	for i, name := range names {
		c, err := []*bench{one, two}[i%2].Change(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, e := range c.Entries {
			paths = append(paths, e.Path+" "+string(e.Kind))
		}
		want := name + " added,file modified"
		if name == won[0] {
			want = ""
		}
		if got := strings.Join(paths, ","); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Of resumes from several processes one goes on at a time, and no step that is done runs twice.
func TestResumesOfTwoProcesses(t *testing.T) {
	notEmulated(t)
	one := newNative(t, runner.Options{Daemon: idle{}})
	both := []*bench{one, one.second(t, runner.Options{Daemon: idle{}})}
	res, _, _ := run(t, one, steps(one, "f", "echo run >> first", "echo run >> second; test -e /home/user/ok", "echo run >> third"))
	if res.State != runner.StateFailed {
		t.Fatalf("%+v", res)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			_, err := both[i%2].Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
			if code := runner.CodeOf(err); err != nil && code != runner.CodeBusy && code != runner.CodeResume {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	run(t, one, steps(one, "f", "touch ~/ok"))
	again, err := both[1].Resume(t.Context(), res.TaskID, runner.ResumeOptions{})
	if err != nil || again.Verdict != runner.VerdictNonzero { // it goes on from the state before the step: without ok
		t.Fatalf("%+v %v", again, err)
	}
	_, out, _ := run(t, one, steps(one, "f", "wc -l < first; wc -l < second; test ! -e third"))
	if out != "1\n1\n" {
		t.Fatalf("%q", out)
	}
}

// untilFree tries again while another process has the feature.
func untilFree(do func() error) error {
	for {
		if err := do(); runner.CodeOf(err) != runner.CodeBusy {
			return err
		}
	}
}

// A fork sees a whole checkpoint, whoever forgets checkpoints and collects layers in another process at the same time.
func TestForkBesideCollector(t *testing.T) {
	notEmulated(t)
	one := newNative(t, runner.Options{Daemon: idle{}})
	two := one.second(t, runner.Options{Daemon: idle{}})
	var scripts []string
	for i := range 6 {
		scripts = append(scripts, "echo "+strings.Repeat("x", i+1)+" > x")
	}
	run(t, one, steps(one, "f", scripts...))
	list, err := one.Checkpoints(t.Context(), "f")
	if err != nil {
		t.Fatal(err)
	}
	forked := make([]string, len(list))
	var wg sync.WaitGroup
	for i, c := range list[1:] {
		wg.Go(func() {
			err := untilFree(func() error {
				f, err := one.Fork(t.Context(), "f@"+c.ID, "")
				if err == nil {
					forked[i] = f.Name
				}
				return err
			})
			if err != nil && runner.CodeOf(err) != runner.CodeNotFound {
				t.Error(err)
			}
		})
		if i == len(list)-2 {
			break // the current state lies on it
		}
		wg.Go(func() {
			err := untilFree(func() error { return two.DropCheckpoints(t.Context(), "f@"+c.ID) })
			if err != nil && runner.CodeOf(err) != runner.CodeNotFound {
				t.Error(err)
			}
			if _, err := two.GC(t.Context(), false); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for i, name := range forked {
		if name == "" {
			continue
		}
		n++
		if got := shown(t, one, name, "x"); got != strings.Repeat("x", i+1) {
			t.Errorf("the fork of %d shows %q", i, got)
		}
	}
	t.Logf("%d forks", n)
}

// While a task makes a path a directory and a link out of the sandbox by turns, promotes and rollbacks write nothing there.
func TestPlantedLinkWhileLive(t *testing.T) {
	b := newNative(t, runner.Options{})
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o666); err != nil {
		t.Fatal(err)
	}
	detach(t, b, "f")
	first, err := b.Checkpoint(t.Context(), "f", runner.CheckpointOptions{})
	if err != nil {
		t.Fatal(err)
	}
	promoted := 0
	for n := range 4 {
		loop := "echo kept > kept" + strconv.Itoa(n) + "; echo up; while :; do mkdir p; echo " + strconv.Itoa(n) + " > p/victim; echo x > p/more; rm -r p; ln -s " + outside + " p; echo y > q; rm p q; done"
		ended := holding(t, b, "f", loop)
		for range 5 {
			_, err := b.Promote(t.Context(), "f", runner.PromoteOptions{})
			switch code := runner.CodeOf(err); {
			case err == nil:
				promoted++
			case code != runner.CodeNothingToDo && code != runner.CodeConflict && code != runner.CodeGate && code != runner.CodeHeld:
				t.Error(err)
			}
			_, err = b.Rollback(t.Context(), "f", runner.RollbackOptions{To: first.ID, Paths: []string{"p/**", "q"}, Keep: true})
			if code := runner.CodeOf(err); err != nil && code != runner.CodeHeld {
				t.Error(err)
			}
		}
		if _, err := b.Rollback(t.Context(), "f", runner.RollbackOptions{To: first.ID}); err != nil {
			t.Error(err)
		}
		<-ended
		names, err := os.ReadDir(outside)
		text, read := os.ReadFile(victim)
		if err != nil || read != nil || len(names) != 1 || string(text) != "untouched" {
			t.Fatalf("outside: %v %q %v %v", names, text, err, read)
		}
	}
	t.Logf("%d promoted", promoted)
}

// A checkpoint of another feature moves nothing, whole or by paths, and is not promoted.
func TestForeignCheckpointMovesNothing(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "echo f > x"))
	run(t, b, steps(b, "g", "echo g > x"))
	g, err := b.CheckpointOf(t.Context(), "g@head")
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"rollback": second(b.Rollback(t.Context(), "f", runner.RollbackOptions{To: g.ID})),
		"paths":    second(b.Rollback(t.Context(), "f", runner.RollbackOptions{To: g.ID, Paths: []string{"x"}})),
		"promote":  second(b.Promote(t.Context(), "f@"+g.ID, runner.PromoteOptions{})),
	} {
		if e := wantError(t, err, runner.CodeNotFound, runner.ExitRefused); !strings.Contains(e.Cause, g.ID) {
			t.Errorf("%s: %s", name, e.Cause)
		}
	}
	if got := shown(t, b, "f", "x") + shown(t, b, "g", "x"); got != "fg" {
		t.Fatal(got)
	}
}

// A word that holds once does not make a state good that the gates refuse.
func TestVerdictUnderAWord(t *testing.T) {
	b := newNative(t, runner.Options{})
	run(t, b, steps(b, "f", "mkdir -p .git/hooks && echo x > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit"))
	if _, err := b.Promote(t.Context(), "f", runner.PromoteOptions{Check: true, AllowProtected: []string{".git/**"}}); err != nil {
		t.Fatal(err)
	}
	list, err := b.Checkpoints(t.Context(), "f")
	if err != nil || len(list) == 0 {
		t.Fatal(err)
	}
	for _, c := range list {
		if c.LastGood {
			t.Errorf("%s is good: %+v", c.ID, c.Verdicts)
		}
	}
	if _, err := b.Promote(t.Context(), "f", runner.PromoteOptions{Check: true}); runner.CodeOf(err) != runner.CodeGate {
		t.Fatal(err)
	}
}

package store

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/caisson-dev/caisson/runner"
)

// BenchmarkTask is what a short task that leaves nothing writes: five transactions.
func BenchmarkTask(b *testing.B) {
	s, err := Open(b.Context(), filepath.Join(b.TempDir(), "store.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx, must := b.Context(), func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	for n := 0; b.Loop(); n++ {
		f := runner.FeatureRecord{ID: fmt.Sprintf("01m7zq4kpyqsbr1mfnsj%06d", n), Name: fmt.Sprint("n", n), Workspace: "/home/user/project"}
		task := runner.TaskRecord{ID: fmt.Sprintf("01m7zq4kpz10njjgageq%06d", n), Profile: []byte(`{"name":"default"}`), Remove: true,
			Steps: []runner.StepRecord{{N: 1, Args: []string{"sh", "-c", "go build ./..."}}}}
		_, err := s.Submit(ctx, runner.Submission{Feature: f, NewFeature: true, Admitted: true, Task: task})
		must(err)
		step := runner.StepMove{N: 1, From: runner.StepNotStarted, To: runner.StepRunning}
		ran := runner.StepMove{N: 1, From: runner.StepRunning, To: runner.StepDone}
		describe(&step, &ran, task.Steps[0].Args)
		must(s.Move(ctx, runner.Move{TaskID: task.ID, From: runner.StatePreparing, To: runner.StateRunning, Cause: "step 1 of 1", Step: &step}))
		must(s.Move(ctx, runner.Move{TaskID: task.ID, From: runner.StateRunning, To: runner.StateSealing, Cause: "the steps have ended", Step: &ran}))
		must(s.Retire(ctx, f.ID))
		must(s.Move(ctx, runner.Move{TaskID: task.ID, From: runner.StateSealing, To: runner.StateValidating, Cause: "nothing changed"},
			runner.Move{TaskID: task.ID, From: runner.StateValidating, To: runner.StateSucceeded, Cause: "ok", Result: []byte(`{"verdict":"ok"}`), Forget: true}))
	}
}

// describe has the moves of a step say what it runs, and how that ended.
func describe(begin, end *runner.StepMove, args []string) {
	begin.Command, end.Command = &runner.Command{Args: args}, &runner.Command{Verdict: runner.VerdictOK, ExitCode: new(int)}
}

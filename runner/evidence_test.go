package runner

import (
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/gates"
)

// TestExits: what did not end well and what came last, not every step.
func TestExits(t *testing.T) {
	var steps []StepResult
	for n := 1; n <= 20; n++ {
		steps = append(steps, StepResult{N: n, Verdict: VerdictOK})
	}
	steps = append(steps, StepResult{N: 21, Verdict: VerdictNonzero, ExitCode: 3}, StepResult{N: 22})
	of := func(steps []StepResult) (list []int) {
		for _, e := range exits(steps) {
			list = append(list, e.ExitCode.Step, e.ExitCode.Code)
		}
		return list
	}
	if got := of(steps); !slices.Equal(got, []int{21, 3}) {
		t.Error(got)
	}
	if got := of(steps[:20]); !slices.Equal(got, []int{20, 0}) {
		t.Error(got)
	}
	steps[4].Verdict, steps[4].ExitCode = VerdictTimeout, 137 // it was retried
	if got := of(steps[:20]); !slices.Equal(got, []int{5, 137, 20, 0}) {
		t.Error(got)
	}
	if got := of(nil); got != nil {
		t.Error(got)
	}
}

// TestCommands: one digest, which tells where steps begin.
func TestCommands(t *testing.T) {
	one := commands([]StepResult{{N: 1, Args: []string{"a", "b"}}})
	two := commands([]StepResult{{N: 1, Args: []string{"a"}}, {N: 2, Args: []string{"b"}}})
	want := gates.OfCommand(1, []string{"a", "b"})
	x, y := commands([]StepResult{{Args: []string{"a", ""}}, {Args: []string{"b"}}}), commands([]StepResult{{Args: []string{"a"}}, {Args: []string{"", "b"}}})
	if x[0].Command.SHA256 == y[0].Command.SHA256 {
		t.Error("where a step begins is not told")
	}
	if len(one) != 1 || len(two) != 1 || *one[0].Command != *want.Command || two[0].Command.SHA256 == want.Command.SHA256 || two[0].Command.Step != 0 || commands(nil) != nil {
		t.Errorf("%+v %+v", one, two)
	}
}

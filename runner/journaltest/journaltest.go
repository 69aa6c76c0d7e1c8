// Package journaltest is the suite that every runner.Journal passes.
package journaltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson/runner"
)

// Run runs the suite; open makes an empty journal, which the suite closes.
func Run(t *testing.T, open func(t *testing.T) runner.Journal) {
	for name, test := range suite {
		t.Run(name, func(t *testing.T) {
			j := open(t)
			t.Cleanup(func() {
				if err := j.Close(); err != nil {
					t.Error("close:", err)
				}
			})
			test(t, j)
		})
	}
}

var suite = map[string]func(*testing.T, runner.Journal){
	"Life":           life,
	"Transitions":    transitions,
	"Steps":          steps,
	"CompareAndSet":  compareAndSet,
	"OneWinner":      oneWinner,
	"Submit":         submit,
	"Queue":          queue,
	"LowestIndex":    lowestIndex,
	"Find":           find,
	"Lists":          lists,
	"Unfinished":     unfinished,
	"RetireForget":   retireForget,
	"Several":        several,
	"Promoting":      promoting,
	"Audit":          audit,
	"Hostile":        hostile,
	"Checkpoints":    checkpoints,
	"FindCheckpoint": findCheckpoint,
	"WithMoves":      withMoves,
	"LastGood":       lastGood,
	"Aliases":        aliases,
	"Failures":       failing,
	"FailedAliases":  aliased,
	"Approvals":      approvals,
	"Answers":        answers,
	"Claims":         claims,
	"Forks":          forks,
	"Policies":       policies,
	"UpdateFeature":  updateFeature,
	"Restore":        restore,
	"FileEvents":     fileEvents,
	"NetworkEvents":  networkEvents,
	"Bounded":        bounded,
	"Timings":        timings,
}

func submission(n int) runner.Submission {
	id := fmt.Sprintf("01feature%04d", n)
	return runner.Submission{
		NewFeature: true,
		Feature:    runner.FeatureRecord{ID: id, Name: fmt.Sprintf("name-%d", n), Workspace: "/w", Labels: map[string]string{"a": "b"}},
		Task:       task(fmt.Sprintf("01task%04d", n)),
		MaxQueue:   100,
	}
}

func task(id string) runner.TaskRecord {
	return runner.TaskRecord{ID: id, Remove: true, Profile: json.RawMessage(`{"name":"default"}`), ProfileDigest: "sha256:00",
		Steps: []runner.StepRecord{{N: 1, Args: []string{"true"}}, {N: 2, Args: []string{"echo", "a b"}}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
}

func add(t *testing.T, j runner.Journal, n int) runner.Submission {
	t.Helper()
	s := submission(n)
	f, err := j.Submit(t.Context(), s)
	must(t, err)
	s.Feature = f
	return s
}

func walk(t *testing.T, j runner.Journal, id string, states ...runner.State) {
	t.Helper()
	for i := 1; i < len(states); i++ {
		must(t, j.Move(t.Context(), runner.Move{TaskID: id, From: states[i-1], To: states[i]}))
	}
}

func life(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	walk(t, j, s.Task.ID, runner.StateQueued, runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating)
	must(t, j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: runner.StateValidating, To: runner.StateSucceeded,
		Cause: "done", Result: json.RawMessage(`{"verdict":"ok"}`)}))
	got, err := j.Task(t.Context(), s.Task.ID)
	must(t, err)
	if got.State != runner.StateSucceeded || string(got.Result) != `{"verdict":"ok"}` || got.FeatureID != s.Feature.ID {
		t.Fatalf("%+v", got)
	}
	if string(got.Profile) != `{"name":"default"}` || got.ProfileDigest != "sha256:00" || !got.Remove || got.Updated.Before(got.Created) {
		t.Fatalf("%+v", got)
	}
	if len(got.Steps) != 2 || got.Steps[0].State != runner.StepNotStarted || !slices.Equal(got.Steps[1].Args, []string{"echo", "a b"}) {
		t.Fatalf("%+v", got.Steps)
	}
}

// paths leads to every state from the first.
var paths = map[runner.State][]runner.State{
	runner.StateQueued:           {},
	runner.StatePreparing:        {runner.StatePreparing},
	runner.StateRunning:          {runner.StatePreparing, runner.StateRunning},
	runner.StatePaused:           {runner.StatePreparing, runner.StateRunning, runner.StatePaused},
	runner.StateSealing:          {runner.StatePreparing, runner.StateRunning, runner.StateSealing},
	runner.StateValidating:       {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating},
	runner.StateAwaitingApproval: {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating, runner.StateAwaitingApproval},
	runner.StatePromoting:        {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating, runner.StatePromoting},
	runner.StateSucceeded:        {runner.StatePreparing, runner.StateRunning, runner.StateSealing, runner.StateValidating, runner.StateSucceeded},
	runner.StateFailed:           {runner.StateFailed},
	runner.StateRejected:         {runner.StateRejected},
	runner.StateCancelled:        {runner.StateCancelled},
	runner.StateInterrupted:      {runner.StateInterrupted},
}

// transitions tries every pair of states: the table is the whole truth.
func transitions(t *testing.T, j runner.Journal) {
	n := 0
	for _, from := range runner.States() {
		for _, to := range runner.States() {
			n++
			s := add(t, j, n)
			path, ok := paths[from]
			if !ok {
				t.Fatalf("no path leads to %s", from)
			}
			walk(t, j, s.Task.ID, append([]runner.State{runner.StateQueued}, path...)...)
			err := j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: from, To: to})
			if from.May(to) {
				must(t, err)
			} else {
				wantErr(t, err, runner.ErrTransition)
			}
			must(t, j.Forget(t.Context(), s.Feature.ID))
		}
	}
}

func steps(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	id := s.Task.ID
	step := func(n int, from, to runner.StepState) *runner.StepMove {
		return &runner.StepMove{N: n, From: from, To: to}
	}
	walk(t, j, id, runner.StateQueued, runner.StatePreparing)
	must(t, j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StatePreparing, To: runner.StateRunning,
		Step: step(1, runner.StepNotStarted, runner.StepRunning)}))
	stay := runner.Move{TaskID: id, From: runner.StateRunning, To: runner.StateRunning}
	move := func(m *runner.StepMove) error { stay.Step = m; return j.Move(t.Context(), stay) }
	must(t, move(step(1, runner.StepRunning, runner.StepDone)))
	wantErr(t, move(step(1, runner.StepDone, runner.StepRunning)), runner.ErrTransition)
	wantErr(t, move(step(1, runner.StepRunning, runner.StepInterrupted)), runner.ErrStale)
	wantErr(t, move(step(2, runner.StepNotStarted, runner.StepDone)), runner.ErrTransition)
	wantErr(t, move(step(3, runner.StepNotStarted, runner.StepRunning)), runner.ErrStale)
	must(t, move(step(2, runner.StepNotStarted, runner.StepRunning)))

	// The step and the task move together or not at all.
	err := j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StateQueued, To: runner.StatePreparing,
		Step: step(2, runner.StepRunning, runner.StepDone)})
	wantErr(t, err, runner.ErrStale)
	err = j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StatePaused, To: runner.StatePaused,
		Step: step(2, runner.StepRunning, runner.StepDone)})
	wantErr(t, err, runner.ErrStale)
	got, err := j.Task(t.Context(), id)
	must(t, err)
	if got.Steps[0].State != runner.StepDone || got.Steps[1].State != runner.StepRunning {
		t.Fatalf("%+v", got.Steps)
	}
}

func compareAndSet(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	walk(t, j, s.Task.ID, runner.StateQueued, runner.StatePreparing)
	err := j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: runner.StateQueued, To: runner.StateCancelled})
	wantErr(t, err, runner.ErrStale)
	err = j.Move(t.Context(), runner.Move{TaskID: "nobody", From: runner.StateQueued, To: runner.StateCancelled})
	wantErr(t, err, runner.ErrNotFound)
}

func oneWinner(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for range cap(errs) {
		wg.Go(func() {
			errs <- j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: runner.StateQueued, To: runner.StatePreparing})
		})
	}
	wg.Wait()
	close(errs)
	won := 0
	for err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, runner.ErrStale) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Fatalf("%d won", won)
	}
}

func submit(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	if s.Feature.Name != "name-1" || s.Feature.Workspace != "/w" || s.Feature.Labels["a"] != "b" || s.Feature.Created.IsZero() {
		t.Fatalf("%+v", s.Feature)
	}
	same := submission(2)
	same.Feature.Name = "name-1"
	_, err := j.Submit(t.Context(), same)
	wantErr(t, err, runner.ErrExists)
	_, err = j.Task(t.Context(), same.Task.ID)
	wantErr(t, err, runner.ErrNotFound)

	more := runner.Submission{Feature: runner.FeatureRecord{ID: s.Feature.ID}, Task: task("another"), MaxQueue: 100}
	f, err := j.Submit(t.Context(), more)
	must(t, err)
	if f.Name != "name-1" {
		t.Fatalf("%+v", f)
	}
	more.Feature.ID, more.Task.ID = "nothing", "third"
	_, err = j.Submit(t.Context(), more)
	wantErr(t, err, runner.ErrNotFound)

	done := submission(3)
	done.Admitted = true
	_, err = j.Submit(t.Context(), done)
	must(t, err)
	got, err := j.Task(t.Context(), done.Task.ID)
	must(t, err)
	if got.State != runner.StatePreparing {
		t.Fatalf("%+v", got)
	}
}

func queue(t *testing.T, j runner.Journal) {
	for n := range 3 {
		s := submission(n)
		s.MaxQueue = 3
		_, err := j.Submit(t.Context(), s)
		must(t, err)
	}
	full := submission(3)
	full.MaxQueue = 3
	_, err := j.Submit(t.Context(), full)
	wantErr(t, err, runner.ErrQueueFull)
	_, err = j.Feature(t.Context(), full.Feature.ID)
	wantErr(t, err, runner.ErrNotFound) // nothing stays of a refused submission
	full.Admitted = true
	_, err = j.Submit(t.Context(), full)
	must(t, err)
}

func lowestIndex(t *testing.T, j runner.Journal) {
	var ids []string
	for n := range 4 {
		s := add(t, j, n)
		if s.Feature.Index != n {
			t.Fatalf("feature %d has index %d", n, s.Feature.Index)
		}
		ids = append(ids, s.Feature.ID)
	}
	must(t, j.Forget(t.Context(), ids[2]))
	must(t, j.Forget(t.Context(), ids[0]))
	must(t, j.Retire(t.Context(), ids[1])) // still owns files of its range
	for i, want := range []int{0, 2, 4} {
		if got := add(t, j, 10+i).Feature.Index; got != want {
			t.Fatalf("got index %d, want %d", got, want)
		}
	}
}

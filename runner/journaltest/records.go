package journaltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/runner"
)

func find(t *testing.T, j runner.Journal) {
	a, b := add(t, j, 1), add(t, j, 12)
	for ref, want := range map[string]string{a.Feature.ID: a.Feature.ID, "name-1": a.Feature.ID, "name-12": b.Feature.ID,
		"01feature001": b.Feature.ID, "01FEATURE001": b.Feature.ID} {
		f, err := j.Feature(t.Context(), ref)
		must(t, err)
		if f.ID != want || f.Last != nil {
			t.Fatalf("%s: %+v", ref, f)
		}
	}
	for _, ref := range []string{"", "name", "name-", "x", "%", "01feature%", "_"} {
		_, err := j.Feature(t.Context(), ref)
		wantErr(t, err, runner.ErrNotFound)
	}
	_, err := j.Feature(t.Context(), "01feature")
	wantErr(t, err, &runner.Error{Code: runner.CodeAmbiguous})

	// A name that is another's prefix of an id wins.
	c := submission(3)
	c.Feature.Name = "01feature"
	_, err = j.Submit(t.Context(), c)
	must(t, err)
	f, err := j.Feature(t.Context(), "01feature")
	must(t, err)
	if f.ID != c.Feature.ID {
		t.Fatalf("%+v", f)
	}
}

func lists(t *testing.T, j runner.Journal) {
	a, b := add(t, j, 1), add(t, j, 2)
	second := runner.Submission{Feature: a.Feature, Task: task("01task9"), MaxQueue: 100}
	_, err := j.Submit(t.Context(), second)
	must(t, err)
	list, err := j.Features(t.Context())
	must(t, err)
	if len(list) != 2 || list[0].ID != b.Feature.ID || list[1].ID != a.Feature.ID {
		t.Fatalf("%+v", list)
	}
	if list[1].Last == nil || list[1].Last.ID != "01task9" || len(list[1].Last.Steps) != 2 {
		t.Fatalf("%+v", list[1].Last)
	}
	tasks, err := j.Tasks(t.Context(), a.Feature.ID)
	must(t, err)
	if len(tasks) != 2 || tasks[0].ID != a.Task.ID || tasks[1].ID != "01task9" || len(tasks[0].Steps) != 2 {
		t.Fatalf("%+v", tasks)
	}
}

func unfinished(t *testing.T, j runner.Journal) {
	if list, err := j.Unfinished(t.Context()); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	want := map[string]runner.State{}
	n := 0
	for state, path := range paths {
		n++
		s := add(t, j, n)
		walk(t, j, s.Task.ID, append([]runner.State{runner.StateQueued}, path...)...)
		if !state.Ended() && state != runner.StateAwaitingApproval { // that one waits for a person, not for a process
			want[s.Task.ID] = state
		}
	}
	gone := add(t, j, 99)
	walk(t, j, gone.Task.ID, runner.StateQueued, runner.StateCancelled)
	must(t, j.Retire(t.Context(), gone.Feature.ID))
	list, err := j.Unfinished(t.Context())
	must(t, err)
	for _, f := range list {
		if f.ID == gone.Feature.ID {
			if !f.Retired || f.Last != nil {
				t.Fatalf("%+v", f)
			}
			continue
		}
		if f.Last == nil || want[f.Last.ID] != f.Last.State {
			t.Fatalf("%+v %+v", f, f.Last)
		}
	}
	if len(list) != len(want)+1 {
		t.Fatalf("%d, want %d", len(list), len(want)+1)
	}
	ids, err := j.UnfinishedIDs(t.Context())
	must(t, err)
	for _, f := range list {
		if !slices.Contains(ids, f.ID) {
			t.Errorf("%s is not among the ids %v", f.ID, ids)
		}
	}
	if len(ids) != len(list) {
		t.Errorf("%d ids of %d features", len(ids), len(list))
	}
}

func retireForget(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	must(t, j.Retire(t.Context(), s.Feature.ID))
	for _, ref := range []string{s.Feature.ID, s.Feature.Name} {
		_, err := j.Feature(t.Context(), ref)
		wantErr(t, err, runner.ErrNotFound)
	}
	if list, err := j.Features(t.Context()); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
	_, err := j.Submit(t.Context(), runner.Submission{Feature: s.Feature, Task: task("late"), MaxQueue: 100})
	wantErr(t, err, runner.ErrNotFound)
	again := submission(2)
	again.Feature.Name = s.Feature.Name // the name is free again
	_, err = j.Submit(t.Context(), again)
	must(t, err)
	must(t, j.Forget(t.Context(), s.Feature.ID))
	must(t, j.Forget(t.Context(), s.Feature.ID))
	_, err = j.Task(t.Context(), s.Task.ID)
	wantErr(t, err, runner.ErrNotFound)
	wantErr(t, j.Retire(t.Context(), s.Feature.ID), runner.ErrNotFound)
}

// several moves are one transaction, and the last may take the feature with it.
func several(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	id := s.Task.ID
	err := j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StateQueued, To: runner.StatePreparing},
		runner.Move{TaskID: id, From: runner.StatePreparing, To: runner.StateSealing})
	wantErr(t, err, runner.ErrTransition)
	got, err := j.Task(t.Context(), id)
	must(t, err)
	if got.State != runner.StateQueued {
		t.Fatalf("half of it was done: %s", got.State)
	}
	must(t, j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StateQueued, To: runner.StatePreparing},
		runner.Move{TaskID: id, From: runner.StatePreparing, To: runner.StateFailed, Forget: true}))
	_, err = j.Feature(t.Context(), s.Feature.ID)
	wantErr(t, err, runner.ErrNotFound)
	_, err = j.Task(t.Context(), id)
	wantErr(t, err, runner.ErrNotFound)
	rows, err := j.Audit(t.Context(), s.Feature.ID)
	must(t, err)
	if len(rows) != 3 {
		t.Fatalf("%+v", rows)
	}
}

func promoting(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	walk(t, j, s.Task.ID, runner.StateQueued, runner.StateCancelled)
	must(t, j.Promoting(t.Context(), s.Feature.ID, true))
	list, err := j.Unfinished(t.Context())
	must(t, err)
	if len(list) != 1 || !list[0].Promoting || list[0].Retired {
		t.Fatalf("%+v", list)
	}
	must(t, j.Promoting(t.Context(), s.Feature.ID, false))
	if list, err := j.Unfinished(t.Context()); err != nil || len(list) != 0 {
		t.Fatalf("%+v %v", list, err)
	}
	wantErr(t, j.Promoting(t.Context(), "nobody", true), runner.ErrNotFound)
}

func audit(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	other := add(t, j, 2)
	walk(t, j, s.Task.ID, runner.StateQueued, runner.StatePreparing)
	must(t, j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: runner.StatePreparing, To: runner.StateRunning, Cause: "go",
		Step: &runner.StepMove{N: 1, From: runner.StepNotStarted, To: runner.StepRunning}}))
	_ = j.Move(t.Context(), runner.Move{TaskID: s.Task.ID, From: runner.StateQueued, To: runner.StateCancelled}) // leaves no row
	must(t, j.Note(t.Context(), runner.AuditRecord{FeatureID: s.Feature.ID, Event: "promote", Cause: "apply"}))
	must(t, j.Forget(t.Context(), s.Feature.ID))
	rows, err := j.Audit(t.Context(), s.Feature.ID)
	must(t, err)
	var got []string
	for _, r := range rows {
		if r.At.IsZero() {
			t.Errorf("%+v has no time", r)
		}
		got = append(got, fmt.Sprintf("%s:%s>%s:%d:%s", r.Event, r.From, r.To, r.Step, r.Cause))
	}
	want := []string{"submit:>queued:0:", "move:queued>preparing:0:", "move:preparing>running:0:go",
		"step:not_started>running:1:go", "promote:>:0:apply"}
	if !slices.Equal(got, want) {
		t.Fatalf("got  %q\nwant %q", got, want)
	}
	all, err := j.Audit(t.Context(), "")
	must(t, err)
	if len(all) != len(want)+1 || all[1].FeatureID != other.Feature.ID {
		t.Fatalf("%+v", all)
	}
}

// hostile stores what would break a statement that was put together from strings.
func hostile(t *testing.T, j runner.Journal) {
	s := submission(1)
	s.Feature.Workspace = "/w/'); DROP TABLE tasks; --\n\xff"
	s.Task.Steps = []runner.StepRecord{{N: 1, Args: []string{"'", `"`, "a\nb", ""}}}
	_, err := j.Submit(t.Context(), s)
	must(t, err)
	f, err := j.Feature(t.Context(), s.Feature.ID)
	must(t, err)
	if f.Workspace != s.Feature.Workspace {
		t.Fatalf("%q", f.Workspace)
	}
	got, err := j.Task(t.Context(), s.Task.ID)
	must(t, err)
	if !slices.Equal(got.Steps[0].Args, s.Task.Steps[0].Args) {
		t.Fatalf("%q", got.Steps[0].Args)
	}
}

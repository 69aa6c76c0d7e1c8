package journaltest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// checkpoint makes the record of feature's n-th.
func checkpoint(feature string, n int) runner.CheckpointRecord {
	return runner.CheckpointRecord{Checkpoint: runner.Checkpoint{ID: fmt.Sprintf("01%s-c%03d", feature, n), FeatureID: feature,
		Reason: runner.ReasonManual, Created: time.Unix(1e9, int64(n))}}
}

func addCheckpoint(t *testing.T, j runner.Journal, c runner.CheckpointRecord, moves ...runner.Move) {
	t.Helper()
	must(t, j.AddCheckpoint(t.Context(), c, moves...))
}

func checkpoints(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	c := checkpoint(s.Feature.ID, 1)
	c.Parent, c.TaskID, c.Step, c.Label, c.Generation = "before", s.Task.ID, 2, "good one", 3
	c.Counts = snapshot.ChangeCounts{Added: 1, Modified: 2, Deleted: 3, Bytes: 4}
	c.Bytes, c.Digest, c.Durable = 4096, "sha256:ab", true
	addCheckpoint(t, j, c)
	wantErr(t, j.AddCheckpoint(t.Context(), c), runner.ErrExists)
	wantErr(t, j.AddCheckpoint(t.Context(), checkpoint("nobody", 2)), runner.ErrNotFound)
	trail, err := j.Events(t.Context(), runner.EventOptions{Feature: s.Feature.ID})
	must(t, err)
	if n := len(trail); n < 2 || trail[n-2].Kind != "checkpoint" || trail[n-2].To != c.ID || trail[n-2].From != "before" ||
		trail[n-2].Cause != runner.ReasonManual || trail[n-1].Kind != "label" || trail[n-1].Cause != "good one" {
		t.Fatalf("%+v", trail)
	}

	got, err := j.Checkpoint(t.Context(), s.Feature.ID, c.ID)
	must(t, err)
	c.Feature = s.Feature.Name
	if !got.Created.Equal(c.Created) {
		t.Fatalf("made at %v, not %v", got.Created, c.Created)
	}
	got.Created = c.Created
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c) {
		t.Fatalf("got  %+v\nwant %+v", got, c)
	}

	label, alias, yes, bytes := "", "before", true, int64(1)
	must(t, j.UpdateCheckpoint(t.Context(), c.ID, runner.CheckpointUpdate{Label: &label, AliasOf: &alias, Indexed: &yes,
		Lost: &yes, Promoted: &yes, Bytes: &bytes, Counts: &snapshot.ChangeCounts{Added: 9}, Damaged: &alias, Digest: &alias}))
	must(t, j.UpdateCheckpoint(t.Context(), c.ID, runner.CheckpointUpdate{}))
	wantErr(t, j.UpdateCheckpoint(t.Context(), "nobody", runner.CheckpointUpdate{}), runner.ErrNotFound)
	got, err = j.Checkpoint(t.Context(), s.Feature.ID, c.ID)
	must(t, err)
	if got.Label != "" || got.AliasOf != "before" || !got.Indexed || !got.Lost || !got.Promoted || got.Bytes != 1 ||
		got.Counts != (snapshot.ChangeCounts{Added: 9}) || got.Damaged != "before" || got.Digest != "before" || !got.Durable {
		t.Fatalf("%+v", got)
	}
}

// findCheckpoint: an id of another feature is nobody's, in every call that names a feature.
func findCheckpoint(t *testing.T, j runner.Journal) {
	a, b := add(t, j, 1).Feature.ID, add(t, j, 2).Feature.ID
	for n := range 3 {
		c := checkpoint(a, n)
		c.Label = "again"
		addCheckpoint(t, j, c)
	}
	addCheckpoint(t, j, checkpoint(b, 0))
	second := checkpoint(a, 1).ID
	for ref, want := range map[string]string{second: second, "again": checkpoint(a, 2).ID} {
		got, err := j.Checkpoint(t.Context(), a, ref)
		must(t, err)
		if got.ID != want {
			t.Fatalf("%s: %s, want %s", ref, got.ID, want)
		}
	}
	got, err := j.Checkpoint(t.Context(), b, checkpoint(b, 0).ID[:8])
	must(t, err)
	if got.ID != checkpoint(b, 0).ID {
		t.Fatal(got.ID)
	}
	_, err = j.Checkpoint(t.Context(), a, second[:5])
	wantErr(t, err, &runner.Error{Code: runner.CodeAmbiguous})
	for _, ref := range []string{"", "%", "_", "other", checkpoint(b, 0).ID} {
		_, err := j.Checkpoint(t.Context(), a, ref)
		wantErr(t, err, runner.ErrNotFound)
	}
	wantErr(t, j.DropCheckpoints(t.Context(), a, second, checkpoint(b, 0).ID), runner.ErrNotFound)
	list, err := j.Checkpoints(t.Context(), a)
	must(t, err)
	if len(list) != 3 || list[0].ID != checkpoint(a, 0).ID || list[2].ID != checkpoint(a, 2).ID {
		t.Fatalf("%+v", list)
	}
	must(t, j.DropCheckpoints(t.Context(), a, second))
	_, err = j.Checkpoint(t.Context(), a, second)
	wantErr(t, err, runner.ErrNotFound)
	must(t, j.Forget(t.Context(), a))
	if list, err := j.Checkpoints(t.Context(), a); err != nil || len(list) != 0 {
		t.Fatal(list, err)
	}
}

// withMoves: the step's end, the checkpoint and the step's state are one thing.
func withMoves(t *testing.T, j runner.Journal) {
	s := add(t, j, 1)
	id := s.Task.ID
	walk(t, j, id, runner.StateQueued, runner.StatePreparing)
	must(t, j.Move(t.Context(), runner.Move{TaskID: id, From: runner.StatePreparing, To: runner.StateRunning,
		Step: &runner.StepMove{N: 1, From: runner.StepNotStarted, To: runner.StepRunning}}))
	done := runner.Move{TaskID: id, From: runner.StateRunning, To: runner.StateRunning,
		Step: &runner.StepMove{N: 1, From: runner.StepRunning, To: runner.StepDone}}
	wrong := done
	wrong.From, wrong.To = runner.StatePaused, runner.StatePaused
	wantErr(t, j.AddCheckpoint(t.Context(), checkpoint(s.Feature.ID, 1), wrong), runner.ErrStale)
	if list, err := j.Checkpoints(t.Context(), s.Feature.ID); err != nil || len(list) != 0 {
		t.Fatal("half of it was done", list, err)
	}
	addCheckpoint(t, j, checkpoint(s.Feature.ID, 1), done)
	wantErr(t, j.AddCheckpoint(t.Context(), checkpoint(s.Feature.ID, 1), done), runner.ErrExists)
	got, err := j.Task(t.Context(), id)
	must(t, err)
	if got.Steps[0].State != runner.StepDone || got.Steps[0].Checkpoint != checkpoint(s.Feature.ID, 1).ID || got.Steps[1].Checkpoint != "" {
		t.Fatalf("%+v", got.Steps)
	}
}

func lastGood(t *testing.T, j runner.Journal) {
	f := add(t, j, 1).Feature.ID
	verdict := func(gate string, s gates.Status, m gates.Mode) gates.Verdict {
		return gates.Verdict{Gate: gate, Status: s, Mode: m, Started: time.Unix(1e9, 0), Checked: 7}
	}
	yes, no, why := true, false, "torn"
	_, err := j.LastGood(t.Context(), f)
	wantErr(t, err, runner.ErrNotFound)
	good := -1
	for n, c := range []struct {
		verdicts []gates.Verdict
		update   runner.CheckpointUpdate
		good     bool
	}{
		{good: false}, // no gate ran
		{verdicts: []gates.Verdict{verdict("paths", gates.Skipped, gates.ModeOff)}},
		{verdicts: []gates.Verdict{verdict("paths", gates.Pass, gates.ModeBlock)}, good: true},
		{verdicts: []gates.Verdict{verdict("paths", gates.Pass, gates.ModeBlock), verdict("x", gates.Fail, gates.ModeMandatory)}},
		{verdicts: []gates.Verdict{verdict("paths", gates.Error, gates.ModeBlock)}},
		{verdicts: []gates.Verdict{verdict("paths", gates.Pass, gates.ModeBlock), verdict("x", gates.Fail, gates.ModeWarn)}, good: true},
		{update: runner.CheckpointUpdate{Promoted: &yes}, good: true},
		{verdicts: []gates.Verdict{verdict("paths", gates.Pass, gates.ModeBlock)}, update: runner.CheckpointUpdate{Lost: &yes}},
		{verdicts: []gates.Verdict{verdict("paths", gates.Pass, gates.ModeBlock)}, update: runner.CheckpointUpdate{Damaged: &why}},
	} {
		id := checkpoint(f, n).ID
		addCheckpoint(t, j, checkpoint(f, n))
		must(t, j.AddVerdicts(t.Context(), id, c.verdicts))
		must(t, j.UpdateCheckpoint(t.Context(), id, c.update))
		if c.good {
			good = n
		}
		got, err := j.LastGood(t.Context(), f)
		if good < 0 {
			wantErr(t, err, runner.ErrNotFound)
			continue
		}
		must(t, err)
		if got.ID != checkpoint(f, good).ID || !got.LastGood {
			t.Fatalf("after %d: %s", n, got.ID)
		}
	}
	// A newer verdict of the same gate replaces the older one; what is found again is what was stored.
	last := checkpoint(f, 3).ID
	must(t, j.AddVerdicts(t.Context(), last, []gates.Verdict{verdict("x", gates.Pass, gates.ModeMandatory)}))
	must(t, j.UpdateCheckpoint(t.Context(), checkpoint(f, 6).ID, runner.CheckpointUpdate{Promoted: &no}))
	must(t, j.DropCheckpoints(t.Context(), f, checkpoint(f, 5).ID))
	list, err := j.Checkpoints(t.Context(), f)
	must(t, err)
	for _, c := range list {
		if c.LastGood != (c.ID == last) {
			t.Errorf("%s: last good %v", c.ID, c.LastGood)
		}
		if c.ID == last && (len(c.Verdicts) != 2 || c.Verdicts[1].Status != gates.Pass || c.Verdicts[0].Checked != 7) {
			t.Errorf("%+v", c.Verdicts)
		}
	}
	wantErr(t, j.AddVerdicts(t.Context(), "nobody", []gates.Verdict{verdict("x", gates.Pass, gates.ModeBlock)}), runner.ErrNotFound)
}

func aliases(t *testing.T, j runner.Journal) {
	f := add(t, j, 1).Feature.ID
	for n := range 3 {
		c := checkpoint(f, n)
		if n > 0 {
			c.AliasOf = checkpoint(f, 0).ID
		}
		addCheckpoint(t, j, c)
	}
	got, err := j.Checkpoint(t.Context(), f, checkpoint(f, 0).ID)
	must(t, err)
	if !slices.Equal(got.Aliases, []string{checkpoint(f, 1).ID, checkpoint(f, 2).ID}) {
		t.Fatal(got.Aliases)
	}
	got, err = j.Checkpoint(t.Context(), f, checkpoint(f, 2).ID)
	must(t, err)
	if got.AliasOf != checkpoint(f, 0).ID {
		t.Fatal(got.AliasOf)
	}
}

func claims(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	for _, want := range []string{"", "first", "first"} {
		got, err := j.Claim(ctx, "key", "d1", map[string]string{"": "first", "first": "second"}[want])
		must(t, err)
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	_, err := j.Claim(ctx, "key", "d2", "third")
	wantErr(t, err, &runner.Error{Code: runner.CodeKey})

	s := submission(1)
	s.Key, s.KeyDigest = "run", "d"
	_, err = j.Submit(ctx, s)
	must(t, err)
	again := submission(2)
	again.Key, again.KeyDigest = "run", "d"
	_, err = j.Submit(ctx, again)
	var claimed *runner.ClaimedError
	if !errors.As(err, &claimed) || claimed.Task != s.Task.ID {
		t.Fatal(err)
	}
	_, err = j.Feature(ctx, again.Feature.ID)
	wantErr(t, err, runner.ErrNotFound)
	full := submission(3) // what is refused claims nothing
	full.MaxQueue, full.Key = 1, "later"
	_, err = j.Submit(ctx, full)
	wantErr(t, err, runner.ErrQueueFull)
	got, err := j.Claim(ctx, "later", "d", "x")
	must(t, err)
	if got != "" {
		t.Fatal(got)
	}
	// The task goes with its feature; its key goes on to say how it ended.
	must(t, j.Move(ctx, runner.Move{TaskID: s.Task.ID, From: runner.StateQueued, To: runner.StateCancelled, Result: json.RawMessage(`{"verdict":"cancelled"}`)}))
	must(t, j.Forget(ctx, s.Feature.ID))
	_, err = j.Submit(ctx, again)
	if !errors.As(err, &claimed) || claimed.Task != s.Task.ID || string(claimed.Result) != `{"verdict":"cancelled"}` {
		t.Fatal(err, claimed)
	}
}

func updateFeature(t *testing.T, j runner.Journal) {
	s := submission(1)
	s.Feature.Detached, s.Feature.TTL, s.Feature.Idle, s.Feature.Disk, s.Feature.Inodes = true, time.Hour, time.Minute, 1<<30, 200_000
	s.Feature.Mechanism, s.Feature.Driver = "ext4", "overlay"
	s.Task.Options, s.Task.Steps[1].Retry, s.Task.Steps[1].Options = []byte(`{"a":1}`), true, []byte(`{"b":2}`)
	f, err := j.Submit(t.Context(), s)
	must(t, err)
	if !f.Detached || f.TTL != time.Hour || f.Idle != time.Minute || f.Disk != 1<<30 || f.Inodes != 200_000 || f.Mechanism != "ext4" || f.Driver != "overlay" {
		t.Fatalf("%+v", f)
	}
	task, err := j.Task(t.Context(), s.Task.ID)
	must(t, err)
	if string(task.Options) != `{"a":1}` || !task.Steps[1].Retry || task.Steps[0].Retry || string(task.Steps[1].Options) != `{"b":2}` || task.Steps[0].Options != nil {
		t.Fatalf("%+v", task)
	}
	walk(t, j, s.Task.ID, runner.StateQueued, runner.StateCancelled)
	list, err := j.Unfinished(t.Context()) // it is live without a task
	must(t, err)
	if len(list) != 1 || list[0].ID != f.ID || !list[0].Detached {
		t.Fatalf("%+v", list)
	}
	no, ttl, word := false, 2*time.Hour, "btrfs"
	must(t, j.UpdateFeature(t.Context(), f.ID, runner.FeatureUpdate{Detached: &no, TTL: &ttl, Mechanism: &word}))
	must(t, j.UpdateFeature(t.Context(), f.ID, runner.FeatureUpdate{}))
	wantErr(t, j.UpdateFeature(t.Context(), "nobody", runner.FeatureUpdate{}), runner.ErrNotFound)
	f, err = j.Feature(t.Context(), f.ID)
	must(t, err)
	if f.Detached || f.TTL != ttl || f.Mechanism != word || f.Idle != time.Minute {
		t.Fatalf("%+v", f)
	}
}

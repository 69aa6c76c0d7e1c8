package store

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

// TestDamagedRows: each broken row is named, the others can be used, and Repair makes all of them readable.
func TestDamagedRows(t *testing.T) {
	for _, c := range []struct{ sql, name string }{
		{"UPDATE features SET labels = '{' WHERE id = 'f1'", "labels of feature name1"},
		{"UPDATE features SET created = 'junk' WHERE id = 'f1'", "times of feature name1"},
		{"UPDATE features SET disk = x'00' WHERE id = 'f1'", "disk of feature name1"},
		{"UPDATE tasks SET updated = 'never' WHERE id = 't1'", "times of task t1"},
		{"UPDATE steps SET args = '[' WHERE task = 't1'", "command of step 1 of task t1"},
		{"UPDATE checkpoints SET created = 'x' WHERE id = 'c1'", "checkpoint c1"},
		{"UPDATE verdicts SET body = '' WHERE checkpoint = 'c1'", "verdict of paths on checkpoint c1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := damagedStore(t)
			if _, err := s.db.Exec(c.sql); err != nil {
				t.Fatal(err)
			}
			list, err := s.Features(t.Context())
			if err != nil || len(list) != 2 {
				t.Fatal(list, err)
			}
			for _, f := range list {
				if f.ID == "f0" && (f.Damaged != "" || f.Last == nil) || f.ID == "f1" && f.Name != "name1" {
					t.Errorf("%+v", f)
				}
			}
			for _, f := range []string{"f0", "f1"} {
				if got, err := s.Checkpoints(t.Context(), f); err != nil || len(got) != 1 || f == "f0" && got[0].Damaged != "" {
					t.Errorf("%+v, %v", got, err)
				}
			}
			if got, err := s.Damage(t.Context()); err != nil || strings.Join(got, "; ") != c.name {
				t.Errorf("%q, %v", got, err)
			}
			if got, err := s.Repair(t.Context()); err != nil || strings.Join(got, "; ") != c.name {
				t.Errorf("%q, %v", got, err)
			}
			if list, err = s.Features(t.Context()); err != nil || list[0].Damaged != "" || list[1].Damaged != "" {
				t.Errorf("%+v, %v", list, err)
			}
			if got, err := s.Repair(t.Context()); err != nil || len(got) != 0 {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func damagedStore(t *testing.T) *Store {
	t.Helper()
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	t.Cleanup(func() { s.Close() })
	for _, n := range []string{"0", "1"} {
		_, err := s.Submit(t.Context(), runner.Submission{NewFeature: true, MaxQueue: 9,
			Feature: runner.FeatureRecord{ID: "f" + n, Name: "name" + n, Workspace: "/w"},
			Task:    runner.TaskRecord{ID: "t" + n, Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1, Args: []string{"true"}}}}})
		if err != nil {
			t.Fatal(err)
		}
		c := runner.Checkpoint{ID: "c" + n, FeatureID: "f" + n, Reason: runner.ReasonManual, Verdicts: []gates.Verdict{{Gate: "paths", Status: gates.Pass}}}
		if err := s.AddCheckpoint(t.Context(), runner.CheckpointRecord{Checkpoint: c}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

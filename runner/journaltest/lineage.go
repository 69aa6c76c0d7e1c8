package journaltest

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

func forks(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	add(t, j, 8) // has index 0
	root := add(t, j, 1).Feature
	fork := func(id, name, from string) runner.FeatureRecord {
		f, err := j.Fork(ctx, runner.FeatureRecord{ID: id, Name: name, Labels: map[string]string{"c": "d"}}, from)
		must(t, err)
		return f
	}
	a := fork("01fork1", "fork-1", root.ID)
	b := fork("01fork2", "fork-2", a.ID)
	for _, f := range []runner.FeatureRecord{a, b} {
		if f.Index != root.Index || f.Lineage != root.ID || f.Workspace != root.Workspace || f.Labels["c"] != "d" {
			t.Fatalf("%+v", f)
		}
	}
	if a.Origin != root.ID || b.Origin != a.ID || root.Lineage != root.ID || root.Origin != "" {
		t.Fatalf("%+v %+v", a, b)
	}
	_, err := j.Fork(ctx, runner.FeatureRecord{ID: "01fork3", Name: "fork-1"}, root.ID)
	wantErr(t, err, runner.ErrExists)
	_, err = j.Fork(ctx, runner.FeatureRecord{ID: "01fork3", Name: "fork-3"}, "nobody")
	wantErr(t, err, runner.ErrNotFound)

	must(t, j.Retire(ctx, root.ID))
	kin := func(of string, want ...string) {
		t.Helper()
		list, err := j.Kin(ctx, of)
		must(t, err)
		var got []string
		for _, f := range list {
			got = append(got, f.ID)
			if f.Index != root.Index {
				t.Errorf("%s has index %d, the lineage's is %d", f.ID, f.Index, root.Index)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("kin of %s: %v, want %v", of, got, want)
		}
	}
	kin(b.ID, root.ID, a.ID, b.ID)
	// The index goes to nobody else while one of the lineage lives, even when its root has been forgotten.
	must(t, j.Forget(ctx, root.ID))
	kin(b.ID, a.ID, b.ID)
	must(t, j.Forget(ctx, a.ID))
	kin(b.ID, b.ID)
	if f := add(t, j, 20).Feature; f.Index == root.Index {
		t.Fatal("two lineages have one index")
	}
	must(t, j.Forget(ctx, b.ID))
	_, err = j.Kin(ctx, b.ID)
	wantErr(t, err, runner.ErrNotFound)
}

// policies: that of a feature goes on from fork to fork, until one has a task of its own, and outlives who had it first.
func policies(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	root := add(t, j, 1).Feature
	fork := func(id, from string) runner.FeatureRecord {
		f, err := j.Fork(ctx, runner.FeatureRecord{ID: id, Name: id}, from)
		must(t, err)
		return f
	}
	a := fork("a", root.ID)
	b := fork("b", a.ID)
	wantPolicy(t, j, b.ID, "default")
	own := runner.Submission{Feature: a, Task: task("01own"), Admitted: true}
	own.Task.Profile = json.RawMessage(`{"name":"own"}`)
	_, err := j.Submit(ctx, own)
	must(t, err)
	c := fork("c", a.ID)
	wantPolicy(t, j, a.ID, "own")
	wantPolicy(t, j, b.ID, "default")
	wantPolicy(t, j, c.ID, "own")
	must(t, j.Forget(ctx, root.ID))
	must(t, j.Forget(ctx, a.ID))
	must(t, j.Compact(ctx))
	wantPolicy(t, j, b.ID, "default")
	wantPolicy(t, j, c.ID, "own")
	_, err = j.Policy(ctx, a.ID)
	wantErr(t, err, runner.ErrNotFound)
}

func wantPolicy(t *testing.T, j runner.Journal, id, name string) {
	t.Helper()
	got, err := j.Policy(t.Context(), id)
	must(t, err)
	if want := fmt.Sprintf("{%q:%q}", "name", name); string(got) != want {
		t.Fatalf("the policy of %s is %s, want %s", id, got, want)
	}
}

func restore(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	at := time.Unix(1000, 5).UTC()
	lost := runner.FeatureRecord{ID: "lost", Name: "lost", Workspace: "/w", Index: 7, Direct: true, Labels: map[string]string{"a": "b"}, Created: at,
		Disk: 1 << 20, Inodes: 100, Mechanism: "ext4", Driver: "copy"}
	must(t, j.Restore(ctx, lost))
	f, err := j.Feature(ctx, "lost")
	must(t, err)
	if f.Index != 7 || !f.Created.Equal(at) || !f.Direct || f.Labels["a"] != "b" || f.Disk != 1<<20 || f.Inodes != 100 || f.Mechanism != "ext4" || f.Driver != "copy" {
		t.Fatalf("%+v", f)
	}
	_, err = j.Policy(ctx, "lost")
	wantErr(t, err, runner.ErrNotFound)
	fork := runner.FeatureRecord{ID: "fork", Name: "fork", Workspace: "/w", Index: 7, Lineage: "lost", Origin: "lost", Created: at,
		Profile: json.RawMessage(`{"name":"kept"}`)}
	must(t, j.Restore(ctx, fork))
	if f, err = j.Feature(ctx, "fork"); err != nil || f.Index != 7 || f.Origin != "lost" || f.Lineage != "lost" {
		t.Fatalf("%+v %v", f, err)
	}
	wantPolicy(t, j, "fork", "kept")
	for _, again := range []runner.FeatureRecord{
		{ID: "lost", Name: "x", Workspace: "/w", Index: 8}, {ID: "x", Name: "lost", Workspace: "/w", Index: 8}, {ID: "x", Name: "x", Workspace: "/w", Index: 7},
	} {
		wantErr(t, j.Restore(ctx, again), runner.ErrExists)
	}
	if f := add(t, j, 1).Feature; f.Index == 7 {
		t.Fatal("two features have one index")
	}
	// The index that a fork has itself and does not use gives way: here the lowest.
	must(t, j.Restore(ctx, runner.FeatureRecord{ID: "first", Name: "first", Workspace: "/w", Index: 0, Created: at}))
	for id, index := range map[string]int{"first": 0, "fork": 7} {
		if f, err = j.Feature(ctx, id); err != nil || f.Index != index {
			t.Fatalf("%+v %v", f, err)
		}
	}
	must(t, j.Restore(ctx, runner.FeatureRecord{ID: "gone", Name: "gone", Workspace: "/w", Index: 9, Created: at, Retired: true}))
	_, err = j.Feature(ctx, "gone")
	wantErr(t, err, runner.ErrNotFound)
	half, err := j.Unfinished(ctx)
	must(t, err)
	if !slices.ContainsFunc(half, func(f runner.FeatureRecord) bool { return f.ID == "gone" && f.Retired }) {
		t.Fatalf("%+v", half)
	}
}

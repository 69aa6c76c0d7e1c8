package journaltest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

func said(gate string, s gates.Status, m gates.Mode, change string) gates.Verdict {
	return gates.Verdict{Gate: gate, GateDigest: "sha256:g", ChangeDigest: change, Status: s, Mode: m, Started: time.Unix(1e9, 0), Checked: 1}
}

// line adds n checkpoints to a feature, each the parent of the next, and returns their ids.
func line(t *testing.T, j runner.Journal, feature, parent string, n int) (ids []string) {
	t.Helper()
	for i := range n {
		c := checkpoint(feature, i)
		c.Parent = parent
		addCheckpoint(t, j, c)
		ids, parent = append(ids, c.ID), c.ID
	}
	return ids
}

// failing: a failure stands on the way back, until its gate passes or the change is promoted; nothing else takes it away.
func failing(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	f := add(t, j, 1).Feature.ID
	stands := func(at string, want ...string) {
		t.Helper()
		list, err := j.Failures(ctx, at)
		must(t, err)
		var got []string
		for _, x := range list {
			got = append(got, x.Verdict.Gate+" at "+x.Checkpoint)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("at %s: %q, want %q", at, got, want)
		}
	}
	c := line(t, j, f, "", 6)
	must(t, j.AddVerdicts(ctx, c[1], []gates.Verdict{said("a", gates.Fail, gates.ModeBlock, "d1"), said("b", gates.Error, gates.ModeMandatory, "d1"), said("w", gates.Fail, gates.ModeWarn, "d1")}))
	stands(c[0])
	stands(c[1], "a at "+c[1], "b at "+c[1])
	stands(c[5], "a at "+c[1], "b at "+c[1])
	stands("nobody")
	// Weaker modes, and gates that were not asked, resolve nothing; neither here nor later.
	weaker := []gates.Verdict{said("a", gates.Skipped, gates.ModeOff, "d1"), said("b", gates.Fail, gates.ModeWarn, "d1")}
	weaker[0].Unresolved, weaker[1].Unresolved = c[1], c[1]
	for _, id := range []string{c[1], c[2]} {
		must(t, j.AddVerdicts(ctx, id, weaker))
		stands(c[5], "a at "+c[1], "b at "+c[1])
	}
	must(t, j.AddVerdicts(ctx, c[3], []gates.Verdict{said("a", gates.Pass, gates.ModeWarn, "d3")}))
	stands(c[3], "b at "+c[1])
	stands(c[2], "a at "+c[1], "b at "+c[1])
	// A checkpoint where a failure stands is not good, whatever else passed there.
	unresolved := said("b", gates.Skipped, gates.ModeOff, "d3")
	unresolved.Unresolved = c[1]
	must(t, j.AddVerdicts(ctx, c[3], []gates.Verdict{unresolved}))
	_, err := j.LastGood(ctx, f)
	wantErr(t, err, runner.ErrNotFound)
	// It survives what it was found in, and what lies between.
	for i, id := range []string{c[2], c[1], c[0]} {
		must(t, j.DropCheckpoints(ctx, f, id))
		stands(c[5], "b at "+c[1])
		if i == 0 {
			stands(c[1], "a at "+c[1], "b at "+c[1])
		}
	}
	// Another feature that goes on from here has it too, also when this one is gone.
	fork := runner.FeatureRecord{ID: "01fork", Name: "fork", Workspace: "/w"}
	_, err = j.Fork(ctx, fork, f)
	must(t, err)
	g := line(t, j, "01fork", c[5], 2)
	stands(g[1], "b at "+c[1])
	must(t, j.Forget(ctx, f))
	stands(g[1], "b at "+c[1])
	yes := true
	must(t, j.UpdateCheckpoint(ctx, g[0], runner.CheckpointUpdate{Promoted: &yes}))
	stands(g[1])
}

// aliased: what is said of one of a state's ids is said of the state.
func aliased(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	f := add(t, j, 1).Feature.ID
	first, alias, next := checkpoint(f, 0), checkpoint(f, 1), checkpoint(f, 2)
	first.Parent, alias.Parent, alias.AliasOf, next.Parent = "", first.ID, first.ID, first.ID
	for _, c := range []runner.CheckpointRecord{first, alias, next} {
		addCheckpoint(t, j, c)
	}
	count := func(at string, want int) {
		t.Helper()
		if list, err := j.Failures(ctx, at); err != nil || len(list) != want {
			t.Errorf("%s: %+v %v", at, list, err)
		}
	}
	must(t, j.AddVerdicts(ctx, alias.ID, []gates.Verdict{said("a", gates.Fail, gates.ModeBlock, "d")}))
	for _, id := range []string{first.ID, alias.ID, next.ID} {
		count(id, 1)
	}
	must(t, j.DropCheckpoints(ctx, f, alias.ID))
	count(next.ID, 1)
	yes := true
	addCheckpoint(t, j, alias)
	must(t, j.UpdateCheckpoint(ctx, alias.ID, runner.CheckpointUpdate{Promoted: &yes}))
	count(next.ID, 0)
}

func approvals(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	s := add(t, j, 1)
	f := s.Feature.ID
	v := said("paths", gates.Fail, gates.ModeBlock, "d")
	v.Findings = []gates.Finding{{Rule: "r", Path: "a\xff", Severity: gates.SeverityBlock}}
	a := runner.Approval{At: time.Unix(2e9, 5), Feature: f, TaskID: s.Task.ID, Checkpoint: "c", Gate: "paths", UID: 1000, By: "ann", Reason: "it is meant", Verdict: v}
	must(t, j.Approve(ctx, a))
	b := a
	b.Feature = "nobody"
	wantErr(t, j.Approve(ctx, b), runner.ErrNotFound)
	list, err := j.Approvals(ctx, f)
	must(t, err)
	if len(list) != 1 || !list[0].At.Equal(a.At) || list[0].By != "ann" || list[0].UID != 1000 || list[0].Reason != a.Reason || list[0].TaskID != a.TaskID ||
		list[0].Checkpoint != "c" || list[0].GateDigest != v.GateDigest || list[0].ChangeDigest != "d" || !v.CoveredBy(&list[0].Verdict) {
		t.Errorf("%+v", list)
	}
	trail, err := j.Audit(ctx, f)
	must(t, err)
	if last := trail[len(trail)-1]; last.Event != "bypass" || last.From != "paths" || last.To != "c" || last.Cause != a.Reason || last.TaskID != a.TaskID {
		t.Errorf("%+v", last)
	}
	if list, err := j.Approvals(ctx, "nobody"); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
}

func answers(t *testing.T, j runner.Journal) {
	ctx := t.Context()
	key := func(n int) gates.Key { return gates.Key{Gate: "sha256:g", Tree: fmt.Sprint(n), Image: "i"} }
	if _, ok := j.Answer(ctx, key(1)); ok {
		t.Error("an answer that nobody gave")
	}
	want := gates.Answer{Below: []string{"a"}, Seen: "s", Findings: []gates.Finding{{Rule: "r", Path: "p\xff", Line: 3, Message: "m", Severity: gates.SeverityWarn}}, Dropped: 2, Checked: 7}
	j.Keep(ctx, gates.Kept{Key: key(1), Answer: want}, gates.Kept{Key: key(2)})
	got, ok := j.Answer(ctx, key(1))
	if !ok || got.Checked != 7 || got.Dropped != 2 || got.Seen != "s" || !slices.Equal(got.Below, want.Below) || !slices.Equal(got.Findings, want.Findings) {
		t.Errorf("%+v %v", got, ok)
	}
	for _, k := range []gates.Key{{Gate: "sha256:g", Tree: "1"}, {Tree: "1", Image: "i"}, {Gate: "sha256:g", Image: "i"}} {
		if _, ok := j.Answer(ctx, k); ok {
			t.Errorf("%+v is another key", k)
		}
	}
	var many []gates.Kept
	for n := range 5000 {
		many = append(many, gates.Kept{Key: key(n + 10), Answer: gates.Answer{Checked: n}})
	}
	j.Keep(ctx, many...)
	if _, ok := j.Answer(ctx, key(1)); ok {
		t.Error("the oldest is still there")
	}
	if got, ok := j.Answer(ctx, key(5009)); !ok || got.Checked != 4999 {
		t.Error("the newest is not there")
	}
}

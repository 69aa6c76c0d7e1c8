package journaltest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
)

// fileEvents: the trail and the log of files are one sequence; paths are bytes.
func fileEvents(t *testing.T, j runner.Journal) {
	a, b := add(t, j, 1), add(t, j, 2)
	event := func(f, task, stack, path string) runner.FileEvent {
		return runner.FileEvent{At: time.Unix(1e9, 5), FeatureID: f, TaskID: task, Step: 2, Stack: stack, Path: path, Kind: "added", Size: 3}
	}
	must(t, j.AddFileEvents(t.Context(), nil))
	must(t, j.AddFileEvents(t.Context(), []runner.FileEvent{event(a.Feature.ID, a.Task.ID, "workspace", "a/\xff\x00\n"),
		event(a.Feature.ID, a.Task.ID, "home", ".cache/x"), event(b.Feature.ID, "", "workspace", "b")}))
	must(t, j.Note(t.Context(), runner.AuditRecord{FeatureID: a.Feature.ID, Event: "checkpoint"}))
	wantErr(t, j.AddFileEvents(t.Context(), []runner.FileEvent{event("nobody", "", "home", "x")}), runner.ErrNotFound)

	events := func(o runner.EventOptions) (got []string, last int64) {
		t.Helper()
		list, err := j.Events(t.Context(), o)
		must(t, err)
		for _, e := range list {
			if e.Seq <= last {
				t.Fatalf("%d after %d", e.Seq, last)
			}
			last = e.Seq
			got = append(got, e.Kind+":"+e.Path)
		}
		return got, last
	}
	all, last := events(runner.EventOptions{})
	if want := []string{"submit:", "submit:", "added:/workspace/a/\xff\x00\n", "added:/home/user/.cache/x", "added:/workspace/b", "checkpoint:"}; !slices.Equal(all, want) {
		t.Fatalf("got  %q\nwant %q", all, want)
	}
	if got, _ := events(runner.EventOptions{Feature: a.Feature.ID, Since: 2, Limit: 2}); !slices.Equal(got, all[2:4]) {
		t.Fatalf("%q", got)
	}
	if got, _ := events(runner.EventOptions{Task: a.Task.ID}); !slices.Equal(got, []string{all[0], all[2], all[3]}) {
		t.Fatalf("%q", got)
	}
	list, err := j.Events(t.Context(), runner.EventOptions{Since: 2, Limit: 1})
	must(t, err)
	if e := list[0]; e.Size != 3 || e.Step != 2 || e.TaskID != a.Task.ID || e.Feature != a.Feature.ID || !e.At.Equal(time.Unix(1e9, 5)) {
		t.Fatalf("%+v", e)
	}
	// What goes away gives its numbers to nobody: a follower would miss the next ones.
	must(t, j.Forget(t.Context(), b.Feature.ID))
	must(t, j.Forget(t.Context(), a.Feature.ID))
	must(t, j.Note(t.Context(), runner.AuditRecord{Event: "end"}))
	if got, _ := events(runner.EventOptions{Since: last}); !slices.Equal(got, []string{"end:"}) {
		t.Fatalf("%q", got)
	}
}

// networkEvents: they are of the same sequence, stay when a feature goes, and are all there is when only they are wanted.
func networkEvents(t *testing.T, j runner.Journal) {
	a, b := add(t, j, 1), add(t, j, 2)
	event := func(s runner.Submission, name string) runner.NetworkEvent {
		return runner.NetworkEvent{FeatureID: s.Feature.ID, TaskID: s.Task.ID, Step: 2, Event: egress.Event{At: time.Unix(1e9, 5).UTC(), Step: 2, Name: name,
			Addr: netip.MustParseAddrPort("198.18.1.0:443"), Port: 443, Protocol: "tls", In: 7, Out: 5, Duration: time.Second,
			Verdict: egress.VerdictRefused, Rule: "allow", Reason: "because", Remedy: name + ":443"}}
	}
	must(t, j.AddNetworkEvents(t.Context(), nil))
	first := event(a, "a.example")
	must(t, j.AddNetworkEvents(t.Context(), []runner.NetworkEvent{first, event(b, "b.example")}))
	must(t, j.AddFileEvents(t.Context(), []runner.FileEvent{{FeatureID: a.Feature.ID, Stack: "workspace", Path: "x", Kind: "added"}}))
	must(t, j.AddNetworkEvents(t.Context(), []runner.NetworkEvent{event(a, "c.example")}))
	must(t, j.Forget(t.Context(), a.Feature.ID))
	list, err := j.Events(t.Context(), runner.EventOptions{Feature: a.Feature.ID, Network: true})
	must(t, err)
	if len(list) != 2 || list[0].Kind != "network" || *list[0].Network != first.Event || list[0].TaskID != a.Task.ID || list[0].Step != 2 || list[1].Network.Name != "c.example" {
		t.Fatalf("%+v", list)
	}
	all, err := j.Events(t.Context(), runner.EventOptions{Since: list[0].Seq, Task: a.Task.ID})
	must(t, err)
	if len(all) != 1 || all[0].Seq != list[1].Seq || all[0].Network == nil {
		t.Fatalf("%+v", all)
	}
	const keep, batch = 20_000, 1000
	through := event(b, "through.example")
	through.Event.Verdict = egress.VerdictAllowed
	must(t, j.AddNetworkEvents(t.Context(), []runner.NetworkEvent{through}))
	for n := 0; n < keep+batch; n += batch {
		var more []runner.NetworkEvent
		for i := range batch {
			more = append(more, event(b, fmt.Sprint(n+i)))
		}
		must(t, j.AddNetworkEvents(t.Context(), more))
	}
	list, err = j.Events(t.Context(), runner.EventOptions{Feature: b.Feature.ID, Network: true})
	must(t, err)
	if n := len(list); n < keep/2 || n > keep || list[n-1].Network.Name != fmt.Sprint(keep+batch-1) || *list[0].Network != through.Event {
		t.Fatalf("%d events, from %+v to %+v", n, list[0].Network, list[n-1].Network)
	}
}

// bounded: what grows by itself does not grow for ever.
func bounded(t *testing.T, j runner.Journal) {
	f, other := add(t, j, 1).Feature.ID, add(t, j, 2).Feature.ID
	const batch, keep, all = 512, 20_000, 42 * 512
	must(t, j.AddFileEvents(t.Context(), []runner.FileEvent{{FeatureID: other, Stack: "workspace", Path: "stays", Kind: "added"}}))
	for n := 0; n < all; n += batch {
		var list []runner.FileEvent
		for i := range batch {
			list = append(list, runner.FileEvent{FeatureID: f, Stack: "workspace", Path: fmt.Sprint(n + i), Kind: "modified"})
		}
		must(t, j.AddFileEvents(t.Context(), list))
	}
	list, err := j.Events(t.Context(), runner.EventOptions{Feature: f, Since: 2})
	must(t, err)
	trims := len(list)
	list = slices.DeleteFunc(list, func(e runner.Event) bool { return e.Kind == "trim" })
	if trims -= len(list); trims == 0 {
		t.Error("nothing says that some were removed")
	}
	if len(list) < keep || len(list) > keep+batch || list[len(list)-1].Path != fmt.Sprintf("/workspace/%d", all-1) {
		t.Fatalf("%d events, the last %+v", len(list), list[len(list)-1])
	}
	if list, err := j.Events(t.Context(), runner.EventOptions{Feature: other}); err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
}

func timings(t *testing.T, j runner.Journal) {
	f, other := add(t, j, 1).Feature.ID, add(t, j, 2).Feature.ID
	const keep = 4096
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n := range 3 {
		must(t, j.AddTiming(ctx, runner.Timing{FeatureID: f, Kind: runner.TimingSeal, At: time.Unix(1e9, int64(n)), Took: time.Duration(n)}))
	}
	must(t, j.AddTiming(ctx, runner.Timing{FeatureID: other, Kind: runner.TimingRollback, Took: 7}))
	list, err := j.Timings(ctx, f)
	must(t, err)
	if len(list) != 3 || list[2].Took != 2 || list[0].Kind != runner.TimingSeal || !list[1].At.Equal(time.Unix(1e9, 1)) {
		t.Fatalf("%+v", list)
	}
	if list, err = j.Timings(ctx, ""); err != nil || len(list) != 4 {
		t.Fatal(list, err)
	}
	wantErr(t, j.AddTiming(ctx, runner.Timing{FeatureID: "nobody", Kind: runner.TimingSeal}), runner.ErrNotFound)
	must(t, j.Compact(ctx))
	if testing.Short() {
		return
	}
	for n := range keep + 200 {
		must(t, j.AddTiming(ctx, runner.Timing{FeatureID: f, Kind: runner.TimingSeal, Took: time.Duration(n)}))
	}
	if list, err = j.Timings(ctx, f); err != nil || len(list) < keep || len(list) > keep+64 || list[len(list)-1].Took != keep+199 {
		t.Fatal(len(list), err)
	}
}

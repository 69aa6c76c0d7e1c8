package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// fill gives every field a value that is not its zero.
func fill(v reflect.Value, word string, except ...string) {
	switch v.Kind() {
	case reflect.Slice:
		if raw, ok := v.Addr().Interface().(*json.RawMessage); ok {
			*raw = json.RawMessage(`{"a":1}`)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), word)
		fill(v.Index(1), word)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !slices.Contains(except, f.Name) {
				fill(v.Field(i), word)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), word)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, word)
		fill(value, word)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(word)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(7)
	}
}

// Every field of a request crosses the wire, but for streams: whoever adds one is reminded here.
func TestRequest(t *testing.T) {
	var want runner.Request
	streams := []string{"Stdin", "Stdout", "Stderr", "Signals", "Progress", "Profile", "Terminal"}
	fill(reflect.ValueOf(&want).Elem(), "/a\xffb", streams...)
	want.Feature, want.Promote, want.Key = "feature", "patch", "key" // words of ours are UTF-8
	want.Labels, want.Learn = map[string]string{"a": "b"}, runner.LearnEnforce
	for i := range want.Steps {
		want.Steps[i].Network, want.Steps[i].Limits = &egress.Policy{Mode: egress.ModeAllow, Allow: []string{"go"}}, nil
		want.Steps[i].Name, want.Steps[i].Reach = "fetch", &runner.Reach{Mode: egress.ModeAllow, Allow: []string{"npm"}}
	}
	want.Terminal.Name, want.Terminal.Size = "xterm", runner.Winsize{Rows: 1, Cols: 2}
	w, err := toWire(&want)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	var back wireRequest
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	got, err := back.request()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
}

func TestRequestPaths(t *testing.T) {
	w, err := toWire(&runner.Request{Workspace: ".", PatchFile: "x.patch", Environ: []string{}})
	here, _ := os.Getwd()
	if err != nil || string(w.Workspace) != here || string(w.PatchFile) != filepath.Join(here, "x.patch") {
		t.Error(w, err)
	}
	r, err := w.request()
	if err != nil || r.Environ == nil || len(r.Environ) != 0 {
		t.Error("an empty environment became the supervisor's own")
	}
	if w, _ := toWire(&runner.Request{}); len(w.Environ) == 0 || w.PatchFile != "" {
		t.Error("no environment did not become the caller's")
	}
}

func TestText(t *testing.T) {
	for _, s := range []string{"", "plain", "ünï", "\xff", "{\"base64\":\"\"}", "\x00\xfe"} {
		data, err := json.Marshal(text(s))
		var back text
		if err = errors.Join(err, json.Unmarshal(data, &back)); err != nil || string(back) != s {
			t.Errorf("%q: %s, %q, %v", s, data, back, err)
		}
	}
	var back text
	for _, bad := range []string{"7", `{"base64":"?"}`, "[]"} {
		if json.Unmarshal([]byte(bad), &back) == nil {
			t.Error(bad)
		}
	}
}

// An error is the same on both sides: code, text, remedy, exit code, and what callers look for below it.
func TestErrors(t *testing.T) {
	conflict := &snapshot.ConflictError{Conflicts: []snapshot.Conflict{{Path: "a", Reason: "edited"}}}
	held := &isolation.HeldError{Holders: []isolation.Holder{{PID: 7, Command: "sh", What: isolation.HeldCwd}}}
	for _, err := range []error{
		&runner.Error{Code: runner.CodeBusy, Cause: "busy", Remedy: "wait", Exit: 120},
		&runner.Error{Code: runner.CodeBusy, Cause: runner.ErrElsewhere.Error() + " x", Exit: 120, Err: runner.ErrElsewhere},
		&runner.Error{Code: runner.CodeInternal, Cause: "reading", Exit: 125, Err: os.ErrPermission},
		&runner.Error{Code: runner.CodeConflict, Cause: conflict.Error(), Exit: 120, Err: conflict},
		&runner.Error{Code: runner.CodeHeld, Cause: "the feature x is held", Exit: 120, Err: held},
		fmt.Errorf("around: %w", &runner.Error{Code: runner.CodeGate, Cause: "a gate", Exit: 121}),
		errors.Join(&runner.Error{Code: runner.CodeNotFound, Cause: "first", Exit: 120}, &runner.Error{Code: runner.CodeBusy, Cause: "second", Exit: 120}),
	} {
		data, merr := json.Marshal(toFailure(err))
		var f failure
		if merr = errors.Join(merr, json.Unmarshal(data, &f)); merr != nil {
			t.Fatal(merr)
		}
		want, _ := errors.AsType[*runner.Error](err)
		got, ok := errors.AsType[*runner.Error](f.err())
		if !ok || got.Code != want.Code || got.Error() != want.Error() || got.Remedy != want.Remedy || got.Exit != want.Exit {
			t.Errorf("got %+v, want %+v", got, want)
		}
		var c1, c2 *snapshot.ConflictError
		var h1, h2 *isolation.HeldError
		if errors.As(err, &c1) != errors.As(f.err(), &c2) || errors.As(err, &h1) != errors.As(f.err(), &h2) ||
			errors.Is(err, runner.ErrElsewhere) != errors.Is(f.err(), runner.ErrElsewhere) || !reflect.DeepEqual(c1, c2) || !reflect.DeepEqual(h1, h2) {
			t.Errorf("%v: what lies below is lost", err)
		}
	}
	if e := toFailure(errors.New("plain")).err(); runner.CodeOf(e) != runner.CodeInternal || e.Error() != "plain" {
		t.Error(e)
	}
	var empty failure
	if runner.CodeOf(empty.err()) != CodeGone {
		t.Error(empty.err())
	}
}

// The options of calls survive the wire although they have no tags of their own.
func TestOptions(t *testing.T) {
	for _, v := range []any{
		&runner.CheckpointOptions{}, &runner.RollbackOptions{}, &runner.StopOptions{}, &runner.PromoteOptions{}, &runner.ApproveOptions{},
		&runner.LogOptions{}, &runner.EventOptions{}, &snapshot.DiffOptions{}, &snapshot.ExportOptions{}, &runner.ImportOptions{},
		&runner.Checkpoint{}, &runner.RollbackResult{}, &runner.Stats{}, &runner.Event{}, &runner.FeatureInfo{}, &runner.GCReport{},
		&runner.Progress{}, &runner.ChangeSummary{},
	} {
		fill(reflect.ValueOf(v).Elem(), "/ä", "Verdicts", "Meta", "Created", "Updated", "At", "Tasks", "Running")
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		back := reflect.New(reflect.TypeOf(v).Elem()).Interface()
		if err := json.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(back)
		if err != nil || string(again) != string(text) {
			t.Errorf("%T: %s became %s", v, text, again)
		}
	}
}

func TestLossy(t *testing.T) {
	for s, want := range map[string]bool{"plain": false, "\ufffd": false, `\ufffd`: false, `\\ufffd`: false, "\xff": true, "\\\xff": true, "a\x00\n\"": false} {
		body, err := json.Marshal(map[string]string{"k": s})
		if err != nil || lossy(body) != want {
			t.Errorf("%q: %s, %v", s, body, err)
		}
	}
}

func TestLease(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		l    lease
		last time.Time
		want time.Duration // to the second
	}{
		{lease{since: now}, now, forever},
		{lease{since: now, ttl: time.Hour}, now, time.Hour},
		{lease{since: now.Add(-2 * time.Hour), ttl: time.Hour}, now, -time.Hour},
		{lease{since: now, idle: time.Minute}, now.Add(-time.Hour), -59 * time.Minute},
		{lease{since: now, idle: time.Minute}, time.Time{}, forever},
		{lease{since: now, idle: time.Minute, ttl: time.Second}, now, time.Second},
	} {
		if got := c.l.left(c.last); got.Round(time.Second) != c.want.Round(time.Second) && got != c.want {
			t.Errorf("%+v: %v, want %v", c.l, got, c.want)
		}
	}
}

package store

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
	"github.com/caisson-dev/caisson/runner/redact"
)

// whole checks the log, and answers what was found of it.
func whole(t *testing.T, s *Store, kept ...chain.Head) *chain.Report {
	t.Helper()
	r, err := s.Verify(t.Context(), kept...)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Whole {
		t.Errorf("%+v", r.Problems)
	}
	return r
}

// lived is a store with the log of two tasks.
func lived(t *testing.T, path string) *Store {
	t.Helper()
	s := openFile(t, path)
	for n := range 2 {
		f := runner.FeatureRecord{ID: fmt.Sprint("f", n), Name: fmt.Sprint("name", n), Workspace: "/w"}
		task := runner.TaskRecord{ID: fmt.Sprint("t", n), Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1, Args: []string{"true"}}}}
		if _, err := s.Submit(t.Context(), runner.Submission{Feature: f, NewFeature: true, Admitted: true, Task: task}); err != nil {
			t.Fatal(err)
		}
		life(t, s, f.ID, task)
		if err := s.AddNetworkEvents(t.Context(), []runner.NetworkEvent{{FeatureID: f.ID, TaskID: task.ID, Event: egress.Event{Verdict: egress.VerdictRefused}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Note(t.Context(), runner.AuditRecord{FeatureID: f.ID, TaskID: task.ID, Event: "promote"}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// unguarded drops what keeps the log as it is, as who tampers with it does.
const unguarded = `PRAGMA foreign_keys = 0; DROP TRIGGER log_appends; DROP TRIGGER log_no_update; DROP TRIGGER log_no_delete;
	DROP TRIGGER sources_no_update; DROP TRIGGER sources_no_delete;`

// TestTampered: whoever changes the store, the first entry that is not what it was is named, with its task.
func TestTampered(t *testing.T) {
	// What lived writes: 1 submit, 2 and 3 moves, 5 command, 10 files, 11 checkpoint, 13 command, 14 to 16 moves, 17 network, 18 promote; 19 to 36 again.
	for _, c := range []struct {
		sql   string
		first int64
		task  string
	}{
		{`UPDATE log SET body = replace(body, 'queued', 'failed') WHERE seq = 1`, 1, "t0"},
		{`UPDATE log SET body = body || ' ' WHERE seq = 10`, 10, "t0"},
		{`UPDATE log SET at = at + 1 WHERE seq = 13`, 13, "t0"},
		{`UPDATE log SET source = (SELECT id FROM sources WHERE task = 't1') WHERE seq = 13`, 13, "t1"},
		{`UPDATE sources SET task = 't9' WHERE task = 't1'`, 19, "t9"},
		{`DELETE FROM sources WHERE task = 't1'`, 19, ""},
		{`UPDATE log SET kind = 'pause' WHERE seq = 18`, 18, "t0"},
		{`UPDATE log SET hash = x'00' WHERE seq = 36`, 36, "t1"},
		{`UPDATE log SET count = 4 WHERE seq = 10`, 6, "t0"},
		{`DELETE FROM log WHERE seq = 1`, 1, "t0"},
		{`DELETE FROM log WHERE seq = 10`, 6, "t0"},
		{`DELETE FROM log WHERE seq BETWEEN 13 AND 18`, 12, "t1"},
		{`DELETE FROM log WHERE seq = 36`, 36, "t1"},
		{`DELETE FROM log WHERE seq > 16`, 18, "t0"},
		{`DELETE FROM log`, 18, "t0"},
		{`INSERT INTO log SELECT 8, 1, at, source, step, kind, body, hash FROM log WHERE seq = 3`, 6, "t0"},
		{`INSERT INTO log SELECT 37, 1, at, source, step, kind, body, hash FROM log WHERE seq = 3`, 37, "t0"},
		{`UPDATE log SET seq = -2 WHERE seq = 14; UPDATE log SET seq = 14 WHERE seq = 15; UPDATE log SET seq = 15 WHERE seq = -2`, 14, "t0"},
		{`UPDATE log SET body = (SELECT b.body FROM log b WHERE b.seq = 30 - log.seq) WHERE seq IN (14, 16)`, 14, "t0"},
	} {
		t.Run(c.sql, func(t *testing.T) {
			s := lived(t, filepath.Join(t.TempDir(), "store.db"))
			defer s.Close()
			whole(t, s)
			if _, err := s.db.Exec(unguarded + c.sql); err != nil {
				t.Fatal(err)
			}
			r, err := s.Verify(t.Context())
			if err != nil || r.Whole || r.Problems[0].Seq != c.first || r.Problems[0].Task != c.task {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestRewritten: a log whose hashes fit is not the one that there was: the heads say so, those beside it and one kept elsewhere.
func TestRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := lived(t, path)
	defer s.Close()
	kept := *whole(t, s).Head
	var list []chain.Entry
	if err := s.Entries(t.Context(), EntryOptions{}, func(e *chain.Entry) error { list = append(list, *e); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Exec(unguarded); err != nil {
		t.Fatal(err)
	}
	list[5].Body = []byte(`{"to":"another"}`)
	head := chain.Head{}
	for i := range list {
		seq := list[i].Seq
		head = list[i].Link(head)
		if _, err := s.db.Exec("UPDATE log SET body = ?, hash = ? WHERE seq = ?", string(list[i].Body), list[i].Hash[:], seq); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := s.Verify(t.Context()); err != nil || r.Whole || r.Problems[0].Seq != 13 || r.Problems[0].Task != "t0" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(headsOf(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	whole(t, s) // now nobody here knows better
	kept.From = "elsewhere"
	if r, err := s.Verify(t.Context(), kept); err != nil || r.Whole || r.Problems[0].Seq != kept.Seq || !strings.Contains(r.Problems[0].What, "elsewhere") {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestHeads: a head that lags, or was torn, is no damage; no file of them is.
func TestHeads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := lived(t, path)
	defer s.Close()
	text, err := os.ReadFile(headsOf(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{len(text), len(text) - 1, len(text) - 40, len(text) / 2, 10, 0} {
		if err := os.WriteFile(headsOf(path), text[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		whole(t, s)
		if err := s.Note(t.Context(), runner.AuditRecord{Event: "more"}); err != nil {
			t.Fatal(err)
		}
		if r := whole(t, s); r.Heads == 0 {
			t.Error("no head was compared")
		}
	}
	if err := os.Remove(headsOf(path)); err != nil {
		t.Fatal(err)
	}
	gone := func(words string) {
		t.Helper()
		if r, err := s.Verify(t.Context()); err != nil || r.Whole || len(r.Problems) != 1 || !strings.Contains(r.Problems[0].What, words) {
			t.Errorf("%+v, %v", r, err)
		}
	}
	gone("heads is gone")
	if err := s.Note(t.Context(), runner.AuditRecord{Event: "more"}); err != nil {
		t.Fatal(err)
	}
	gone("heads is gone") // also when the work has gone on
	if list, err := s.Repair(t.Context()); err != nil || len(list) != 1 || !strings.HasPrefix(list[0], headsFile) {
		t.Error(list, err)
	}
	gone("heads was gone") // for ever
	if list, err := s.Repair(t.Context()); err != nil || len(list) != 0 {
		t.Error("again:", list, err)
	}
	if err := s.Note(t.Context(), runner.AuditRecord{Event: "more"}); err != nil {
		t.Fatal(err)
	}
	if heads, err := readHeads(path); err != nil || len(heads) != 1 {
		t.Error(heads, err)
	}
}

// TestCutEnd: an end that is gone shows for ever, whatever comes after it, and no number is given twice.
func TestCutEnd(t *testing.T) {
	for _, cut := range []string{"seq > 34", "seq > 36", "seq > 2", "1"} {
		t.Run(cut, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.db")
			s := lived(t, path)
			for _, event := range []string{"rollback", "label"} { // of no task
				if err := s.Note(t.Context(), runner.AuditRecord{FeatureID: "f0", Event: event}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.db.Exec(unguarded + "DELETE FROM log WHERE " + cut); err != nil {
				t.Fatal(err)
			}
			var ends int64
			if err := s.db.QueryRow("SELECT coalesce(max(seq), 0) FROM log").Scan(&ends); err != nil {
				t.Fatal(err)
			}
			for _, task := range []string{"", "t1", "new"} {
				if err := s.Note(t.Context(), runner.AuditRecord{FeatureID: "f1", TaskID: task, Event: "label"}); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			r, err := Verify(t.Context(), path)
			want := fmt.Sprintf("entries %d to 38 are gone", ends+1)
			if err != nil || r.Whole || len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].What, want) || r.Head.Seq != 42 || r.Events != ends+4 {
				t.Errorf("%+v, %v; want %q", r, err, want)
			}
			s = openFile(t, path)
			defer s.Close()
			events, err := s.Events(t.Context(), runner.EventOptions{Since: ends})
			if err != nil || len(events) != 4 || events[0].Seq != 39 || events[0].Kind != chain.KindLost || events[3].Seq != 42 {
				t.Errorf("%+v, %v", events, err)
			}
		})
	}
}

// TestLostStore: of a store that is gone the heads tell; a new one says for ever what it does not have.
func TestLostStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	if r, err := Verify(t.Context(), path); err != nil || !r.Whole || r.Entries != 0 {
		t.Errorf("nothing was ever there: %+v, %v", r, err)
	}
	lived(t, path).Close()
	if r, err := Verify(t.Context(), path); err != nil || !r.Whole || r.Tasks != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := removeAll(path); err != nil {
		t.Fatal(err)
	}
	if r, err := Verify(t.Context(), path); err != nil || r.Whole || r.Problems[0].Seq != 18 || r.Problems[1].Task != "t1" {
		t.Errorf("gone: %+v, %v", r, err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("who checks has made a store")
	}
	s := openFile(t, path)
	defer s.Close()
	if err := s.Note(t.Context(), runner.AuditRecord{Event: "later"}); err != nil {
		t.Fatal(err)
	}
	r, err := s.Verify(t.Context())
	if err != nil || r.Whole || len(r.Problems) != 1 || r.Problems[0].Seq != 1 || !strings.Contains(r.Problems[0].What, "entries 1 to 36 are gone") || r.Entries != 2 {
		t.Errorf("made anew: %+v, %v", r, err)
	}
	if events, err := s.Events(t.Context(), runner.EventOptions{Since: 36}); err != nil || len(events) != 2 || events[0].Kind != chain.KindLost || events[0].Seq != 37 {
		t.Errorf("%+v, %v", events, err)
	}
}

// TestEntries: what Entries tells is enough to check the log without this code.
func TestEntries(t *testing.T) {
	s := lived(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	all := 0
	for _, o := range []EntryOptions{{}, {Feature: "f1"}, {Task: "t0"}, {Feature: "f0", Task: "t1"}} {
		n, last := 0, int64(0)
		err := s.Entries(t.Context(), o, func(e *chain.Entry) error {
			lines := fmt.Sprintf("%x\n%d\n%d\n%d\n%s\n%s\n%d\n%s\n%x\n", e.Prev[:], e.Seq, e.Count, e.At.UnixNano(), e.Feature, e.Task, e.Step, e.Kind, sha256.Sum256(e.Body))
			if sum := sha256.Sum256([]byte(lines)); sum != e.Hash {
				t.Errorf("%d: %x, want %s", e.Seq, sum, e.Hash)
			}
			if e.Seq <= last || o.Feature != "" && e.Feature != o.Feature || o.Task != "" && e.Task != o.Task || !json.Valid(e.Body) {
				t.Errorf("%+v: %+v", o, e)
			}
			last = e.Seq
			n++
			return nil
		})
		if o == (EntryOptions{}) {
			all = n
		}
		if want := map[string]int{"f1": all / 2, "f0": 0, "": n}[o.Feature]; err != nil || n != want {
			t.Errorf("%+v: %d entries, %v", o, n, err)
		}
	}
}

// TestLogHidesSecrets: those with a telling shape, and those that are known, in whatever is said.
func TestLogHidesSecrets(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	s.Redact = &redact.Redactor{}
	s.Redact.Know(redact.Value{Name: "DEPLOY", Text: `sesame "open" & shut`})
	_, err := s.Submit(t.Context(), runner.Submission{NewFeature: true, Admitted: true, Feature: runner.FeatureRecord{ID: "f", Name: "n", Workspace: "/w"},
		Task: runner.TaskRecord{ID: "t", Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1, Args: []string{"true"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"curl", "--password", "hunter2hunter2", "-H", "Authorization: Bearer aB3dEfGh1jKlMn0p", `say sesame "open" & shut`, "plain"}
	err = s.Move(t.Context(), runner.Move{TaskID: "t", From: runner.StatePreparing, To: runner.StateRunning, Cause: `for sesame "open" & shut`,
		Step: &runner.StepMove{N: 1, From: runner.StepNotStarted, To: runner.StepRunning, Command: &runner.Command{Args: args}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []runner.AuditRecord{
		{Event: "a", Cause: "API_TOKEN=aB3dEfGh1jKlMn0p"},
		{Event: "b", Detail: json.RawMessage(`{"n":12345678901234567890,"api_key":"aB3dEfGh1jKlMn0p","list":["x","ghp_aB3dEfGh1jKlMn0pqrstuvwxyz0123456789"]}`)},
	} {
		if err := s.Note(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.AddNetworkEvents(t.Context(), []runner.NetworkEvent{{FeatureID: "f", Event: egress.Event{Verdict: egress.VerdictRefused, Reason: `sesame "open" & shut`}}}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := s.Entries(t.Context(), EntryOptions{}, func(e *chain.Entry) error { text.Write(e.Body); text.WriteByte('\n'); return nil }); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hunter2", "aB3dEfGh1jKlMn0p", "sesame"} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("%q is in %s", secret, text.String())
		}
	}
	for _, kept := range []string{"plain", "curl", "--password", "12345678901234567890"} {
		if !strings.Contains(text.String(), kept) {
			t.Errorf("%q is not in %s", kept, text.String())
		}
	}
	whole(t, s)
}

// TestMigrateLog: the three logs of version 5 become one, with the numbers that they had.
func TestMigrateLog(t *testing.T) {
	path, s, script := older(t, 5)
	const many = 12_000 // more than are carried at once
	if _, err := s.db.Exec(script + fmt.Sprintf(`INSERT INTO features (id, name, workspace, idx, direct, labels, created) VALUES ('f', 'n', '/w', 0, 0, '{}', 1);
		INSERT INTO audit VALUES (1, 100, 'f', 't', 0, 'submit', '', 'queued', ''), (2, 101, 'f', 't', 2, 'step', 'not_started', 'running', 'why');
		INSERT INTO event_sources VALUES (1, 'f', 't', 2, 'workspace', 'added'), (2, 'f', '', 0, 'home', 'deleted');
		INSERT INTO file_events VALUES (5, 1, 200, x'612f62', 7), (6, 1, 201, x'ff', 0), (7, 2, 202, x'63', 0), (9, 1, 203, x'64', 1);
		INSERT INTO network_events VALUES (8, 300, 'gone', 't2', 1, '{"at":"2020-01-01T00:00:00Z","name":"a.example","verdict":"refused"}'),
			(10, 301, 'f', 't', 1, '{"at":"2020-01-01T00:00:01Z","name":"b.example","verdict":"allowed"}'), (11, 302, 'f', 't', 1, '{');
		WITH RECURSIVE n(i) AS (SELECT 12 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO file_events SELECT i, 1, i, 'x' || i, 0 FROM n; PRAGMA user_version = 5`, 11+many)); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFile(t, path)
	defer s.Close()
	if err := s.Note(t.Context(), runner.AuditRecord{Event: "new"}); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), runner.EventOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range events[:10] {
		name := ""
		if e.Network != nil {
			name = e.Network.Name
		}
		got = append(got, fmt.Sprintf("%d %s %s/%s/%d %q %d %s>%s%s %s", e.Seq, e.Kind, e.Feature, e.TaskID, e.Step, e.Path, e.Size, e.From, e.To, e.Cause, name))
	}
	want := []string{`1 submit f/t/0 "" 0 >queued `, `2 step f/t/2 "" 0 not_started>runningwhy `, `4 trimmed //0 "" 0 >2 events, by an earlier version `,
		`5 added f/t/2 "/workspace/a/b" 7 > `, `6 added f/t/2 "/workspace/\xff" 0 > `, `7 deleted f//0 "/home/user/c" 0 > `,
		`8 network gone/t2/1 "" 0 > a.example`, `9 added f/t/2 "/workspace/d" 1 > `, `10 network f/t/1 "" 0 > b.example`, `11 network f/t/1 "" 0 > `}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	last := events[len(events)-1]
	if len(events) != 10+many+1 || last.Seq != 12+many || last.Kind != "new" || !events[3].At.Equal(time.Unix(0, 200)) || !events[10].At.Equal(time.Unix(0, 12)) {
		t.Errorf("%d events, the last %+v", len(events), last)
	}
	if r := whole(t, s); r.Events != 12+many || r.Heads == 0 || r.Entries > 100 {
		t.Errorf("%+v", r)
	}
}

// TestKilled: writers that are killed at any instant leave a log that is whole.
func TestKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openFile(t, path)
	defer s.Close()
	for round := range 3 {
		var commands []*exec.Cmd
		for n := range 8 {
			c := exec.Command(os.Args[0], fmt.Sprintf("r%dn%d-", round, n))
			c.Env = append(os.Environ(), helper+"="+path, endless+"=1")
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			commands = append(commands, c)
		}
		before := whole(t, s).Entries
		for deadline := time.Now().Add(time.Minute); ; { // they are at work when each has had some turns
			if r := whole(t, s); r.Entries > before+200 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("nobody writes")
			}
		}
		for _, c := range commands {
			if err := c.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
		for _, c := range commands {
			_ = c.Wait() // killed
		}
		if r := whole(t, s); r.Tasks < 8 || r.Heads < 8 {
			t.Errorf("%+v", r)
		}
	}
}

// TestVerdictsAreLogged: one entry for each gate, in the transaction that stores them.
func TestVerdictsAreLogged(t *testing.T) {
	s := lived(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	list, err := s.Checkpoints(t.Context(), "f0")
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	v := gates.Verdict{Gate: "paths", Status: gates.Fail, Mode: gates.ModeBlock, Findings: []gates.Finding{{Message: "x"}, {Message: "y"}}, Dropped: 3}
	if err := s.AddVerdicts(t.Context(), list[0].ID, []gates.Verdict{v, {Gate: "size", Status: gates.Pass, Mode: gates.ModeWarn}}); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), runner.EventOptions{Since: 36})
	if err != nil || len(events) != 2 {
		t.Fatalf("%+v, %v", events, err)
	}
	var g runner.GateRecord
	if err := json.Unmarshal(events[0].Detail, &g); err != nil {
		t.Fatal(err)
	}
	if want := (runner.GateRecord{Gate: "paths", Checkpoint: list[0].ID, Status: gates.Fail, Mode: gates.ModeBlock, Findings: 5}); g != want ||
		events[0].Kind != "gate" || events[0].Feature != "f0" || events[0].TaskID != "t0" || events[1].From != "size" || events[1].To != "pass" {
		t.Errorf("%+v: %+v", g, events)
	}
	if err := s.AddVerdicts(t.Context(), "nothing", []gates.Verdict{v}); err == nil {
		t.Error("of a checkpoint that is not there")
	}
	if r := whole(t, s); r.Events != 38 {
		t.Errorf("%+v", r)
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/journaltest"
)

const (
	helper  = "CAISSON_STORE_TEST_HELPER"
	endless = "CAISSON_STORE_TEST_ENDLESS" // the helper goes on until it is killed
)

// TestMain lets the test binary be one of many processes that use a store.
func TestMain(m *testing.M) {
	if path := os.Getenv(helper); path != "" {
		name := os.Args[1]
		for n, more := 0, true; more; n++ {
			if err := work(path, name); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			name, more = fmt.Sprint(os.Args[1], n), os.Getenv(endless) != ""
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestFile(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) runner.Journal {
		path := filepath.Join(t.TempDir(), "store.db")
		t.Cleanup(func() { // whatever was done, the log is whole
			if r, err := Verify(context.Background(), path); err != nil || !r.Whole {
				t.Errorf("%+v, %v", r, err)
			}
		})
		return openFile(t, path)
	})
}

func TestMemory(t *testing.T) {
	journaltest.Run(t, func(t *testing.T) runner.Journal {
		s, err := Memory(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func openFile(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The database refuses what the table does not name, whoever asks.
func TestTriggers(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	_, err := s.Submit(t.Context(), runner.Submission{NewFeature: true, MaxQueue: 1,
		Feature: runner.FeatureRecord{ID: "f", Name: "n", Workspace: "/w"},
		Task:    runner.TaskRecord{ID: "t", Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddFileEvents(t.Context(), []runner.FileEvent{{FeatureID: "f", Stack: "workspace", Path: "x", Kind: "added"}}); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		"UPDATE tasks SET state = 'succeeded'",
		"UPDATE tasks SET state = 'queued'",
		"UPDATE tasks SET state = 'nonsense'",
		"UPDATE steps SET state = 'done'",
		"INSERT INTO tasks (id, feature, state, profile, profile_digest, remove, created, updated) VALUES ('u', 'f', 'running', '', '', 0, 0, 0)",
		"INSERT INTO steps (task, n, state, args) VALUES ('t', 2, 'done', '[]')",
		"UPDATE log SET body = '{}'",
		"DELETE FROM log",
		"DELETE FROM sources",
		"UPDATE sources SET task = 'another'",
		"DELETE FROM log WHERE seq = 1",
		"DELETE FROM log WHERE kind = 'files'", // no newer entry says that it went
		"INSERT INTO log SELECT 4, 1, at, source, step, kind, body, hash FROM log WHERE seq = 1",
		"INSERT INTO log SELECT -1, 1, at, source, step, kind, body, hash FROM log WHERE seq = 1",
		"INSERT INTO log SELECT 3, 1, at, source, step, kind, body, 'text' FROM log WHERE seq = 1",
		"DELETE FROM transitions",
		"INSERT INTO tasks (id, feature, state, profile, profile_digest, remove, created, updated) VALUES ('u', 'nobody', 'queued', '', '', 0, 0, 0)",
	} {
		if _, err := s.db.Exec(q); err == nil {
			t.Errorf("allowed: %s", q)
		}
	}
}

func TestMachinesAreCopied(t *testing.T) {
	s, err := Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := 0
	for _, next := range runner.Transitions {
		want += len(next)
	}
	for _, next := range runner.StepTransitions {
		want += len(next)
	}
	var have int
	if err := s.db.QueryRow("SELECT count(*) FROM transitions").Scan(&have); err != nil || have != want {
		t.Fatalf("%d rows, want %d (%v); a changed state machine needs a migration", have, want, err)
	}
}

// TestTotal: where too much is known of the network, who has most of it loses its oldest, and nobody else anything.
func TestTotal(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	total := int(pools[kindRefused].total)
	for _, f := range []struct{ count, features int }{{10, 1}, {9900, 10}, {slack, 3}} {
		for n := range f.features {
			list := make([]runner.NetworkEvent, f.count)
			for i := range list {
				list[i].FeatureID = fmt.Sprint("f", n+min(f.features-1, 1))
			}
			if err := s.AddNetworkEvents(t.Context(), list); err != nil {
				t.Fatal(err)
			}
		}
	}
	var few, most, all int
	err := s.db.QueryRow(`SELECT sum(count) FILTER (WHERE feature = 'f0'), sum(count) FILTER (WHERE feature = 'f10'), sum(count)
		FROM log JOIN sources ON id = source WHERE kind = 'network-refused'`).Scan(&few, &most, &all)
	if err != nil || few != 10 || most != 9900 || all < total || all > total+slack {
		t.Errorf("%d events of the least, %d of one of the others, %d in all (%v)", few, most, all, err)
	}
	whole(t, s)
}

func TestPragmas(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "1", "foreign_keys": "1",
		"busy_timeout": "10000", "user_version": fmt.Sprint(version)} {
		var got string
		if err := s.db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s = %q, want %q (%v)", pragma, got, want, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	newer := filepath.Join(dir, "newer.db")
	s := openFile(t, newer)
	if _, err := s.db.Exec(fmt.Sprintf("PRAGMA user_version = %d", version+1)); err != nil {
		t.Fatal(err)
	}
	s.Close()
	write := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for path, code := range map[string]string{
		newer: runner.CodeStoreNewer,
		write("junk.db", strings.Repeat("junk", 4096)): runner.CodeStoreCorrupt,
		write("empty.db", ""):                          runner.CodeStoreCorrupt,
		filepath.Join(dir, "missing", "x.db"):          runner.CodeState,
		dir:                                            runner.CodeState,
	} {
		s, err := Open(t.Context(), path)
		if err == nil {
			s.Close()
		}
		if runner.CodeOf(err) != code {
			t.Errorf("%s: %v (code %s), want code %s", path, err, runner.CodeOf(err), code)
		}
		if e, ok := errors.AsType[*runner.Error](err); !ok || e.Remedy == "" {
			t.Errorf("%s: no remedy: %v", path, err)
		}
	}
}

// A store that was damaged in the middle is an error with its code, not a panic.
func TestTornFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openFile(t, path)
	s.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/2); err != nil {
		t.Fatal(err)
	}
	s, err = Open(t.Context(), path)
	if err == nil {
		_, err = s.Features(t.Context())
		s.Close()
	}
	if runner.CodeOf(err) != runner.CodeStoreCorrupt {
		t.Fatalf("%v (code %s)", err, runner.CodeOf(err))
	}
}

func TestOddPaths(t *testing.T) {
	for _, name := range []string{"a b", "a?mode=memory", "a#b", "a%20b", "a;b&c", "ü\n", "a:b"} {
		dir := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := openFile(t, filepath.Join(dir, "store.db"))
		if err := s.Note(t.Context(), runner.AuditRecord{Event: "x"}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		s.Close()
		if _, err := os.Stat(filepath.Join(dir, "store.db")); err != nil {
			t.Error(err)
		}
	}
}

func TestHalfMadeIsForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	for _, suffix := range []string{".new", ".new-journal", ".new-wal", ".new-shm"} {
		if err := os.WriteFile(path+suffix, []byte("torn"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	openFile(t, path).Close()
	if left, _ := filepath.Glob(path + ".new*"); len(left) != 0 {
		t.Fatal(left)
	}
}

// Fifty processes, beginning with a file that does not exist, see no lock error and lose nothing.
func TestManyProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			c := exec.Command(os.Args[0], fmt.Sprint(n))
			c.Env = append(os.Environ(), helper+"="+path)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v\n%s", n, err, out)
			}
		})
	}
	wg.Wait()
	s := openFile(t, path)
	defer s.Close()
	list, err := s.Features(t.Context())
	if err != nil || len(list) != 50 {
		t.Fatalf("%d features (%v)", len(list), err)
	}
	index := map[int]bool{}
	for _, f := range list {
		index[f.Index] = true
		if f.Last.State != runner.StateSucceeded {
			t.Errorf("%s is %s", f.ID, f.Last.State)
		}
	}
	if len(index) != 50 || !index[0] || !index[49] {
		t.Error("indexes are not 0 to 49")
	}
	if r := whole(t, s); r.Tasks != 50 || r.Entries != 300 || r.Heads != 300 {
		t.Errorf("%+v", r)
	}
}

func work(path, n string) error {
	ctx := context.Background()
	s, err := Open(ctx, path)
	if err != nil {
		return err
	}
	_, err = s.Submit(ctx, runner.Submission{NewFeature: true, MaxQueue: 1000,
		Feature: runner.FeatureRecord{ID: "f" + n, Name: "n" + n, Workspace: "/w"},
		Task:    runner.TaskRecord{ID: "t" + n, Profile: []byte("{}"), Steps: []runner.StepRecord{{N: 1}}}})
	if err != nil {
		return err
	}
	states := []runner.State{runner.StateQueued, runner.StatePreparing, runner.StateRunning, runner.StateSealing,
		runner.StateValidating, runner.StateSucceeded}
	for i := 1; i < len(states); i++ {
		if err := s.Move(ctx, runner.Move{TaskID: "t" + n, From: states[i-1], To: states[i]}); err != nil {
			return err
		}
	}
	return s.Close()
}

// TestDamagedAnswer: what is not as it was written is no answer.
func TestDamagedAnswer(t *testing.T) {
	s := openFile(t, filepath.Join(t.TempDir(), "store.db"))
	defer s.Close()
	k := gates.Key{Gate: "sha256:g", Tree: "t"}
	for name, damage := range map[string]string{
		"another body": `UPDATE answers SET body = '{"checked":2}'`,
		"no JSON":      "UPDATE answers SET body = 'x'",
		"another sum":  "UPDATE answers SET sum = x'00'",
		"another type": "UPDATE answers SET body = 7, sum = 'x'",
		"another key":  "UPDATE answers SET key = x'00'",
	} {
		s.Keep(t.Context(), gates.Kept{Key: k, Answer: gates.Answer{Checked: 1}})
		if a, ok := s.Answer(t.Context(), k); !ok || a.Checked != 1 {
			t.Fatalf("%s: %+v %v before", name, a, ok)
		}
		if _, err := s.db.Exec(damage); err != nil {
			t.Fatal(name, err)
		}
		if a, ok := s.Answer(t.Context(), k); ok {
			t.Errorf("%s: %+v", name, a)
		}
	}
	// An answer that was moved to another tree's key.
	other := gates.Key{Gate: "sha256:g", Tree: "u"}
	s.Keep(t.Context(), gates.Kept{Key: k, Answer: gates.Answer{Checked: 1}}, gates.Kept{Key: other, Answer: gates.Answer{Checked: 2}})
	if _, err := s.db.Exec("UPDATE answers SET body = (SELECT body FROM answers WHERE key = ?2), sum = (SELECT sum FROM answers WHERE key = ?2) WHERE key = ?1", answerKey(k), answerKey(other)); err != nil {
		t.Fatal(err)
	}
	if a, ok := s.Answer(t.Context(), k); ok {
		t.Errorf("another tree's: %+v", a)
	}
	if _, err := s.db.Exec("DROP TABLE answers"); err != nil {
		t.Fatal(err)
	}
	s.Keep(t.Context(), gates.Kept{Key: k})
	if a, ok := s.Answer(t.Context(), k); ok {
		t.Errorf("no table: %+v", a)
	}
}

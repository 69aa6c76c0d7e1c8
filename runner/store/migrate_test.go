package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/flock"
)

// fixture is a store that caisson of version 1 wrote in a real run: three features, one of them with its supervisor killed.
func fixture(t *testing.T) (path string) {
	t.Helper()
	text, err := os.ReadFile("testdata/version1.sql")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := connect(dsn(path, "rw", "journal_mode(WAL)"))
	if err != nil {
		t.Fatal(err)
	}
	// The dump brings its transaction with it; the triggers come after the rows.
	if _, err := s.db.Exec("PRAGMA foreign_keys = 0;\n" + string(text) + "PRAGMA user_version = 1"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMigrate(t *testing.T) {
	path := fixture(t)
	for range 2 { // the second time it is one of ours
		s := openFile(t, path)
		list, err := s.Features(t.Context())
		if err != nil || len(list) != 3 {
			t.Fatalf("%d features, %v", len(list), err)
		}
		index := map[int]string{}
		for _, f := range list {
			index[f.Index] = f.Name
			if f.Lineage != f.ID || f.Origin != "" || f.Detached || f.Disk != 0 || f.Last == nil || len(f.Last.Steps) != 1 || len(f.Last.Profile) < 1000 {
				t.Errorf("%+v", f)
			}
		}
		if len(index) != 3 {
			t.Error(index)
		}
		kept, err := s.Feature(t.Context(), "kept")
		if err != nil {
			t.Fatal(err)
		}
		if tasks, err := s.Tasks(t.Context(), kept.ID); err != nil || len(tasks) != 2 || tasks[0].State != runner.StateSucceeded ||
			tasks[1].State != runner.StateFailed || len(tasks[1].Result) == 0 {
			t.Errorf("%+v, %v", tasks, err)
		}
		if list, err := s.Unfinished(t.Context()); err != nil || len(list) != 1 || list[0].Name != "killed" {
			t.Errorf("%+v, %v", list, err)
		}
		if rows, err := s.Audit(t.Context(), ""); err != nil || len(rows) != 36 {
			t.Errorf("%d rows, %v", len(rows), err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// older begins a store of an earlier version: script makes its tables, and has to be executed with what is in them.
func older(t *testing.T, version int) (path string, s *Store, script string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.db")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := connect(dsn(path, "rw", "journal_mode(WAL)"))
	if err != nil {
		t.Fatal(err)
	}
	for n := range version {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%03d.sql", n+1))
		if err != nil {
			t.Fatal(err)
		}
		script += string(text)
	}
	return path, s, script
}

// Forks of a version that did not record under what they began get what their nearest origin had.
func TestMigrateForks(t *testing.T) {
	path, s, script := older(t, 4)
	for i, f := range []struct{ id, origin string }{{"root", ""}, {"fork", "root"}, {"second", "fork"}, {"orphan", "gone"}} {
		script += fmt.Sprintf(`INSERT INTO features (id, name, workspace, idx, direct, labels, created, origin)
			VALUES ('%s', '%[1]s', '/w', %d, 0, '{}', %[2]d, '%s');`, f.id, i, f.origin)
	}
	if _, err := s.db.Exec(script + `INSERT INTO profiles VALUES (1, '{"name":"older"}', x'00'), (2, '{"name":"newer"}', x'01');
		INSERT INTO tasks (id, feature, state, profile, profile_digest, remove, created, updated, profile_id)
		VALUES ('t1', 'root', 'queued', '', '', 0, 1, 1, 1), ('t2', 'root', 'queued', '', '', 0, 2, 2, 2); PRAGMA user_version = 4`); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Close(); err != nil {
		t.Fatal(err)
	}
	s = openFile(t, path)
	defer s.Close()
	for id, want := range map[string]string{"root": `{"name":"newer"}`, "fork": `{"name":"newer"}`, "second": `{"name":"newer"}`, "orphan": ""} {
		got, err := s.Policy(t.Context(), id)
		if string(got) != want || (want == "") != errors.Is(err, runner.ErrNotFound) {
			t.Errorf("%s: %s, %v", id, got, err)
		}
	}
}

// TestMigrateUnderOld: a store is not taken from under an older caisson that works with it.
func TestMigrateUnderOld(t *testing.T) {
	path := fixture(t)
	for _, name := range []string{"features/f1/lock", "daemon.lock"} {
		lock := filepath.Join(filepath.Dir(path), name)
		if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
			t.Fatal(err)
		}
		old := exec.Command("flock", lock, "sh", "-c", "echo held; read end")
		end, _ := old.StdinPipe()
		out, err := old.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("held\n"))); err != nil {
			t.Fatal(err)
		}
		for range 2 { // what was refused has changed nothing
			if s, err := Open(t.Context(), path); runner.CodeOf(err) != runner.CodeBusy || !strings.Contains(err.Error(), "older caisson") {
				t.Errorf("%s: %v, %v", name, s, err)
			}
		}
		if err := errors.Join(end.Close(), ended(old)); err != nil {
			t.Fatal(err)
		}
	}
	own, err := flock.Try(filepath.Join(filepath.Dir(path), "daemon.lock"), flock.Exclusive) // ours is no older one's
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Release() }()
	openFile(t, path).Close()
}

// ended waits for a command whose read finds an end, which sh calls a failure.
func ended(c *exec.Cmd) error {
	err := c.Wait()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// What is new works in a migrated store: the moves of a resume, numbers after the old ones.
func TestMigratedGoesOn(t *testing.T) {
	s := openFile(t, fixture(t))
	defer s.Close()
	f, err := s.Feature(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := s.Tasks(t.Context(), f.ID)
	if err != nil {
		t.Fatal(err)
	}
	c := runner.CheckpointRecord{Checkpoint: runner.Checkpoint{ID: "01c", FeatureID: f.ID, Reason: runner.ReasonManual}}
	err = s.AddCheckpoint(t.Context(), c, runner.Move{TaskID: tasks[1].ID, From: runner.StateFailed, To: runner.StatePreparing})
	if err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), runner.EventOptions{Since: 36})
	if err != nil || len(events) != 2 || events[0].Seq != 37 || events[0].Kind != "checkpoint" || events[1].Kind != "move" {
		t.Errorf("%+v, %v", events, err)
	}
}

// Many processes that open an old store at once migrate it once.
func TestMigrateTogether(t *testing.T) {
	path := fixture(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s, err := Open(t.Context(), path)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Features(t.Context()); err != nil {
				t.Error(err)
			}
			s.Close()
		})
	}
	wg.Wait()
}

// A migration that fails leaves the old store as it was.
func TestMigrateAllOrNothing(t *testing.T) {
	path := fixture(t)
	s, err := connect(dsn(path, "rw"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Exec("CREATE TABLE timings (x)"); err != nil { // in the way of the last statement
		t.Fatal(err)
	}
	s.db.Close()
	if s, err := Open(t.Context(), path); err == nil {
		s.Close()
		t.Fatal("migrated over a table that was in the way")
	}
	if s, err = connect(dsn(path, "rw")); err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	var version, columns int
	if err := s.db.QueryRow("SELECT user_version, (SELECT count(*) FROM pragma_table_info('features')) FROM pragma_user_version").Scan(&version, &columns); err != nil {
		t.Fatal(err)
	}
	if version != 1 || columns != 9 {
		t.Fatalf("version %d, %d columns", version, columns)
	}
}

// TestSmall: 10 features with 100 checkpoints each, made by 10 tasks of 10 steps, take less than 2 MB.
func TestSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.db")
	s := openFile(t, path)
	defer s.Close()
	profile, err := os.ReadFile("testdata/version1.sql") // any 7 KB, which is what a profile has
	if err != nil {
		t.Fatal(err)
	}
	var steps []runner.StepRecord
	for n := range 10 {
		steps = append(steps, runner.StepRecord{N: n + 1, Args: []string{"go", "build", "./..."}})
	}
	for f := range 10 {
		feature := runner.FeatureRecord{ID: fmt.Sprintf("01JD3Q7ZR8XW5F2M%08d", f), Name: fmt.Sprint("feature-", f), Workspace: "/home/user/project"}
		for n := range 10 {
			task := runner.TaskRecord{ID: fmt.Sprintf("01JD3Q7ZR8XW5F2%05d-%05d", f, n), Profile: profile[:7000], Steps: steps}
			if _, err := s.Submit(t.Context(), runner.Submission{Feature: feature, NewFeature: n == 0, Admitted: true, Key: "key-" + task.ID, Task: task}); err != nil {
				t.Fatal(err)
			}
			life(t, s, feature.ID, task)
		}
	}
	if err := s.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	size := int64(0)
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(path + suffix); err == nil {
			size += info.Size()
		}
	}
	t.Logf("%d KB", size>>10)
	if size > 2<<20 {
		t.Error("more than 2 MB")
	}
}

// life is what one task leaves in the store: with each step some file events, a checkpoint and its timing.
func life(t *testing.T, s *Store, feature string, task runner.TaskRecord) {
	t.Helper()
	ctx, from := t.Context(), runner.StatePreparing
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, st := range task.Steps {
		step := func(from, to runner.StepState, c runner.Command) *runner.StepMove {
			return &runner.StepMove{N: st.N, From: from, To: to, Command: &c}
		}
		must(s.Move(ctx, runner.Move{TaskID: task.ID, From: from, To: runner.StateRunning, Step: step(runner.StepNotStarted, runner.StepRunning, runner.Command{Args: st.Args})}))
		from = runner.StateRunning
		var events []runner.FileEvent
		for n := range 5 {
			events = append(events, runner.FileEvent{FeatureID: feature, TaskID: task.ID, Step: st.N, Stack: "workspace",
				Path: fmt.Sprintf("internal/pkg/file%d.go", n), Kind: "modified", Size: 4000})
		}
		must(s.AddFileEvents(ctx, events))
		c := runner.Checkpoint{ID: fmt.Sprintf("%s%02d", task.ID, st.N), FeatureID: feature, Parent: fmt.Sprintf("%s%02d", task.ID, st.N-1), TaskID: task.ID,
			Step: st.N, Reason: runner.ReasonStep, Digest: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}
		must(s.AddCheckpoint(ctx, runner.CheckpointRecord{Checkpoint: c}, runner.Move{TaskID: task.ID, From: from, To: from,
			Step: step(runner.StepRunning, runner.StepDone, runner.Command{Verdict: runner.VerdictOK, ExitCode: new(int)})}))
		must(s.AddTiming(ctx, runner.Timing{FeatureID: feature, Kind: runner.TimingSeal, Took: time.Millisecond}))
	}
	must(s.Move(ctx, runner.Move{TaskID: task.ID, From: runner.StateRunning, To: runner.StateSealing},
		runner.Move{TaskID: task.ID, From: runner.StateSealing, To: runner.StateValidating},
		runner.Move{TaskID: task.ID, From: runner.StateValidating, To: runner.StateSucceeded, Result: []byte(`{"verdict":"ok","exit_code":0,"change":{"added":5}}`)}))
}

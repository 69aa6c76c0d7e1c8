package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
)

// rescue reads what is left of a row that does not fit its types: its columns as texts.
func rescue(rows *sql.Rows) ([]string, error) {
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	texts := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range texts {
		into[i] = &texts[i]
	}
	if err := rows.Scan(into...); err != nil {
		return nil, err
	}
	list := make([]string, len(columns))
	for i, t := range texts {
		list[i] = t.String
	}
	return list, nil
}

// damaged is the error for a row that cannot be read.
func damaged(what string, err error) error {
	return &runner.Error{Code: runner.CodeDamaged, Exit: runner.ExitInternal, Err: err,
		Cause: fmt.Sprintf("the store's row of %s is damaged: %v", what, err), Remedy: "caisson doctor --repair"}
}

// faults are the ways in which a row can be damaged without SQLite's noticing, and what repairs it. What a checkpoint's
// files say of it is put in again afterwards, by whoever knows them.
var faults = []struct {
	what   string // of the row, as a text in SQL
	table  string
	broken string
	repair string
}{
	{"'labels of feature ' || name", "features", "labels IS NOT NULL AND NOT json_valid(labels)", "UPDATE features SET labels = NULL"},
	{"'times of feature ' || name", "features", "typeof(created) <> 'integer' OR typeof(ttl) <> 'integer' OR typeof(idle) <> 'integer'",
		"UPDATE features SET created = CAST(created AS INTEGER), ttl = CAST(ttl AS INTEGER), idle = CAST(idle AS INTEGER)"},
	{"'disk of feature ' || name", "features", "typeof(disk) <> 'integer' OR typeof(inodes) <> 'integer'",
		"UPDATE features SET disk = CAST(disk AS INTEGER), inodes = CAST(inodes AS INTEGER)"},
	{"'times of task ' || id", "tasks", "typeof(created) <> 'integer' OR typeof(updated) <> 'integer'",
		"UPDATE tasks SET created = CAST(created AS INTEGER), updated = CAST(updated AS INTEGER)"},
	{"'result of task ' || id", "tasks", "result IS NOT NULL AND NOT json_valid(result)", "UPDATE tasks SET result = NULL"},
	{"'command of step ' || n || ' of task ' || task", "steps", "NOT json_valid(args)", "UPDATE steps SET args = '[]'"},
	{"'checkpoint ' || id", "checkpoints", `typeof(created) <> 'integer' OR typeof(step) <> 'integer' OR typeof(generation) <> 'integer'
		OR typeof(added + modified + deleted + changed + bytes) <> 'integer' OR typeof(indexed + durable + promoted + lost) <> 'integer'`,
		"DELETE FROM checkpoints"},
	{"'verdict of ' || gate || ' on checkpoint ' || checkpoint", "verdicts", "NOT json_valid(body)", "DELETE FROM verdicts"},
	{"'timing ' || seq", "timings", "typeof(at) <> 'integer' OR typeof(ns) <> 'integer'", "DELETE FROM timings"},
}

// Damage lists what cannot be read of the store, each with the name of what it belongs to, and what is gone from beside it.
func (s *Store) Damage(ctx context.Context) ([]string, error) {
	var list []string
	if s.headless() {
		list = append(list, headsFile+": the file with the log's heads is gone")
	}
	for _, f := range faults {
		err := s.each(ctx, "SELECT "+f.what+" FROM "+f.table+" WHERE "+f.broken, nil, func(r scanner) error {
			var what string
			err := r.Scan(&what)
			list = append(list, what)
			return err
		})
		if err != nil {
			return list, failure(err)
		}
	}
	err := s.each(ctx, "PRAGMA quick_check", nil, func(r scanner) error {
		var line string
		if err := r.Scan(&line); err != nil || line == "ok" {
			return err
		}
		list = append(list, "file: "+line)
		return nil
	})
	return list, failure(err)
}

// Repair makes the rows that Damage lists readable: what was in the broken part of them is lost. It says what it repaired. Where
// the log's heads are gone it begins to keep them anew, and has the log say for ever that they were gone. Damage of the file itself it leaves alone.
func (s *Store) Repair(ctx context.Context) ([]string, error) {
	before, err := s.Damage(ctx)
	if err != nil || len(before) == 0 {
		return nil, err
	}
	err = s.tx(ctx, func(tx *transaction) error {
		for _, f := range faults {
			if _, err := tx.ExecContext(ctx, f.repair+" WHERE "+f.broken); err != nil {
				return fmt.Errorf("%s: %w", f.table, err)
			}
		}
		if !s.headless() {
			return nil
		}
		return note(ctx, tx, runner.AuditRecord{At: time.Now(), Event: chain.KindLost, Cause: "the file with the log's heads was gone, and is made anew"})
	})
	if err == nil && s.path != "" {
		err = chain.MakeHeads(headsOf(s.path)) // not before the log says so
	}
	if err != nil {
		return nil, failure(err)
	}
	after, err := s.Damage(ctx)
	if err == nil && len(after) > 0 {
		err = damaged(after[0], errors.New("it cannot be repaired"))
	}
	return before, err
}

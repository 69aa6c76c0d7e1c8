package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
	"github.com/caisson-dev/caisson/runner/flock"
)

// version is the newest schema; migration n leads from version n-1 to n. versionLog made one log of three tables, which who
// knew them cannot go on writing.
const (
	version    = 7
	versionLog = 6
)

// carried is what SQL cannot do of a migration; it comes after the statements of its file.
var carried = map[int]func(context.Context, *transaction) error{versionLog: carryLog}

type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func userVersion(ctx context.Context, q querier) (v int, err error) {
	err = q.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

// migrate leads from version have to the newest, all or nothing, and copies the state machines in. A new store begins its
// log with what heads tell of one before it.
func (s *Store) migrate(ctx context.Context, have int, heads ...chain.Head) error {
	return s.tx(ctx, func(tx *transaction) error {
		for n := have + 1; n <= version; n++ {
			text, err := migrations.ReadFile(fmt.Sprintf("migrations/%03d.sql", n))
			if err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx, string(text)); err == nil && carried[n] != nil {
				err = carried[n](ctx, tx)
			}
			if err != nil {
				return fmt.Errorf("migration %d: %w", n, err)
			}
		}
		if err := machines(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
			return err
		}
		return begun(ctx, tx, heads)
	})
}

// unused refuses to take tables away from an older caisson that works in the state directory dir: what it does there could not
// be recorded any more. Who lives holds the lock of a feature, or that of the background supervisor.
func unused(dir string) error {
	locks := []string{filepath.Join(dir, "daemon.lock")}
	features := filepath.Join(dir, "features")
	list, err := os.ReadDir(features)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, f := range list {
		locks = append(locks, filepath.Join(features, f.Name(), "lock"))
	}
	if !slices.ContainsFunc(locks, flock.Holders().Others) {
		return nil
	}
	return &runner.Error{Code: runner.CodeBusy, Exit: runner.ExitRefused,
		Cause:  "an older caisson still works with " + dir + ", whose store has to be made one of this version first",
		Remedy: "wait until it is done, or end it with the old version: `caisson stop --all`; then try again"}
}

func machines(ctx context.Context, tx *transaction) error {
	var rows []string
	for _, old := range slices.Sorted(maps.Keys(runner.Transitions)) {
		for _, next := range runner.Transitions[old] {
			rows = append(rows, fmt.Sprintf("('task', '%s', '%s')", old, next))
		}
	}
	for _, old := range slices.Sorted(maps.Keys(runner.StepTransitions)) {
		for _, next := range runner.StepTransitions[old] {
			rows = append(rows, fmt.Sprintf("('step', '%s', '%s')", old, next))
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT OR IGNORE INTO transitions VALUES "+strings.Join(rows, ", "))
	return err
}

// carryLog makes one log of the three tables that versions 1 to 5 had, which shared their numbers.
func carryLog(ctx context.Context, tx *transaction) error {
	tx.head = &chain.Head{} // the numbers are those of the old rows, whatever heads there are
	for last, more := int64(0), true; more; {
		list, err := oldEvents(ctx, tx, last)
		if err != nil {
			return err
		}
		more = len(list) > 0
		for i := 0; i < len(list); {
			e := &list[i]
			if n := e.seq - last - 1; n > 0 { // its rows were deleted by a version that kept no account of it
				a := runner.AuditRecord{At: e.at, Event: "trimmed", Cause: fmt.Sprintf("%d events, by an earlier version", n)}
				if err := note(ctx, tx, a); err != nil {
					return err
				}
				tx.entries[len(tx.entries)-1].Count = n
			}
			n, err := e.carry(ctx, tx, list[i:])
			if err != nil {
				return err
			}
			i += n
			last = list[i-1].seq
		}
		if err := tx.append(ctx); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "DROP TABLE audit; DROP TABLE file_events; DROP TABLE event_sources; DROP TABLE network_events")
	return err
}

// oldEvent is a row of one of the three tables; which, its fields say.
type oldEvent struct {
	seq   int64
	at    time.Time
	audit runner.AuditRecord
	file  *runner.FileEvent
	net   *runner.NetworkEvent
}

// oldEvents are the next rows after number last.
func oldEvents(ctx context.Context, tx *transaction, last int64) (list []oldEvent, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT seq, at, feature, task, step, event, old, new, cause, '', x'', 0, '' FROM audit WHERE seq > ?1
		UNION ALL SELECT e.seq, e.at, s.feature, s.task, s.step, s.kind, '', '', '', s.stack, e.path, e.size, ''
			FROM file_events e JOIN event_sources s ON s.id = e.source WHERE e.seq > ?1
		UNION ALL SELECT seq, at, feature, task, step, '', '', '', '', '', x'', 0, body FROM network_events WHERE seq > ?1
		ORDER BY 1 LIMIT 5000`, last)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var e oldEvent
		var at, size int64
		var stack string
		var path, body []byte
		a := &e.audit
		if err := rows.Scan(&e.seq, &at, &a.FeatureID, &a.TaskID, &a.Step, &a.Event, &a.From, &a.To, &a.Cause, &stack, &path, &size, &body); err != nil {
			return nil, err
		}
		e.at = time.Unix(0, at)
		a.At = e.at
		switch {
		case stack != "":
			e.file = &runner.FileEvent{At: e.at, FeatureID: a.FeatureID, TaskID: a.TaskID, Step: a.Step, Stack: stack, Path: string(path), Kind: a.Event, Size: size}
		case len(body) > 0:
			e.net = &runner.NetworkEvent{FeatureID: a.FeatureID, TaskID: a.TaskID, Step: a.Step}
			if err := json.Unmarshal(body, &e.net.Event); err != nil {
				e.net.Event = egress.Event{At: e.at, Reason: "its record was damaged"}
			}
		}
		list = append(list, e)
	}
	return list, rows.Err()
}

// carry adds the first of a list to the log, with those after it that are alike and have the next numbers, and says how many
// it were.
func (e *oldEvent) carry(ctx context.Context, tx *transaction, list []oldEvent) (int, error) {
	n := 1
	next := func() bool { return n < len(list) && list[n].seq == e.seq+int64(n) }
	switch {
	case e.file != nil:
		files := []runner.FileEvent{*e.file}
		for ; next() && list[n].file != nil; n++ {
			files = append(files, *list[n].file)
		}
		_, err := addFiles(tx, files)
		return n, err
	case e.net != nil:
		events := []runner.NetworkEvent{*e.net}
		for ; next() && list[n].net != nil; n++ {
			events = append(events, *list[n].net)
		}
		_, err := addNetwork(tx, events)
		return n, err
	}
	return n, note(ctx, tx, e.audit)
}

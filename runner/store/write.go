package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// Submit records a task, and a new feature.
func (s *Store) Submit(ctx context.Context, sub runner.Submission) (f runner.FeatureRecord, err error) {
	now := time.Now()
	err = s.tx(ctx, func(tx *transaction) error {
		if sub.NewFeature {
			err = insertFeature(ctx, tx, &sub.Feature, nil, now)
		} else {
			err = alive(ctx, tx, sub.Feature.ID)
		}
		if err != nil {
			return err
		}
		if err := room(ctx, tx, &sub); err != nil {
			return err
		}
		if err := claimFor(ctx, tx, &sub, now); err != nil {
			return err
		}
		if f, err = selectFeature(ctx, tx, "id = ?", sub.Feature.ID); err != nil {
			return err
		}
		return insertTask(ctx, tx, &sub, now)
	})
	return f, failure(err)
}

// lowest is the smallest index that no feature has.
const lowest = `CASE WHEN NOT EXISTS (SELECT 1 FROM features WHERE idx = 0) THEN 0 ELSE
	(SELECT min(a.idx) + 1 FROM features a WHERE NOT EXISTS (SELECT 1 FROM features b WHERE b.idx = a.idx + 1)) END`

// insertFeature records a feature made at a time, with an index or, for nil, the lowest that is free.
func insertFeature(ctx context.Context, tx *transaction, f *runner.FeatureRecord, index *int, at time.Time) error {
	labels, err := json.Marshal(f.Labels)
	if err != nil {
		return err
	}
	profile, err := insertProfile(ctx, tx, f.Profile)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO features (id, name, workspace, idx, direct, labels, created,
			lineage, origin, detached, ttl, idle, disk, inodes, mechanism, driver, profile_id)
		VALUES (?, ?, ?, coalesce(?, `+lowest+`), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		f.ID, f.Name, f.Workspace, index, f.Direct, string(labels), at.UnixNano(),
		f.Lineage, f.Origin, f.Detached, int64(f.TTL), int64(f.Idle), int64(f.Disk), int64(f.Inodes), f.Mechanism, f.Driver, profile)
	return err
}

func alive(ctx context.Context, tx *transaction, id string) error {
	var one int
	return tx.QueryRowContext(ctx, "SELECT 1 FROM features WHERE id = ? AND retired = 0", id).Scan(&one)
}

func room(ctx context.Context, tx *transaction, sub *runner.Submission) error {
	if sub.Admitted {
		return nil
	}
	var waiting int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM tasks WHERE state = 'queued'").Scan(&waiting)
	if err == nil && waiting >= sub.MaxQueue {
		err = fmt.Errorf("%w: %d tasks wait already", runner.ErrQueueFull, waiting)
	}
	return err
}

func insertTask(ctx context.Context, tx *transaction, sub *runner.Submission, now time.Time) error {
	t := &sub.Task
	profile, err := insertProfile(ctx, tx, t.Profile)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO tasks (id, feature, state, profile, profile_id, profile_digest, remove, options, created, updated)
		VALUES (?, ?, 'queued', '', ?, ?, ?, ?, ?, ?)`,
		t.ID, sub.Feature.ID, profile, t.ProfileDigest, t.Remove, nullable(t.Options), now.UnixNano(), now.UnixNano())
	if err != nil {
		return err
	}
	for _, st := range t.Steps {
		args, err := json.Marshal(st.Args)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO steps (task, n, state, args, retry, options) VALUES (?, ?, 'not_started', ?, ?, ?)",
			t.ID, st.N, string(args), st.Retry, nullable(st.Options)); err != nil {
			return err
		}
	}
	a := runner.AuditRecord{At: now, FeatureID: sub.Feature.ID, TaskID: t.ID, Event: "submit", To: string(runner.StateQueued)}
	if err := note(ctx, tx, a); err != nil || !sub.Admitted {
		return err
	}
	return move(ctx, tx, runner.Move{TaskID: t.ID, From: runner.StateQueued, To: runner.StatePreparing, Cause: "a slot was free"}, now)
}

// insertProfile returns the row that holds a profile; none for nil. Most tasks have the same one.
func insertProfile(ctx context.Context, tx *transaction, body json.RawMessage) (id sql.NullInt64, err error) {
	if body == nil {
		return id, nil
	}
	hash := sha256.Sum256(body)
	err = tx.QueryRowContext(ctx, "SELECT id FROM profiles WHERE hash = ?", hash[:]).Scan(&id)
	if !errors.Is(err, sql.ErrNoRows) {
		return id, err
	}
	res, err := tx.ExecContext(ctx, "INSERT INTO profiles (body, hash) VALUES (?, ?)", string(body), hash[:])
	if err != nil {
		return id, err
	}
	id.Valid = true
	id.Int64, err = res.LastInsertId()
	return id, err
}

// Move is one transition, or several in one transaction.
func (s *Store) Move(ctx context.Context, moves ...runner.Move) error {
	return failure(s.tx(ctx, func(tx *transaction) error { return moveAll(ctx, tx, moves, time.Now()) }))
}

func moveAll(ctx context.Context, tx *transaction, moves []runner.Move, now time.Time) error {
	for _, m := range moves {
		if err := move(ctx, tx, m, now); err != nil {
			return err
		}
	}
	return nil
}

func move(ctx context.Context, tx *transaction, m runner.Move, now time.Time) error {
	a := runner.AuditRecord{At: now, TaskID: m.TaskID, Cause: m.Cause}
	var err error
	if m.From == m.To && m.Step != nil {
		a.FeatureID, err = compare(ctx, tx, m.TaskID, m.From)
	} else {
		a.FeatureID, err = moveTask(ctx, tx, m, a)
	}
	if err == nil && m.Step != nil {
		err = moveStep(ctx, tx, m.TaskID, m.Step, a)
	}
	if err == nil && m.Forget {
		err = forget(ctx, tx, a.FeatureID)
	}
	return err
}

func moveTask(ctx context.Context, tx *transaction, m runner.Move, a runner.AuditRecord) (feature string, err error) {
	err = tx.QueryRowContext(ctx, `UPDATE tasks SET state = ?, updated = ?, result = coalesce(?, result)
		WHERE id = ? AND state = ? RETURNING feature`,
		string(m.To), a.At.UnixNano(), nullable(m.Result), m.TaskID, string(m.From)).Scan(&feature)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = compare(ctx, tx, m.TaskID, m.From)
	}
	if err != nil {
		return "", fmt.Errorf("task %s, %s to %s: %w", m.TaskID, m.From, m.To, err)
	}
	a.FeatureID, a.Event, a.From, a.To, a.Detail = feature, "move", string(m.From), string(m.To), m.Detail
	return feature, note(ctx, tx, a)
}

func moveStep(ctx context.Context, tx *transaction, task string, m *runner.StepMove, a runner.AuditRecord) error {
	res, err := tx.ExecContext(ctx, "UPDATE steps SET state = ? WHERE task = ? AND n = ? AND state = ?",
		string(m.To), task, m.N, string(m.From))
	if err := changed(res, err); err != nil {
		return fmt.Errorf("step %d of task %s, %s to %s: %w", m.N, task, m.From, m.To, err)
	}
	a.Event, a.Step, a.From, a.To = "step", m.N, string(m.From), string(m.To)
	if m.Command == nil {
		return note(ctx, tx, a)
	}
	if a.Detail, err = text(m.Command); err != nil {
		return err
	}
	return noteCommand(tx, a)
}

// compare makes sure that a task is in a state, and returns its feature.
func compare(ctx context.Context, tx *transaction, task string, want runner.State) (feature string, err error) {
	var have string
	err = tx.QueryRowContext(ctx, "SELECT feature, state FROM tasks WHERE id = ?", task).Scan(&feature, &have)
	if err == nil && have != string(want) {
		err = fmt.Errorf("it is %s: %w", have, runner.ErrStale)
	}
	return feature, err
}

// changed says whether a compare-and-set found what it compared with.
func changed(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err == nil && n == 0 {
		err = runner.ErrStale
	}
	return err
}

// Promoting notes a promotion outside of any task.
func (s *Store) Promoting(ctx context.Context, id string, on bool, rows ...runner.AuditRecord) error {
	return failure(s.tx(ctx, func(tx *transaction) error {
		err := update(ctx, tx, id, "UPDATE features SET promoting = ? WHERE id = ?", on, id)
		for _, a := range rows {
			if a.At.IsZero() {
				a.At = time.Now()
			}
			err = errors.Join(err, note(ctx, tx, a))
		}
		return err
	}))
}

// Retire marks a feature as being removed.
func (s *Store) Retire(ctx context.Context, id string) error {
	return failure(s.tx(ctx, func(tx *transaction) error { return retire(ctx, tx, id, time.Now()) }))
}

func retire(ctx context.Context, tx *transaction, id string, now time.Time) error {
	if err := update(ctx, tx, id, "UPDATE features SET retired = 1 WHERE id = ?", id); err != nil {
		return err
	}
	return note(ctx, tx, runner.AuditRecord{At: now, FeatureID: id, Event: "remove"})
}

func update(ctx context.Context, tx *transaction, id, query string, args ...any) error {
	res, err := tx.ExecContext(ctx, query, args...)
	if err := changed(res, err); errors.Is(err, runner.ErrStale) {
		return fmt.Errorf("feature %s: %w", id, runner.ErrNotFound)
	} else if err != nil {
		return err
	}
	return nil
}

// Forget deletes a feature and its tasks.
func (s *Store) Forget(ctx context.Context, id string) error {
	return failure(s.tx(ctx, func(tx *transaction) error { return forget(ctx, tx, id) }))
}

// forget deletes a feature; the results of its tasks stay with their keys. When others of its lineage live on, one of them inherits the index: it must not be given to
// anybody else while their files have its ids.
func forget(ctx context.Context, tx *transaction, id string) error {
	if _, err := tx.ExecContext(ctx, `UPDATE idempotency SET result = (SELECT result FROM tasks t WHERE t.id = idempotency.id)
		WHERE id IN (SELECT id FROM tasks WHERE feature = ?)`, id); err != nil {
		return err
	}
	if err := bequeathAll(ctx, tx, id); err != nil {
		return err
	}
	var index int
	var heir sql.NullString
	err := tx.QueryRowContext(ctx, `DELETE FROM features WHERE id = ?1
		RETURNING idx, (SELECT id FROM features WHERE lineage = ?1 ORDER BY created, id LIMIT 1)`, id).Scan(&index, &heir)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !heir.Valid {
		return nil
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE features SET idx = ?, lineage = '' WHERE id = ?", index, heir.String)
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, "UPDATE features SET lineage = ? WHERE lineage = ?", heir.String, id)
	}
	return err
}

func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// AddCheckpoint records a checkpoint and the moves that it belongs to.
func (s *Store) AddCheckpoint(ctx context.Context, c runner.CheckpointRecord, moves ...runner.Move) error {
	now := time.Now()
	if c.Created.IsZero() {
		c.Created = now
	}
	return failure(s.tx(ctx, func(tx *transaction) error {
		if err := insertCheckpoint(ctx, tx, c); err != nil {
			return err
		}
		if err := noteCheckpoint(ctx, tx, &c, now); err != nil {
			return err
		}
		if err := moveAll(ctx, tx, moves, now); err != nil {
			return err
		}
		for _, m := range moves {
			if m.Step == nil || m.Step.To != runner.StepDone {
				continue
			}
			_, err := tx.ExecContext(ctx, "UPDATE steps SET checkpoint = ? WHERE task = ? AND n = ?", c.ID, m.TaskID, m.Step.N)
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

// noteCheckpoint appends to the audit trail that there is a checkpoint.
func noteCheckpoint(ctx context.Context, tx *transaction, c *runner.CheckpointRecord, now time.Time) error {
	a := runner.AuditRecord{At: now, FeatureID: c.FeatureID, TaskID: c.TaskID, Step: c.Step, Event: "checkpoint",
		From: c.Parent, To: c.ID, Cause: c.Reason}
	if err := note(ctx, tx, a); err != nil || c.Label == "" {
		return err
	}
	a.Event, a.From, a.Cause = "label", "", c.Label
	return note(ctx, tx, a)
}

func insertCheckpoint(ctx context.Context, tx *transaction, c runner.CheckpointRecord) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO checkpoints (id, feature, parent, alias_of, task, step, reason, label, created,
			generation, added, modified, deleted, changed, bytes, digest, indexed, durable, promoted, lost, damaged)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.ID, c.FeatureID, c.Parent, c.AliasOf, c.TaskID, c.Step, c.Reason, c.Label, c.Created.UnixNano(),
		c.Generation, c.Counts.Added, c.Counts.Modified, c.Counts.Deleted, c.Counts.Bytes, c.Bytes, c.Digest,
		c.Indexed, c.Durable, c.Promoted, c.Lost, c.Damaged)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.ID, err)
	}
	return insertVerdicts(ctx, tx, c.ID, c.Verdicts)
}

// UpdateCheckpoint changes what u names.
func (s *Store) UpdateCheckpoint(ctx context.Context, id string, u runner.CheckpointUpdate) error {
	var set assignments
	assign(&set, "label", u.Label)
	assign(&set, "digest", u.Digest)
	assign(&set, "alias_of", u.AliasOf)
	assign(&set, "damaged", u.Damaged)
	assign(&set, "bytes", u.Bytes)
	assign(&set, "indexed", u.Indexed)
	assign(&set, "durable", u.Durable)
	assign(&set, "promoted", u.Promoted)
	assign(&set, "lost", u.Lost)
	if c := u.Counts; c != nil {
		assign(&set, "added", &c.Added)
		assign(&set, "modified", &c.Modified)
		assign(&set, "deleted", &c.Deleted)
		assign(&set, "changed", &c.Bytes)
	}
	return failure(s.tx(ctx, func(tx *transaction) error { return set.run(ctx, tx, "checkpoints", id) }))
}

// assignments are the columns of an UPDATE. Their names are constants of this package.
type assignments struct {
	columns []string
	values  []any
}

func assign[T any](a *assignments, column string, v *T) {
	if v != nil {
		a.columns, a.values = append(a.columns, column+" = ?"), append(a.values, *v)
	}
}

// run updates one row, which must exist even when nothing is to change.
func (a *assignments) run(ctx context.Context, tx *transaction, table, id string) error {
	columns := append(a.columns, "id = id") //nolint:gocritic // a is not used again
	res, err := tx.ExecContext(ctx, "UPDATE "+table+" SET "+strings.Join(columns, ", ")+" WHERE id = ?", append(a.values, id)...)
	if err := changed(res, err); errors.Is(err, runner.ErrStale) {
		return fmt.Errorf("%s: %w", id, runner.ErrNotFound)
	} else if err != nil {
		return err
	}
	return nil
}

const checkpointColumns = `c.id, c.feature, f.name, c.parent, c.alias_of, c.task, c.step, c.reason, c.label, c.created, c.generation,
	c.added, c.modified, c.deleted, c.changed, c.bytes, c.digest, c.indexed, c.durable, c.promoted, c.lost, c.damaged,
	c.seq = (SELECT max(seq) FROM good WHERE feature = c.feature)`

func scanCheckpoint(r scanner) (c runner.CheckpointRecord, err error) {
	var created int64
	var good sql.NullBool
	err = r.Scan(&c.ID, &c.FeatureID, &c.Feature, &c.Parent, &c.AliasOf, &c.TaskID, &c.Step, &c.Reason, &c.Label, &created,
		&c.Generation, &c.Counts.Added, &c.Counts.Modified, &c.Counts.Deleted, &c.Counts.Bytes, &c.Bytes, &c.Digest,
		&c.Indexed, &c.Durable, &c.Promoted, &c.Lost, &c.Damaged, &good)
	c.Created, c.LastGood = time.Unix(0, created), good.Bool
	return c, err
}

// Checkpoint finds by id, by label, or by a unique prefix of an id; in that order.
func (s *Store) Checkpoint(ctx context.Context, featureID, ref string) (c runner.CheckpointRecord, err error) {
	none := fmt.Errorf("checkpoint %q: %w", ref, runner.ErrNotFound)
	if ref == "" {
		return c, none
	}
	list, err := s.checkpoints(ctx, "(c.id = ?2 OR c.label = ?2) ORDER BY c.id = ?2 DESC, c.seq DESC LIMIT 1", featureID, ref)
	if err == nil && len(list) == 0 {
		list, err = s.checkpoints(ctx, "substr(c.id, 1, ?2) = ?3 ORDER BY c.seq LIMIT 2", featureID, len(ref), strings.ToLower(ref))
	}
	switch {
	case err != nil:
		return c, failure(err)
	case len(list) == 0:
		return c, none
	case len(list) > 1:
		return c, &runner.Error{Code: runner.CodeAmbiguous, Exit: runner.ExitRefused,
			Cause:  fmt.Sprintf("%q fits several checkpoints, for example %s and %s", ref, list[0].ID, list[1].ID),
			Remedy: "use more of the id, or a label"}
	}
	return list[0], nil
}

// Checkpoints lists a feature's, oldest first.
func (s *Store) Checkpoints(ctx context.Context, featureID string) ([]runner.CheckpointRecord, error) {
	list, err := s.checkpoints(ctx, "1 ORDER BY c.seq", featureID)
	return list, failure(err)
}

// LastGood is the newest one that gates accepted, or that was promoted.
func (s *Store) LastGood(ctx context.Context, featureID string) (runner.CheckpointRecord, error) {
	list, err := s.checkpoints(ctx, "c.seq = (SELECT max(seq) FROM good WHERE feature = ?1)", featureID)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no checkpoint was accepted by a gate: %w", runner.ErrNotFound)
	}
	if err != nil {
		return runner.CheckpointRecord{}, failure(err)
	}
	return list[0], nil
}

// checkpoints lists those of a feature for which where holds, with their verdicts and aliases. The feature is ?1.
func (s *Store) checkpoints(ctx context.Context, where, featureID string, args ...any) (list []runner.CheckpointRecord, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT "+checkpointColumns+` FROM checkpoints c JOIN features f ON f.id = c.feature
		WHERE c.feature = ?1 AND `+where, append([]any{featureID}, args...)...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	at := map[string]int{} // id → index in list
	for rows.Next() {
		c, err := scanCheckpoint(rows)
		if err != nil { // it is named, and does not keep the others from being listed
			texts, rerr := rescue(rows)
			if rerr != nil {
				return nil, errors.Join(err, rerr)
			}
			c = runner.CheckpointRecord{Checkpoint: runner.Checkpoint{ID: texts[0], FeatureID: texts[1], Feature: texts[2], Parent: texts[3],
				Damaged: "its row in the store: " + err.Error()}}
		}
		at[c.ID] = len(list)
		list = append(list, c)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(list) == 0 {
		return nil, err
	}
	if err := s.aliases(ctx, featureID, list, at); err != nil {
		return nil, err
	}
	return list, s.verdicts(ctx, featureID, list, at)
}

func (s *Store) aliases(ctx context.Context, featureID string, list []runner.CheckpointRecord, at map[string]int) error {
	return s.each(ctx, "SELECT alias_of, id FROM checkpoints WHERE feature = ? AND alias_of <> '' ORDER BY seq", []any{featureID},
		func(r scanner) error {
			var of, id string
			if err := r.Scan(&of, &id); err != nil {
				return err
			}
			if i, ok := at[of]; ok {
				list[i].Aliases = append(list[i].Aliases, id)
			}
			return nil
		})
}

// each calls do for every row of a query.
func (s *Store) each(ctx context.Context, query string, args []any, do func(scanner) error) error {
	return each(ctx, s.db, query, args, do)
}

// lister is a database or a transaction.
type lister interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func each(ctx context.Context, from lister, query string, args []any, do func(scanner) error) (err error) {
	rows, err := from.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// DropCheckpoints forgets checkpoints of a feature, all or none.
func (s *Store) DropCheckpoints(ctx context.Context, featureID string, ids ...string) error {
	return failure(s.tx(ctx, func(tx *transaction) error {
		for _, id := range ids {
			if err := bequeath(ctx, tx, id); err != nil {
				return err
			}
			res, err := tx.ExecContext(ctx, "DELETE FROM checkpoints WHERE feature = ? AND id = ?", featureID, id)
			if err := changed(res, err); errors.Is(err, runner.ErrStale) {
				return fmt.Errorf("checkpoint %s: %w", id, runner.ErrNotFound)
			} else if err != nil {
				return err
			}
		}
		return nil
	}))
}

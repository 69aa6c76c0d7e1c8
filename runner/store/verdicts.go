package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner"
)

func (s *Store) verdicts(ctx context.Context, featureID string, list []runner.CheckpointRecord, at map[string]int) error {
	return s.each(ctx, `SELECT v.checkpoint, v.gate, v.body FROM verdicts v JOIN checkpoints c ON c.id = v.checkpoint
		WHERE c.feature = ? ORDER BY v.checkpoint, v.gate`, []any{featureID}, func(r scanner) error {
		var id, gate, body string
		if err := r.Scan(&id, &gate, &body); err != nil {
			return err
		}
		i, ok := at[id]
		if !ok {
			return nil
		}
		list[i].Verdicts = append(list[i].Verdicts, verdictOf(gate, body))
		return nil
	})
}

// AddVerdicts stores what gates say of a checkpoint.
func (s *Store) AddVerdicts(ctx context.Context, checkpoint string, v []gates.Verdict) error {
	return failure(s.tx(ctx, func(tx *transaction) error { return insertVerdicts(ctx, tx, checkpoint, v) }))
}

// upsertVerdict replaces what a gate said before. A failure that blocks stays until the gate passes, or fails again: not when
// its mode is weaker now, or when it was not asked; and who was not asked takes nothing back.
const upsertVerdict = `INSERT INTO verdicts (checkpoint, gate, status, mode, at, body, unresolved) VALUES (?, ?, ?, ?, ?, ?, ?)
	ON CONFLICT (checkpoint, gate) DO UPDATE SET status = excluded.status, mode = excluded.mode, at = excluded.at, body = excluded.body, unresolved = excluded.unresolved
	WHERE excluded.status = 'pass' OR excluded.status IN ('fail', 'error') AND excluded.mode IN ('block', 'mandatory')
		OR NOT (verdicts.status IN ('fail', 'error') AND verdicts.mode IN ('block', 'mandatory'))
			AND (excluded.status <> 'skipped' OR verdicts.status = 'skipped')`

// insertVerdicts stores verdicts, and appends them to the log as of the task that made the checkpoint.
func insertVerdicts(ctx context.Context, tx *transaction, checkpoint string, list []gates.Verdict) error {
	if len(list) == 0 {
		return nil
	}
	a := runner.AuditRecord{At: time.Now(), Event: "gate"}
	err := tx.QueryRowContext(ctx, "SELECT feature, task, step FROM checkpoints WHERE id = ?", checkpoint).Scan(&a.FeatureID, &a.TaskID, &a.Step)
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", checkpoint, err)
	}
	for _, v := range list {
		body, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, upsertVerdict, checkpoint, v.Gate, string(v.Status), string(v.Mode), v.Started.UnixNano(), string(body), v.Unresolved != "")
		if err != nil {
			return fmt.Errorf("verdict of %s on checkpoint %s: %w", v.Gate, checkpoint, err)
		}
		if err := noteVerdict(ctx, tx, a, &v, checkpoint); err != nil {
			return err
		}
	}
	return nil
}

// noteVerdict appends what a gate said. One that is off has said nothing.
func noteVerdict(ctx context.Context, tx *transaction, a runner.AuditRecord, v *gates.Verdict, checkpoint string) (err error) {
	if v.Mode == gates.ModeOff && v.Status == gates.Skipped {
		return nil
	}
	a.From, a.To, a.Cause = v.Gate, string(v.Status), v.Reason
	a.Detail, err = text(runner.GateRecord{Gate: v.Gate, Checkpoint: checkpoint, Status: v.Status, Mode: v.Mode,
		Findings: len(v.Findings) + v.Dropped})
	if err != nil {
		return err
	}
	return note(ctx, tx, a)
}

// said are the verdicts on the way back from a checkpoint (?1) to what was promoted last, the newest first: of each state on
// it, under all of its ids, and then those that it has from dropped ones.
const said = `WITH RECURSIVE line (id, n) AS (
		SELECT ?1, 0
		UNION ALL
		SELECT p.id, n + 1 FROM line JOIN checkpoints c ON c.id = line.id JOIN checkpoints p ON p.id = iif(c.alias_of <> '', c.alias_of, c.parent)
		WHERE n < 1000000 AND p.promoted = 0 AND NOT EXISTS (SELECT 1 FROM checkpoints a WHERE a.alias_of = p.id AND a.alias_of <> '' AND a.promoted = 1)),
	states (id, n) AS (SELECT id, n FROM line UNION SELECT a.id, n FROM line JOIN checkpoints a ON a.alias_of = line.id AND a.alias_of <> '')
	SELECT gate, status = 'pass', checkpoint, n, 0 AS carried, at FROM states JOIN verdicts ON checkpoint = states.id
		WHERE status = 'pass' OR status IN ('fail', 'error') AND mode IN ('block', 'mandatory')
	UNION ALL SELECT gate, 0, states.id, n, 1, 0 FROM states JOIN carried ON checkpoint = states.id
	ORDER BY n, carried, at DESC`

// Failures are what stands at a checkpoint.
func (s *Store) Failures(ctx context.Context, checkpoint string) ([]runner.Failure, error) {
	list, err := failures(ctx, s.db, checkpoint)
	return list, failure(err)
}

type queryer interface {
	querier
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func failures(ctx context.Context, q queryer, checkpoint string) (list []runner.Failure, err error) {
	type place struct {
		gate, checkpoint string
		carried          bool
	}
	var stand []place
	decided := map[string]bool{}
	rows, err := q.QueryContext(ctx, said, checkpoint)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var p place
		var passed bool
		var n, at int64
		if err = rows.Scan(&p.gate, &passed, &p.checkpoint, &n, &p.carried, &at); err != nil {
			break
		}
		if !decided[p.gate] && !passed {
			stand = append(stand, p)
		}
		decided[p.gate] = true
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return nil, err
	}
	for _, p := range stand {
		f := runner.Failure{Checkpoint: p.checkpoint}
		var body string
		if p.carried {
			err = q.QueryRowContext(ctx, "SELECT judged, body FROM carried WHERE checkpoint = ? AND gate = ?", p.checkpoint, p.gate).Scan(&f.Checkpoint, &body)
		} else {
			err = q.QueryRowContext(ctx, "SELECT body FROM verdicts WHERE checkpoint = ? AND gate = ?", p.checkpoint, p.gate).Scan(&body)
		}
		if err != nil {
			return nil, err
		}
		f.Verdict = verdictOf(p.gate, body)
		list = append(list, f)
	}
	return list, nil
}

// verdictOf reads a stored verdict. The columns have decided what follows from it; what may be lost is the evidence.
func verdictOf(gate, body string) (v gates.Verdict) {
	if err := json.Unmarshal([]byte(body), &v); err != nil || v.Gate != gate {
		return gates.Verdict{Gate: gate, Status: gates.Error, Mode: gates.ModeBlock, Reason: "the stored verdict is damaged"}
	}
	return v
}

// bequeath leaves the failures that stand at a checkpoint to those that go on from it, before it is dropped. Verdicts about an
// alias are the original's too.
func bequeath(ctx context.Context, tx *transaction, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO verdicts SELECT c.alias_of, v.gate, v.status, v.mode, v.at, v.body, v.unresolved
		FROM checkpoints c JOIN verdicts v ON v.checkpoint = c.id JOIN checkpoints o ON o.id = c.alias_of WHERE c.id = ?
		ON CONFLICT (checkpoint, gate) DO NOTHING`, id)
	if err != nil {
		return err
	}
	stand, err := failures(ctx, tx, id)
	if err != nil {
		return err
	}
	for _, f := range stand {
		body, err := json.Marshal(f.Verdict)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT OR IGNORE INTO carried (checkpoint, gate, judged, body)
			SELECT id, ?1, ?2, ?3 FROM checkpoints WHERE parent = ?4 OR alias_of = ?4`, f.Verdict.Gate, f.Checkpoint, string(body), id); err != nil {
			return err
		}
	}
	return nil
}

// bequeathAll does so for what other features have of a feature that goes.
func bequeathAll(ctx context.Context, tx *transaction, feature string) error {
	rows, err := tx.QueryContext(ctx, `SELECT DISTINCT parent FROM checkpoints WHERE feature <> ?1
		AND parent IN (SELECT id FROM checkpoints WHERE feature = ?1)`, feature)
	if err != nil {
		return err
	}
	var ids []string
	for rows.Next() {
		var id string
		if err = rows.Scan(&id); err != nil {
			break
		}
		ids = append(ids, id)
	}
	if err := errors.Join(err, rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, id := range ids {
		if err := bequeath(ctx, tx, id); err != nil {
			return err
		}
	}
	return nil
}

// Approve records an approval, in the audit trail too.
func (s *Store) Approve(ctx context.Context, a runner.Approval) error {
	if a.At.IsZero() {
		a.At = time.Now()
	}
	return failure(s.tx(ctx, func(tx *transaction) error {
		body, err := json.Marshal(a.Verdict)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO approvals (feature, task, checkpoint, gate, at, uid, person, reason, body)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, a.Feature, a.TaskID, a.Checkpoint, a.Gate, a.At.UnixNano(), a.UID, a.By, a.Reason, string(body))
		if err != nil {
			return err
		}
		detail, err := json.Marshal(a)
		if err != nil {
			return err
		}
		return note(ctx, tx, runner.AuditRecord{At: a.At, FeatureID: a.Feature, TaskID: a.TaskID, Event: "bypass", From: a.Gate, To: a.Checkpoint,
			Cause: a.Reason, Detail: detail})
	}))
}

// Approvals lists a feature's, oldest first. One whose verdict cannot be read covers nothing.
func (s *Store) Approvals(ctx context.Context, featureID string) (list []runner.Approval, err error) {
	err = s.each(ctx, `SELECT task, checkpoint, gate, at, uid, person, reason, body FROM approvals WHERE feature = ? ORDER BY seq`,
		[]any{featureID}, func(r scanner) error {
			a := runner.Approval{Feature: featureID}
			var at int64
			var body string
			if err := r.Scan(&a.TaskID, &a.Checkpoint, &a.Gate, &at, &a.UID, &a.By, &a.Reason, &body); err != nil {
				return err
			}
			a.At, a.Verdict = time.Unix(0, at), verdictOf(a.Gate, body)
			a.GateDigest, a.ChangeDigest = a.Verdict.GateDigest, a.Verdict.ChangeDigest
			list = append(list, a)
			return nil
		})
	return list, failure(err)
}

// The bounds of what is remembered of gates' answers.
const (
	maxAnswers = 4096
	maxAnswer  = 64 << 10 // bytes of one
)

func answerKey(k gates.Key) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", k.Gate, k.Tree, k.Image))
	return sum[:]
}

func answerSum(key []byte, body string) []byte {
	sum := sha256.Sum256(append(bytes.Clone(key), body...))
	return sum[:]
}

// Answer finds what a gate said of a tree. What cannot be read, or is not what was written, is none.
func (s *Store) Answer(ctx context.Context, k gates.Key) (a gates.Answer, ok bool) {
	key := answerKey(k)
	var body string
	var sum []byte
	err := s.db.QueryRowContext(ctx, "SELECT body, sum FROM answers WHERE key = ?", key).Scan(&body, &sum)
	if err != nil || !bytes.Equal(sum, answerSum(key, body)) || json.Unmarshal([]byte(body), &a) != nil {
		return gates.Answer{}, false
	}
	return a, true
}

// Keep remembers answers, the newest 4,096. One that is too long, or cannot be written, is asked for again.
func (s *Store) Keep(ctx context.Context, list ...gates.Kept) {
	_ = s.tx(ctx, func(tx *transaction) error {
		for _, k := range list {
			body, err := json.Marshal(k.Answer)
			if err != nil || len(body) > maxAnswer {
				continue
			}
			key := answerKey(k.Key)
			if _, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO answers (key, body, sum) VALUES (?, ?, ?)", key, string(body), answerSum(key, string(body))); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM answers WHERE seq <= (SELECT max(seq) FROM answers) - ?", maxAnswers)
		return err
	})
}

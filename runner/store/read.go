package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

const (
	featureColumns = `f.id, f.name, f.workspace, coalesce((SELECT r.idx FROM features r WHERE r.id = f.lineage), f.idx), f.direct,
		f.labels, f.created, f.retired, f.promoting, CASE f.lineage WHEN '' THEN f.id ELSE f.lineage END, f.origin, f.detached,
		f.ttl, f.idle, f.disk, f.inodes, f.mechanism, f.driver`
	taskColumns = `t.id, t.feature, t.state, coalesce((SELECT p.body FROM profiles p WHERE p.id = t.profile_id), t.profile),
		t.profile_digest, t.remove, t.options, t.result, t.created, t.updated`
	live = "t.state IN ('queued', 'preparing', 'running', 'paused', 'sealing', 'validating', 'promoting')"
)

type scanner interface{ Scan(dest ...any) error }

// featureRow and taskRow are what the columns above are scanned into.
type featureRow struct {
	f       runner.FeatureRecord
	labels  sql.NullString
	created int64
}

func (r *featureRow) into() []any {
	f := &r.f
	return []any{&f.ID, &f.Name, &f.Workspace, &f.Index, &f.Direct, &r.labels, &r.created, &f.Retired, &f.Promoting, &f.Lineage,
		&f.Origin, &f.Detached, &f.TTL, &f.Idle, &f.Disk, &f.Inodes, &f.Mechanism, &f.Driver}
}

func (r *featureRow) record() (runner.FeatureRecord, error) {
	r.f.Created = time.Unix(0, r.created)
	if !r.labels.Valid {
		return r.f, nil
	}
	return r.f, json.Unmarshal([]byte(r.labels.String), &r.f.Labels)
}

type taskRow struct {
	id, feature, state, profile, digest, options, result sql.NullString
	created, updated                                     sql.NullInt64
	remove                                               sql.NullBool
}

func (r *taskRow) into() []any {
	return []any{&r.id, &r.feature, &r.state, &r.profile, &r.digest, &r.remove, &r.options, &r.result, &r.created, &r.updated}
}

func (r *taskRow) record() *runner.TaskRecord {
	if !r.id.Valid {
		return nil
	}
	t := &runner.TaskRecord{
		ID: r.id.String, FeatureID: r.feature.String, State: runner.State(r.state.String),
		Profile: json.RawMessage(r.profile.String), ProfileDigest: r.digest.String, Remove: r.remove.Bool,
		Created: time.Unix(0, r.created.Int64), Updated: time.Unix(0, r.updated.Int64),
	}
	t.Options, t.Result = raw(r.options), raw(r.result)
	return t
}

func raw(s sql.NullString) json.RawMessage {
	if !s.Valid {
		return nil
	}
	return json.RawMessage(s.String)
}

func selectFeature(ctx context.Context, q querier, where string, args ...any) (runner.FeatureRecord, error) {
	var r featureRow
	if err := q.QueryRowContext(ctx, "SELECT "+featureColumns+" FROM features f WHERE "+where, args...).Scan(r.into()...); err != nil {
		return runner.FeatureRecord{}, err
	}
	return r.record()
}

// Feature finds by id, by name, or by a unique prefix of an id; in that order.
func (s *Store) Feature(ctx context.Context, ref string) (runner.FeatureRecord, error) {
	f, err := selectFeature(ctx, s.db, "(id = ?1 OR name = ?1) AND retired = 0 ORDER BY id = ?1 DESC LIMIT 1", ref)
	if err == nil || !errors.Is(err, sql.ErrNoRows) || ref == "" {
		return f, failure(err)
	}
	list, err := s.features(ctx, "f.retired = 0 AND substr(f.id, 1, ?) = ?", len(ref), strings.ToLower(ref))
	switch {
	case err != nil:
		return f, failure(err)
	case len(list) == 0:
		return f, fmt.Errorf("feature %q: %w", ref, runner.ErrNotFound)
	case len(list) > 1:
		return f, &runner.Error{Code: runner.CodeAmbiguous, Exit: runner.ExitRefused,
			Cause:  fmt.Sprintf("%q fits %d features, for example %s and %s", ref, len(list), list[0].Name, list[1].Name),
			Remedy: "use the name, or more of the id"}
	}
	list[0].Last = nil
	return list[0], nil
}

// Features lists, newest first, each with its newest task.
func (s *Store) Features(ctx context.Context) ([]runner.FeatureRecord, error) {
	list, err := s.features(ctx, "f.retired = 0")
	return list, failure(err)
}

func (s *Store) features(ctx context.Context, where string, args ...any) ([]runner.FeatureRecord, error) {
	list, err := s.join(ctx, `LEFT JOIN tasks t ON t.seq = (SELECT max(seq) FROM tasks WHERE feature = f.id)
		WHERE `+where+" ORDER BY f.created DESC, f.id DESC", args...)
	if err != nil {
		return nil, err
	}
	return list, s.withSteps(ctx, list)
}

// Unfinished lists features with a live task, without its steps, and those that are being removed or promoted, or are live
// without a task.
func (s *Store) Unfinished(ctx context.Context) ([]runner.FeatureRecord, error) {
	list, err := s.join(ctx, "JOIN tasks t ON t.feature = f.id AND "+live)
	if err != nil {
		return nil, failure(err)
	}
	half, err := s.join(ctx, `LEFT JOIN tasks t ON 0 WHERE f.retired = 1 OR f.promoting = 1
		OR f.detached = 1 AND NOT EXISTS (SELECT 1 FROM tasks t WHERE t.feature = f.id AND `+live+")")
	if err != nil {
		return nil, failure(err)
	}
	return append(list, half...), nil
}

// UnfinishedIDs is Unfinished without what is known of them.
func (s *Store) UnfinishedIDs(ctx context.Context) (ids []string, err error) {
	err = s.each(ctx, "SELECT feature FROM tasks t WHERE "+live+" UNION SELECT id FROM features WHERE retired = 1 OR promoting = 1 OR detached = 1",
		nil, func(r scanner) error {
			var id string
			err := r.Scan(&id)
			ids = append(ids, id)
			return err
		})
	return ids, failure(err)
}

func (s *Store) join(ctx context.Context, tail string, args ...any) (list []runner.FeatureRecord, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT "+featureColumns+", "+taskColumns+" FROM features f "+tail, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		f, err := scanFeature(rows)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, rows.Err()
}

// scanFeature reads a feature and its task. One that is damaged is named, and does not keep the others from being listed.
func scanFeature(rows *sql.Rows) (runner.FeatureRecord, error) {
	var fr featureRow
	var tr taskRow
	if err := rows.Scan(append(fr.into(), tr.into()...)...); err != nil {
		texts, rerr := rescue(rows)
		if rerr != nil {
			return runner.FeatureRecord{}, errors.Join(err, rerr)
		}
		return runner.FeatureRecord{ID: texts[0], Name: texts[1], Workspace: texts[2], Damaged: err.Error()}, nil
	}
	f, err := fr.record()
	if err != nil {
		f.Damaged = "labels: " + err.Error()
	}
	f.Last = tr.record()
	return f, nil
}

func (s *Store) withSteps(ctx context.Context, list []runner.FeatureRecord) error {
	for i := range list {
		if t := list[i].Last; t != nil {
			err := s.steps(ctx, t)
			if errors.Is(err, &runner.Error{Code: runner.CodeDamaged}) {
				list[i].Damaged = err.Error()
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) steps(ctx context.Context, t *runner.TaskRecord) (err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT n, state, args, retry, checkpoint, options FROM steps WHERE task = ? ORDER BY n", t.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var st runner.StepRecord
		var args string
		var options sql.NullString
		if err := rows.Scan(&st.N, &st.State, &args, &st.Retry, &st.Checkpoint, &options); err != nil {
			return err
		}
		st.Options = raw(options)
		if err := json.Unmarshal([]byte(args), &st.Args); err != nil {
			return damaged(fmt.Sprintf("step %d of task %s", st.N, t.ID), err)
		}
		t.Steps = append(t.Steps, st)
	}
	return rows.Err()
}

// Task finds one by id, or by a unique beginning of one.
func (s *Store) Task(ctx context.Context, ref string) (runner.TaskRecord, error) {
	list, err := s.tasks(ctx, "t.id = ?", ref)
	if err == nil && len(list) == 0 && ref != "" {
		list, err = s.tasks(ctx, "substr(t.id, 1, ?) = ? ORDER BY t.seq LIMIT 2", len(ref), strings.ToLower(ref))
	}
	switch {
	case err != nil:
		return runner.TaskRecord{}, failure(err)
	case len(list) == 0:
		return runner.TaskRecord{}, fmt.Errorf("task %q: %w", ref, runner.ErrNotFound)
	case len(list) > 1:
		return runner.TaskRecord{}, &runner.Error{Code: runner.CodeAmbiguous, Exit: runner.ExitRefused,
			Cause: fmt.Sprintf("%q fits several tasks, for example %s and %s", ref, list[0].ID, list[1].ID), Remedy: "use more of the id"}
	}
	return list[0], nil
}

// Tasks lists a feature's, oldest first.
func (s *Store) Tasks(ctx context.Context, featureID string) ([]runner.TaskRecord, error) {
	list, err := s.tasks(ctx, "t.feature = ? ORDER BY t.seq", featureID)
	return list, failure(err)
}

func (s *Store) tasks(ctx context.Context, where string, args ...any) ([]runner.TaskRecord, error) {
	list, err := s.scanTasks(ctx, where, args...)
	for i := range list {
		if err == nil {
			err = s.steps(ctx, &list[i])
		}
	}
	return list, err
}

func (s *Store) scanTasks(ctx context.Context, where string, args ...any) (list []runner.TaskRecord, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT "+taskColumns+" FROM tasks t WHERE "+where, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r taskRow
		if err := rows.Scan(r.into()...); err != nil {
			return nil, err
		}
		list = append(list, *r.record())
	}
	return list, rows.Err()
}

// Audit lists what the log says besides files and the network, oldest first.
func (s *Store) Audit(ctx context.Context, featureID string) (list []runner.AuditRecord, err error) {
	err = s.each(ctx, "SELECT "+entries+" WHERE (?1 = '' OR l.source IN (SELECT id FROM sources WHERE feature = ?1)) AND NOT ("+bulk+") ORDER BY l.seq",
		[]any{featureID}, func(r scanner) error {
			entry, err := scanEntry(r)
			for _, e := range eventsOf(&entry) {
				list = append(list, runner.AuditRecord{At: e.At, FeatureID: e.Feature, TaskID: e.TaskID, Step: e.Step, Event: e.Kind,
					From: e.From, To: e.To, Cause: e.Cause, Detail: e.Detail})
			}
			return err
		})
	return list, failure(err)
}

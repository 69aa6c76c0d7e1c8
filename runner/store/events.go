package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
)

// How many rows are kept; a row more than that goes with one of the next batches.
const (
	keepFileEvents    = 20_000 // of each feature
	keepNetworkEvents = 20_000 // likewise; half of them of what was let through, half of the rest
	keepNetworkTotal  = 200_000
	keepTimings       = 4096 // of each feature and kind
	trimEvery         = 64
)

// AddFileEvents appends to the log of files.
func (s *Store) AddFileEvents(ctx context.Context, list []runner.FileEvent) error {
	return failure(s.tx(ctx, func(tx *sql.Tx) error {
		sources := map[runner.FileEvent]int64{} // of this call: an event without time, path and size
		perFeature, now := map[string]int{}, time.Now()
		for _, e := range list {
			if e.At.IsZero() {
				e.At = now
			}
			source, err := eventSource(ctx, tx, e, sources)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO file_events (seq, source, at, path, size) VALUES ("+nextSeq+", ?, ?, ?, ?)",
				source, e.At.UnixNano(), []byte(e.Path), e.Size)
			if err != nil {
				return err
			}
			perFeature[e.FeatureID]++
		}
		for feature, n := range perFeature {
			if err := trimEvents(ctx, tx, feature, n); err != nil {
				return err
			}
		}
		return nil
	}))
}

// eventSource returns the row that holds what e shares with others.
func eventSource(ctx context.Context, tx *sql.Tx, e runner.FileEvent, known map[runner.FileEvent]int64) (int64, error) {
	shared := runner.FileEvent{FeatureID: e.FeatureID, TaskID: e.TaskID, Step: e.Step, Stack: e.Stack, Kind: e.Kind}
	if id, ok := known[shared]; ok {
		return id, nil
	}
	args := []any{e.FeatureID, e.TaskID, e.Step, e.Stack, e.Kind}
	var id int64
	err := tx.QueryRowContext(ctx, "SELECT id FROM event_sources WHERE feature = ? AND task = ? AND step = ? AND stack = ? AND kind = ?", args...).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		var res sql.Result
		if res, err = tx.ExecContext(ctx, "INSERT INTO event_sources (feature, task, step, stack, kind) VALUES (?, ?, ?, ?, ?)", args...); err == nil {
			id, err = res.LastInsertId()
		}
	}
	if err == nil {
		known[shared] = id
	}
	return id, err
}

// trimEvents deletes a feature's oldest rows. It counts them when n new ones may have crossed a boundary, not each time.
func trimEvents(ctx context.Context, tx *sql.Tx, feature string, n int) error {
	var last int64
	if err := tx.QueryRowContext(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'file_events'").Scan(&last); err != nil {
		return err
	}
	if last/trimEvery == (last-int64(n))/trimEvery {
		return nil
	}
	var rows int
	const of = "source IN (SELECT id FROM event_sources WHERE feature = ?)"
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM file_events WHERE "+of, feature).Scan(&rows); err != nil || rows <= keepFileEvents {
		return err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM file_events WHERE seq IN (SELECT seq FROM file_events WHERE "+of+" ORDER BY seq LIMIT ?)",
		feature, rows-keepFileEvents); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `DELETE FROM event_sources WHERE feature = ?
		AND NOT EXISTS (SELECT 1 FROM file_events WHERE source = event_sources.id)`, feature)
	return err
}

// AddNetworkEvents appends to the log of the network.
func (s *Store) AddNetworkEvents(ctx context.Context, list []runner.NetworkEvent) error {
	return failure(s.tx(ctx, func(tx *sql.Tx) error {
		features := map[string]bool{}
		for _, e := range list {
			body, err := json.Marshal(e.Event)
			if err != nil {
				return err
			}
			if _, err = tx.ExecContext(ctx, "INSERT INTO network_events (seq, at, feature, task, step, body) VALUES ("+nextSeq+", ?, ?, ?, ?, ?)",
				e.Event.At.UnixNano(), e.FeatureID, e.TaskID, e.Step, string(body)); err != nil {
				return err
			}
			features[e.FeatureID] = true
		}
		for feature := range features {
			if err := trimNetwork(ctx, tx, feature); err != nil {
				return err
			}
		}
		return trimLargest(ctx, tx)
	}))
}

// trimNetwork deletes a feature's oldest rows. Of what was let through it keeps half of all, so that refusals, which cost
// nothing to provoke, do not hide it.
func trimNetwork(ctx context.Context, tx *sql.Tx, feature string) error {
	var rows int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM network_events WHERE feature = ?", feature).Scan(&rows)
	if err != nil || rows <= keepNetworkEvents {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM network_events WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER
		(PARTITION BY body ->> '$.verdict' IN (?, ?) ORDER BY seq DESC) AS n FROM network_events WHERE feature = ?) WHERE n > ?)`,
		egress.VerdictAllowed, egress.VerdictCut, feature, keepNetworkEvents/2)
	return err
}

// trimLargest keeps the total, at the cost of the feature that has most of it: nobody has others forgotten.
func trimLargest(ctx context.Context, tx *sql.Tx) error {
	var rows int
	err := tx.QueryRowContext(ctx, "SELECT count(*) FROM network_events").Scan(&rows)
	if err != nil || rows <= keepNetworkTotal {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM network_events WHERE seq IN (SELECT seq FROM network_events WHERE feature =
		(SELECT feature FROM network_events GROUP BY feature ORDER BY count(*) DESC LIMIT 1) ORDER BY seq LIMIT ?)`, rows-keepNetworkTotal)
	return err
}

// Events is the audit trail and the logs of files and of the network, by seq.
func (s *Store) Events(ctx context.Context, o runner.EventOptions) (list []runner.Event, err error) {
	limit := -1 // none
	if o.Limit > 0 {
		limit = o.Limit
	}
	err = s.each(ctx, `SELECT seq, at, feature, task, step, event AS kind, '' AS stack, x'' AS path, 0 AS size, cause, old, new, '' AS body FROM audit
			WHERE ?5 = 0 AND seq > ?1 AND (?2 = '' OR feature = ?2) AND (?3 = '' OR task = ?3)
		UNION ALL SELECT e.seq, e.at, s.feature, s.task, s.step, s.kind, s.stack, e.path, e.size, '', '', '', ''
			FROM file_events e JOIN event_sources s ON s.id = e.source
			WHERE ?5 = 0 AND e.seq > ?1 AND (?2 = '' OR s.feature = ?2) AND (?3 = '' OR s.task = ?3)
		UNION ALL SELECT seq, at, feature, task, step, 'network', '', x'', 0, '', '', '', body FROM network_events
			WHERE seq > ?1 AND (?2 = '' OR feature = ?2) AND (?3 = '' OR task = ?3)
		ORDER BY 1 LIMIT ?4`, []any{o.Since, o.Feature, o.Task, limit, o.Network}, func(r scanner) error {
		var e runner.Event
		var at int64
		var path, body []byte
		var stack string
		if err := r.Scan(&e.Seq, &at, &e.Feature, &e.TaskID, &e.Step, &e.Kind, &stack, &path, &e.Size, &e.Cause, &e.From, &e.To, &body); err != nil {
			return err
		}
		if len(body) > 0 {
			if err := json.Unmarshal(body, &e.Network); err != nil {
				return err
			}
		}
		e.At = time.Unix(0, at)
		e.Path = insidePath(stack, string(path))
		list = append(list, e)
		return nil
	})
	return list, failure(err)
}

// insidePath says where a path of a stack is inside.
func insidePath(stack, path string) string {
	switch stack {
	case "":
		return path
	case "home":
		return "/home/user/" + path
	default:
		return "/" + stack + "/" + path
	}
}

// AddTiming appends one.
func (s *Store) AddTiming(ctx context.Context, t runner.Timing) error {
	if t.At.IsZero() {
		t.At = time.Now()
	}
	return failure(s.tx(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, "INSERT INTO timings (feature, kind, at, ns) VALUES (?, ?, ?, ?)",
			t.FeatureID, t.Kind, t.At.UnixNano(), int64(t.Took))
		if err != nil {
			return err
		}
		if n, err := res.LastInsertId(); err != nil || n%trimEvery != 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM timings WHERE seq IN (SELECT o.seq FROM (SELECT seq, row_number() OVER
			(PARTITION BY feature, kind ORDER BY seq DESC) AS n FROM timings) o WHERE o.n > ?)`, keepTimings)
		return err
	}))
}

// Timings lists the newest of each kind, oldest first.
func (s *Store) Timings(ctx context.Context, featureID string) (list []runner.Timing, err error) {
	err = s.each(ctx, `SELECT feature, kind, at, ns FROM timings WHERE ?1 = '' OR feature = ?1 ORDER BY seq DESC`, []any{featureID},
		func(r scanner) error {
			var t runner.Timing
			var at, ns int64
			if err := r.Scan(&t.FeatureID, &t.Kind, &at, &ns); err != nil {
				return err
			}
			t.At, t.Took = time.Unix(0, at), time.Duration(ns)
			list = append(list, t)
			return nil
		})
	slices.Reverse(list)
	return list, failure(err)
}

// Compact makes the files small: what is unused goes, and the log is written back.
func (s *Store) Compact(ctx context.Context) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM profiles WHERE id NOT IN (SELECT profile_id FROM tasks WHERE profile_id IS NOT NULL
			UNION SELECT profile_id FROM features WHERE profile_id IS NOT NULL)`)
		return err
	})
	if err == nil {
		_, err = s.db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	return failure(err)
}

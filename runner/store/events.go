package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/chain"
)

// Kinds of entries that stand for many events, and of which there are many.
const (
	kindFiles   = "files"
	kindNetwork = "network"         // what was let through
	kindRefused = "network-refused" // what was not
)

// pools bound, in events, what grows by itself: of each feature, and of all. What was let through has a pool of its own, so
// that refusals, which cost nothing to provoke, do not hide it.
var pools = map[string]struct{ feature, total int64 }{
	kindFiles:   {20_000, 200_000},
	kindNetwork: {10_000, 100_000},
	kindRefused: {10_000, 100_000},
}

// bulk are the rows of pools, in the words of their index: else SQLite would not use it.
const bulk = "kind IN ('files', 'network', 'network-refused')"

// ofFeature are those of kind ?1 and feature ?2.
const ofFeature = "kind = ?1 AND source IN (SELECT id FROM sources WHERE feature = ?2) AND " + bulk

const (
	perEntry    = 512 // events at most
	slack       = 512 // so many more than a pool's bound make it worth while to trim
	keepTimings = 4096
	trimEvery   = 64
)

// fileEvent is an event in the body of an entry of kindFiles.
type fileEvent struct {
	Kind  string `json:"kind"`
	Path  string `json:"path"`                  // inside
	Bytes []byte `json:"path_base64,omitempty"` // when it is no UTF-8
	Size  int64  `json:"size,omitempty"`
	After int64  `json:"after,omitempty"` // nanoseconds after the entry's time
}

// AddFileEvents appends what happened to files to the log.
func (s *Store) AddFileEvents(ctx context.Context, list []runner.FileEvent) error {
	list = slices.Clone(list)
	now := time.Now()
	for i := range list {
		if list[i].At.IsZero() {
			list[i].At = now
		}
	}
	return failure(s.tx(ctx, func(tx *transaction) error {
		features, err := addFiles(tx, list)
		if err != nil {
			return err
		}
		for f := range features {
			if err := known(ctx, tx, f); err != nil {
				return err
			}
		}
		return trim(ctx, tx, features, kindFiles)
	}))
}

func known(ctx context.Context, tx *transaction, feature string) (err error) {
	var one int
	return tx.QueryRowContext(ctx, "SELECT 1 FROM features WHERE id = ?", feature).Scan(&one)
}

// addFiles makes entries of runs of events that are of the same step, and says how many events are of which feature.
func addFiles(tx *transaction, list []runner.FileEvent) (features map[string]int64, err error) {
	features = map[string]int64{}
	same := func(a, b *runner.FileEvent) bool {
		return a.FeatureID == b.FeatureID && a.TaskID == b.TaskID && a.Step == b.Step
	}
	for run := range runs(list, same) {
		first := &run[0]
		body := make([]fileEvent, len(run))
		for i := range run {
			e := &run[i]
			body[i] = fileEvent{Kind: e.Kind, Path: insidePath(e.Stack, e.Path), Size: e.Size, After: int64(e.At.Sub(first.At))}
			if !utf8.ValidString(e.Path) {
				body[i].Bytes = []byte(body[i].Path) // in Path, JSON replaces what it cannot say
			}
		}
		said, err := text(body)
		if err != nil {
			return nil, err
		}
		features[first.FeatureID] += int64(len(run))
		tx.add(chain.Entry{Count: int64(len(run)), At: first.At, Feature: first.FeatureID, Task: first.TaskID, Step: first.Step, Kind: kindFiles, Body: said})
	}
	return features, nil
}

// runs are the stretches of a list whose elements are alike, of at most perEntry.
func runs[T any](list []T, same func(a, b *T) bool) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		for len(list) > 0 {
			n := 1
			for n < min(len(list), perEntry) && same(&list[0], &list[n]) {
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// AddNetworkEvents appends what was wanted of the network to the log.
func (s *Store) AddNetworkEvents(ctx context.Context, list []runner.NetworkEvent) error {
	return failure(s.tx(ctx, func(tx *transaction) error {
		features, err := addNetwork(tx, list)
		if err != nil {
			return err
		}
		return trim(ctx, tx, features, kindNetwork, kindRefused)
	}))
}

// addNetwork makes entries of runs of events that are of the same step and pool.
func addNetwork(tx *transaction, list []runner.NetworkEvent) (features map[string]int64, err error) {
	features = map[string]int64{}
	same := func(a, b *runner.NetworkEvent) bool {
		return a.FeatureID == b.FeatureID && a.TaskID == b.TaskID && a.Step == b.Step && pool(a) == pool(b)
	}
	for run := range runs(list, same) {
		first := &run[0]
		body := make([]*egress.Event, len(run))
		for i := range run {
			body[i] = &run[i].Event
		}
		said, err := text(body)
		if err != nil {
			return nil, err
		}
		features[first.FeatureID] += int64(len(run))
		tx.add(chain.Entry{Count: int64(len(run)), At: first.Event.At, Feature: first.FeatureID, Task: first.TaskID, Step: first.Step, Kind: pool(first), Body: said})
	}
	return features, nil
}

func pool(e *runner.NetworkEvent) string {
	if v := e.Event.Verdict; v == egress.VerdictAllowed || v == egress.VerdictCut {
		return kindNetwork
	}
	return kindRefused
}

// Events is the log, event by event.
func (s *Store) Events(ctx context.Context, o runner.EventOptions) (list []runner.Event, err error) {
	limit := -1 // none
	if o.Limit > 0 {
		limit = o.Limit // entries: each has at least one event after Since
	}
	where := ""
	if o.Network {
		where = " AND kind <> '" + kindFiles + "' AND " + bulk
	}
	if o.Feature != "" || o.Task != "" {
		where += " AND l.source IN (SELECT id FROM sources WHERE (?2 = '' OR feature = ?2) AND (?3 = '' OR task = ?3))"
	}
	err = s.each(ctx, "SELECT "+entries+" WHERE l.seq > ?1"+where+" ORDER BY l.seq LIMIT ?4",
		[]any{o.Since, o.Feature, o.Task, limit}, func(r scanner) error {
			entry, err := scanEntry(r)
			for _, e := range eventsOf(&entry) {
				if e.Seq > o.Since {
					list = append(list, e)
				}
			}
			return err
		})
	if o.Limit > 0 && len(list) > o.Limit {
		list = list[:o.Limit]
	}
	return list, failure(err)
}

// eventsOf are the events that an entry stands for. One that is damaged is one event that says so.
func eventsOf(e *chain.Entry) (list []runner.Event) {
	event := runner.Event{Seq: e.Seq - e.Count + 1, At: e.At, Feature: e.Feature, TaskID: e.Task, Step: e.Step, Kind: e.Kind}
	var err error
	switch e.Kind {
	case kindFiles:
		var body []fileEvent
		err = json.Unmarshal(e.Body, &body)
		for _, f := range body {
			event.At, event.Kind, event.Path, event.Size = e.At.Add(time.Duration(f.After)), f.Kind, f.Path, f.Size
			if f.Bytes != nil {
				event.Path = string(f.Bytes)
			}
			list = append(list, event)
			event.Seq++
		}
	case kindNetwork, kindRefused:
		var body []egress.Event
		err = json.Unmarshal(e.Body, &body)
		for i := range body {
			event.Kind, event.At, event.Network = kindNetwork, body[i].At, &body[i]
			list = append(list, event)
			event.Seq++
		}
	default:
		var body record
		err = json.Unmarshal(e.Body, &body)
		event.From, event.To, event.Cause = body.From, body.To, body.Cause
		if e.Kind == kindCommand {
			event.Kind = "step"
			list = append(list, event)
			event.Kind, event.From, event.To, event.Cause = e.Kind, "", "", ""
		}
		event.Seq, event.Detail = e.Seq, body.Detail
		list = append(list, event)
	}
	if err != nil {
		event.Seq, event.Cause = e.Seq, "its entry in the log is damaged: "+err.Error()
		return []runner.Event{event}
	}
	return list
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

// trim removes the oldest entries of pools that have too many events, of features to which events were added, and has the
// log say so. It counts them when so many new ones may have come, not each time.
func trim(ctx context.Context, tx *transaction, features map[string]int64, kinds ...string) error {
	if err := tx.append(ctx); err != nil || len(features) == 0 {
		return err
	}
	added := int64(0)
	for _, n := range features {
		added += n
	}
	if last := tx.head.Seq; last/slack == (last-added)/slack {
		return nil
	}
	for _, kind := range kinds {
		for feature := range features {
			if err := trimFeature(ctx, tx, kind, feature); err != nil {
				return err
			}
		}
		if err := trimLargest(ctx, tx, kind); err != nil {
			return err
		}
	}
	return nil
}

func trimFeature(ctx context.Context, tx *transaction, kind, feature string) error {
	var have int64
	err := tx.QueryRowContext(ctx, "SELECT coalesce(sum(count), 0) FROM log WHERE "+ofFeature, kind, feature).Scan(&have)
	if keep := pools[kind].feature; err == nil && have > keep+slack {
		err = keepNewest(ctx, tx, kind, feature, keep)
	}
	return err
}

// trimLargest keeps the total, at the cost of the feature that has most of it: nobody has others forgotten.
func trimLargest(ctx context.Context, tx *transaction, kind string) error {
	var total, most int64
	var feature string
	err := tx.QueryRowContext(ctx, "SELECT s.feature, sum(count) AS n, sum(sum(count)) OVER () FROM log JOIN sources s ON s.id = source WHERE kind = ? AND "+bulk+
		" GROUP BY s.feature ORDER BY n DESC LIMIT 1", kind).Scan(&feature, &most, &total)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if over := total - pools[kind].total; err == nil && over > slack {
		err = keepNewest(ctx, tx, kind, feature, max(0, most-over))
	}
	return err
}

// keepNewest removes a feature's oldest entries of a kind, of which at least keep events stay.
func keepNewest(ctx context.Context, tx *transaction, kind, feature string, keep int64) error {
	gaps := chain.Gaps{Of: kind}
	rows, err := tx.QueryContext(ctx, `SELECT l.seq, l.count, l.hash FROM log l JOIN (SELECT seq, sum(count) OVER (ORDER BY seq DESC) - count AS newer
		FROM log WHERE `+ofFeature+`) o ON o.seq = l.seq WHERE o.newer >= ?3 ORDER BY l.seq`, kind, feature, keep)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var g chain.Gap
		var count int64
		var hash []byte
		if err := rows.Scan(&g.Last, &count, &hash); err != nil {
			return err
		}
		copy(g.Hash[:], hash)
		g.First = g.Last - count + 1
		gaps.Add(g)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(gaps.Gaps) == 0 {
		return err
	}
	detail, err := text(gaps)
	if err != nil {
		return err
	}
	a := runner.AuditRecord{At: time.Now(), FeatureID: feature, Event: chain.KindTrim, From: kind, Cause: fmt.Sprintf("%d events, the oldest", gaps.Events), Detail: detail}
	if err := note(ctx, tx, a); err != nil {
		return err
	}
	if err := tx.append(ctx); err != nil { // which the trigger wants before anything goes
		return err
	}
	_, err = tx.ExecContext(ctx, "DELETE FROM log WHERE "+ofFeature+" AND seq <= ?3", kind, feature, gaps.Gaps[len(gaps.Gaps)-1].Last)
	return err
}

// AddTiming appends one.
func (s *Store) AddTiming(ctx context.Context, t runner.Timing) error {
	if t.At.IsZero() {
		t.At = time.Now()
	}
	return failure(s.tx(ctx, func(tx *transaction) error {
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
	err := s.tx(ctx, func(tx *transaction) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM profiles WHERE id NOT IN (SELECT profile_id FROM tasks WHERE profile_id IS NOT NULL
			UNION SELECT profile_id FROM features WHERE profile_id IS NOT NULL)`)
		return err
	})
	if err == nil {
		_, err = s.db.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	}
	return failure(err)
}

package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// Fork records a feature in the lineage of another. It gets an index of its own, which it does not use.
func (s *Store) Fork(ctx context.Context, f runner.FeatureRecord, from string) (got runner.FeatureRecord, err error) {
	now := time.Now()
	err = s.tx(ctx, func(tx *transaction) error {
		parent, err := selectFeature(ctx, tx, "f.id = ?", from)
		if err != nil {
			return fmt.Errorf("feature %s: %w", from, err)
		}
		f.Workspace, f.Direct, f.Driver = parent.Workspace, parent.Direct, parent.Driver
		f.Lineage, f.Origin = parent.Lineage, parent.ID
		if f.Profile, err = policy(ctx, tx, from); err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := insertFeature(ctx, tx, &f, nil, now); err != nil {
			return err
		}
		a := runner.AuditRecord{At: now, FeatureID: f.ID, Event: "fork", From: parent.ID}
		if err := note(ctx, tx, a); err != nil {
			return err
		}
		got, err = selectFeature(ctx, tx, "f.id = ?", f.ID)
		return err
	})
	return got, failure(err)
}

// Policy is the profile that holds for a feature.
func (s *Store) Policy(ctx context.Context, featureID string) (json.RawMessage, error) {
	body, err := policy(ctx, s.db, featureID)
	if err != nil {
		err = fmt.Errorf("the profile of feature %s: %w", featureID, err)
	}
	return body, failure(err)
}

func policy(ctx context.Context, q querier, featureID string) (body json.RawMessage, err error) {
	var text string
	err = q.QueryRowContext(ctx, `SELECT body FROM (
			SELECT 1 AS own, t.seq, coalesce(p.body, t.profile) AS body FROM tasks t LEFT JOIN profiles p ON p.id = t.profile_id WHERE t.feature = ?1
			UNION ALL SELECT 0, 0, p.body FROM features f JOIN profiles p ON p.id = f.profile_id WHERE f.id = ?1)
		ORDER BY own DESC, seq DESC LIMIT 1`, featureID).Scan(&text)
	if err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}

// Restore records a feature again.
func (s *Store) Restore(ctx context.Context, f runner.FeatureRecord) error {
	return failure(s.tx(ctx, func(tx *transaction) error {
		index := &f.Index
		if f.Lineage != "" {
			index = nil
		} else if _, err := tx.ExecContext(ctx, "UPDATE features SET idx = "+lowest+" WHERE idx = ? AND lineage <> ''", f.Index); err != nil {
			return err // a fork does not use the index that it has itself
		}
		if err := insertFeature(ctx, tx, &f, index, f.Created); err != nil {
			return err
		}
		now := time.Now()
		if err := note(ctx, tx, runner.AuditRecord{At: now, FeatureID: f.ID, Event: "restore", Cause: "its record was lost"}); err != nil || !f.Retired {
			return err
		}
		return retire(ctx, tx, f.ID, now)
	}))
}

// Kin lists a lineage, oldest first.
func (s *Store) Kin(ctx context.Context, featureID string) ([]runner.FeatureRecord, error) {
	var lineage string
	err := s.db.QueryRowContext(ctx, "SELECT CASE lineage WHEN '' THEN id ELSE lineage END FROM features WHERE id = ?", featureID).Scan(&lineage)
	if err != nil {
		return nil, failure(fmt.Errorf("feature %s: %w", featureID, err))
	}
	list, err := s.join(ctx, "LEFT JOIN tasks t ON 0 WHERE f.id = ?1 OR f.lineage = ?1 ORDER BY f.created, f.id", lineage)
	return list, failure(err)
}

// UpdateFeature changes what u names.
func (s *Store) UpdateFeature(ctx context.Context, id string, u runner.FeatureUpdate) error {
	var set assignments
	assign(&set, "detached", u.Detached)
	assign(&set, "ttl", (*int64)(u.TTL))
	assign(&set, "idle", (*int64)(u.Idle))
	assign(&set, "disk", (*int64)(u.Disk))
	assign(&set, "inodes", (*int64)(u.Inodes))
	assign(&set, "mechanism", u.Mechanism)
	assign(&set, "driver", u.Driver)
	return failure(s.tx(ctx, func(tx *transaction) error { return set.run(ctx, tx, "features", id) }))
}

// keysLast is how long an idempotency key is remembered.
const keysLast = 30 * 24 * time.Hour

// Claim gives an idempotency key to id, unless somebody has it.
func (s *Store) Claim(ctx context.Context, key, digest, id string) (existing string, err error) {
	err = s.tx(ctx, func(tx *transaction) error {
		existing, err = claim(ctx, tx, claimant{key, digest, id}, time.Now())
		return err
	})
	return existing, failure(err)
}

// claimant asks for a key.
type claimant struct{ key, digest, id string }

func claim(ctx context.Context, tx *transaction, c claimant, now time.Time) (existing string, err error) {
	var digest string
	err = tx.QueryRowContext(ctx, "SELECT digest, id FROM idempotency WHERE key = ?", c.key).Scan(&digest, &existing)
	switch {
	case err == nil && digest != c.digest:
		return "", &runner.Error{Code: runner.CodeKey, Exit: runner.ExitRefused,
			Cause:  fmt.Sprintf("the key %q was used for something else, %s", c.key, existing),
			Remedy: "use another key, or ask for the same as then"}
	case !errors.Is(err, sql.ErrNoRows):
		return existing, err
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM idempotency WHERE created < ?", now.Add(-keysLast).UnixNano()); err != nil {
		return "", err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO idempotency (key, digest, id, created) VALUES (?, ?, ?, ?)", c.key, c.digest, c.id, now.UnixNano())
	return "", err
}

// claimFor claims a submission's key for its task.
func claimFor(ctx context.Context, tx *transaction, sub *runner.Submission, now time.Time) error {
	if sub.Key == "" {
		return nil
	}
	existing, err := claim(ctx, tx, claimant{sub.Key, sub.KeyDigest, sub.Task.ID}, now)
	if err != nil || existing == "" {
		return err
	}
	var result sql.NullString
	if err := tx.QueryRowContext(ctx, "SELECT result FROM idempotency WHERE key = ?", sub.Key).Scan(&result); err != nil {
		return err
	}
	return &runner.ClaimedError{Task: existing, Result: raw(result)}
}

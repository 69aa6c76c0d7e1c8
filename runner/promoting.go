package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// EventPromoting is the audit row with which a promotion outside of any task begins, and the one that says, after a crash, that
// it was undone, or that nobody knows. What was promoted has a row "promote".
const EventPromoting = "promoting"

// Promotion is what is about to be promoted. It is recorded before anything is touched, so that after a crash it is known.
type Promotion struct {
	Kind       string     `json:"kind"`
	Checkpoint string     `json:"checkpoint"` // id, or snapshot.Current
	Change     string     `json:"change"`     // its digest
	Cause      string     `json:"cause"`      // of the row "promote": how, and who let it pass
	Approvals  []Approval `json:"approvals,omitempty"`
	Generation int        `json:"generation"` // of the workspace that the feature saw before
	Current    bool       `json:"current"`    // it is what the feature shows, which begins anew with it
}

// begins is the audit row with which a promotion begins.
func (x *session) begins(c *snapshot.Change, at, kind string, verdicts []gates.Verdict, approvals []Approval) (AuditRecord, error) {
	row, now := x.promotion("", at, kind, verdicts, approvals), x.layers.Info()
	row.Event = EventPromoting
	var err error
	row.Detail, err = json.Marshal(Promotion{Kind: kind, Checkpoint: at, Change: c.Digest, Cause: row.Cause, Approvals: approvals,
		Generation: now.Generation, Current: at == snapshot.Current || at == now.Head})
	return row, err
}

// settlePromotion records how a promotion ended that a dead process had begun. planned and done are what lay on disk of it
// before the layers finished it, or undid it.
func (x *session) settlePromotion(ctx context.Context, planned, done bool) error {
	rows, err := x.s.opt.Journal.Audit(ctx, x.feature.ID)
	if err != nil {
		return err
	}
	i := len(rows) - 1
	for i >= 0 && rows[i].Event != EventPromoting && rows[i].To != string(StatePromoting) {
		i--
	}
	var p Promotion
	if i < 0 || json.Unmarshal(rows[i].Detail, &p) != nil { // an earlier version began it
		return nil //nolint:nilerr // there is nothing to settle
	}
	if slices.ContainsFunc(rows[i:], func(r AuditRecord) bool { return r.Event == "promote" }) {
		return nil
	}
	row := AuditRecord{FeatureID: x.feature.ID, TaskID: rows[i].TaskID, Event: EventPromoting, To: p.Checkpoint}
	now := x.layers.Info()
	anew := p.Current && now.Head == "" && now.Generation > p.Generation
	switch {
	case p.Kind == PromoteApply && (done || !planned && anew):
		row.Event, row.Cause = "promote", p.Cause+"; recorded after a crash"
		yes := true
		if err := x.s.opt.Journal.UpdateCheckpoint(ctx, p.Checkpoint, CheckpointUpdate{Promoted: &yes}); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	case p.Kind == PromoteApply && (planned || p.Current):
		row.Cause = "undone after a crash: " + p.Cause
	default:
		row.Cause = "its supervisor died, and whether it was done is not known: " + p.Cause
	}
	return x.s.opt.Journal.Note(ctx, row)
}

// halfPromoted says what lies in a feature's directory of a promotion: see package promote.
func halfPromoted(dir string) (planned, done bool) {
	there := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err == nil
	}
	return there("promote.plan"), there("promote.done")
}

// promotion is the audit row of a promotion: how, whose approvals let it pass, and whether anybody looked.
func (x *session) promotion(task, at, kind string, verdicts []gates.Verdict, approvals []Approval) AuditRecord {
	a := AuditRecord{FeatureID: x.feature.ID, TaskID: task, Event: "promote", To: at, Cause: kind}
	if !slices.ContainsFunc(verdicts, func(v gates.Verdict) bool { return v.Status != gates.Skipped }) {
		a.Cause += "; no gate was asked"
	}
	for _, p := range approvals {
		a.Cause += fmt.Sprintf("; gate %s approved by %s (uid %d) at %s: %s", p.Gate, p.By, p.UID, p.At.UTC().Format(time.RFC3339), p.Reason)
	}
	return a
}

package runner

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// PassedBy is a good checkpoint that cannot be gone back to, and why. An older one was taken.
type PassedBy struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// readableGood is the newest good checkpoint that can be read, nil when there is none, and the newer ones that cannot. What the
// journal says is not enough: it learns of damage when somebody meets it.
func (x *session) readableGood(ctx context.Context) (*CheckpointRecord, []PassedBy, error) {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return nil, nil, err
	}
	var passed []PassedBy
	var records []snapshot.Record
	for _, c := range slices.Backward(rows) {
		if !accepted(&c) {
			continue
		}
		if records == nil {
			if records, err = x.layers.Records(); err != nil {
				return nil, nil, err
			}
		}
		why := unreadableIn(&c, records)
		if why == "" {
			return &c, passed, nil
		}
		passed = append(passed, PassedBy{c.ID, why})
	}
	return nil, passed, nil
}

// accepted reports whether a checkpoint is good, were it not damaged: as the journal has it in LastGood.
func accepted(c *CheckpointRecord) bool {
	ran := false
	for i := range c.Verdicts {
		v := &c.Verdicts[i]
		if !c.Promoted && (v.Unresolved != "" || v.Failed()) {
			return false
		}
		ran = ran || v.Status != gates.Skipped
	}
	return ran || c.Promoted
}

// unreadable says why a checkpoint cannot be gone back to, "" when it can.
func (x *session) unreadable(ctx context.Context, id string) string {
	id, err := x.resolveID(ctx, id)
	if err != nil {
		return err.Error()
	}
	records, err := x.layers.Records()
	if err != nil {
		return err.Error()
	}
	return unreadableIn(&CheckpointRecord{Checkpoint{ID: id}}, records)
}

// unreadableIn is unreadable for a row, where all records have been read.
func unreadableIn(c *CheckpointRecord, records []snapshot.Record) string {
	i := slices.IndexFunc(records, func(r snapshot.Record) bool { return r.ID == c.ID })
	switch {
	case c.Damaged != "":
		return c.Damaged
	case i < 0:
		return orLost("")
	}
	return records[i].Damaged
}

// lastGood is the checkpoint that going back to the last good one goes to.
func (x *session) lastGood(ctx context.Context) (string, []PassedBy, error) {
	good, passed, err := x.readableGood(ctx)
	if err != nil {
		return "", nil, err
	}
	if good != nil {
		return good.ID, passed, nil
	}
	if len(passed) == 0 {
		id, err := x.resolveID(ctx, RefLastGood)
		return id, nil, err
	}
	var list []string
	for _, p := range passed {
		list = append(list, fmt.Sprintf("%s (%s)", p.ID, p.Reason))
	}
	return "", nil, &Error{Code: CodeDamaged, Exit: ExitRefused, Remedy: "choose another: caisson checkpoint ls " + x.feature.Name,
		Cause: fmt.Sprintf("no state of %s that gates have accepted can be used: %s", x.feature.Name, strings.Join(list, "; "))}
}

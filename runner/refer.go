package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// find answers a checkpoint by id.
func (x *session) find(ctx context.Context, id string, err error) (*Checkpoint, error) {
	if err != nil {
		return nil, err
	}
	r, err := x.s.opt.Journal.Checkpoint(ctx, x.feature.ID, id)
	if err != nil {
		return nil, explain(err, "checkpoint", x.feature.Name+"@"+id)
	}
	return x.answer(&r), nil
}

// answer completes what the journal says of a checkpoint.
func (x *session) answer(r *CheckpointRecord) *Checkpoint {
	c := r.Checkpoint
	c.Feature, c.FeatureID = x.feature.Name, x.feature.ID
	c.Head = c.ID == x.layers.Info().Head
	return &c
}

// at opens the feature of a reference, with the id of the checkpoint that it names; without one, of the head.
func (s *Supervisor) at(ctx context.Context, ref string, a access, do func(x *session, id string) error) error {
	r, err := ParseRef(ref)
	if err != nil {
		return err
	}
	return s.use(ctx, r.Feature, a, func(x *session) error {
		id, err := x.resolveID(ctx, r.Checkpoint)
		if err == nil && id == snapshot.Base {
			err = refuse(CodeNotFound, "caisson checkpoint ls "+x.feature.Name, "%s has no checkpoint yet", x.feature.Name)
		}
		if err != nil {
			return err
		}
		return do(x, id)
	})
}

// resolveID finds the id that Ref.Checkpoint means; snapshot.Base for the workspace.
func (x *session) resolveID(ctx context.Context, word string) (string, error) {
	j := x.s.opt.Journal
	var r CheckpointRecord
	var err error
	switch word {
	case "", RefHead:
		if head := x.layers.Info().Head; head != "" {
			return head, nil
		}
		return snapshot.Base, nil
	case RefBase:
		return snapshot.Base, nil
	case RefStart:
		var rows []CheckpointRecord
		if rows, err = j.Checkpoints(ctx, x.feature.ID); err == nil && len(rows) == 0 {
			return snapshot.Base, nil
		} else if err == nil {
			r = rows[0]
		}
	case RefLastGood:
		if r, err = j.LastGood(ctx, x.feature.ID); errors.Is(err, ErrNotFound) {
			return "", refuse(CodeNotFound, "see `caisson checkpoint ls "+x.feature.Name+"`", "no gate has accepted a state of %s yet", x.feature.Name)
		}
	default:
		if r, err = j.Checkpoint(ctx, x.feature.ID, word); errors.Is(err, ErrNotFound) {
			return x.inherited(word)
		}
	}
	if err == nil && (r.Lost || r.Damaged != "") {
		err = &Error{Code: CodeDamaged, Cause: fmt.Sprintf("the checkpoint %s cannot be used: %s", r.ID, orLost(r.Damaged)), Exit: ExitRefused,
			Remedy: "choose another: caisson checkpoint ls " + x.feature.Name}
	}
	return r.ID, err
}

func orLost(why string) string {
	if why == "" {
		return "its files are gone"
	}
	return why
}

// checkLabel refuses what cannot be the label of a checkpoint: it would not be found by one of the words that mean another.
func checkLabel(label string) error {
	switch label {
	case RefHead, RefLastGood, RefStart, RefBase:
		return refuse(CodeInvalidName, "choose another", "%q cannot be a label: it means a checkpoint of every feature", label)
	}
	if !validLabel(label) {
		return refuse(CodeInvalidName, "a label is one line of at most 256 bytes", "%q cannot be a label", label)
	}
	return nil
}

// inherited finds the checkpoint that a fork began on: it is another feature's.
func (x *session) inherited(word string) (string, error) {
	records, err := x.layers.Records()
	if err != nil {
		return "", err
	}
	for _, r := range records {
		if r.Feature != x.feature.ID && len(word) >= 4 && strings.HasPrefix(r.ID, word) {
			return r.ID, nil
		}
	}
	return "", refuse(CodeNotFound, "see `caisson checkpoint ls "+x.feature.Name+"`", "the feature %s has no checkpoint %q", x.feature.Name, word)
}

// reconcile makes the journal agree with what lies on disk, which is the truth. Unless all is set it only looks closer when
// the newest checkpoint has no row: a process died between the two.
func (x *session) reconcile(ctx context.Context, all bool) error {
	j := x.s.opt.Journal
	if head := x.layers.Info().Head; !all && (head == "" || x.known(ctx, head)) {
		return nil
	}
	records, err := x.layers.Records()
	if err != nil {
		return err
	}
	rows, err := j.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return err
	}
	has := map[string]*CheckpointRecord{}
	for i := range rows {
		has[rows[i].ID] = &rows[i]
	}
	var errs []error
	for i := range records {
		r := &records[i]
		row := has[r.ID]
		delete(has, r.ID)
		switch {
		case r.Feature != x.feature.ID && r.Feature != "":
		case row == nil && r.Damaged == "":
			errs = append(errs, j.AddCheckpoint(ctx, CheckpointRecord{*x.fromDisk(r)}))
		case row != nil && row.Damaged != r.Damaged:
			errs = append(errs, j.UpdateCheckpoint(ctx, r.ID, CheckpointUpdate{Damaged: &r.Damaged}))
		}
	}
	lost := true
	for id, row := range has {
		if !row.Lost {
			errs = append(errs, j.UpdateCheckpoint(ctx, id, CheckpointUpdate{Lost: &lost}))
		}
	}
	return errors.Join(errs...)
}

func (x *session) known(ctx context.Context, id string) bool {
	_, err := x.s.opt.Journal.Checkpoint(ctx, x.feature.ID, id)
	if errors.Is(err, ErrNotFound) {
		_, err = x.inherited(id)
	}
	return err == nil
}

// fromDisk is the row of a checkpoint that the journal does not know.
func (x *session) fromDisk(r *snapshot.Record) *Checkpoint {
	c := &Checkpoint{}
	x.fill(c, r)
	var m meta
	if json.Unmarshal(r.Meta, &m) == nil {
		c.TaskID, c.Step, c.Reason, c.Label = m.TaskID, m.Step, m.Reason, m.Label
	}
	if c.Reason == "" {
		c.Reason = ReasonManual
	}
	return c
}

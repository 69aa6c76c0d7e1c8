package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Checkpoint seals the current state of a feature.
func (s *Supervisor) Checkpoint(ctx context.Context, ref string, o CheckpointOptions) (*Checkpoint, error) {
	var c *Checkpoint
	err := s.use(ctx, ref, writing, func(x *session) (err error) {
		c, err = x.checkpoint(ctx, ReasonManual, o)
		if err == nil && o.Wait {
			c, err = x.settled(ctx, c.ID)
		}
		return err
	})
	return c, typed(err, "making a checkpoint of "+ref)
}

// checkpoint makes and records a checkpoint outside of any task's course.
func (x *session) checkpoint(ctx context.Context, reason string, o CheckpointOptions) (*Checkpoint, error) {
	c := &Checkpoint{Reason: reason, Label: o.Label}
	if err := checkLabel(o.Label); err != nil {
		return nil, err
	}
	c.ID = x.s.opt.NewID()
	if o.Key != "" {
		id, err := x.s.opt.Journal.Claim(ctx, o.Key, digestOf("checkpoint", x.feature.ID, o.Label), c.ID)
		if err != nil {
			return nil, err
		}
		if found, err := x.find(ctx, cmp.Or(id, c.ID), nil); CodeOf(err) != CodeNotFound {
			return found, err
		}
		c.ID = cmp.Or(id, c.ID) // claimed by a process that died before it made it
	}
	if t := x.newest(); t != nil {
		c.TaskID, c.Step = t.res.TaskID, t.stepNow()
	}
	// What is begun is recorded.
	ctx = context.WithoutCancel(ctx)
	if err := x.seal(ctx, c); err != nil {
		return nil, err
	}
	if err := x.s.opt.Journal.AddCheckpoint(ctx, CheckpointRecord{*c}); err != nil {
		return nil, err
	}
	x.later(c)
	return c, nil
}

// digestOf is what an idempotency key was used for.
func digestOf(parts ...any) string {
	text, err := json.Marshal(parts)
	if err != nil {
		return "" // never: they are plain values
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// newest is the task that began last of those that run, or nil.
func (x *session) newest() *task {
	if list := x.running(); len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

// Checkpoints lists a feature's, oldest first; they are a tree by Parent. It needs nobody's leave; of a feature that another
// process works on, nothing is said of which is the head.
func (s *Supervisor) Checkpoints(ctx context.Context, feature string) ([]Checkpoint, error) {
	f, err := s.opt.Journal.Feature(ctx, feature)
	if err != nil {
		return nil, explain(err, "feature", feature)
	}
	head := ""
	err = s.use(ctx, f.ID, reading, func(x *session) error { head = x.layers.Info().Head; return nil })
	if err != nil && CodeOf(err) != CodeBusy && CodeOf(err) != CodeDamaged {
		return nil, typed(err, "listing the checkpoints of "+feature)
	}
	rows, err := s.indexed(ctx, f.ID)
	list := make([]Checkpoint, len(rows))
	for i := range rows {
		list[i] = rows[i].Checkpoint
		list[i].Feature, list[i].FeatureID, list[i].Head = f.Name, f.ID, rows[i].ID == head
	}
	return list, typed(err, "listing the checkpoints of "+feature)
}

// indexed lists the rows of a feature's checkpoints. What a supervisor that ended left to be looked at is looked at now; one
// that lives does so itself.
func (s *Supervisor) indexed(ctx context.Context, id string) ([]CheckpointRecord, error) {
	rows, err := s.opt.Journal.Checkpoints(ctx, id)
	if err != nil || s.session(id) != nil || !slices.ContainsFunc(rows, unknown) {
		return rows, err
	}
	err = s.use(ctx, id, writing, func(x *session) error {
		for i := range rows {
			if unknown(rows[i]) {
				if _, err := x.index(ctx, rows[i].ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil { // then it stays unknown
		return rows, nil //nolint:nilerr // the list is what was asked for
	}
	return s.opt.Journal.Checkpoints(ctx, id)
}

// unknown reports whether a checkpoint is still to be looked at.
func unknown(r CheckpointRecord) bool { return !r.Indexed && !r.Lost && r.Damaged == "" }

// CheckpointOf finds FEATURE@CHECKPOINT; without a checkpoint, the head.
func (s *Supervisor) CheckpointOf(ctx context.Context, ref string) (c *Checkpoint, err error) {
	err = s.at(ctx, ref, reading, func(x *session, id string) error {
		c, err = x.find(ctx, id, nil)
		return err
	})
	return c, typed(err, "looking for "+ref)
}

// Label names a checkpoint; "" takes its name away. One with a label is kept by GC.
func (s *Supervisor) Label(ctx context.Context, ref, label string) error {
	if err := checkLabel(label); err != nil {
		return err
	}
	err := s.at(ctx, ref, reading, func(x *session, id string) error {
		err := s.opt.Journal.UpdateCheckpoint(ctx, id, CheckpointUpdate{Label: &label})
		if err != nil {
			return err
		}
		return s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "label", To: id, Cause: label})
	})
	return typed(err, "labelling "+ref)
}

// DropCheckpoints forgets checkpoints and frees what only they need.
func (s *Supervisor) DropCheckpoints(ctx context.Context, refs ...string) error {
	var errs []error
	for _, ref := range refs {
		if r, err := ParseRef(ref); err == nil && r.Checkpoint == "" {
			errs = append(errs, refuse(CodeUsage, "name it: FEATURE@CHECKPOINT", "%s names no checkpoint", ref))
			continue
		}
		err := s.at(ctx, ref, writing, func(x *session, id string) error {
			ids, err := x.family(ctx, id)
			if err == nil {
				err = x.drop(ctx, ids)
			}
			if err == nil {
				_, err = x.collect(ctx)
			}
			return err
		})
		errs = append(errs, typed(err, "dropping "+ref))
	}
	return errors.Join(errs...)
}

// family is what goes with a checkpoint: every id that means its state, unless one of the others has a label.
func (x *session) family(ctx context.Context, id string) ([]string, error) {
	rows, err := x.s.opt.Journal.Checkpoints(ctx, x.feature.ID)
	if err != nil {
		return nil, err
	}
	means := map[string]string{}
	for _, r := range rows {
		means[r.ID] = cmp.Or(r.AliasOf, r.ID)
	}
	ids := []string{id}
	for _, r := range rows {
		switch {
		case r.ID == id || means[r.ID] != means[id]:
		case r.Label != "":
			return []string{id}, nil
		default:
			ids = append(ids, r.ID)
		}
	}
	return ids, nil
}

// drop forgets checkpoints: on disk first, which is the truth.
func (x *session) drop(ctx context.Context, ids []string) error {
	ctx = context.WithoutCancel(ctx)
	if err := x.evenFull(ctx, func() error { return x.layers.Drop(ctx, ids...) }); err != nil {
		return err
	}
	if err := x.s.opt.Journal.DropCheckpoints(ctx, x.feature.ID, ids...); err != nil {
		return err
	}
	for _, id := range ids {
		if err := x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "drop", To: id}); err != nil {
			return err
		}
	}
	return nil
}

// collect frees what nobody needs any more.
func (x *session) collect(ctx context.Context) (int64, error) {
	if lost, err := x.s.forkLost(ctx, &x.feature); err != nil || lost {
		return 0, err
	}
	needed, err := x.neededByKin(ctx)
	if err != nil {
		return 0, err
	}
	x.usage() // so that a step that has met the end of the disk is known to have, when there is room again
	var freed int64
	err = x.evenFull(ctx, func() (err error) { freed, err = x.layers.Collect(ctx, needed); return err })
	if x.unit != nil { // what a full disk has taken of it; else it is whole
		_ = x.unit.Reserve(false)
	}
	return freed, err
}

// neededByKin are the layers that other features of the lineage need.
func (x *session) neededByKin(ctx context.Context) ([]snapshot.LayerRef, error) {
	kin, err := x.s.opt.Journal.Kin(ctx, x.feature.ID)
	if err != nil {
		return nil, err
	}
	var needed []snapshot.LayerRef
	for i := range kin {
		if kin[i].ID == x.feature.ID {
			continue
		}
		refs, err := x.s.refsOf(ctx, &kin[i])
		if err != nil {
			return nil, fmt.Errorf("what the fork %s needs: %w", kin[i].Name, err)
		}
		needed = append(needed, refs...)
	}
	return needed, nil
}

// refsOf are the layers that a feature needs, read beside whoever works on it.
func (s *Supervisor) refsOf(ctx context.Context, f *FeatureRecord) (refs []snapshot.LayerRef, err error) {
	if x := s.session(f.ID); x != nil {
		return x.layers.Refs()
	}
	x := &session{s: s, feature: *f, dir: s.featureDir(f.ID)}
	if err = x.open(ctx, reading); err == nil {
		refs, err = x.layers.Refs()
	}
	return refs, errors.Join(err, x.close(ctx, false))
}

// Export writes a checkpoint as an OCI layer tar, and returns its digest.
func (s *Supervisor) Export(ctx context.Context, ref string, w io.Writer, o snapshot.ExportOptions) (digest string, err error) {
	err = s.at(ctx, ref, reading, func(x *session, id string) error {
		for { // an alias differs in nothing from its parent: what it means does
			row, err := s.opt.Journal.Checkpoint(ctx, x.feature.ID, id)
			if err != nil || row.AliasOf == "" {
				break
			}
			id = row.AliasOf
		}
		var err error
		digest, err = x.layers.Export(ctx, id, w, o)
		return err
	})
	return digest, typed(err, "exporting "+ref)
}

// Import makes a checkpoint of an OCI layer tar: a child of the head. Of one that is refused nothing stays.
func (s *Supervisor) Import(ctx context.Context, feature string, r io.Reader, o ImportOptions) (c *Checkpoint, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	err = s.use(ctx, feature, writing, func(x *session) error {
		c = &Checkpoint{Reason: ReasonImport, Label: o.Label}
		text, err := json.Marshal(meta{Reason: c.Reason, Label: c.Label, Created: time.Now()})
		if err != nil {
			return err
		}
		record, err := x.layers.Import(ctx, r, snapshot.ImportOptions{ID: s.opt.NewID(), Meta: text, Home: o.Home, Digest: o.Digest, MaxBytes: o.MaxBytes})
		if err != nil && !full(err) && ctx.Err() == nil {
			return &Error{Code: CodeUsage, Cause: "the archive cannot be imported", Exit: ExitRefused, Err: err, Remedy: "look at the file; --digest must be of the archive uncompressed"}
		}
		if err != nil {
			return err
		}
		x.fill(c, &record)
		return s.opt.Journal.AddCheckpoint(context.WithoutCancel(ctx), CheckpointRecord{*c})
	})
	if err != nil {
		return nil, typed(err, "importing into "+feature)
	}
	return c, nil
}

// ChangeBetween compares two states: FEATURE, FEATURE@CHECKPOINT, FEATURE@base.
func (s *Supervisor) ChangeBetween(ctx context.Context, a, b string) (c *snapshot.Change, err error) {
	err = s.between(ctx, a, b, func(x *session, from, to string) error {
		c, err = x.layers.Change(ctx, from, to)
		return err
	})
	return c, err
}

// DiffBetween writes what ChangeBetween compares as text.
func (s *Supervisor) DiffBetween(ctx context.Context, a, b string, w io.Writer, o snapshot.DiffOptions) error {
	return s.between(ctx, a, b, func(x *session, from, to string) error {
		c, err := x.layers.Change(ctx, from, to)
		if err != nil {
			return err
		}
		return x.layers.WriteDiff(ctx, c, w, o)
	})
}

func (s *Supervisor) between(ctx context.Context, a, b string, do func(x *session, from, to string) error) error {
	from, err := ParseRef(a)
	if err != nil {
		return err
	}
	to, err := ParseRef(b)
	if err != nil {
		return err
	}
	err = s.use(ctx, from.Feature, reading, func(x *session) error {
		f, err := s.opt.Journal.Feature(ctx, to.Feature)
		if err != nil {
			return explain(err, "feature", to.Feature)
		}
		if f.ID != x.feature.ID {
			return refuse(CodeUsage, "fork one from the other, or promote", "%s and %s are two features", x.feature.Name, f.Name)
		}
		ends := make([]string, 0, 2)
		for _, word := range []string{from.Checkpoint, to.Checkpoint} {
			id := snapshot.Current
			if word != "" {
				if id, err = x.resolveID(ctx, word); err != nil {
					return err
				}
			}
			ends = append(ends, id)
		}
		return do(x, ends[0], ends[1])
	})
	return typed(err, "comparing "+a+" with "+b)
}

package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// meta is what lies on disk beside a checkpoint, so that the journal's row can be made again.
type meta struct {
	TaskID  string    `json:"task,omitempty"`
	Step    int       `json:"step,omitempty"`
	Reason  string    `json:"reason"`
	Label   string    `json:"label,omitempty"`
	Created time.Time `json:"created"`
}

// seal makes the current state a checkpoint, which the caller records: c says what of.
func (x *session) seal(ctx context.Context, c *Checkpoint) error {
	c.ID = cmp.Or(c.ID, x.s.opt.NewID())
	text, err := json.Marshal(meta{TaskID: c.TaskID, Step: c.Step, Reason: c.Reason, Label: c.Label, Created: time.Now()})
	if err != nil {
		return err
	}
	if err := noteFirstBoot(x.dir); err != nil {
		return stateFailure(err)
	}
	start := time.Now()
	var sealed snapshot.Sealed
	err = x.evenFull(ctx, func() (err error) { sealed, err = x.sealLayers(ctx, c.ID, text); return err })
	if err != nil {
		return fmt.Errorf("sealing the state: %w", err)
	}
	if u, ok := x.usage(); ok {
		x.mu.Lock()
		x.sealed = u
		x.mu.Unlock()
	}
	if !sealed.Alias {
		x.s.timed(Timing{FeatureID: x.feature.ID, Kind: TimingSeal, At: start, Took: time.Since(start)})
	}
	if sealed.Pause > 0 {
		x.s.timed(Timing{FeatureID: x.feature.ID, Kind: TimingPause, At: start, Took: sealed.Pause})
	}
	x.fill(c, &sealed.Record)
	return nil
}

// evenFull does what has to be possible on a full disk too: for that something is kept back.
func (x *session) evenFull(ctx context.Context, do func() error) error {
	err := do()
	if !full(err) || x.unit == nil {
		return err
	}
	x.usage()          // it is full now, and a step may have failed of that
	if x.live != nil { // or who has filled the disk takes that too
		release, herr := x.live.Hold(ctx)
		if herr != nil { // the sandbox has ended of it
			return x.fullError(errors.Join(err, herr))
		}
		defer func() { _ = release() }()
	}
	if back := x.room(err); back != nil {
		err = do()
		back()
	}
	return x.fullError(err)
}

// room gives what is kept back for a full disk, if err says that it is full, until back; nil is nothing.
func (x *session) room(err error) (back func()) {
	if !full(err) || x.unit == nil {
		return nil
	}
	_ = x.unit.Reserve(true)
	return func() {
		err := x.unit.Reserve(false)
		if err == nil {
			return
		}
		ctx, cancel := detached(context.Background())
		defer cancel()
		// What of it fits is back; the next one tries again.
		_ = x.s.opt.Journal.Note(ctx, AuditRecord{FeatureID: x.feature.ID, Event: "disk", Cause: "the reserve is not whole: " + err.Error()})
	}
}

// mindReserve makes whole what is kept back for a full disk, as far as it can be, of what nobody needs if need be. A task that would begin without enough of it could
// leave a state that is neither sealed nor gone back from.
func (x *session) mindReserve(ctx context.Context) error {
	if x.unit == nil {
		return nil
	}
	err := x.unit.Reserve(false)
	if full(err) {
		_, err = x.collect(ctx)
		err = errors.Join(err, x.unit.Reserve(false))
	}
	return x.fullError(err)
}

// fullError says what helps when there is no room; any other error is left.
func (x *session) fullError(err error) error {
	if !full(err) {
		return err
	}
	return &Error{Code: CodeQuota, Cause: "the disk of " + x.feature.Name + " is full", Exit: ExitRefused, Err: syscall.ENOSPC, // where helps nobody
		Remedy: "drop checkpoints: caisson checkpoint rm; or go back without keeping what there is: caisson rollback " + x.feature.Name +
			" --to CHECKPOINT --no-undo; or work in a new feature with more: caisson run --disk SIZE"}
}

func (x *session) sealLayers(ctx context.Context, id string, meta json.RawMessage) (snapshot.Sealed, error) {
	if x.live != nil {
		return x.live.Seal(ctx, id, meta)
	}
	return x.layers.Seal(ctx, snapshot.SealOptions{ID: id, Meta: meta})
}

// fill puts what the disk says of a checkpoint into c.
func (x *session) fill(c *Checkpoint, r *snapshot.Record) {
	c.ID, c.Parent, c.AliasOf, c.Created, c.Generation = r.ID, r.Parent, r.AliasOf, r.Created, r.Generation
	c.Feature, c.FeatureID, c.Damaged = x.feature.Name, x.feature.ID, r.Damaged
	c.Bytes = r.Bytes
}

// full says that there was no room.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// save makes a checkpoint of a task's state after so many steps; it is recorded with the task's next transition. That one
// cannot be made is no reason to end the task: it is noted.
func (t *task) save(ctx context.Context, reason string, step int) error {
	if t.saving().Off {
		return nil
	}
	return t.sealStep(ctx, reason, step)
}

func (t *task) sealStep(ctx context.Context, reason string, step int) error {
	t.changing.Lock()
	defer t.changing.Unlock()
	c := &Checkpoint{TaskID: t.res.TaskID, Step: step, Reason: reason}
	if t.unsealed = t.session.seal(context.WithoutCancel(ctx), c); t.unsealed != nil {
		return t.unsaved(ctx, c, t.unsealed)
	}
	if t.saved != nil {
		if err := t.record(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	t.saved = c
	t.keep(c)
	return nil
}

// keep puts a checkpoint into the result.
func (t *task) keep(c *Checkpoint) {
	t.res.Checkpoints = append(t.res.Checkpoints, *c)
	if c.Step > 0 && c.Reason == ReasonStep {
		t.res.Steps[c.Step-1].Checkpoint = c.ID
	}
}

// unsaved notes that a checkpoint could not be made. When the sandbox has gone with it, so does the task.
func (t *task) unsaved(ctx context.Context, c *Checkpoint, err error) error {
	if errors.Is(err, os.ErrClosed) {
		return err
	}
	return t.s.opt.Journal.Note(context.WithoutCancel(ctx), AuditRecord{FeatureID: t.feature.ID, TaskID: t.res.TaskID, Step: c.Step,
		Event: "checkpoint", To: "failed", Cause: c.Reason + ": " + err.Error()})
}

// saving is when checkpoints of a task are made.
func (t *task) saving() CheckpointPolicy {
	if t.req.Checkpoints != nil {
		return *t.req.Checkpoints
	}
	return checkpointsOf(t.req.Profile)
}

// saveLast seals the state in which a task's steps left the feature. Where nothing runs any more, and it goes with the task or
// nothing is to be kept by itself, it is judged as it lies. Where others of the session may go on writing, only what is sealed
// is judged: gates would look at one state, and another one would be promoted.
func (t *task) saveLast(ctx context.Context) error {
	t.at = snapshot.Current
	if t.req.Remove && !t.stays() && t.req.Promote == PromoteNone {
		return nil
	}
	before := len(t.res.Checkpoints)
	save, live := t.save, t.stays()
	if live && t.req.Promote != PromoteNone {
		save = t.sealStep
	}
	if err := save(ctx, ReasonStep, max(t.stepNow(), t.first)); err != nil {
		return err
	}
	if len(t.res.Checkpoints) > before {
		t.at = t.res.Checkpoints[before].ID
	} else if live && t.req.Profile.Gates.On() || live && t.req.Promote != PromoteNone {
		return t.notSealed(ctx)
	}
	return nil
}

// notSealed leaves out what a task wants of a state that is not sealed while others may write to it: without checkpoints, nobody
// looks at it; where it cannot be sealed, that is a refusal.
func (t *task) notSealed(ctx context.Context) error {
	t.unjudged = true
	if t.res.Verdict != VerdictOK || t.unsealed == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](t.unsealed)
	if !ok {
		e = refuse(CodeHeld, "end what still runs in it: caisson stop "+t.feature.Name+"; then ask again: caisson gate run "+t.feature.Name,
			"the state could not be sealed, and what still runs in %s could change it while it is judged", t.feature.Name)
		e.Err = t.unsealed
	}
	t.fail(VerdictRefused, e.Code, e.Error(), e.Remedy)
	if t.req.Promote == PromoteNone {
		return nil
	}
	return t.s.noteRefusal(ctx, AuditRecord{FeatureID: t.feature.ID, TaskID: t.res.TaskID}, Refusal{What: RefusedPromote}, e)
}

package runner

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/gates"
	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/runner/flock"
	"github.com/caisson-dev/caisson/runner/live"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// PromoteOptions is how Promote promotes.
type PromoteOptions struct {
	Kind           string // PromoteApply ("" too), PromotePatch or PromoteBranch
	PatchFile      string // for PromotePatch
	Branch         BranchOptions
	Choice         snapshot.Choice // resolves conflicts; those that it does not name are refused
	AllowProtected []string        // globs: the explicit word for protected paths
	Stop           bool            // processes of other features that hold the workspace are stopped
	Check          bool            // only the gates are asked; nothing is handed over

	again bool // a task goes on that may have died while it handed its change over
}

// PromoteResult is what Promote did. Blocked by a gate, Report is nil and the error has CodeGate.
type PromoteResult struct {
	Feature    string                  `json:"feature"`
	Checkpoint string                  `json:"checkpoint"` // id of the state that was promoted
	Kind       string                  `json:"kind"`
	Change     ChangeSummary           `json:"change"`
	Gates      []gates.Verdict         `json:"gates"`
	Approvals  []Approval              `json:"approvals,omitempty"` // that let gates pass which had failed
	Unjudged   bool                    `json:"unjudged,omitempty"`  // the profile has switched the gates off
	Report     *snapshot.PromoteReport `json:"report,omitempty"`
}

// Promote applies a feature's change after its gates have passed. CodeGate with the verdicts in the result; CodeConflict
// wrapping *snapshot.ConflictError; CodeNothingToDo; CodeBusy.
func (s *Supervisor) Promote(ctx context.Context, ref string, o PromoteOptions) (*PromoteResult, error) {
	o.Kind = cmp.Or(o.Kind, PromoteApply)
	if err := checkPromote(&o); err != nil {
		return nil, err
	}
	parsed, err := ParseRef(ref)
	if err != nil {
		return nil, err
	}
	var r *PromoteResult
	err = s.use(ctx, parsed.Feature, writing, func(x *session) (err error) {
		r, err = x.judgeAndPromote(ctx, parsed, o)
		if err != nil && !o.Check {
			err = x.refusedPromotion(ctx, r, typed(err, "promoting "+ref))
		}
		return err
	})
	return r, typed(err, "promoting "+ref)
}

func (x *session) judgeAndPromote(ctx context.Context, ref Ref, o PromoteOptions) (*PromoteResult, error) {
	policy, err := x.s.policy(ctx, &x.feature)
	if err != nil {
		return nil, err
	}
	at := ""
	if ref.Checkpoint != "" {
		at, err = x.resolveID(ctx, ref.Checkpoint)
	} else {
		var c *Checkpoint
		if c, err = x.checkpoint(ctx, ReasonPromote, CheckpointOptions{}); err == nil {
			at = c.ID
		}
	}
	if err != nil {
		return nil, err
	}
	state, err := x.wanted(ctx, at, &o)
	if err != nil {
		return nil, err
	}
	c := state.change
	r := &PromoteResult{Feature: x.feature.Name, Kind: o.Kind, Change: *summary(c), Checkpoint: at, Unjudged: !policy.Gates.On()}
	if r.Change.Empty() && o.Check {
		return r, nil
	}
	if r.Change.Empty() && c.Resolved == nil {
		return r, refuse(CodeNothingToDo, "", "the feature %s has changed nothing", x.feature.Name)
	}
	if r.Gates, err = x.validate(ctx, policy, state, o.AllowProtected); err != nil {
		return r, err
	}
	if gates.Blocked(r.Gates) {
		return r, blockedError(x.feature.Name, r.Gates)
	}
	if r.Approvals, err = x.approvals(ctx, r.Gates); err != nil || o.Check {
		return r, err
	}
	begins, err := x.begins(c, at, o.Kind, r.Gates, r.Approvals)
	if err != nil {
		return r, err
	}
	if err := x.s.opt.Journal.Promoting(ctx, x.feature.ID, true, begins); err != nil {
		return r, err
	}
	while := handing(ctx, o.Kind)
	ctx = context.WithoutCancel(ctx)
	r.Report, err = x.promote(while, c, o, at)
	if err == nil {
		err = x.s.opt.Journal.Note(ctx, x.promotion("", at, how(o.Kind, r.Report), r.Gates, r.Approvals))
	}
	if err == nil && o.Kind == PromoteApply {
		err = x.arrived(ctx, r)
	}
	return r, errors.Join(err, x.s.opt.Journal.Promoting(ctx, x.feature.ID, false))
}

// handing is the context of handing a change over: nothing stops half way, what was begun is finished or undone. But a commit
// can be given up until its branch moves, and a task's patterns can make it long.
func handing(ctx context.Context, kind string) context.Context {
	if kind == PromoteBranch {
		return ctx
	}
	return context.WithoutCancel(ctx)
}

// promoteOptionsOf is how a task's change is promoted.
func promoteOptionsOf(r *Request) PromoteOptions {
	return PromoteOptions{Kind: r.Promote, PatchFile: r.PatchFile, Branch: r.Branch}
}

// validate runs the gates on a sealed state, and stores with it what they say.
func (x *session) validate(ctx context.Context, p *profiles.Effective, state *judged, allow []string) ([]gates.Verdict, error) {
	start := time.Now()
	verdicts, err := x.ask(ctx, p, state, allow)
	if err != nil {
		return nil, err
	}
	if verdicts, err = x.standing(ctx, state, verdicts); err != nil {
		return nil, err
	}
	x.s.timed(Timing{FeatureID: x.feature.ID, Kind: TimingValidation, At: start, Took: time.Since(start)})
	x.attach(ctx, state, verdicts)
	if state.at == snapshot.Current {
		return verdicts, nil
	}
	stored := verdicts
	if state.part || len(allow) > 0 {
		if stored, err = x.onlyLogged(ctx, state.at, verdicts); err != nil {
			return nil, err
		}
	}
	err = x.s.opt.Journal.AddVerdicts(context.WithoutCancel(ctx), state.at, stored)
	if errors.Is(err, ErrNotFound) {
		err = nil // the checkpoint is another feature's
	}
	if len(stored) == len(verdicts) || gates.Blocked(verdicts) {
		x.inform(ctx, state, verdicts)
	}
	return verdicts, err
}

// onlyLogged logs what gates say of a part of a checkpoint's change, or under a word that holds once, and leaves what is to be
// stored with the checkpoint all the same: failures that block. Nothing else says that the checkpoint is good.
func (x *session) onlyLogged(ctx context.Context, at string, verdicts []gates.Verdict) (rest []gates.Verdict, err error) {
	for _, v := range verdicts {
		failed, blocks := v.Status == gates.Fail || v.Status == gates.Error, v.Mode == gates.ModeBlock || v.Mode == gates.ModeMandatory
		if failed && blocks {
			rest = append(rest, v)
			continue
		}
		if v.Mode == gates.ModeOff && v.Status == gates.Skipped {
			continue
		}
		row := AuditRecord{FeatureID: x.feature.ID, Event: "gate", From: v.Gate, To: string(v.Status), Cause: v.Reason}
		row.Detail, err = json.Marshal(GateRecord{Gate: v.Gate, Checkpoint: at, Status: v.Status, Mode: v.Mode, Findings: len(v.Findings) + v.Dropped})
		if err == nil {
			err = x.s.opt.Journal.Note(context.WithoutCancel(ctx), row)
		}
		if err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// promote hands a sealed state over. Other live features of the workspace move first, or it is refused.
func (x *session) promote(ctx context.Context, c *snapshot.Change, o PromoteOptions, at string) (report *snapshot.PromoteReport, err error) {
	if at == snapshot.Current && x.live != nil {
		return nil, refuse(CodeHeld, "caisson stop "+x.feature.Name, "what runs in %s could change it while it is promoted", x.feature.Name)
	}
	options := snapshot.PromoteOptions{Kind: snapshot.PromoteKind(o.Kind), PatchFile: o.PatchFile,
		Moving: func(ctx context.Context, generation int) error { return x.moveOthers(ctx, generation, o.Stop) }}
	do := func(ctx context.Context) (bool, error) {
		if options.Kind == snapshot.PromoteBranch {
			report, err = x.branch(ctx, c, &o, at)
			return false, err
		}
		report, err = x.layers.Promote(ctx, c, options)
		return err == nil && options.Kind == snapshot.PromoteApply, err
	}
	// One promote into a workspace at a time, and before the sandbox is held: who is promoting waits for the others' turns.
	sum := sha256.Sum256([]byte(x.feature.Workspace))
	l, err := flock.Acquire(ctx, filepath.Join(x.s.state, "locks", hex.EncodeToString(sum[:8])))
	if err != nil && context.Cause(ctx) != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, stateFailure(err)
	}
	defer func() { _ = l.Release() }()
	if x.live != nil && options.Kind == snapshot.PromoteApply {
		err = x.live.Change(ctx, live.KeepOthers, do)
	} else {
		_, err = do(ctx)
	}
	if _, ok := errors.AsType[*snapshot.ConflictError](err); ok {
		return report, x.conflict(err)
	}
	if held, ok := errors.AsType[*isolation.HeldError](err); ok {
		return report, heldError(x.feature.Name, held.Holders)
	}
	if err == nil && at != snapshot.Current && options.Kind == snapshot.PromoteApply {
		yes := true
		if err = x.s.opt.Journal.UpdateCheckpoint(ctx, at, CheckpointUpdate{Promoted: &yes}); errors.Is(err, ErrNotFound) {
			err = nil
		}
	}
	return report, err
}

// moveOthers has the other live features of a workspace take up what a promote is about to replace. Those that are not
// live do when they are opened.
func (x *session) moveOthers(ctx context.Context, generation int, stop bool) error {
	features, err := x.s.opt.Journal.Features(ctx)
	if err != nil {
		return err
	}
	features = slices.DeleteFunc(features, func(f FeatureRecord) bool { return f.ID == x.feature.ID || f.Workspace != x.feature.Workspace })
	if len(features) == 0 {
		return nil
	}
	held := flock.Holders()
	features = slices.DeleteFunc(features, func(f FeatureRecord) bool {
		return x.s.session(f.ID) == nil && !held.Alive(lockFile(x.s.featureDir(f.ID)))
	})
	for i := range features { // before any of them has moved
		if err := x.s.mayMove(ctx, &features[i], stop); err != nil {
			return errors.Join(err, snapshot.ErrStayed)
		}
	}
	for i := range features {
		if err := x.s.move(ctx, &features[i], generation, stop); err != nil {
			return err
		}
	}
	return nil
}

// mayMove refuses when a live feature cannot be moved, or does not answer: to find out later would be too late for those
// that were stopped.
func (s *Supervisor) mayMove(ctx context.Context, f *FeatureRecord, stop bool) error {
	ctx, cancel := context.WithTimeout(ctx, rebaseTime)
	defer cancel()
	var holders []isolation.Holder
	var err error
	switch {
	case s.session(f.ID) != nil:
		holders, err = s.Holders(ctx, f.ID)
	case s.opt.Daemon == nil:
		return refuse(CodeHeld, "wait until it has ended", "the feature %s of the same workspace is in use", f.Name)
	default:
		holders, err = s.opt.Daemon.Holders(ctx, f.ID)
	}
	if err == nil && len(holders) > 0 && !stop {
		e := heldError(f.Name, holders)
		e.Remedy = "end them, or stop them with --stop"
		return e
	}
	return silent(err, f)
}

// move has a live feature take up new base layers.
func (s *Supervisor) move(ctx context.Context, f *FeatureRecord, generation int, stop bool) error {
	if s.session(f.ID) != nil {
		return s.Rebase(ctx, f.ID, generation, stop)
	}
	ctx, cancel := context.WithTimeout(ctx, rebaseTime)
	defer cancel()
	if s.opt.Daemon == nil {
		return refuse(CodeHeld, "wait until it has ended", "the feature %s of the same workspace is in use", f.Name)
	}
	return silent(s.opt.Daemon.Rebase(ctx, f.ID, generation, stop), f)
}

// silent explains that a feature did not answer.
func silent(err error, f *FeatureRecord) error {
	if err != nil && CodeOf(err) == CodeInternal {
		return &Error{Code: CodeHeld, Cause: "the feature " + f.Name + " of the same workspace does not answer", Exit: ExitRefused, Err: err,
			Remedy: "wait until it has ended, or stop it: caisson stop " + f.Name}
	}
	return err
}

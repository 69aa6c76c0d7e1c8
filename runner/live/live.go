// Package live is one live feature: a sandbox on a feature's layers, and the order in which it is made still, sealed,
// exchanged and let go. It knows nothing of tasks and of journals.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/watch"
)

// Options are what a Feature is made of. It owns none of them.
type Options struct {
	Layers snapshot.Layers
	Engine isolation.Engine
	Spec   *isolation.Spec // its stacks are made from Layers
	Watch  *watch.Options  // without uppers: those are the layers'; nil: nobody watches

	// Room makes room on a full disk, if err says that it is full, until back is called; back is nil where that does not
	// help. New stacks take a little, when what they are for has been done already. nil: there is none to be made.
	Room func(err error) (back func())
}

// Feature is one live sandbox on a feature's layers. It is safe for concurrent use.
type Feature struct {
	layers snapshot.Layers
	box    isolation.Sandbox
	turn   chan struct{} // one that changes the stacks at a time; a channel, to give up waiting
	watch  *watch.Watcher
	room   func(err error) (back func())
}

// HolderPolicy is what is done with processes when the stacks change.
type HolderPolicy int

const (
	StopAll    HolderPolicy = iota // every process but PID 1 is killed
	KeepOthers                     // nobody is; a holder refuses with *isolation.HeldError
)

// targets are what checkpoints are made of.
var targets = []string{snapshot.WorkspaceTarget, snapshot.HomeTarget}

// Start starts the sandbox. The layers are pinned meanwhile: a promote of another feature either finds it live, or has
// happened before.
func Start(ctx context.Context, o Options) (_ *Feature, err error) {
	unpin, err := o.Layers.Pin(ctx)
	if err != nil {
		return nil, err
	}
	defer unpin()
	f := &Feature{layers: o.Layers, turn: make(chan struct{}, 1), room: o.Room}
	if o.Watch != nil {
		w := *o.Watch
		w.Upper, w.Home = f.uppers()
		if f.watch, err = watch.Start(context.WithoutCancel(ctx), w); err != nil {
			f.watch = nil // seals find what it would have told
		}
	}
	err = f.mounted(func() (err error) {
		o.Spec.Stacks = Stacks(o.Layers.Stacks())
		f.box, err = o.Engine.Start(ctx, o.Spec)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, f.unwatch())
	}
	return f, nil
}

// mounted readies the layers and mounts them, on a full disk with what is kept back for that.
func (f *Feature) mounted(mount func() error) error {
	try := func() error {
		if err := f.layers.Prepare(); err != nil {
			return err
		}
		return mount()
	}
	err := try()
	if err != nil && f.room != nil {
		if back := f.room(err); back != nil {
			err = try()
			back()
		}
	}
	return err
}

// uppers are the directories that are written to now.
func (f *Feature) uppers() (workspace, home string) {
	s := f.layers.Stacks()
	return s[0].Upper, s[1].Upper
}

// rewatch says that everything so far is in a checkpoint.
func (f *Feature) rewatch() {
	if f.watch != nil {
		_ = f.watch.Reset(f.uppers()) // it may have ended: then nobody watches
	}
}

func (f *Feature) unwatch() error {
	if f.watch == nil {
		return nil
	}
	return f.watch.Close()
}

// Events tells what changes in the layers; nil when nobody watches.
func (f *Feature) Events() <-chan []watch.Event {
	if f.watch == nil {
		return nil
	}
	return f.watch.Events()
}

// Due says when it is time for a checkpoint; nil when nobody watches.
func (f *Feature) Due() <-chan struct{} {
	if f.watch == nil {
		return nil
	}
	return f.watch.Due()
}

// WatchMode is how changes are seen; "" when they are not.
func (f *Feature) WatchMode() string {
	if f.watch == nil {
		return ""
	}
	return f.watch.Mode()
}

// Stacks are a driver's stacks as an engine mounts them.
func Stacks(list []snapshot.Stack) []isolation.Stack {
	out := make([]isolation.Stack, len(list))
	for i, s := range list {
		out[i] = isolation.Stack{Target: s.Target, Upper: s.Upper, Work: s.Work}
		for _, l := range s.Lower {
			layer := isolation.Layer{Path: l.Path}
			if l.Base {
				layer.Map = isolation.MapOwner
			}
			out[i].Lower = append(out[i].Lower, layer)
		}
	}
	return out
}

// Sandbox is what commands are run in.
func (f *Feature) Sandbox() isolation.Sandbox { return f.box }

// Holders are the processes that hold the workspace or HOME.
func (f *Feature) Holders(ctx context.Context) ([]isolation.Holder, error) {
	return f.box.Holders(ctx, targets...)
}

// lock waits for the turn to change the stacks.
func (f *Feature) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case f.turn <- struct{}{}:
		return func() { <-f.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Seal makes the current state a checkpoint: by rotation when nobody holds it, so at a constant cost; else by a copy of
// what changed, during which everybody stands still for a moment.
func (f *Feature) Seal(ctx context.Context, id string, meta json.RawMessage) (sealed snapshot.Sealed, err error) {
	unlock, err := f.lock(ctx)
	if err != nil {
		return sealed, err
	}
	defer unlock()
	o := snapshot.SealOptions{ID: id, Meta: meta}
	err = f.still(ctx, func() error {
		holders, err := f.holders(ctx)
		if err != nil || len(holders) > 0 {
			o.Live = &snapshot.Live{Pause: f.pause}
			return err
		}
		if sealed, err = f.layers.Seal(ctx, o); err != nil || !sealed.Rotated {
			return err
		}
		return f.exchange(ctx)
	})
	if err == nil && o.Live != nil {
		sealed, err = f.layers.Seal(ctx, o)
	}
	if err == nil {
		f.rewatch()
	}
	return sealed, err
}

// holders asks the kernel only when somebody lives who could be one.
func (f *Feature) holders(ctx context.Context) ([]isolation.Holder, error) {
	pids, err := f.box.Processes(ctx)
	if err != nil || len(pids) == 0 {
		return nil, err
	}
	return f.Holders(ctx)
}

// pause is how a copying seal makes everybody stand still.
func (f *Feature) pause(ctx context.Context) (snapshot.Paused, error) {
	release, err := f.box.Hold(ctx)
	if err != nil {
		return snapshot.Paused{}, err
	}
	mapped, err := f.box.Mapped(ctx, targets...)
	if err != nil {
		return snapshot.Paused{}, errors.Join(err, release())
	}
	return snapshot.Paused{Mapped: mapped, Resume: release}, nil
}

// still does something while nobody runs.
func (f *Feature) still(ctx context.Context, do func() error) error {
	release, err := f.box.Hold(ctx)
	if err != nil {
		return err
	}
	return errors.Join(do(), release())
}

// exchange mounts what the layers describe now. What cannot be mounted must not go on being written to: the old upper is
// part of a checkpoint, so a failure ends the sandbox.
func (f *Feature) exchange(ctx context.Context) error {
	err := f.mounted(func() error { return f.box.Exchange(ctx, Stacks(f.layers.Stacks())...) })
	if err != nil {
		return errors.Join(fmt.Errorf("the sandbox was ended, its state is safe: %w", err), f.box.Close(context.WithoutCancel(ctx)))
	}
	return nil
}

// Change does what changes the stacks (changed), with nobody running, and mounts the new ones. Who holds the old ones is
// dealt with as p says.
func (f *Feature) Change(ctx context.Context, p HolderPolicy, do func(context.Context) (changed bool, err error)) error {
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for {
		if p == StopAll {
			if err := f.killOthers(ctx); err != nil {
				return err
			}
		}
		again := false
		err := f.still(ctx, func() error {
			holders, err := f.holders(ctx)
			if err != nil {
				return err
			}
			if len(holders) > 0 {
				again = p == StopAll // it was started after the others were killed
				return &isolation.HeldError{Holders: holders}
			}
			changed, err := do(ctx)
			if changed {
				err = errors.Join(err, f.exchange(ctx))
				f.rewatch()
			}
			return err
		})
		if !again {
			return err
		}
	}
}

// Reset goes back to a checkpoint, or to some of its paths.
func (f *Feature) Reset(ctx context.Context, o snapshot.ResetOptions, p HolderPolicy) (report *snapshot.ResetReport, err error) {
	if o.DryRun {
		return f.layers.Reset(ctx, o)
	}
	err = f.Change(ctx, p, func(ctx context.Context) (bool, error) {
		report, err = f.layers.Reset(ctx, o)
		return err == nil, err
	})
	return report, err
}

// Rebase takes up new base layers.
func (f *Feature) Rebase(ctx context.Context, p HolderPolicy) error {
	return f.Change(ctx, p, func(context.Context) (bool, error) {
		err := f.layers.Rebase()
		return err == nil, err
	})
}

// Hold keeps everybody still until release.
func (f *Feature) Hold(ctx context.Context) (release func() error, err error) { return f.box.Hold(ctx) }

// Quiet kills every process but PID 1 and keeps others from being started until release.
func (f *Feature) Quiet(ctx context.Context) (release func() error, err error) {
	for {
		if err := f.killOthers(ctx); err != nil {
			return nil, err
		}
		if release, err = f.box.Hold(ctx); err != nil {
			return nil, err
		}
		pids, err := f.box.Processes(ctx)
		if err == nil && len(pids) == 0 {
			return release, nil
		}
		if err = errors.Join(err, release()); err != nil {
			return nil, err
		}
	}
}

// Pause makes the sandbox stand still, Unpause lets it go on.
func (f *Feature) Pause(ctx context.Context) error { return f.box.Freeze(ctx) }

// Unpause undoes Pause.
func (f *Feature) Unpause(ctx context.Context) error { return f.box.Thaw(ctx) }

// Closed reports whether the sandbox has ended by itself.
func (f *Feature) Closed(ctx context.Context) bool {
	_, err := f.box.Processes(ctx)
	return errors.Is(err, os.ErrClosed)
}

// Close ends the sandbox; the layers stay open.
func (f *Feature) Close(ctx context.Context) error {
	return errors.Join(f.box.Close(ctx), f.unwatch())
}

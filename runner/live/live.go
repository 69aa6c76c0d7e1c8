// Package live is one live feature: its layers, its disk unit, its cgroup, its sandbox and the watcher of its upper, and
// the order in which they are made still, sealed, exchanged and let go. It knows nothing of tasks and of journals.
package live

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Options are what a Feature is made of. It owns none of them but the sandbox that it starts.
type Options struct {
	Layers snapshot.Layers
	Engine isolation.Engine
	Spec   *isolation.Spec // without stacks: those are the layers'
}

// Feature is one live sandbox on a feature's layers. It is safe for concurrent use.
type Feature struct {
	layers snapshot.Layers
	box    isolation.Sandbox
}

// HolderPolicy is what Reset does with processes that hold the workspace or HOME.
type HolderPolicy int

const (
	StopAll    HolderPolicy = iota // every process but PID 1 is killed
	KeepOthers                     // nobody is; a holder refuses with *isolation.HeldError
)

// Start starts the sandbox.
func Start(context.Context, Options) (*Feature, error) { return nil, errors.ErrUnsupported }

// Sandbox is what commands are run in.
func (f *Feature) Sandbox() isolation.Sandbox { return f.box }

// Holders are the processes that hold the workspace or HOME.
func (f *Feature) Holders(context.Context) ([]isolation.Holder, error) {
	return nil, errors.ErrUnsupported
}

// Seal makes the current state a checkpoint.
func (f *Feature) Seal(_ context.Context, _ string, _ json.RawMessage) (snapshot.Sealed, error) {
	return snapshot.Sealed{}, errors.ErrUnsupported
}

// Reset goes back to a checkpoint.
func (f *Feature) Reset(context.Context, snapshot.ResetOptions, HolderPolicy) (*snapshot.ResetReport, error) {
	return nil, errors.ErrUnsupported
}

// Rebase takes up new base layers.
func (f *Feature) Rebase(context.Context) error { return errors.ErrUnsupported }

// Close ends the sandbox.
func (f *Feature) Close(context.Context) error { return errors.ErrUnsupported }

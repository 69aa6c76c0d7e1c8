//go:build !linux

package overlay

import (
	"context"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Create makes the layers of a new feature.
func Create(snapshot.CreateOptions) (snapshot.Layers, error) { return nil, snapshot.ErrPlatform }

// Open opens what Create or Fork made.
func Open(snapshot.OpenOptions) (snapshot.Layers, error) { return nil, snapshot.ErrPlatform }

// Fork makes the layers of a new feature that begins with a checkpoint of another.
func Fork(context.Context, snapshot.OpenOptions, string, snapshot.CreateOptions) (snapshot.Layers, error) {
	return nil, snapshot.ErrPlatform
}

// Repair makes a damaged feature usable as far as that goes.
func Repair(context.Context, snapshot.OpenOptions) ([]snapshot.DamageError, error) {
	return nil, snapshot.ErrPlatform
}

// CanKeep says why features cannot be layers.
func CanKeep(string) error { return snapshot.ErrPlatform }

// CollectBases frees what promotes to a workspace took away and no feature needs any more.
func CollectBases(context.Context, string, string, int) (int64, error) {
	return 0, snapshot.ErrPlatform
}

// CollectUnusedBases frees what promotes took away from workspaces that no feature is on any more.
func CollectUnusedBases(context.Context, string, func(string) bool) (int64, error) {
	return 0, snapshot.ErrPlatform
}

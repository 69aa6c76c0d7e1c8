//go:build !linux

package copytree

import (
	"context"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

// Possible, Create, Open, Fork and Repair answer that they need Linux.
func Possible(string) error { return snapshot.ErrPlatform }

func Create(snapshot.CreateOptions) (snapshot.Layers, error) { return nil, snapshot.ErrPlatform }

func Open(snapshot.OpenOptions) (snapshot.Layers, error) { return nil, snapshot.ErrPlatform }

func Fork(context.Context, snapshot.OpenOptions, string, snapshot.CreateOptions) (snapshot.Layers, error) {
	return nil, snapshot.ErrPlatform
}

func Repair(context.Context, snapshot.OpenOptions) ([]snapshot.DamageError, error) {
	return nil, snapshot.ErrPlatform
}

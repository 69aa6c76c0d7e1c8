//go:build !linux

package disk

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

func probe(context.Context, string) []Support {
	var all []Support
	for _, m := range Mechanisms() {
		all = append(all, Support{Mechanism: m, Reason: "not on " + runtime.GOOS})
	}
	return all
}

var errPlatform = fmt.Errorf("disk units on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Store exists on Linux only.
type Store struct{}

// OpenStore returns errors.ErrUnsupported.
func OpenStore(string) (*Store, error) { return nil, errPlatform }

// Warm does nothing.
func (*Store) Warm(context.Context, Mechanism, Limits) error { return errPlatform }

// Create does nothing.
func (*Store) Create(context.Context, string, Mechanism, Limits) (*Unit, error) {
	return nil, errPlatform
}

// Open does nothing.
func (*Store) Open(context.Context, string) (*Unit, error) { return nil, errPlatform }

// View does nothing.
func (*Store) View(context.Context, string) (*Unit, error) { return nil, errPlatform }

// Remove does nothing.
func (*Store) Remove(context.Context, string) error { return errPlatform }

// List does nothing.
func (*Store) List() ([]string, error) { return nil, errPlatform }

// Clean does nothing.
func (*Store) Clean(context.Context) ([]string, error) { return nil, errPlatform }

// Room does nothing.
func (*Store) Room(Limits) (Room, error) { return Room{}, errPlatform }

// Unit exists on Linux only.
type Unit struct{}

// Dir is empty.
func (*Unit) Dir() string { return "" }

// Mechanism is empty.
func (*Unit) Mechanism() Mechanism { return "" }

// Limits is empty.
func (*Unit) Limits() Limits { return Limits{} }

// Usage does nothing.
func (*Unit) Usage() (Usage, error) { return Usage{}, errPlatform }

// WasFull does nothing.
func (*Unit) WasFull(time.Time) (Usage, bool) { return Usage{}, false }

// Resize does nothing.
func (*Unit) Resize(context.Context, Limits) error { return errPlatform }

// Reserve does nothing.
func (*Unit) Reserve(bool) error { return errPlatform }

// Watch does nothing.
func (*Unit) Watch(context.Context, func(context.Context) ([]int, error)) <-chan Usage {
	c := make(chan Usage)
	close(c)
	return c
}

// Sync does nothing.
func (*Unit) Sync() error { return errPlatform }

// Discard does nothing.
func (*Unit) Discard() error { return nil }

// Close does nothing.
func (*Unit) Close() error { return nil }

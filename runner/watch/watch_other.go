//go:build !linux

package watch

import (
	"context"
	"errors"
)

// Watcher watches one feature's uppers; on this system there are none.
type Watcher struct{}

func start(context.Context, Options) (*Watcher, error) { return nil, errors.ErrUnsupported }

// Events is nil.
func (w *Watcher) Events() <-chan []Event { return nil }

// Due is nil.
func (w *Watcher) Due() <-chan struct{} { return nil }

// Mode is ModeScan.
func (w *Watcher) Mode() string { return ModeScan }

// Reset does nothing.
func (w *Watcher) Reset(string, string) error { return errors.ErrUnsupported }

// Close does nothing.
func (w *Watcher) Close() error { return nil }

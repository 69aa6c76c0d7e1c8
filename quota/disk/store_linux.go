package disk

import (
	"context"
	"errors"
)

// Store makes, opens and removes the units of a state directory. Several processes share one; it is safe for concurrent
// use. What it needs beside the units lies in the directory disk of the state directory.
type Store struct {
	state string // the state directory
}

// OpenStore returns the store of a state directory, which must exist. It touches nothing.
func OpenStore(stateDir string) (*Store, error) { return &Store{state: stateDir}, nil }

// Warm prepares what Create needs for these limits and may take 30 ms when it is done for the first time: the template
// of an image. It is safe to call it beside everything else.
func (s *Store) Warm(ctx context.Context, m Mechanism, l Limits) error { return errors.ErrUnsupported }

// Create makes the unit of feature id, in features/ID of the state directory, and opens it. It answers fs.ErrExist where
// there is one, *RoomError, *quota.LimitError.
func (s *Store) Create(ctx context.Context, id string, m Mechanism, l Limits) (*Unit, error) {
	return nil, errors.ErrUnsupported
}

// Open opens a unit: fs.ErrNotExist where there is none, ErrDamaged, *RoomError.
func (s *Store) Open(ctx context.Context, id string) (*Unit, error) {
	return nil, errors.ErrUnsupported
}

// Remove removes a unit that nobody has open, and what it holds. No error when there is none.
func (s *Store) Remove(ctx context.Context, id string) error { return errors.ErrUnsupported }

// List returns the features that have a unit.
func (s *Store) List() ([]string, error) { return nil, errors.ErrUnsupported }

// Clean removes what belongs to no unit and says what it was: loop devices, project quotas, templates, half-made files.
func (s *Store) Clean(ctx context.Context) ([]string, error) { return nil, errors.ErrUnsupported }

// Room says how much is promised, and how many more units with these limits would fit.
func (s *Store) Room(l Limits) (Room, error) { return Room{}, errors.ErrUnsupported }
